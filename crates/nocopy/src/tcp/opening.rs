//! Streams that are connected without waiting.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::builder::{Builder, OpenError, new_socket};
use super::{Receiver, Stream};
use crate::engine::address;
use crate::facts::evidence::Ledger;
use crate::sys::poll::{Wakeup, wait_writable};
use crate::sys::tcp_receive;

#[derive(Debug)]
pub(crate) struct Opening {
    socket: socket2::Socket,
    builder: Builder,
    address: SocketAddr,
}

impl Builder {
    /// Begins to connect to that address, from an address of this host if one is given, with any port number.
    pub(crate) fn start_connect(
        self,
        from: Option<SocketAddr>,
        address: SocketAddr,
    ) -> Result<Opening, OpenError> {
        let socket = new_socket(address)?;
        self.set(&socket)?; // as with `connect`
        if let Some(mut from) = from {
            from.set_port(0);
            address::bind(&socket, from).map_err(|source| OpenError::Bind { address: from, source })?;
        }
        socket.set_nonblocking(true).map_err(OpenError::Socket)?;
        match socket.connect(&address.into()) {
            Err(source) if source.raw_os_error() != Some(libc::EINPROGRESS) => {
                Err(OpenError::Connect { address, source })
            }
            _ => Ok(Opening { socket, builder: self, address }),
        }
    }
}

impl Opening {
    /// The stream, once it is connected; until then it returns itself.
    pub(crate) fn finish(self) -> Result<Result<Stream, Box<Self>>, OpenError> {
        let Self { socket, builder, address } = self;
        let failed = |source: io::Error| OpenError::Connect { address, source };
        if wait_writable(socket.as_fd(), Duration::ZERO).map_err(failed)? != Wakeup::Ready {
            return Ok(Err(Box::new(Self { socket, builder, address })));
        }
        match socket.take_error().map_err(failed)? {
            Some(source) => Err(failed(source)),
            None => builder.finish(socket.into(), false).map(Ok),
        }
    }
}

impl Stream {
    pub(crate) fn sent(&self) -> Ledger {
        self.sender.ledger()
    }
}

impl AsFd for Opening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Receiver {
    /// Copies arrived bytes into the caller's memory, without waiting, and returns how many: 0 at the end of the stream, `None` if none
    /// have arrived. The caller counts them.
    #[inline]
    pub(crate) fn read_now(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        match tcp_receive::receive(self.kernel_socket(), room, false) {
            Ok(0) if !room.is_empty() => self.end_now().map(|()| Some(0)),
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
