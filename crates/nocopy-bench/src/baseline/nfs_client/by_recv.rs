//! The least work to receive: a loop of `recv()` that reads no byte of the data.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::{ReadResult, ReadWindow};

pub(super) fn read_by_recv(
    from: SocketAddr,
    connections: usize,
    bytes: usize,
    window: Duration,
) -> io::Result<ReadResult> {
    let streams: Vec<TcpStream> =
        (0..connections).map(|_| TcpStream::connect(from)).collect::<Result<_, _>>()?;
    let mut buffer = vec![0; bytes];
    let mut window = ReadWindow::new(window);
    // With one connection the call itself waits.
    let flags = if streams.len() == 1 { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    loop {
        if streams.len() > 1 {
            let mut polled: Vec<_> =
                streams.iter().map(|stream| PollFd::new(stream, PollFlags::IN)).collect();
            poll(&mut polled, None)?;
        }
        for stream in &streams {
            match recv(stream, &mut buffer[..], flags) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, count)) => {
                    if let Some(result) = window.count_bytes(count)? {
                        return Ok(result);
                    }
                }
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
