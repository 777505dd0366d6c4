//! A pair of connected UDP sockets.

use std::io;
use std::net::UdpSocket;

use crate::bench::stage::{Site, Stage};
use crate::bench::workload::latency::{Exchange, PATIENCE, PAYLOAD_BYTES, Waiting};

const PORT: u16 = 7071;

#[derive(Debug)]
pub(crate) struct Udp {
    socket: UdpSocket,
}

/// The asking and the answering side.
pub(crate) fn pair(stage: &Stage, waiting: Waiting) -> io::Result<(Udp, Udp)> {
    Ok((open(&stage.sender, &stage.receiver, waiting)?, open(&stage.receiver, &stage.sender, waiting)?))
}

fn open(here: &Site, there: &Site, waiting: Waiting) -> io::Result<Udp> {
    let socket = here.run(|| UdpSocket::bind((here.ipv4, PORT)))?;
    socket.connect((there.ipv4, PORT))?;
    match waiting {
        Waiting::Spinning => socket.set_nonblocking(true)?,
        Waiting::Blocking => socket.set_read_timeout(Some(PATIENCE))?,
    }
    Ok(Udp { socket })
}

impl Exchange for Udp {
    fn send(&mut self, payload: &[u8; PAYLOAD_BYTES]) -> io::Result<()> {
        self.socket.send(payload)?;
        Ok(())
    }

    fn receive(&mut self, payload: &mut [u8; PAYLOAD_BYTES]) -> io::Result<bool> {
        match self.socket.recv(payload) {
            Ok(length) => Ok(length == PAYLOAD_BYTES),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}
