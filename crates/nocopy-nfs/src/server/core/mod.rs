//! Answers to calls: bytes in, descriptions of replies out. No sockets and no clock.

mod callers;
mod changes;
mod directory;
mod mounts;
mod nfs;
pub mod oracle;
mod reply_cache;
#[cfg(test)]
mod tests;
mod write;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use callers::CallerMapping;
pub use directory::ListCall;
use mounts::Mounts;
pub use nfs::READ_BYTES_MAX;
pub use reply_cache::ConnectionId;
use reply_cache::ReplyCache;
pub use write::{OngoingWrite, WriteCall, write_at};

use crate::export::{Caller, Export};
use crate::wire::nfs3::{Attributes, FileHandle, NfsResult, ReadHead, WRITE_BYTES_MAX};
use crate::wire::rpc::{AUTH_NONE, AUTH_SYS, AuthError, Call, CallParseError, Reply};
use crate::wire::xdr::{Reader, Xdr, XdrError, padding};
use crate::wire::{mount, nfs3, portmap, record};

pub const CALL_BYTES_MAX: usize = 40 << 10;

#[derive(Debug)]
pub enum Answer {
    Reply(Vec<u8>),
    /// The reply to a write, and how many bytes were written.
    Written(Vec<u8>, usize),
    /// A file is to be read: see [`Core::open_for_read`] and [`encode_read_reply`].
    Read(ReadCall),
    /// A directory is to be read, which can take long: see [`Core::answer_list`].
    List(ListCall),
    /// The call is being executed already, for another connection. Its reply will also be for the newest one
    /// that has repeated it, but not for the one superseded.
    InProgress {
        superseded: Option<ConnectionId>,
    },
    /// The reply to a call that was repeated while it was executed: it is also for that connection.
    Repeated {
        reply: Vec<u8>,
        also: ConnectionId,
    },
}

/// Where a call comes from.
#[derive(Debug, Clone, Copy)]
struct CallOrigin {
    address: SocketAddr,
    connection_id: ConnectionId,
}

/// A read of a file. It is not open yet, so that waiting calls do not hold a descriptor each.
#[derive(Debug, Clone, Copy)]
pub struct ReadCall {
    pub xid: u32,
    pub caller: Caller,
    pub file: FileHandle,
    pub offset: u64,
    pub bytes: usize,
}

/// Answers calls of any number of connections.
#[derive(Debug)]
pub struct Core {
    export: Arc<Export>,
    /// The networks that may connect, as text for clients.
    groups: Vec<String>,
    port: u16,
    mounts: Mounts,
    is_writable: bool,
    callers: CallerMapping,
    reply_cache: ReplyCache,
    index_write_errors: AtomicU64,
}

/// The reply instead of results.
type RefusalReply = Reply;

impl Core {
    pub fn new(export: Arc<Export>, groups: Vec<String>, port: u16) -> Self {
        Self {
            export,
            groups,
            port,
            mounts: Mounts::default(),
            is_writable: false,
            callers: CallerMapping::Server,
            reply_cache: ReplyCache::default(),
            index_write_errors: AtomicU64::new(0),
        }
    }

    /// Lets clients change what is exported.
    #[must_use]
    pub fn writable(self, is_writable: bool) -> Self {
        Self { is_writable, ..self }
    }

    /// Sets the users for whom calls are made (default: the user of this process).
    #[must_use]
    pub fn caller_mapping(self, callers: CallerMapping) -> Self {
        Self { callers, ..self }
    }

    pub fn call_bytes_max(&self) -> usize {
        if self.is_writable { CALL_BYTES_MAX + WRITE_BYTES_MAX } else { CALL_BYTES_MAX }
    }

    /// Only a write may be long.
    pub fn call_limits(&self) -> record::RecordLimits {
        let is_write = |begin: &[u8]| {
            let write = (nfs3::PROGRAM, nfs3::Procedure::Write as u32);
            Call::parse(begin).is_ok_and(|call| (call.program, call.procedure) == write)
        };
        record::RecordLimits { long: self.call_bytes_max(), other: CALL_BYTES_MAX, is_long: is_write }
    }

    pub fn export(&self) -> &Export {
        &self.export
    }

    /// How often the index of handles could not be written: recent handles may be stale for the next server.
    pub fn index_write_errors(&self) -> u64 {
        self.index_write_errors.load(Ordering::Relaxed)
    }

    /// Whether a record is answered without waiting for the disk, or whatever has the file, for which threads
    /// that serve others must not wait. A hint.
    pub fn is_answered_without_waiting(&self, record: &[u8]) -> bool {
        let Ok(call) = Call::parse(record) else { return true };
        match call.program {
            nfs3::PROGRAM
                if nfs::is_change_call(&call) && (self.is_writable || nfs::returns_two_files(&call)) =>
            {
                false
            }
            nfs3::PROGRAM => nfs::file_and_name(&call)
                .is_none_or(|(file, name)| self.export.is_found_without_waiting(&file, name)),
            // A path, each part of which is looked up.
            mount::PROGRAM => call.procedure != mount::Procedure::Mount as u32,
            _ => true,
        }
    }

    /// Whether a read finds its file without waiting.
    pub fn is_read_cached(&self, call: &ReadCall) -> bool {
        self.export.is_found_without_waiting(&call.file, None)
    }

    /// Answers a record that no other connection can have sent.
    ///
    /// # Errors
    /// As [`answer_on_connection`](Self::answer_on_connection).
    pub fn answer(&self, record: &[u8], client: SocketAddr) -> Result<Answer, XdrError> {
        self.answer_on_connection(record, client, ConnectionId::default())
    }

    /// Answers a record that a client has sent on a connection.
    ///
    /// # Errors
    /// It is not a call: there is nothing to answer, and the following bytes have no known meaning.
    pub fn answer_on_connection(
        &self,
        record: &[u8],
        client: SocketAddr,
        connection_id: ConnectionId,
    ) -> Result<Answer, XdrError> {
        let call = match Call::parse(record) {
            Ok(call) => call,
            Err(CallParseError::Version { xid }) => {
                return Ok(Answer::Reply(encode_empty_reply(Reply::MISMATCH, xid)));
            }
            Err(CallParseError::Malformed(error)) => return Err(error),
        };
        let from = CallOrigin { address: client, connection_id };
        Ok(self
            .dispatch(&call, from)
            .unwrap_or_else(|refused| Answer::Reply(encode_empty_reply(refused, call.xid))))
    }

    /// The reply of the portmapper to a datagram; `None` if it is no call, or one that is not answered when
    /// it is refused.
    pub fn answer_datagram(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        let call = Call::parse(datagram).ok()?;
        let is_indirect = (call.program, call.procedure) == (portmap::PROGRAM, portmap::CALL_INDIRECTLY);
        if is_indirect {
            return None;
        }
        let made = match call.program {
            portmap::PROGRAM if call.version == portmap::VERSION => self.answer_portmap(&call),
            portmap::PROGRAM => Err(Reply::ProgramMismatch { low: portmap::VERSION, high: portmap::VERSION }),
            _ => Err(Reply::ProgramUnavailable),
        };
        let mut record = made.unwrap_or_else(|refused| encode_empty_reply(refused, call.xid));
        Some(record.split_off(record::MARK_BYTES))
    }

    fn dispatch(&self, call: &Call<'_>, from: CallOrigin) -> Result<Answer, RefusalReply> {
        // The null procedure does nothing, so every client may call it.
        if call.procedure != 0 && !matches!(call.credential.flavor, AUTH_NONE | AUTH_SYS) {
            return Err(Reply::Denied(AuthError::TooWeak));
        }
        let version = match call.program {
            nfs3::PROGRAM => nfs3::VERSION,
            mount::PROGRAM => mount::VERSION,
            portmap::PROGRAM => portmap::VERSION,
            _ => return Err(Reply::ProgramUnavailable),
        };
        if call.version != version {
            return Err(Reply::ProgramMismatch { low: version, high: version });
        }
        match call.program {
            nfs3::PROGRAM => self.answer_nfs(call, from),
            mount::PROGRAM => self.answer_mount(call, from.address).map(Answer::Reply),
            _ => self.answer_portmap(call).map(Answer::Reply),
        }
    }

    fn answer_portmap(&self, call: &Call<'_>) -> Result<Vec<u8>, RefusalReply> {
        let procedure = portmap::Procedure::from_number(call.procedure);
        let served =
            [(nfs3::PROGRAM, nfs3::VERSION), (mount::PROGRAM, mount::VERSION)].map(|(program, version)| {
                portmap::Mapping { program, version, protocol: portmap::TCP, port: self.port.into() }
            });
        Ok(match procedure.ok_or(Reply::ProcedureUnavailable)? {
            portmap::Procedure::Null => encode_success(call.xid, &()),
            portmap::Procedure::Dump => encode_success(call.xid, &served.to_vec()),
            portmap::Procedure::GetPort => {
                let asked: portmap::Mapping = decode_arguments(call)?;
                let is_asked =
                    |one: &&portmap::Mapping| **one == portmap::Mapping { port: one.port, ..asked };
                encode_success(call.xid, &served.iter().find(is_asked).map_or(0, |one| one.port))
            }
        })
    }

    /// Makes new handles valid for the next server before the reply is sent.
    fn save_index(&self) {
        if self.export.save_index().is_err() {
            self.index_write_errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The arguments of a call, without further bytes.
fn decode_arguments<'a, T: Xdr<'a>>(call: &Call<'a>) -> Result<T, RefusalReply> {
    let mut input = Reader::new(call.arguments);
    let read = input.read();
    read.and_then(|value| input.finish().map(|()| value)).map_err(|_| Reply::GarbageArguments)
}

/// A reply without results.
fn encode_empty_reply(reply: Reply, xid: u32) -> Vec<u8> {
    let mut out = record::begin();
    reply.encode(xid, &mut out);
    record::end(&mut out, 0);
    out
}

fn encode_success<'a>(xid: u32, results: &impl Xdr<'a>) -> Vec<u8> {
    encode_reply_head(xid, results, 0)
}

/// The beginning of a reply that `more` bytes follow.
fn encode_reply_head<'a>(xid: u32, results: &impl Xdr<'a>, more: usize) -> Vec<u8> {
    let mut out = record::begin();
    Reply::Success.encode(xid, &mut out);
    results.encode(&mut out);
    record::end(&mut out, more);
    out
}

/// The reply to a read without its data and padding, which follow; or a whole reply, if there is no data.
pub fn encode_read_reply(
    xid: u32,
    read: NfsResult<(Attributes, usize, bool), Option<Attributes>>,
) -> Vec<u8> {
    let count = read.as_ref().map_or(0, |(_, count, _)| *count);
    let result = read.map(|(attributes, count, is_end)| {
        let count = u32::try_from(count).expect("no more is read than fits into a reply");
        ReadHead { attributes: Some(attributes), count, is_end, data_bytes: count }
    });
    encode_reply_head(xid, &result, count + padding(count))
}
