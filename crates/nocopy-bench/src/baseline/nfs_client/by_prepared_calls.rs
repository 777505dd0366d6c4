//! The least that a program can do to read by NFS: calls that were made beforehand, and a loop of `recv()`
//! that only counts how many bytes of replies came.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nocopy_nfs::client::{Client, Url};
use nocopy_nfs::wire::nfs3::{self, FileHandle, Procedure, ReadArguments};
use nocopy_nfs::wire::record;
use nocopy_nfs::wire::rpc::{AUTH_NONE, Call, Credential};
use nocopy_nfs::wire::xdr::Xdr;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::{IN_FLIGHT, ReadResult, ReadWindow};

/// Length of the receive buffer; the best `recv()` loop uses the same.
const BUFFER_BYTES: usize = 256 << 10;

/// Offset of the file offset in a call, counted from its end.
const OFFSET_FROM_END: usize = 12;

pub(super) fn read_by_prepared_calls(
    url: &str,
    from: SocketAddr,
    connections: usize,
    bytes: usize,
    file_bytes: u64,
    window: Duration,
) -> io::Result<ReadResult> {
    let url: Url = url.parse().map_err(io::Error::other)?;
    let (mut client, below) = Client::builder().connect(&url).map_err(io::Error::other)?;
    let file = client.walk(&below).map_err(io::Error::other)?.file;
    drop(client);
    let mut calls = PreparedCalls {
        call: read_call_template(file, bytes as u32),
        next: 0,
        file_bytes,
        bytes: bytes as u64,
    };
    let mut streams: Vec<ReplyStream> =
        (0..connections).map(|_| ReplyStream::new(from)).collect::<io::Result<_>>()?;
    for stream in &mut streams {
        calls.send_read_calls(&stream.socket, IN_FLIGHT / connections)?;
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut window = ReadWindow::new(window);
    let flags = if connections == 1 { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    loop {
        if connections > 1 {
            let mut polled: Vec<_> =
                streams.iter().map(|stream| PollFd::new(&stream.socket, PollFlags::IN)).collect();
            poll(&mut polled, None)?;
        }
        for stream in &mut streams {
            let count = match recv(&stream.socket, &mut buffer[..], flags) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, count)) => count,
                Err(Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            };
            let answered = stream.count_replies(&buffer[..count], bytes)?;
            calls.send_read_calls(&stream.socket, answered)?;
            if let Some(result) = window.count_bytes(answered * bytes)? {
                return Ok(result);
            }
        }
    }
}

fn read_call_template(file: FileHandle, bytes: u32) -> Vec<u8> {
    let mut call = record::begin();
    let credential = Credential { flavor: AUTH_NONE, body: &[] };
    let procedure = Procedure::Read as u32;
    Call { xid: 0, program: nfs3::PROGRAM, version: 3, procedure, credential, arguments: &[] }
        .encode(&mut call);
    ReadArguments { file, offset: 0, bytes }.encode(&mut call);
    record::end(&mut call, 0);
    call
}

#[derive(Debug)]
struct PreparedCalls {
    call: Vec<u8>,
    next: u64,
    file_bytes: u64,
    bytes: u64,
}

impl PreparedCalls {
    fn send_read_calls(&mut self, mut socket: &TcpStream, count: usize) -> io::Result<()> {
        let mut all = Vec::with_capacity(count * self.call.len());
        for _ in 0..count {
            let at = self.call.len() - OFFSET_FROM_END;
            self.call[at..at + 8].copy_from_slice(&self.next.to_be_bytes());
            all.extend_from_slice(&self.call);
            self.next = (self.next + self.bytes) % self.file_bytes;
        }
        socket.write_all(&all)
    }
}

#[derive(Debug)]
struct ReplyStream {
    socket: TcpStream,
    /// Length of each reply; 0 until the first has arrived.
    reply_bytes: usize,
    /// Received bytes of an incomplete reply.
    partial_bytes: usize,
}

impl ReplyStream {
    fn new(from: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(from)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, reply_bytes: 0, partial_bytes: 0 })
    }

    /// The number of replies that end with these bytes. All replies have the length of the first, which must
    /// have all requested bytes.
    fn count_replies(&mut self, received: &[u8], bytes: usize) -> io::Result<usize> {
        if self.reply_bytes == 0 {
            let mark = received.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
            self.reply_bytes = 4 + (u32::from_be_bytes(*mark) & !(1 << 31)) as usize;
            if self.reply_bytes < bytes {
                return Err(io::Error::other(format!(
                    "the server replied {} bytes, more than a read can have",
                    self.reply_bytes
                )));
            }
        }
        self.partial_bytes += received.len();
        let answered = self.partial_bytes / self.reply_bytes;
        self.partial_bytes %= self.reply_bytes;
        Ok(answered)
    }
}
