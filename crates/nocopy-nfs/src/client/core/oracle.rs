//! Properties that hold whatever a server replies: shared by the tests and the fuzz target.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use nocopy::Pool;

use super::{Completion, Core, CoreCounts, FilePosition, Ticket, TransferLimits};
use crate::wire::nfs3::{
    Attributes, CommitResult, FileHandle, NfsResult, Procedure, ReadHead, Stability, WeakCacheConsistency,
    WriteResult,
};
use crate::wire::record;
use crate::wire::rpc::Reply;
use crate::wire::xdr::{Xdr, padding};

const CONNECTIONS: usize = 2;
const BUFFERS: u32 = 16;
const BUFFER_BYTES: usize = 4096;

/// The longest reply to the plain calls that are made here.
const RESULTS_BYTES_MAX: usize = 300;

/// More than a core may want to receive before it knows whose it is.
const HEAD_BYTES_MAX: usize = 8192;

thread_local! {
    static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(BUFFERS, BUFFER_BYTES).expect("memory for a few buffers"));
}

/// Runs steps chosen by the input: requests, lost connections, and replies that are right, nearly right, or
/// arbitrary.
///
/// # Panics
/// Something is done twice or never, memory is written to that is not in the posted part of a buffer, or a
/// buffer does not come back.
pub fn check_client_core(input: &[u8]) {
    run_client_model(input);
}

/// As [`check_client_core`]; returns the core's counters.
pub(super) fn run_client_model(input: &[u8]) -> CoreCounts {
    POOL.with(|pool| {
        let mut world = ClientModel::new(pool);
        let mut input = FuzzInput(input);
        while let Some(step) = input.next_byte() {
            world.run_step(step, &mut input);
            world.check_completions();
        }
        let counts = world.core.counts();
        world.check_end();
        counts
    })
}

struct FuzzInput<'a>(&'a [u8]);

impl<'a> FuzzInput<'a> {
    fn next_byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn next_number(&mut self) -> usize {
        usize::from(self.next_byte().unwrap_or(0))
    }

    fn take_bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

struct ClientModel<'a> {
    pool: &'a Pool,
    core: Core,
    /// Requests without a result; for reads, with the number of bytes.
    asked: BTreeMap<Ticket, usize>,
    behind: u64,
    /// Calls in flight, by connection.
    sent: [Vec<u32>; CONNECTIONS],
}

fn file_handle() -> FileHandle {
    FileHandle::new(b"a file").expect("short enough")
}

impl<'a> ClientModel<'a> {
    fn new(pool: &'a Pool) -> Self {
        let mut core = Core::new(CONNECTIONS, 1, Vec::new());
        core.set_limits(TransferLimits { read_bytes_max: 1000, write_bytes_max: 1000 });
        core.set_pool(pool);
        Self { pool, core, asked: BTreeMap::new(), behind: 0, sent: Default::default() }
    }

    fn run_step(&mut self, step: u8, input: &mut FuzzInput<'_>) {
        let connection = usize::from(step >> 7);
        match step % 8 {
            0 => self.make_request(input),
            1 => self.sent[connection].extend(self.core.assign_next_call(connection)),
            2 if input.next_number().is_multiple_of(16) => self.lose_connection(connection),
            3 => {
                let count = input.next_number();
                let bytes = input.take_bytes(count);
                self.receive_in_pieces(connection, bytes, 100);
            }
            _ => self.receive_altered_reply(connection, input),
        }
    }

    fn make_request(&mut self, input: &mut FuzzInput<'_>) {
        let (kind, bytes) = (input.next_number(), 1 + 16 * input.next_number());
        let offset = if kind % 8 == 1 { self.behind } else { bytes as u64 };
        let place = FilePosition { file: file_handle(), offset };
        let buffer = |bytes: usize| {
            let mut buffer = self.pool.take()?;
            buffer.resize(BUFFER_BYTES);
            buffer[..].fill(0xee);
            buffer.resize(bytes.min(BUFFER_BYTES));
            Some(buffer)
        };
        let ticket = match kind % 4 {
            0 => Some(self.core.call(Procedure::GetAttr.into(), &file_handle(), RESULTS_BYTES_MAX)),
            1 => buffer(bytes).map(|buffer| {
                self.behind = place.offset + buffer.len() as u64;
                self.core.post(buffer, place).expect("it can be written to")
            }),
            2 => {
                if let Some(buffer) = buffer(bytes) {
                    self.core.write(buffer, place).expect("it has bytes");
                }
                None
            }
            _ => self.core.commit(file_handle()),
        };
        self.asked.extend(ticket.map(|ticket| (ticket, bytes.min(BUFFER_BYTES))));
    }

    fn lose_connection(&mut self, connection: usize) {
        self.core.on_connection_lost(connection);
        self.sent[connection].clear();
    }

    /// A reply to one of the calls in flight, in which the input changes a byte or none.
    fn receive_altered_reply(&mut self, connection: usize, input: &mut FuzzInput<'_>) {
        let (which, kind, count) =
            (input.next_number(), input.next_number(), 4 * input.next_number() + input.next_number() % 4);
        let sent = &self.sent[connection];
        let Some(xid) = sent.get(which % sent.len().max(1)).copied() else { return };
        let mut out = record::begin();
        let reply = if kind % 16 == 15 { Reply::SystemError } else { Reply::Success };
        reply.encode(xid, &mut out);
        encode_results(kind, count, &mut out);
        record::end(&mut out, 0);
        if input.next_number().is_multiple_of(3) {
            let place = input.next_number() % out.len();
            out[place] ^= input.next_number() as u8;
        }
        let at_once = 1 + input.next_number();
        self.receive_in_pieces(connection, &out, at_once);
    }

    fn receive_in_pieces(&mut self, connection: usize, mut bytes: &[u8], at_once: usize) {
        while !bytes.is_empty() {
            let filled = {
                let mut space = self.core.receive_buffers(connection);
                assert!(
                    (1..=BUFFERS as usize * BUFFER_BYTES + HEAD_BYTES_MAX).contains(&space.total_bytes())
                );
                space.fill(&bytes[..at_once.min(bytes.len())])
            };
            bytes = &bytes[filled..];
            if self.core.handle_received(connection, filled).is_err() {
                self.sent[connection].clear();
                return;
            }
        }
        let core = &self.core;
        self.sent[connection].retain(|xid| core.call_pieces(*xid).is_some());
    }

    fn check_completions(&mut self) {
        while let Some(done) = self.core.next_completion() {
            let ticket = match done {
                Completion::Results { ticket, results, .. } => {
                    assert!(results.map_or(0, |results| results.len()) <= RESULTS_BYTES_MAX);
                    ticket
                }
                Completion::Committed { ticket, .. } => ticket,
                Completion::Filled { ticket, mut buffer, .. } => {
                    let asked = self.asked.get(&ticket).copied().unwrap_or(0);
                    assert!(buffer.len() <= asked, "no more than was asked for");
                    buffer.resize(BUFFER_BYTES);
                    assert!(buffer[asked.min(BUFFER_BYTES)..].iter().all(|byte| *byte == 0xee), "{asked}");
                    ticket
                }
            };
            assert!(self.asked.remove(&ticket).is_some(), "done once, and asked for before");
        }
        assert!(self.core.uncommitted_bytes() <= BUFFERS as usize * BUFFER_BYTES);
    }

    fn check_end(mut self) {
        self.core.give_up(super::CallError::Unanswered);
        self.check_completions();
        assert!(self.asked.is_empty() && self.core.in_flight() == 0 && self.core.queued_count() == 0);
        let Self { pool, core, .. } = self;
        drop(core);
        assert_eq!(pool.available(), pool.total(), "every buffer has come back");
    }
}

fn encode_results(kind: usize, count: usize, out: &mut Vec<u8>) {
    let changed = WeakCacheConsistency::unchanged(None);
    match kind % 4 {
        0 => NfsResult::<WriteResult, WeakCacheConsistency>::Ok(WriteResult {
            changed,
            count: count as u32,
            stability: Stability::ALL[kind / 4 % 3],
            verifier: [(kind / 16 % 3) as u8; 8],
        })
        .encode(out),
        1 => NfsResult::<CommitResult, WeakCacheConsistency>::Ok(CommitResult {
            changed,
            verifier: [(kind / 16 % 3) as u8; 8],
        })
        .encode(out),
        _ => {
            let head = ReadHead {
                attributes: None,
                count: count as u32,
                is_end: (kind / 4).is_multiple_of(2),
                data_bytes: count as u32,
            };
            NfsResult::<ReadHead, Option<Attributes>>::Ok(head).encode(out);
            out.resize(out.len() + count + padding(count), 0xab);
        }
    }
}
