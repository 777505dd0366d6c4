//! A TCP connection that sends each message at once.

use std::io;
use std::net::{TcpListener, TcpStream};

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};

use crate::stage::{CONGESTION_CONTROL, SitePair};
use nocopy_transfer::exchange::WaitMode;
use nocopy_transfer::exchange::tcp::TcpExchange;

const PORT: u16 = 7072;

/// The asking or sending, and the answering or receiving side.
pub(crate) fn connected_pair(stage: &SitePair, waiting: WaitMode) -> io::Result<(TcpExchange, TcpExchange)> {
    let listener = stage.receiver.run(|| TcpListener::bind((stage.receiver.ipv4, PORT)))?;
    let asking = stage.sender.run(|| TcpStream::connect((stage.receiver.ipv4, PORT)))?;
    let (answering, _) = listener.accept()?;
    for stream in [&asking, &answering] {
        set_congestion_control(stream)?;
    }
    Ok((TcpExchange::new(asking, waiting)?, TcpExchange::new(answering, waiting)?))
}

/// Sets it, because the results name it.
pub(crate) fn set_congestion_control(stream: &TcpStream) -> io::Result<()> {
    set_tcp_congestion(stream, CONGESTION_CONTROL)?;
    match tcp_congestion(stream)? {
        found if found == CONGESTION_CONTROL => Ok(()),
        found => {
            Err(io::Error::other(format!("the congestion control is {found}, not {CONGESTION_CONTROL}")))
        }
    }
}
