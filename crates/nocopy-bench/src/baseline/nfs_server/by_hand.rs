//! Two servers that know one file and one call: one copies through its own buffer, the other lets the kernel
//! send the file.

use std::fs::{File, Metadata};
use std::io::{self, IoSlice, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nocopy_nfs::server::core::encode_read_reply;
use nocopy_nfs::wire::nfs3::{Attributes, FileType, PROGRAM, Procedure, ReadArguments, Time};
use nocopy_nfs::wire::record::RecordAssembler;
use nocopy_nfs::wire::rpc::Call;
use nocopy_nfs::wire::xdr::{padding, parse};
use rustix::fs::sendfile;
use rustix::io::pread;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::{Deserialize, Serialize};

pub(crate) const FILE: &[u8] = b"the file";

const CALL_BYTES_MAX: usize = 1 << 10;
const CALLS_BYTES: usize = 64 << 10;
const READ_BYTES_MAX: usize = 1 << 20;

/// The method of moving the file's bytes into the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TransferMethod {
    /// `pread()` into a buffer, and `writev()` of header and buffer.
    PreadWritev,
    /// The header by `send()` with `MSG_MORE`, then `sendfile()`.
    Sendfile,
    /// For writes: `recv()` into a buffer, then `pwrite()`.
    RecvPwrite,
}

#[derive(Debug)]
pub(super) struct HandWrittenReadServer {
    method: TransferMethod,
    listener: TcpListener,
    file: File,
    buffer: Vec<u8>,
}

impl HandWrittenReadServer {
    pub(super) fn open(method: TransferMethod, at: Ipv4Addr, file: &Path) -> io::Result<Self> {
        let buffer = vec![0; READ_BYTES_MAX];
        Ok(Self { method, listener: TcpListener::bind((at, 0))?, file: File::open(file)?, buffer })
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        self.listener.local_addr().map(|address| address.port())
    }

    pub(super) fn run(mut self) -> io::Result<()> {
        loop {
            let (stream, _) = self.listener.accept()?;
            stream.set_nodelay(true)?;
            // The client closes it when it is done, with replies in flight; a refused client sees the end of
            // the connection.
            let _ = self.serve_connection(&stream);
        }
    }

    fn serve_connection(&mut self, stream: &TcpStream) -> io::Result<()> {
        let mut records = RecordAssembler::new(CALL_BYTES_MAX);
        let mut calls = vec![0; CALLS_BYTES];
        loop {
            let (_, count) = recv(stream, &mut calls[..], RecvFlags::empty())?;
            if count == 0 {
                return Ok(());
            }
            records.push(&calls[..count]);
            while let Some(record) = records.take().map_err(io::Error::other)? {
                let call = Call::parse(&record).map_err(io::Error::other)?;
                self.answer_read_call(&call, stream)?;
            }
        }
    }

    fn answer_read_call(&mut self, call: &Call<'_>, stream: &TcpStream) -> io::Result<()> {
        let is_read = (call.program, call.procedure) == (PROGRAM, Procedure::Read as u32);
        let asked = parse::<ReadArguments>(call.arguments).ok().filter(|asked| asked.file.as_bytes() == FILE);
        let Some(ReadArguments { offset, bytes, .. }) = asked.filter(|_| is_read) else {
            return Err(io::Error::other("a call that is no read of the file"));
        };
        let bytes = (bytes as usize).min(READ_BYTES_MAX);
        match self.method {
            TransferMethod::Sendfile => self.reply_by_sendfile(call.xid, offset, bytes, stream),
            _ => self.reply_by_pread(call.xid, offset, bytes, stream),
        }
    }

    fn reply_by_pread(&mut self, xid: u32, offset: u64, bytes: usize, stream: &TcpStream) -> io::Result<()> {
        let count = pread(&self.file, &mut self.buffer[..bytes], offset)?;
        let head = self.encode_reply_head(xid, offset, count)?;
        let mut pieces = [
            IoSlice::new(&head),
            IoSlice::new(&self.buffer[..count]),
            IoSlice::new(&[0; 3][..padding(count)]),
        ];
        let (mut left, mut stream) = (&mut pieces[..], stream);
        while !left.is_empty() {
            let written = stream.write_vectored(left)?;
            IoSlice::advance_slices(&mut left, written);
        }
        Ok(())
    }

    fn reply_by_sendfile(&self, xid: u32, offset: u64, bytes: usize, stream: &TcpStream) -> io::Result<()> {
        let rest = self.file.metadata()?.size().saturating_sub(offset);
        let count = usize::try_from(rest).map_or(bytes, |rest| rest.min(bytes));
        let head = self.encode_reply_head(xid, offset, count)?;
        let mut sent = 0;
        while sent < head.len() {
            sent += send(stream, &head[sent..], SendFlags::MORE)?;
        }
        let (mut offset, end) = (offset, offset + count as u64);
        while offset < end {
            let left = (end - offset) as usize;
            if sendfile(stream, &self.file, Some(&mut offset), left)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let mut stream = stream;
        stream.write_all(&[0; 3][..padding(count)])
    }

    fn encode_reply_head(&self, xid: u32, offset: u64, count: usize) -> io::Result<Vec<u8>> {
        let attributes = nfs_attributes(&self.file.metadata()?);
        Ok(encode_read_reply(xid, Ok((attributes, count, offset + count as u64 >= attributes.size))))
    }
}

pub(super) fn nfs_attributes(about: &Metadata) -> Attributes {
    let time =
        |seconds: i64, nanoseconds: i64| Time { seconds: seconds as u32, nanoseconds: nanoseconds as u32 };
    Attributes {
        file_type: FileType::Regular,
        mode: about.mode() & 0o7777,
        links: about.nlink() as u32,
        user: about.uid(),
        group: about.gid(),
        size: about.size(),
        used: about.blocks() * 512,
        device_major: 0,
        device_minor: 0,
        file_system: about.dev(),
        file_id: about.ino(),
        accessed: time(about.atime(), about.atime_nsec()),
        modified: time(about.mtime(), about.mtime_nsec()),
        changed: time(about.ctime(), about.ctime_nsec()),
    }
}
