//! Counts the bytes that a process's read calls return, and those it splices (`bpf/reads.bpf.c`): a program
//! that never has the bytes of a file in its memory cannot have copied them.

use std::os::fd::{AsFd, AsRawFd};

use aya::programs::TracePoint;
use aya::{Ebpf, EbpfLoader};
use serde::Serialize;

use super::witness::{descriptor_info, info_field, read_counter};
use crate::failure::Failure;

static PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../bpf/reads.bpf.o");

const PROGRAM: &str = "call_ends";

/// The system calls watched, by their number in the program.
const CALLS: [&str; 6] = ["read", "pread64", "readv", "preadv", "preadv2", "splice"];

/// The length of a read of an eventfd, which a woken program makes once.
const EVENT_BYTES: u64 = 8;

/// Watches one process while it exists.
pub(crate) struct ReadCallCounter {
    programs: Ebpf,
}

impl ReadCallCounter {
    pub(crate) fn for_process(process: u32) -> Result<Self, Failure> {
        let mut programs = EbpfLoader::new().override_global("process", &process, true).load(PROGRAMS)?;
        let program: &mut TracePoint =
            programs.program_mut(PROGRAM).expect("there is one program").try_into()?;
        program.load()?;
        for call in CALLS {
            program.attach("syscalls", &format!("sys_exit_{call}"))?;
        }
        Ok(Self { programs })
    }

    /// The calls that have returned so far, on all processors.
    pub(crate) fn totals(&self) -> Result<CallTotals, Failure> {
        let count = |(key, call): (u32, &'static str)| {
            let [calls, bytes] = read_counter(&self.programs, "counts", key)?;
            Ok::<_, Failure>(CallCount { call, calls, bytes })
        };
        let counts = (0..).zip(CALLS).map(count).collect::<Result<_, _>>()?;
        Ok(CallTotals { counts, missed: self.missed_calls()? })
    }

    /// How often the kernel skipped the program, because another one ran on that processor, or a process that
    /// it had interrupted was looking into a map (`bpf_prog_active`).
    fn missed_calls(&self) -> Result<u64, Failure> {
        let program = self.programs.program(PROGRAM).expect("there is one program");
        let account = descriptor_info(program.fd()?.as_fd().as_raw_fd())?;
        let missed = info_field(&account, "recursion_misses:").and_then(|count| count.parse().ok());
        missed.ok_or_else(|| Failure(format!("the kernel does not say what the program missed: {account}")))
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct CallTotals {
    counts: Vec<CallCount>,
    /// Calls that ended without being counted: unless this is 0, no figure is true.
    #[serde(skip)]
    pub(crate) missed: u64,
}

#[derive(Debug, Serialize)]
struct CallCount {
    call: &'static str,
    calls: u64,
    bytes: u64,
}

impl CallTotals {
    pub(crate) fn since(self, before: &Self) -> Self {
        let counts = self.counts.into_iter().zip(&before.counts);
        let since = |(now, before): (CallCount, &CallCount)| CallCount {
            calls: now.calls - before.calls,
            bytes: now.bytes - before.bytes,
            ..now
        };
        Self { counts: counts.map(since).collect(), missed: self.missed - before.missed }
    }

    /// Bytes moved by splice(2): those of a file count twice, into a pipe and out of it.
    pub(crate) fn spliced_bytes(&self) -> u64 {
        self.sum_where(|count| count.call == "splice", |count| count.bytes)
    }

    /// Bytes returned by reading calls, without those of eventfds.
    pub(crate) fn payload_bytes(&self) -> u64 {
        let is_events = |count: &CallCount| count.call == "read" && count.bytes == count.calls * EVENT_BYTES;
        self.sum_where(|count| count.call != "splice" && !is_events(count), |count| count.bytes)
    }

    fn sum_where(&self, is_asked: impl Fn(&CallCount) -> bool, figure: impl Fn(&CallCount) -> u64) -> u64 {
        self.counts.iter().filter(|count| is_asked(count)).map(figure).sum()
    }
}
