//! A pair of connected UDP sockets.

use std::io;
use std::net::UdpSocket;

use crate::stage::{Site, Stage};
use nocopy_transfer::exchange::WaitMode;
use nocopy_transfer::exchange::udp::Udp;

const PORT: u16 = 7071;

/// The asking and the answering side.
pub(crate) fn pair(stage: &Stage, waiting: WaitMode) -> io::Result<(Udp, Udp)> {
    Ok((open(&stage.sender, &stage.receiver, waiting)?, open(&stage.receiver, &stage.sender, waiting)?))
}

fn open(here: &Site, there: &Site, waiting: WaitMode) -> io::Result<Udp> {
    let socket = here.run(|| UdpSocket::bind((here.ipv4, PORT)))?;
    socket.connect((there.ipv4, PORT))?;
    Udp::new(socket, waiting)
}
