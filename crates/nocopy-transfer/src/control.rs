//! The control connection between the two ends of a transfer: messages in both directions, without waiting.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use crate::transfer::CONTROL_BYTES;
use crate::transfer::stream::{Malformed, Message, MessageBuffer};

#[derive(Debug)]
pub(crate) struct Control {
    stream: TcpStream,
    buffer: MessageBuffer,
    /// Bytes that the kernel had no room for.
    unsent: Vec<u8>,
}

/// A result of reading from the other end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    Message(Result<Message, Malformed>),
    Nothing,
    End,
}

impl Control {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: MessageBuffer::new(), unsent: Vec::new() })
    }

    /// Whether the kernel has accepted all messages; until then a caller should queue no more.
    pub(crate) fn is_clear(&mut self) -> bool {
        self.push();
        self.unsent.is_empty()
    }

    pub(crate) fn send(&mut self, message: &[u8; CONTROL_BYTES]) {
        self.unsent.extend(message);
        self.push();
    }

    /// Writes as much as the kernel has room for. A broken connection is noticed when reading.
    fn push(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(bytes @ 1..) => drop(self.unsent.drain(..bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return,
            }
        }
    }

    pub(crate) fn receive(&mut self) -> Incoming {
        loop {
            match self.stream.read(self.buffer.room()) {
                Ok(0) => return Incoming::End,
                Ok(bytes) => match self.buffer.filled(bytes) {
                    Some(message) => return Incoming::Message(message),
                    None => continue,
                },
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Incoming::Nothing,
                    io::ErrorKind::Interrupted => {}
                    _ => return Incoming::End,
                },
            }
        }
    }

    /// The connection, from which a message may have arrived.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use rustix::io::ioctl_fionread;

    use super::*;
    use crate::transfer::stream::Head;

    #[test]
    fn messages_arrive_unchanged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut control = Control::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let head = Head { run: 1, number: 0, streams: 1, offset: 0, length: None };
        let message = head.emit();
        let give_up = Instant::now() + Duration::from_secs(60);
        other.write_all(&message[..10]).unwrap();
        while ioctl_fionread(&control).unwrap() < 10 {
            assert!(Instant::now() < give_up, "it does not come");
        }
        assert_eq!(control.receive(), Incoming::Nothing);
        let mut receive = |bytes: &[u8]| {
            other.write_all(bytes).unwrap();
            loop {
                match control.receive() {
                    Incoming::Nothing => assert!(Instant::now() < give_up, "it does not come"),
                    incoming => break incoming,
                }
            }
        };
        assert_eq!(receive(&message[10..]), Incoming::Message(Ok(Message::Head(head))));
        assert_eq!(receive(&[0; CONTROL_BYTES]), Incoming::Message(Err(Malformed)));
        // Data for which the receiver has no room is kept, and sent later.
        let mut said = 0;
        while control.is_clear() {
            control.send(&message);
            said += CONTROL_BYTES;
        }
        let mut read = 0;
        let mut buffer = vec![0; 1 << 16];
        while read < said {
            control.is_clear();
            read += other.read(&mut buffer).unwrap();
        }
        assert_eq!(read, said);
        drop(other);
        assert_eq!(control.receive(), Incoming::End);
    }
}
