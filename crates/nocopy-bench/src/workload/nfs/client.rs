//! A client that keeps several calls in flight, and checks every reply.
//!
//! Every reply is checked, so a broken server cannot win.

use std::io::{self, IoSlice, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use nocopy_nfs::wire::mount::{self, MountReply};
use nocopy_nfs::wire::nfs3::{
    self, Attributes, FileHandle, LookupArguments, LookupResult, NfsResult, Procedure, ReadArguments,
    Stability,
};
use nocopy_nfs::wire::record::{self, MARK_BYTES, RecordAssembler};
use nocopy_nfs::wire::rpc::{AUTH_SYS, Call, Credential, Reply, SystemCredential};
use nocopy_nfs::wire::xdr::{Reader, Xdr, padding};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::lines::PATIENCE;
use crate::nfs_content::is_content;

pub(super) const IN_FLIGHT_MAX: usize = 8;

const REPLY_BYTES_MAX: usize = 2 << 20;
const BUFFER_BYTES: usize = 64 << 10;

/// Both programs have the same version.
const VERSION: u32 = 3;

/// Bytes of a READ reply up to its status, including the record's mark.
const BEGIN_BYTES: usize = 32;

/// Bytes of a READ reply from its status to the data, with and without attributes.
const WITH_ATTRIBUTES: usize = 4 + Attributes::BYTES + 12;
const WITHOUT_ATTRIBUTES: usize = 4 + 12;

#[derive(Debug)]
pub(super) struct NfsClient {
    stream: TcpStream,
    credential: Vec<u8>,
    xid: u32,
    records: RecordAssembler,
    buffer: Vec<u8>,
}

impl NfsClient {
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            credential: encode_credential(),
            xid: 0,
            records: RecordAssembler::new(REPLY_BYTES_MAX),
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    /// Sends a call, whose reply will have the number that is returned.
    pub(super) fn send_call<'a>(
        &mut self,
        program: u32,
        procedure: u32,
        arguments: &impl Xdr<'a>,
    ) -> io::Result<u32> {
        let (xid, mut call) = self.begin_call(program, procedure);
        arguments.encode(&mut call);
        record::end(&mut call, 0);
        self.stream.write_all(&call)?;
        Ok(xid)
    }

    /// Sends a WRITE call without copying `data`, whose length must be a multiple of four.
    pub(super) fn send_write(
        &mut self,
        file: FileHandle,
        offset: u64,
        stability: Stability,
        data: &[u8],
    ) -> io::Result<u32> {
        let (xid, mut call) = self.begin_call(nfs3::PROGRAM, Procedure::Write as u32);
        let count = data.len() as u32;
        // Up to the length of the data, as `WriteArguments` has them.
        (file, (offset, (count, (stability, count)))).encode(&mut call);
        record::end(&mut call, data.len());
        let mut pieces = [IoSlice::new(&call), IoSlice::new(data)];
        let mut left = &mut pieces[..];
        while !left.is_empty() {
            let written = self.stream.write_vectored(left)?;
            IoSlice::advance_slices(&mut left, written);
        }
        Ok(xid)
    }

    /// The number of the next call, and the call up to its arguments.
    fn begin_call(&mut self, program: u32, procedure: u32) -> (u32, Vec<u8>) {
        self.xid = self.xid.wrapping_add(1);
        let (xid, body) = (self.xid, &self.credential);
        let mut call = record::begin();
        let credential = Credential { flavor: AUTH_SYS, body };
        Call { xid, program, version: VERSION, procedure, credential, arguments: &[] }.encode(&mut call);
        (xid, call)
    }

    /// The next reply: its number, and the value that `read` makes of its results.
    pub(super) fn receive_results<T>(
        &mut self,
        read: impl FnOnce(&mut Reader<'_>) -> io::Result<T>,
    ) -> io::Result<(u32, T)> {
        loop {
            if let Some(record) = self.records.take().map_err(malformed_reply)? {
                let mut input = Reader::new(&record);
                let (xid, reply) = Reply::decode(&mut input).map_err(malformed_reply)?;
                if reply != Reply::Success {
                    return Err(io::Error::other(format!("the server refused a call ({reply:?})")));
                }
                return Ok((xid, read(&mut input)?));
            }
            let (_, count) =
                recv(&self.stream, &mut self.buffer[..], RecvFlags::empty()).map_err(late_reply_error)?;
            if count == 0 {
                return Err(connection_ended());
            }
            self.records.push(&self.buffer[..count]);
        }
    }

    pub(super) fn call_and_wait<'a, T>(
        &mut self,
        program: u32,
        procedure: u32,
        arguments: &impl Xdr<'a>,
        read: impl FnOnce(&mut Reader<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let asked = self.send_call(program, procedure, arguments)?;
        let (xid, results) = self.receive_results(read)?;
        if xid == asked {
            Ok(results)
        } else {
            Err(io::Error::other("the server replied to a call that was not made"))
        }
    }

    pub(super) fn mount(&mut self, path: &Path) -> io::Result<FileHandle> {
        let path = mount::Text(path.as_os_str().as_encoded_bytes());
        let mounted = self.call_and_wait(
            mount::PROGRAM,
            mount::Procedure::Mount as u32,
            &path as &mount::Path<'_>,
            |input| input.read::<MountReply>().map_err(malformed_reply),
        )?;
        mounted.map(|mounted| mounted.handle).map_err(|status| refused_call("mount", status))
    }

    pub(super) fn look_up(&mut self, directory: FileHandle, name: &str) -> io::Result<LookupResult> {
        let asked = LookupArguments { directory, name: mount::Text(name.as_bytes()) };
        self.call_and_wait(nfs3::PROGRAM, Procedure::Lookup as u32, &asked, decode_lookup_result)
    }
}

pub(super) fn decode_lookup_result(input: &mut Reader<'_>) -> io::Result<LookupResult> {
    let found: NfsResult<LookupResult, Option<Attributes>> = input.read().map_err(malformed_reply)?;
    found.map_err(|refusal| refused_call("LOOKUP", refusal.status))
}

pub(super) fn malformed_reply(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

pub(super) fn refused_call(call: &str, status: impl std::fmt::Debug) -> io::Error {
    io::Error::other(format!("the server refused {call} ({status:?})"))
}

fn connection_ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server ended the connection")
}

fn late_reply_error(error: Errno) -> io::Error {
    match error {
        Errno::AGAIN => io::Error::new(io::ErrorKind::TimedOut, format!("no reply in {PATIENCE:?}")),
        error => error.into(),
    }
}

fn encode_credential() -> Vec<u8> {
    let [user, group] = [rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()];
    let mut body = Vec::new();
    SystemCredential { machine: b"bench", user, group, groups: Vec::new() }.encode(&mut body);
    body
}

/// Reads of a file from start to end, repeatedly, with equal lengths.
#[derive(Debug)]
pub(super) struct FileReader {
    client: NfsClient,
    file: FileHandle,
    file_bytes: u64,
    bytes: u32,
    /// Distance between two reads.
    stride: u64,
    next: u64,
    /// The number and offset of each read in flight.
    in_flight: Vec<(u32, u64)>,
    /// Never written to when bytes are discarded: with MSG_TRUNC, TCP only uses the length.
    content: Vec<u8>,
}

impl FileReader {
    /// `bytes` is a part of `file_bytes`, so that every reply has as many.
    pub(super) fn new(client: NfsClient, file: FileHandle, file_bytes: u64, bytes: u32) -> Self {
        let content = vec![0; bytes as usize + padding(bytes as usize)];
        Self {
            client,
            file,
            file_bytes,
            bytes,
            stride: bytes.into(),
            next: 0,
            in_flight: Vec::new(),
            content,
        }
    }

    /// With gaps between reads, so that no read benefits from the kernel's read-ahead of another.
    pub(super) fn with_gaps(self) -> Self {
        Self { stride: 3 * u64::from(self.bytes), ..self }
    }

    /// Reads the whole file once, and compares every byte.
    pub(super) fn check_whole_file(&mut self) -> io::Result<()> {
        let (mut asked, all) = (0, self.file_bytes / u64::from(self.bytes));
        while asked < all || self.reads_in_flight() > 0 {
            while asked < all && self.reads_in_flight() < IN_FLIGHT_MAX {
                self.send_read()?;
                asked += 1;
            }
            let offset = self.receive_reply(false)?;
            if !is_content(offset, &self.content[..self.bytes as usize]) {
                return Err(io::Error::other(format!(
                    "what was read at {offset} is not what the file has there"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn send_read(&mut self) -> io::Result<()> {
        let (offset, bytes) = (self.next, self.bytes);
        let asked = ReadArguments { file: self.file, offset, bytes };
        let xid = self.client.send_call(nfs3::PROGRAM, Procedure::Read as u32, &asked)?;
        self.in_flight.push((xid, offset));
        self.next = (offset + self.stride) % self.file_bytes;
        Ok(())
    }

    pub(super) fn next_offset(&self) -> u64 {
        self.next
    }

    pub(super) fn read_bytes(&self) -> usize {
        self.bytes as usize
    }

    pub(super) fn reads_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes the next reply, which must be complete: its data is discarded, or stored in `content`. Returns
    /// its offset in the file.
    pub(super) fn receive_reply(&mut self, is_discarded: bool) -> io::Result<u64> {
        let mut begin = [0; BEGIN_BYTES];
        self.receive_exactly(&mut begin)?;
        let word = |at: usize| u32::from_be_bytes([begin[at], begin[at + 1], begin[at + 2], begin[at + 3]]);
        let (mark, xid) = (word(0), word(4));
        let known = self.in_flight.iter().position(|(asked, _)| *asked == xid);
        let Some(known) = known else {
            return Err(io::Error::other("the server replied to a call that was not made"));
        };
        let (_, offset) = self.in_flight.swap_remove(known);
        // A reply that was accepted, by a verifier of no length, and a success.
        if [word(8), word(12), word(20), word(24), word(28)] != [1, 0, 0, 0, 0] {
            return Err(refused_call("READ", word(28)));
        }
        let record = (mark & !(1 << 31)) as usize;
        let head = record.checked_sub(BEGIN_BYTES - MARK_BYTES + self.content.len());
        let is_whole = mark >> 31 == 1 && matches!(head, Some(WITH_ATTRIBUTES | WITHOUT_ATTRIBUTES));
        let Some(head) = head.filter(|_| is_whole) else {
            return Err(io::Error::other(format!(
                "the server replied {record} bytes to a read of {}",
                self.bytes
            )));
        };
        let mut rest = [0; WITH_ATTRIBUTES];
        let rest = &mut rest[..head];
        self.receive_exactly(rest)?;
        self.check_counts(rest, offset)?;
        if is_discarded {
            self.discard_content()?
        } else {
            self.receive_content()?
        }
        Ok(offset)
    }

    /// Takes the next reply unchanged, with its mark, whichever read it answers.
    pub(super) fn receive_raw_reply(&mut self, into: &mut impl Write) -> io::Result<()> {
        let mut mark = [0; MARK_BYTES];
        self.receive_exactly(&mut mark)?;
        let bytes = (u32::from_be_bytes(mark) & !(1 << 31)) as usize;
        if bytes > REPLY_BYTES_MAX {
            return Err(io::Error::other(format!(
                "the server replied {bytes} bytes, more than a read can have"
            )));
        }
        let mut reply = vec![0; bytes];
        self.receive_exactly(&mut reply)?;
        self.in_flight.pop();
        into.write_all(&mark)?;
        into.write_all(&reply)
    }

    fn check_counts(&self, rest: &[u8], offset: u64) -> io::Result<()> {
        let has_attributes = rest.len() == WITH_ATTRIBUTES;
        let mut input = Reader::new(rest);
        let attributes: Option<Attributes> = input.read().map_err(malformed_reply)?;
        let (count, (is_end, data_bytes)): (u32, (bool, u32)) = input.read().map_err(malformed_reply)?;
        let is_last = offset + u64::from(self.bytes) == self.file_bytes;
        let is_right = attributes.is_some() == has_attributes
            && attributes.is_none_or(|attributes| attributes.size == self.file_bytes)
            && count == self.bytes
            && data_bytes == self.bytes
            && (is_last || !is_end);
        if is_right {
            Ok(())
        } else {
            Err(io::Error::other(format!("the reply to the read at {offset} is wrong")))
        }
    }

    fn receive_exactly(&self, into: &mut [u8]) -> io::Result<()> {
        fill_buffer(&self.client.stream, into, RecvFlags::WAITALL)
    }

    fn receive_content(&mut self) -> io::Result<()> {
        fill_buffer(&self.client.stream, &mut self.content, RecvFlags::WAITALL)
    }

    fn discard_content(&mut self) -> io::Result<()> {
        fill_buffer(&self.client.stream, &mut self.content, RecvFlags::WAITALL | RecvFlags::TRUNC)
    }
}

fn fill_buffer(stream: &TcpStream, into: &mut [u8], flags: RecvFlags) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        match recv(stream, &mut into[filled..], flags).map_err(late_reply_error)? {
            (_, 0) => return Err(connection_ended()),
            (_, count) => filled += count,
        }
    }
    Ok(())
}
