//! A pair of connected UDP sockets.

use std::io;
use std::net::UdpSocket;

use crate::stage::{NetworkSite, SitePair};
use nocopy_transfer::exchange::WaitMode;
use nocopy_transfer::exchange::udp::UdpExchange;

const PORT: u16 = 7071;

/// The asking and the answering side.
pub(crate) fn connected_pair(stage: &SitePair, waiting: WaitMode) -> io::Result<(UdpExchange, UdpExchange)> {
    Ok((
        open_connected_socket(&stage.sender, &stage.receiver, waiting)?,
        open_connected_socket(&stage.receiver, &stage.sender, waiting)?,
    ))
}

fn open_connected_socket(
    here: &NetworkSite,
    there: &NetworkSite,
    waiting: WaitMode,
) -> io::Result<UdpExchange> {
    let socket = here.run(|| UdpSocket::bind((here.ipv4, PORT)))?;
    socket.connect((there.ipv4, PORT))?;
    UdpExchange::new(socket, waiting)
}
