//! The control connection between the two ends of a transfer: messages in both directions, without waiting.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use crate::transfer::CONTROL_BYTES;
use crate::transfer::stream::{ControlMessage, MalformedMessage, MessageBuffer};

#[derive(Debug)]
pub(crate) struct ControlConnection {
    stream: TcpStream,
    buffer: MessageBuffer,
    /// Bytes that the kernel had no room for.
    unsent: Vec<u8>,
}

/// A result of reading from the other end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ControlReceiveResult {
    Message(Result<ControlMessage, MalformedMessage>),
    Nothing,
    End,
}

impl ControlConnection {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: MessageBuffer::new(), unsent: Vec::new() })
    }

    /// Whether the kernel has accepted all messages; until then a caller should queue no more.
    pub(crate) fn has_sent_all(&mut self) -> bool {
        self.write_unsent();
        self.unsent.is_empty()
    }

    pub(crate) fn send(&mut self, message: &[u8; CONTROL_BYTES]) {
        self.unsent.extend(message);
        self.write_unsent();
    }

    /// Writes as much as the kernel has room for. A broken connection is noticed when reading.
    fn write_unsent(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(bytes @ 1..) => drop(self.unsent.drain(..bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return,
            }
        }
    }

    pub(crate) fn receive(&mut self) -> ControlReceiveResult {
        loop {
            match self.stream.read(self.buffer.unfilled()) {
                Ok(0) => return ControlReceiveResult::End,
                Ok(bytes) => match self.buffer.advance_filled(bytes) {
                    Some(message) => return ControlReceiveResult::Message(message),
                    None => continue,
                },
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return ControlReceiveResult::Nothing,
                    io::ErrorKind::Interrupted => {}
                    _ => return ControlReceiveResult::End,
                },
            }
        }
    }

    /// The connection, from which a message may have arrived.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }
}

impl AsFd for ControlConnection {
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
    use crate::transfer::stream::StreamHead;

    #[test]
    fn partial_messages_are_awaited_and_unsent_ones_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut control =
            ControlConnection::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let head = StreamHead { run: 1, number: 0, streams: 1, offset: 0, length: None };
        let message = head.emit();
        let give_up = Instant::now() + Duration::from_secs(60);
        other.write_all(&message[..10]).unwrap();
        while ioctl_fionread(&control).unwrap() < 10 {
            assert!(Instant::now() < give_up, "it does not come");
        }
        assert_eq!(control.receive(), ControlReceiveResult::Nothing);
        let mut receive = |bytes: &[u8]| {
            other.write_all(bytes).unwrap();
            loop {
                match control.receive() {
                    ControlReceiveResult::Nothing => assert!(Instant::now() < give_up, "it does not come"),
                    incoming => break incoming,
                }
            }
        };
        assert_eq!(receive(&message[10..]), ControlReceiveResult::Message(Ok(ControlMessage::Head(head))));
        assert_eq!(receive(&[0; CONTROL_BYTES]), ControlReceiveResult::Message(Err(MalformedMessage)));
        // Data for which the receiver has no room is kept, and sent later.
        let mut said = 0;
        while control.has_sent_all() {
            control.send(&message);
            said += CONTROL_BYTES;
        }
        let mut read = 0;
        let mut buffer = vec![0; 1 << 16];
        while read < said {
            control.has_sent_all();
            read += other.read(&mut buffer).unwrap();
        }
        assert_eq!(read, said);
        drop(other);
        assert_eq!(control.receive(), ControlReceiveResult::End);
    }
}
