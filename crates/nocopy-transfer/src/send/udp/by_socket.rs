//! Datagrams through a socket, several in one buffer.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nocopy::udp::{Message, Method, Sender, Socket};
use nocopy_proto::errno::{ErrorCounts, errno_number};

use super::Error;
use super::payload::FillResult;
use super::transport::{SendResult, Transport, TransportReport, is_recoverable, refused_counts};
use super::writer::DatagramWriter;
use crate::attempts::wildcard_address;
use crate::source::await_source_address;

#[derive(Debug)]
pub(super) struct SocketTransport {
    /// Connected to the receiver.
    socket: Socket,
    /// Probes to the receiver that the kernel refused.
    probes_refused: ErrorCounts,
}

impl SocketTransport {
    /// Opens a socket with the given or the measured method; for groups, on the interface with this index.
    pub(super) fn open(
        to: SocketAddr,
        method: Option<Method>,
        interface: Option<u32>,
    ) -> Result<Self, Error> {
        let mut builder = Socket::builder().broadcast(true);
        if let Some(method) = method {
            builder = builder.method(method);
        }
        if let Some(index) = interface {
            builder = builder.multicast(index, 1);
        }
        await_source_address(to);
        let mut socket = builder.bind((wildcard_address(to), 0))?;
        socket.connect(to).map_err(|source| Error::Connect { to, source })?;
        Ok(Self { socket, probes_refused: ErrorCounts::default() })
    }
}

impl Transport for SocketTransport {
    fn send(&mut self, writer: &mut DatagramWriter<'_>, count: usize) -> Result<SendResult, Error> {
        let sender = self.socket.sender();
        let Some(mut buffer) = sender.buffer() else {
            sender.reap();
            return Ok(SendResult::NoRoom);
        };
        let datagram_bytes = writer.shape.datagram_bytes;
        buffer.resize(count * datagram_bytes);
        let places = buffer.chunks_mut(datagram_bytes);
        match writer.fill(places)? {
            FillResult::Bytes(bytes) => buffer.resize(bytes),
            nothing => {
                sender.recycle(buffer);
                return Ok(if nothing == FillResult::End { SendResult::End } else { SendResult::Nothing });
            }
        }
        buffer.chunks_mut(datagram_bytes).for_each(|datagram| writer.complete_datagram(datagram));
        let message = Message::segments(buffer, datagram_bytes);
        sender.send(message).map_err(|rejected| Error::Rejected(rejected.reason))?;
        match sender.flush() {
            Err(error) if !is_send_error_ignored(sender, &error) => Err(Error::Refused(error)),
            _ => Ok(SendResult::Sent),
        }
    }

    fn send_control(&mut self, datagram: &[u8]) -> Result<(), Error> {
        let Self { socket, probes_refused } = self;
        let Err(reason) = socket.sender().send_copy(datagram) else { return Ok(()) };
        let error = io::Error::from(reason);
        probes_refused.add(&error, 1);
        if is_send_error_ignored(socket.sender(), &error) { Ok(()) } else { Err(Error::Refused(error)) }
    }

    fn receive(&mut self, patience: Duration, take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let batch = self.socket.receiver().receive_timeout(patience).map_err(Error::Receive)?;
        batch.for_each(|datagram| take(&datagram));
        Ok(())
    }

    fn network_errors(&mut self) -> Vec<io::Error> {
        self.socket.sender().errors().map(|told| told.error).collect()
    }

    fn drain(&mut self, patience: Duration) -> Result<(), Error> {
        let sender = self.socket.sender();
        match sender.drain(patience) {
            Err(error) if !is_send_error_ignored(sender, &error) => Err(Error::Refused(error)),
            _ => Ok(()),
        }
    }

    fn report(&mut self) -> TransportReport {
        let sender = self.socket.sender();
        let refused = refused_counts(&sender.stats(), &self.probes_refused);
        TransportReport {
            explanation: sender.explain().to_string().lines().map(|line| line.trim().to_owned()).collect(),
            refused,
            ledger: sender.ledger(),
        }
    }
}

/// A full queue is no error even at first: it has room again later.
fn is_send_error_ignored(sender: &Sender, error: &io::Error) -> bool {
    matches!(errno_number(error), Some(libc::ENOBUFS | libc::ENOMEM)) || is_recoverable(sender, error)
}
