//! A server that only writes to one file: the cost of a program that copies through its own buffer.

use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nocopy_nfs::wire::nfs3::{
    CommitArguments, CommitResult, NfsResult, PROGRAM, Procedure, WRITE_BYTES_MAX, WeakCacheConsistency,
    WriteArguments, WriteResult,
};
use nocopy_nfs::wire::record::{self, MARK_BYTES};
use nocopy_nfs::wire::rpc::{Call, Reply};
use nocopy_nfs::wire::xdr::{Xdr, parse};
use rustix::net::{RecvFlags, recv};

use super::by_hand::{FILE, nfs_attributes};

const CALL_BYTES_MAX: usize = WRITE_BYTES_MAX + (1 << 10);
const VERIFIER: [u8; 8] = *b"by hand.";

#[derive(Debug)]
pub(super) struct HandWrittenWriteServer {
    listener: TcpListener,
    file: File,
}

impl HandWrittenWriteServer {
    pub(super) fn open(at: Ipv4Addr, file: &Path) -> io::Result<Self> {
        let file = File::options().write(true).open(file)?;
        Ok(Self { listener: TcpListener::bind((at, 0))?, file })
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        self.listener.local_addr().map(|address| address.port())
    }

    pub(super) fn run(self) -> io::Result<()> {
        loop {
            let (stream, _) = self.listener.accept()?;
            stream.set_nodelay(true)?;
            // The client closes it when it is done; a refused client sees the end of the connection.
            let _ = self.serve_connection(&stream);
        }
    }

    /// Calls with one fragment, all received into the same memory.
    fn serve_connection(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut buffer = vec![0; CALL_BYTES_MAX];
        loop {
            let mut mark = [0; MARK_BYTES];
            receive_exactly(stream, &mut mark)?;
            let bytes = (u32::from_be_bytes(mark) & !(1 << 31)) as usize;
            let record =
                buffer.get_mut(..bytes).ok_or_else(|| io::Error::other("a call that is too long"))?;
            receive_exactly(stream, record)?;
            let call = Call::parse(record).map_err(io::Error::other)?;
            stream.write_all(&self.answer_write_call(&call)?)?;
        }
    }

    fn answer_write_call(&self, call: &Call<'_>) -> io::Result<Vec<u8>> {
        let refused = || io::Error::other("a call that is no write to the file");
        if call.program != PROGRAM {
            return Err(refused());
        }
        if call.procedure == Procedure::Commit as u32 {
            let asked: CommitArguments = parse(call.arguments).map_err(io::Error::other)?;
            self.file.sync_all()?;
            let changed = self.attributes_after_write()?;
            return (asked.file.as_bytes() == FILE)
                .then(|| encode_reply(call.xid, CommitResult { changed, verifier: VERIFIER }))
                .ok_or_else(refused);
        }
        let asked: WriteArguments<'_> = parse(call.arguments).map_err(io::Error::other)?;
        if call.procedure != Procedure::Write as u32 || asked.file.as_bytes() != FILE {
            return Err(refused());
        }
        self.file.write_all_at(asked.data.0, asked.offset)?;
        let (count, stability) = (asked.count, asked.stability);
        let changed = self.attributes_after_write()?;
        Ok(encode_reply(call.xid, WriteResult { changed, count, stability, verifier: VERIFIER }))
    }

    /// The file's current attributes, without the earlier ones.
    fn attributes_after_write(&self) -> io::Result<WeakCacheConsistency> {
        Ok(WeakCacheConsistency { before: None, after: Some(nfs_attributes(&self.file.metadata()?)) })
    }
}

fn receive_exactly(stream: &TcpStream, into: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        match recv(stream, &mut into[filled..], RecvFlags::WAITALL)? {
            (_, 0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (_, count) => filled += count,
        }
    }
    Ok(())
}

fn encode_reply<'a>(xid: u32, results: impl Xdr<'a>) -> Vec<u8> {
    let mut out = record::begin();
    Reply::Success.encode(xid, &mut out);
    let results: NfsResult<_, WeakCacheConsistency> = Ok(results);
    results.encode(&mut out);
    record::end(&mut out, 0);
    out
}
