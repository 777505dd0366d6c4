//! Writes; the data of a long write is written into the file as it arrives.

use std::net::SocketAddr;

use rustix::io::pwrite;

use super::changes::result_or_refusal;
use super::{Answer, Core, RefusalReply, encode_success};
use crate::export::{Caller, FileWrite, OpenFile};
use crate::wire::nfs3::{
    self, Procedure, Stability, Status, Verifier, WRITE_BYTES_MAX, WriteArguments, WriteHead, WriteResult,
};
use crate::wire::rpc::{AUTH_NONE, AUTH_SYS, Call, Reply};
use crate::wire::xdr::{Reader, padding};

/// A write whose data have not arrived yet.
#[derive(Debug, Clone, Copy)]
pub struct WriteCall {
    xid: u32,
    caller: Caller,
    head: WriteHead,
}

impl WriteCall {
    /// The length of the data, without padding.
    pub fn data_bytes(&self) -> usize {
        self.head.count as usize
    }
}

/// A write in progress, or why it could not begin.
#[derive(Debug)]
pub struct OngoingWrite {
    xid: u32,
    head: WriteHead,
    verifier: Verifier,
    writing: Result<FileWrite, Status>,
}

impl OngoingWrite {
    /// Whether the data is written into the file; otherwise it is discarded.
    pub fn is_active(&self) -> bool {
        self.writing.as_ref().is_ok_and(|writing| !writing.has_failed())
    }
}

impl Core {
    /// The write with which a long record of that many bytes begins, and where its data begin; `None` if the
    /// whole record is needed for the answer.
    pub fn parse_long_write(
        &self,
        begin: &[u8],
        bytes: usize,
        client: SocketAddr,
    ) -> Option<(WriteCall, usize)> {
        let call = Call::parse(begin).ok().filter(|_| self.is_writable)?;
        let is_known = matches!(call.credential.flavor, AUTH_NONE | AUTH_SYS);
        let kind = (call.program, call.version, call.procedure);
        if !is_known || kind != (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write as u32) {
            return None;
        }
        let caller = self.callers.map_credential(&call.credential, client).ok()?;
        let mut input = Reader::new(call.arguments);
        let head: WriteHead = input.read().ok()?;
        let (data_at, data_bytes) = (begin.len() - input.rest().len(), head.data_bytes as usize);
        let is_plain = head.count == head.data_bytes
            && data_bytes <= WRITE_BYTES_MAX
            && data_at + data_bytes + padding(data_bytes) == bytes;
        is_plain.then_some((WriteCall { xid: call.xid, caller, head }, data_at))
    }

    /// Opens the file to be written, which may wait for the disk.
    pub fn begin_write(&self, call: &WriteCall) -> OngoingWrite {
        let WriteCall { xid, caller, head } = *call;
        // Before the write: data lost later changes the verifier that the client has.
        let verifier = self.export.write_verifier();
        let writing = self.export.begin_write(&caller, &head.file, head.offset, call.data_bytes());
        OngoingWrite { xid, head, verifier, writing }
    }

    /// Writes the next bytes by calls of `put`, which gets an offset in the file and returns how many bytes
    /// it has written; not called if the write is not [active](OngoingWrite::is_active).
    pub fn write_piece(
        &self,
        write: &mut OngoingWrite,
        bytes: usize,
        put: impl FnMut(&OpenFile, u64) -> rustix::io::Result<usize>,
    ) {
        if let Ok(writing) = &mut write.writing
            && !writing.has_failed()
        {
            self.export.write_piece(writing, bytes, put);
        }
    }

    /// Closes the file of a write whose next data may arrive much later.
    pub fn release_file(&self, write: Option<&mut OngoingWrite>) {
        if let Some(OngoingWrite { writing: Ok(writing), .. }) = write {
            writing.release_file();
        }
    }

    /// Ends a write, if necessary after its data is on the disk: the reply, and how many bytes were written.
    pub fn end_write(&self, write: OngoingWrite) -> (Vec<u8>, usize) {
        let OngoingWrite { xid, head, verifier, writing } = write;
        let stability = head.stability;
        let written = match writing {
            Ok(writing) => self.export.end_write(writing, stability),
            Err(status) => (Err(status), self.export.unchanged_attributes(&head.file)),
        };
        let written = match written {
            // Data was lost meanwhile, possibly of this write: so it must be sent again, as an unstable one
            // would be by the verifier.
            (Ok(_), changed)
                if stability != Stability::Unstable && self.export.write_verifier() != verifier =>
            {
                (Err(Status::Jukebox), changed)
            }
            written => written,
        };
        let written = result_or_refusal(written, |count, changed| WriteResult {
            changed,
            count: count as u32,
            stability,
            verifier,
        });
        self.export.count_change();
        let count = written.map_or(0, |written| written.count as usize);
        (encode_success(xid, &written), count)
    }

    pub(super) fn execute_write(
        &self,
        xid: u32,
        caller: &Caller,
        asked: &WriteArguments<'_>,
    ) -> Result<Answer, RefusalReply> {
        let WriteArguments { file, offset, count, stability, data } = *asked;
        let mut data = data.0.get(..count as usize).ok_or(Reply::GarbageArguments)?;
        let head = WriteHead { file, offset, count, stability, data_bytes: count };
        let mut write = self.begin_write(&WriteCall { xid, caller: *caller, head });
        self.write_piece(&mut write, data.len(), |file, offset| write_at(file, offset, &mut data));
        let (reply, count) = self.end_write(write);
        Ok(Answer::Written(reply, count))
    }
}

/// Writes as much of `data` as possible at a time, and leaves the rest.
pub fn write_at(file: &OpenFile, offset: u64, data: &mut &[u8]) -> rustix::io::Result<usize> {
    let count = pwrite(file, data, offset)?;
    *data = &data[count..];
    Ok(count)
}
