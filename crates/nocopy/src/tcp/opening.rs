//! Streams that are connected without waiting.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::Stream;
use super::builder::Builder;
use super::open_error::OpenError;
use crate::engine::address;
use crate::sys::poll::{Wakeup, wait_writable};

#[derive(Debug)]
pub(crate) struct ConnectInProgress {
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
    ) -> Result<ConnectInProgress, OpenError> {
        let socket = self.new_socket(address)?;
        if let Some(mut from) = from {
            from.set_port(0);
            address::bind(&socket, from).map_err(|source| OpenError::Bind { address: from, source })?;
        }
        socket.set_nonblocking(true).map_err(OpenError::Socket)?;
        match socket.connect(&address.into()) {
            Err(source) if source.raw_os_error() != Some(libc::EINPROGRESS) => {
                Err(OpenError::Connect { address, source })
            }
            _ => Ok(ConnectInProgress { socket, builder: self, address }),
        }
    }
}

impl ConnectInProgress {
    /// The stream, once it is connected; until then it returns itself.
    pub(crate) fn finish_connect(self) -> Result<Result<Stream, Box<Self>>, OpenError> {
        let Self { socket, builder, address } = self;
        let failed = |source: io::Error| OpenError::Connect { address, source };
        if wait_writable(socket.as_fd(), Duration::ZERO).map_err(failed)? != Wakeup::Ready {
            return Ok(Err(Box::new(Self { socket, builder, address })));
        }
        match socket.take_error().map_err(failed)? {
            Some(source) => Err(failed(source)),
            None => builder.into_stream(socket.into(), false).map(Ok),
        }
    }
}

impl AsFd for ConnectInProgress {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
