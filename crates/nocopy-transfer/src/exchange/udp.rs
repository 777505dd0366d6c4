//! Messages as UDP datagrams, one each, through an ordinary socket.

use std::io;
use std::net::UdpSocket;

use super::{Exchange, PATIENCE, WaitMode, retry_until_ready};

/// The longest payload over IPv4.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Longer than any datagram.
const BUFFER_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub struct UdpExchange {
    socket: UdpSocket,
    waiting: WaitMode,
    buffer: Box<[u8]>,
}

impl UdpExchange {
    /// Over a socket connected to the other end.
    pub fn new(socket: UdpSocket, waiting: WaitMode) -> io::Result<Self> {
        socket.set_nonblocking(!waiting.sleeps_in_calls())?;
        if waiting.sleeps_in_calls() {
            socket.set_read_timeout(Some(PATIENCE))?;
        }
        Ok(Self { socket, waiting, buffer: vec![0; BUFFER_BYTES].into() })
    }
}

impl Exchange for UdpExchange {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self.socket.send(message) {
            // No room now: treated like a lost datagram, which a sender must expect anyway.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            sent => sent.map(drop),
        }
    }

    fn receive(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
        let Self { socket, waiting, buffer } = self;
        let received = retry_until_ready(*waiting, &*socket, || socket.recv(buffer))?;
        let Some(bytes) = received else { return Ok(false) };
        take(&buffer[..bytes]);
        Ok(true)
    }
}
