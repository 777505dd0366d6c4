//! Counters of each socket, in the file that `nocopy run` shares with the library, if there is one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nocopy_proto::run::sockets::{
    BatchingStopCause, FILE_BYTES, Flush, MAGIC, SOCKETS_MAX, UnbatchedCause, WORDS, address_words, head,
    word,
};

use crate::destination::Destination;
use crate::environment;
use crate::sys;

/// A record: counters that any thread adds to, and any process reads.
pub(crate) type Words = [AtomicU64; WORDS];

/// The record for counts when no report was requested.
static UNREPORTED: Words = [const { AtomicU64::new(0) }; WORDS];

static FILE: OnceLock<&'static [Words]> = OnceLock::new();

/// Maps the file, if `nocopy run` has passed one. Called once, before the program starts.
pub(crate) fn map_report_file() {
    let Some(records) = environment::report_file_descriptor().and_then(map_records) else { return };
    if FILE.set(records).is_ok() {
        records[0][head::PROGRAMS_AT].fetch_add(1, Relaxed);
    }
}

/// Records that the library does nothing in this program.
pub(crate) fn record_confined() {
    if let Some(records) = FILE.get() {
        records[0][head::CONFINED_AT].fetch_add(1, Relaxed);
    }
}

fn map_records(descriptor: i32) -> Option<&'static [Words]> {
    let memory = sys::map_shared_file(descriptor, FILE_BYTES)?;
    // SAFETY: so many bytes are mapped, and stay mapped; the atomics are valid for any content, and
    // page-aligned.
    let records = unsafe { std::slice::from_raw_parts(memory.cast::<Words>(), 1 + SOCKETS_MAX) };
    (records[0][head::MAGIC_AT].load(Relaxed) == MAGIC).then_some(records)
}

/// The name in the record that all sockets share for which there is no other.
const OTHER_SOCKETS: [u64; 2] = [u64::from_ne_bytes(*b"(others)"), 0];

#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketRecord(&'static Words);

impl SocketRecord {
    pub(crate) const NONE: Self = Self(&UNREPORTED);

    /// The record of a slot's pointer; null is [`NONE`](Self::NONE).
    #[inline]
    pub(crate) fn from_pointer(pointer: *mut Words) -> Self {
        // SAFETY: null, or made of a reference by `into_pointer`.
        unsafe { pointer.as_ref() }.map_or(Self::NONE, Self)
    }

    pub(crate) fn into_pointer(self) -> *mut Words {
        std::ptr::from_ref(self.0).cast_mut()
    }

    /// A new record for a socket of this process.
    pub(crate) fn claim_record(process: u32) -> Self {
        let Some(records) = FILE.get() else { return Self::NONE };
        let taken = records[0][head::SOCKETS_AT].fetch_add(1, Relaxed);
        let taken = usize::try_from(taken).unwrap_or(usize::MAX);
        let record = &records[1 + taken.min(SOCKETS_MAX - 1)];
        // The program may have written any number there.
        let is_own = taken < SOCKETS_MAX - 1;
        let name = if is_own { thread_name() } else { OTHER_SOCKETS };
        for (at, part) in name.into_iter().enumerate() {
            record[word::PROGRAM_AT + at].store(part, Relaxed);
        }
        record[word::PROCESS_AT].store(process.into(), Relaxed);
        Self(record)
    }

    #[inline]
    pub(crate) fn count_single_send(self, plain: UnbatchedCause) {
        self.add_to_word(word::PLAIN_AT + plain as usize, 1);
    }

    /// Counts datagrams that one call sent without a burst.
    pub(crate) fn count_single_sends(self, plain: UnbatchedCause, count: u64) {
        self.add_to_word(word::PLAIN_AT + plain as usize, count);
    }

    /// Counts a burst that was handed over.
    pub(crate) fn count_burst(self, why: Flush, datagrams: u64) {
        self.add_to_word(word::JOINED_AT, datagrams);
        self.add_to_word(word::BURSTS_AT, 1);
        self.add_to_word(word::FLUSHED_AT + why as usize, 1);
    }

    pub(crate) fn count_refused(self, datagrams: u64) {
        self.add_to_word(word::REFUSED_AT, datagrams);
    }

    pub(crate) fn count_lost(self, datagrams: u64) {
        self.add_to_word(word::LOST_AT, datagrams);
    }

    pub(crate) fn record_skip(self, why: BatchingStopCause) {
        self.0[word::ALONE_AT].store(why as u64, Relaxed);
        self.add_to_word(word::LEFT_AT, 1);
    }

    /// Records that bursts begin, with their destination and the size of their datagrams.
    pub(crate) fn record_burst_start(self, to: Destination, bytes: usize) {
        self.0[word::ALONE_AT].store(BatchingStopCause::Not as u64, Relaxed);
        self.0[word::BYTES_AT].store(bytes as u64, Relaxed);
        if let Some(address) = to.socket_address() {
            for (at, part) in address_words(address).into_iter().enumerate() {
                self.0[word::PEER_AT + at].store(part, Relaxed);
            }
        }
    }

    pub(crate) fn record_cost_comparison(self, plain_ns: u64, batched_ns: u64) {
        self.0[word::PLAIN_NS_AT].store(plain_ns, Relaxed);
        self.0[word::BATCHED_NS_AT].store(batched_ns, Relaxed);
    }

    #[inline]
    fn add_to_word(self, at: usize, count: u64) {
        self.0[at].fetch_add(count, Relaxed);
    }
}

/// The name of the calling thread, which in most programs is the program's.
fn thread_name() -> [u64; 2] {
    let mut name = [0_u64; 2];
    sys::prctl(libc::PR_GET_NAME, (&raw mut name) as usize);
    name
}
