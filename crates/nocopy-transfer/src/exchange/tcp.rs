//! Messages over a TCP connection: each with its length in front, four bytes, big-endian.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nocopy::integration::poll;
use rustix::event::{PollFd, PollFlags};

use super::{Exchange, PATIENCE, SEND_MAX, WaitMode, retry_until_ready};

/// Bytes of the length.
const PREFIX_BYTES: usize = 4;

/// The most bytes read by one call.
const BUFFER_BYTES: usize = 256 << 10;

/// Up to this length, prefix and message are joined: cheaper than passing two pieces to the kernel.
const JOINED_BYTES_MAX: usize = 4096;

/// The most pieces of a call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendMode {
    /// Each message by its own call.
    Single,
    /// In place, by one `writev`.
    Batched,
    /// Copied into one buffer, with their lengths in front, and sent by one `write`.
    Gathered,
}

#[derive(Debug)]
pub struct TcpExchange {
    stream: TcpStream,
    waiting: WaitMode,
    mode: SendMode,
    reader: MessageReader,
    joined: Vec<u8>,
}

impl TcpExchange {
    /// An exchange over a connection; small messages are sent at once.
    pub fn new(stream: TcpStream, waiting: WaitMode) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(!waiting.sleeps_in_calls())?;
        if waiting.sleeps_in_calls() {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
        }
        Ok(Self { stream, waiting, mode: SendMode::Single, reader: MessageReader::new(), joined: Vec::new() })
    }

    pub fn with_batched_sends(self) -> Self {
        Self { mode: SendMode::Batched, ..self }
    }

    /// Sends several messages by one `write`, copied into one buffer.
    pub fn with_gathered_sends(self) -> Self {
        Self { mode: SendMode::Gathered, ..self }
    }

    /// Passes a message on when all of it has come, in one piece, as programs need that use it as a whole.
    pub fn with_whole_messages(mut self) -> Self {
        self.reader.only_whole = true;
        self
    }

    fn send_batched(&self, messages: &[&[u8]]) -> io::Result<()> {
        for messages in messages.chunks(PIECES_MAX / 2) {
            let prefixes = messages
                .iter()
                .map(|message| length_prefix(message.len()))
                .collect::<io::Result<Vec<_>>>()?;
            let pairs = prefixes.iter().zip(messages);
            let mut pieces: Vec<_> =
                pairs.flat_map(|(prefix, message)| [IoSlice::new(prefix), IoSlice::new(message)]).collect();
            write_all(&self.stream, self.waiting, &mut pieces)?;
        }
        Ok(())
    }

    fn send_gathered<'m>(&mut self, messages: impl Iterator<Item = &'m [u8]>) -> io::Result<()> {
        self.joined.clear();
        for message in messages {
            self.joined.extend_from_slice(&length_prefix(message.len())?);
            self.joined.extend_from_slice(message);
        }
        write_all(&self.stream, self.waiting, &mut [IoSlice::new(&self.joined)])
    }
}

impl Exchange for TcpExchange {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if message.len() > JOINED_BYTES_MAX {
            let prefix = length_prefix(message.len())?;
            let pieces = &mut [IoSlice::new(&prefix), IoSlice::new(message)];
            return write_all(&self.stream, self.waiting, pieces);
        }
        self.send_gathered(std::iter::once(message))
    }

    fn send_with_prepared(&mut self, new: &[u8], ready: &Arc<[u8]>) -> io::Result<()> {
        self.joined.clear();
        self.joined.extend_from_slice(&length_prefix(new.len() + ready.len())?);
        self.joined.extend_from_slice(new);
        let pieces = &mut [IoSlice::new(&self.joined), IoSlice::new(ready)];
        write_all(&self.stream, self.waiting, pieces)
    }

    fn send_all<'m>(&mut self, mut messages: impl Iterator<Item = &'m [u8]>) -> io::Result<()> {
        match self.mode {
            SendMode::Single => messages.try_for_each(|message| self.send(message)),
            SendMode::Batched => self.send_batched(&messages.collect::<Vec<_>>()),
            SendMode::Gathered => self.send_gathered(messages),
        }
    }

    fn receive(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
        loop {
            if self.reader.pass_message(&mut take) {
                return Ok(true);
            }
            let Self { stream, waiting, reader, .. } = self;
            match retry_until_ready(*waiting, &*stream, || reader.fill(stream))? {
                None => return Ok(false),
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(_) => {}
            }
        }
    }

    fn finish(&mut self, _patience: Duration) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }
}

fn length_prefix(message_bytes: usize) -> io::Result<[u8; PREFIX_BYTES]> {
    let bytes = u32::try_from(message_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(bytes.to_be_bytes())
}

/// One call; more only if the kernel did not accept everything.
fn write_all(mut stream: &TcpStream, waiting: WaitMode, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
    let mut stalled: Option<Instant> = None;
    while !pieces.is_empty() {
        match stream.write_vectored(pieces) {
            Ok(written) => {
                IoSlice::advance_slices(&mut pieces, written);
                stalled = None;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if stalled.get_or_insert_with(Instant::now).elapsed() > SEND_MAX {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                if waiting == WaitMode::Adaptive {
                    poll(&mut [PollFd::new(&stream, PollFlags::OUT)], Some(PATIENCE))?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Cuts a stream into messages, which are passed on in place.
#[derive(Debug)]
struct MessageReader {
    buffer: Vec<u8>,
    /// Read bytes that were not passed on yet are from here to `end`.
    start: usize,
    end: usize,
    /// Missing bytes of the current message; `None` before its length is known.
    missing: Option<usize>,
    /// Messages are passed on in one piece, from the beginning of the buffer.
    only_whole: bool,
}

impl MessageReader {
    fn new() -> Self {
        Self { buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, missing: None, only_whole: false }
    }

    fn fill(&mut self, mut stream: &TcpStream) -> io::Result<usize> {
        if self.start > 0 {
            // The rest is at most a part of a length.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let read = stream.read(&mut self.buffer[self.end..])?;
        self.end += read;
        Ok(read)
    }

    /// Passes on a message of which all bytes are there; returns whether there was one.
    fn pass_whole_message(&mut self, take: &mut impl FnMut(&[u8])) -> bool {
        let Some(prefix) = self.buffer[..self.end].first_chunk() else { return false };
        let end = PREFIX_BYTES + u32::from_be_bytes(*prefix) as usize;
        if self.end < end {
            self.buffer.resize(end, 0); // if messages are of one length, no byte of the next one is read
            return false;
        }
        take(&self.buffer[PREFIX_BYTES..end]);
        self.buffer.copy_within(end..self.end, 0);
        self.end -= end;
        true
    }

    /// Passes on the received bytes of the current message; returns true at its end.
    fn pass_message(&mut self, take: &mut impl FnMut(&[u8])) -> bool {
        if self.only_whole {
            return self.pass_whole_message(take);
        }
        let missing = match self.missing {
            Some(missing) => missing,
            None => match self.buffer[self.start..self.end].first_chunk() {
                Some(prefix) => {
                    self.start += PREFIX_BYTES;
                    u32::from_be_bytes(*prefix) as usize
                }
                None => return false,
            },
        };
        let here = missing.min(self.end - self.start);
        if here > 0 {
            take(&self.buffer[self.start..self.start + here]);
        }
        self.start += here;
        self.missing = Some(missing - here).filter(|left| *left > 0);
        self.missing.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn connected_pair(waiting: WaitMode) -> (TcpExchange, TcpExchange) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        (TcpExchange::new(one, waiting).unwrap(), TcpExchange::new(other, waiting).unwrap())
    }

    /// The next message, and the number of pieces it was received in.
    fn receive_next_message(tcp: &mut TcpExchange) -> Vec<u8> {
        let mut message = Vec::new();
        while !tcp.receive(|piece| message.extend_from_slice(piece)).unwrap() {}
        message
    }

    #[test]
    fn messages_of_every_length_arrive_complete_in_order() {
        for waiting in WaitMode::ALL {
            let modes = [SendMode::Single, SendMode::Batched, SendMode::Gathered];
            for (mode, is_whole) in modes.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
                let (mut from, mut to) = connected_pair(waiting);
                from.mode = mode;
                to.reader.only_whole = is_whole;
                let lengths = [0, 1, 3, 64, 4096, 4097, BUFFER_BYTES - 4, BUFFER_BYTES, 1_000_003, 5];
                let messages: Vec<Vec<u8>> =
                    lengths.iter().enumerate().map(|(number, &bytes)| vec![number as u8; bytes]).collect();
                let sent = messages.clone();
                let sender = std::thread::spawn(move || {
                    from.send_all(sent.iter().map(|message| &message[..])).unwrap();
                    from.finish(PATIENCE).unwrap();
                });
                for message in &messages {
                    assert!(
                        receive_next_message(&mut to) == *message,
                        "{waiting:?} {mode:?} {}",
                        message.len()
                    );
                }
                sender.join().unwrap();
                let end = loop {
                    match to.receive(|_| ()) {
                        Ok(came) => assert!(!came),
                        Err(error) => break error.kind(),
                    }
                };
                assert_eq!(end, io::ErrorKind::UnexpectedEof);
            }
        }
    }

    #[test]
    fn a_timeout_yields_no_message() {
        for waiting in WaitMode::ALL {
            let (mut one, _other) = connected_pair(waiting);
            assert!(!one.receive(|_| unreachable!()).unwrap());
        }
    }
}
