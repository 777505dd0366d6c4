//! Datagrams through a socket, several in one buffer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use nocopy::udp::{Message, Method, SendError, Socket};

use super::Error;
use super::payload::Filled;
use super::transport::{Account, SendResult, Transport};
use super::writer::DatagramWriter;

/// The socket, connected to the receiver.
#[derive(Debug)]
pub(super) struct BySocket(Socket);

impl BySocket {
    /// Opens a socket with the given or the measured method; for groups, on the interface with this index.
    pub(super) fn open(
        to: SocketAddr,
        method: Option<Method>,
        interface: Option<u32>,
    ) -> Result<Self, Error> {
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let mut builder = Socket::builder().broadcast(true);
        if let Some(method) = method {
            builder = builder.method(method);
        }
        if let Some(index) = interface {
            builder = builder.multicast(index, 1);
        }
        let mut socket = builder.bind((any, 0).into())?;
        socket.connect(to).map_err(|source| Error::Connect { to, source })?;
        Ok(Self(socket))
    }
}

impl Transport for BySocket {
    fn send(&mut self, writer: &mut DatagramWriter<'_>, count: usize) -> Result<SendResult, Error> {
        let sender = self.0.sender();
        let Some(mut buffer) = sender.buffer() else {
            sender.reap();
            return Ok(SendResult::NoRoom);
        };
        let datagram_bytes = writer.shape.datagram_bytes;
        buffer.resize(count * datagram_bytes);
        let places = buffer.as_mut().unwrap_or_default().chunks_mut(datagram_bytes);
        match writer.fill(places)? {
            Filled::Bytes(bytes) => buffer.resize(bytes),
            nothing => {
                sender.recycle(buffer);
                return Ok(if nothing == Filled::End { SendResult::End } else { SendResult::Nothing });
            }
        }
        buffer
            .as_mut()
            .unwrap_or_default()
            .chunks_mut(datagram_bytes)
            .for_each(|datagram| writer.seal(datagram));
        let message = Message::segments(buffer, datagram_bytes);
        sender.send(message, None).map_err(|rejected| Error::Rejected(rejected.reason))?;
        sender.flush().or_else(forgive)?;
        Ok(SendResult::Sent)
    }

    fn send_control(&mut self, datagram: &[u8]) -> Result<(), Error> {
        self.0.sender().send_copy(datagram, None).map_err(io::Error::from).or_else(forgive)
    }

    fn receive(&mut self, patience: Duration, take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let batch = self.0.receiver().receive_timeout(patience).map_err(Error::Receive)?;
        batch.for_each(|datagram| take(&datagram));
        Ok(())
    }

    fn network_errors(&mut self) -> Vec<io::Error> {
        self.0.sender().errors().map(|told| told.error).collect()
    }

    fn drain(&mut self, patience: Duration) -> Result<(), Error> {
        self.0.sender().drain(patience).map(drop).or_else(forgive)
    }

    fn account(&mut self) -> Account {
        let sender = self.0.sender();
        Account {
            report: sender.explain().to_string().lines().map(|line| line.trim().to_owned()).collect(),
            refused: sender.stats().map_or(0, |stats| stats.dropped),
            ledger: sender.ledger(),
        }
    }
}

/// A full queue is not an error: it has room again later.
fn forgive(error: io::Error) -> Result<(), Error> {
    let refused = error.get_ref().and_then(|inner| inner.downcast_ref::<SendError>());
    match refused.and_then(|refused| refused.source.raw_os_error()) {
        Some(libc::ENOBUFS | libc::ENOMEM) => Ok(()),
        _ => Err(Error::Refused(error)),
    }
}
