//! What programs over `std::net::{TcpStream, TcpListener}` use, so that they run over these after a change of
//! their `use` lines. All of it is done by the halves.

use std::io;
use std::net::Shutdown;

use socket2::SockRef;

use super::{Listener, OpenError, Stream};

impl Stream {
    /// Ends sending ([`Sender::finish`](super::Sender::finish)), receiving, or both. What is queued is handed
    /// over before.
    ///
    /// # Errors
    /// As [`Sender::flush`](super::Sender::flush); the connection is closed.
    pub fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Read {
            self.sender.finish()?;
        }
        if how != Shutdown::Write {
            rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Read)?;
        }
        Ok(())
    }

    /// Whether the last part of what is handed over is sent at once, also if it fills no segment
    /// (`TCP_NODELAY`; default: yes, unlike in std).
    ///
    /// # Errors
    /// The kernel refused it.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        SockRef::from(&*self.socket).set_tcp_nodelay(on)
    }
}

/// Reads by the [`Receiver`](super::Receiver).
impl io::Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receiver.read(buffer)
    }
}

/// Reads by the [`Receiver`](super::Receiver).
impl io::BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.receiver.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.receiver.consume(bytes);
    }
}

/// Writes by the [`Sender`](super::Sender): the kernel has the bytes when a call returns, and the peer needs
/// no flush to receive them.
impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sender.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sender.flush()
    }
}

impl Listener {
    /// The streams of all connections as they are [accepted](Self::accept), without end.
    ///
    /// ```
    /// use nocopy::tcp::{Listener, Stream};
    /// use std::io::{BufRead, Write};
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// let mut client = Stream::connect(listener.local_addr()?)?;
    /// client.write_all(b"hello\n")?;
    /// for stream in listener.incoming().take(1) {
    ///     let mut line = String::new();
    ///     stream?.read_line(&mut line)?;
    ///     assert_eq!(line, "hello\n");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn incoming(&self) -> impl Iterator<Item = Result<Stream, OpenError>> {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }
}
