//! A TCP connection that sends small messages at once.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::bench::stage::Stage;
use crate::bench::workload::latency::{Exchange, PATIENCE, PAYLOAD_BYTES, Waiting};

const PORT: u16 = 7072;

/// Named, not left to the machine: bbr, a common default, paces, and is another competitor altogether.
pub(crate) const CONGESTION_CONTROL: &str = "cubic";

#[derive(Debug)]
pub(crate) struct Tcp {
    stream: TcpStream,
    /// Bytes of the current message that are in the caller's payload already.
    received: usize,
}

/// The asking and the answering side.
pub(crate) fn pair(stage: &Stage, waiting: Waiting) -> io::Result<(Tcp, Tcp)> {
    let listener = stage.receiver.run(|| TcpListener::bind((stage.receiver.ipv4, PORT)))?;
    let asking = stage.sender.run(|| TcpStream::connect((stage.receiver.ipv4, PORT)))?;
    let (answering, _) = listener.accept()?;
    Ok((prepare(asking, waiting)?, prepare(answering, waiting)?))
}

fn prepare(stream: TcpStream, waiting: Waiting) -> io::Result<Tcp> {
    rustix::net::sockopt::set_tcp_congestion(&stream, CONGESTION_CONTROL)?;
    stream.set_nodelay(true)?;
    match waiting {
        Waiting::Spinning => stream.set_nonblocking(true)?,
        Waiting::Blocking => stream.set_read_timeout(Some(PATIENCE))?,
    }
    Ok(Tcp { stream, received: 0 })
}

impl Exchange for Tcp {
    fn send(&mut self, payload: &[u8; PAYLOAD_BYTES]) -> io::Result<()> {
        // One message is under way at a time, so the send buffer is never full.
        self.stream.write_all(payload)
    }

    fn receive(&mut self, payload: &mut [u8; PAYLOAD_BYTES]) -> io::Result<bool> {
        match self.stream.read(&mut payload[self.received..]) {
            // The other side is done; there will be no message, and soon nobody asks for one.
            Ok(0) => Ok(false),
            Ok(count) => {
                self.received = (self.received + count) % PAYLOAD_BYTES;
                Ok(self.received == 0)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}
