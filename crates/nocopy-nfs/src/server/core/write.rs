//! Writes: of a long one the data go into the file as they come.

use rustix::io::pwrite;

use super::changes::result;
use super::{Answer, Core, Refused, success};
use crate::export::{Caller, OpenFile, Writing};
use crate::wire::nfs3::{
    self, Procedure, Stability, Status, Verifier, WRITE_BYTES_MAX, WriteArguments, WriteHead, WriteResult,
};
use crate::wire::rpc::{AUTH_NONE, AUTH_SYS, Call, Reply};
use crate::wire::xdr::{Reader, padding};

/// A write whose data are still to come.
#[derive(Debug, Clone, Copy)]
pub struct WriteCall {
    xid: u32,
    caller: Caller,
    head: WriteHead,
}

impl WriteCall {
    /// The length of its data, without what fills them up.
    pub fn bytes(&self) -> usize {
        self.head.count as usize
    }
}

/// A write that was begun, or why it could not be.
#[derive(Debug)]
pub struct Write {
    xid: u32,
    head: WriteHead,
    verifier: Verifier,
    writing: Result<Writing, Status>,
}

impl Write {
    /// Whether what comes goes into the file; else it goes nowhere.
    pub fn is_good(&self) -> bool {
        self.writing.as_ref().is_ok_and(|writing| !writing.has_failed())
    }
}

impl Core {
    /// The write that a long record of so many bytes begins with, and where in the record its data begin; `None` where the whole record is
    /// needed to answer it.
    pub fn parse_long_write(&self, begin: &[u8], bytes: usize) -> Option<(WriteCall, usize)> {
        let call = Call::parse(begin).ok().filter(|_| self.is_writable)?;
        let is_known = matches!(call.credential.flavor, AUTH_NONE | AUTH_SYS);
        let kind = (call.program, call.version, call.procedure);
        if !is_known || kind != (nfs3::PROGRAM, nfs3::VERSION, Procedure::Write as u32) {
            return None;
        }
        let caller = self.callers.of(&call.credential).ok()?;
        let mut input = Reader::new(call.arguments);
        let head: WriteHead = input.read().ok()?;
        let (data_at, data_bytes) = (begin.len() - input.rest().len(), head.data_bytes as usize);
        let is_plain = head.count == head.data_bytes
            && data_bytes <= WRITE_BYTES_MAX
            && data_at + data_bytes + padding(data_bytes) == bytes;
        is_plain.then_some((WriteCall { xid: call.xid, caller, head }, data_at))
    }

    /// Opens what is to be written, which may wait for the disk.
    pub fn begin_write(&self, call: &WriteCall) -> Write {
        let WriteCall { xid, caller, head } = *call;
        // Before the write: what is lost after it changes the one that the client has.
        let verifier = self.export.verifier();
        let writing = self.export.begin_write(&caller, &head.file, head.offset, call.bytes());
        Write { xid, head, verifier, writing }
    }

    /// Writes the next bytes by calls of `put`, which is given an offset in the file and returns how many it has put there; none, if the write
    /// is not [good](Write::is_good).
    pub fn write_on(
        &self,
        write: &mut Write,
        bytes: usize,
        put: impl FnMut(&OpenFile, u64) -> rustix::io::Result<usize>,
    ) {
        if let Ok(writing) = &mut write.writing
            && !writing.has_failed()
        {
            self.export.write_on(writing, bytes, put);
        }
    }

    /// Closes the file of a write for which more has to come, nobody knows when.
    pub fn release_file(&self, write: Option<&mut Write>) {
        if let Some(Write { writing: Ok(writing), .. }) = write {
            writing.release_file();
        }
    }

    /// Ends a write, once what was asked to be stable is so: the reply, and how many bytes were written.
    pub fn end_write(&self, write: Write) -> (Vec<u8>, usize) {
        let Write { xid, head, verifier, writing } = write;
        let stability = head.stability;
        let written = match writing {
            Ok(writing) => self.export.end_write(writing, stability),
            Err(status) => (Err(status), self.export.unchanged(&head.file)),
        };
        let written = match written {
            // Something was lost meanwhile, possibly of this: so it is to be sent again, as it would be by the verifier if it were not stable.
            (Ok(_), changed) if stability != Stability::Unstable && self.export.verifier() != verifier => {
                (Err(Status::Jukebox), changed)
            }
            written => written,
        };
        let written = result(written, |count, changed| WriteResult {
            changed,
            count: count as u32,
            stability,
            verifier,
        });
        self.export.note_change();
        let count = written.map_or(0, |written| written.count as usize);
        (success(xid, &written), count)
    }

    /// A write all of which is there.
    pub(super) fn write(
        &self,
        xid: u32,
        caller: &Caller,
        asked: &WriteArguments<'_>,
    ) -> Result<Answer, Refused> {
        let WriteArguments { file, offset, count, stability, data } = *asked;
        let mut data = data.0.get(..count as usize).ok_or(Reply::GarbageArguments)?;
        let head = WriteHead { file, offset, count, stability, data_bytes: count };
        let mut write = self.begin_write(&WriteCall { xid, caller: *caller, head });
        self.write_on(&mut write, data.len(), |file, offset| put(file, offset, &mut data));
        let (reply, count) = self.end_write(write);
        Ok(Answer::Written(reply, count))
    }
}

/// Writes of `data` as much as goes at a time, and leaves the rest.
pub fn put(file: &OpenFile, offset: u64, data: &mut &[u8]) -> rustix::io::Result<usize> {
    let count = pwrite(file, data, offset)?;
    *data = &data[count..];
    Ok(count)
}
