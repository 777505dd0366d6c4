//! Counts the bytes that the kernel copies between a program and a card (`bpf/copies.bpf.c`).

use aya::programs::{FEntry, FExit, Program, ProgramError};
use aya::{Btf, Ebpf};
use serde::Serialize;

use super::witness::read_counter;
use crate::failure::Failure;

static PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../bpf/copies.bpf.o");

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    Sent,
    Received,
}

const FUNCTIONS: &[&str] = &[
    "__xsk_rcv",
    "skb_store_bits",
    "__skb_datagram_iter",
    "ip_generic_getfrag",
    "skb_copy_datagram_from_iter",
    "swiotlb_bounce",
    "skb_copy_bits",
    "pskb_expand_head",
    "__pskb_copy_fclone",
    "skb_copy_ubufs",
    "skb_copy_and_csum_bits",
    "skb_segment",
    "tcp_sendmsg_locked",
];

/// The longest headers of a TCP packet: Ethernet, IPv6, TCP with all options.
const HEADERS_BYTES_MAX: u64 = 14 + 40 + 60;

/// Functions that are watched at their ends, by programs of these names.
const FUNCTIONS_LEFT: [(&str, &str); 4] = [
    ("skb_segment", "skb_segment_end"),
    ("tcp_sendmsg_locked", "tcp_sendmsg_locked_end"),
    ("skb_zerocopy_iter_stream", "skb_zerocopy_iter_stream_end"),
    ("skb_splice_from_iter", "skb_splice_from_iter_end"),
];

/// Watches until it is dropped.
pub(crate) struct CopyMeter {
    programs: Ebpf,
}

impl CopyMeter {
    /// Watches the whole machine.
    pub(crate) fn start() -> Result<Self, Failure> {
        let mut programs = Ebpf::load(PROGRAMS)?;
        let kernel = Btf::from_sys_fs()?;
        for function in FUNCTIONS {
            let program = programs.program_mut(function).expect("there is a program for each function");
            let failed = |error| Failure(format!("watching {function}: {}", Failure::from(error)));
            attach_to_function(program, function, &kernel).map_err(failed)?;
        }
        for (function, program) in FUNCTIONS_LEFT {
            let program: &mut FExit =
                programs.program_mut(program).expect("there is a program for its end").try_into()?;
            program.load(function, &kernel)?;
            program.attach()?;
        }
        Ok(Self { programs })
    }

    /// The bytes that the kernel copies while `work` runs.
    pub(crate) fn measure_copies(
        &self,
        work: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<CopyCounts, Failure> {
        let before = self.read_counters()?;
        work()?;
        let accounts = before.iter().zip(self.read_counters()?).map(|(before, after)| FunctionCopies {
            calls: after.calls - before.calls,
            bytes: after.bytes - before.bytes,
            ..after
        });
        Ok(CopyCounts(accounts.filter(|account| account.calls > 0).collect()))
    }

    /// The bytes that every function has copied each way, on all processors.
    fn read_counters(&self) -> Result<Vec<FunctionCopies>, Failure> {
        let kinds = FUNCTIONS
            .iter()
            .flat_map(|function| [(function, Direction::Sent), (function, Direction::Received)]);
        let account = |(key, (function, direction)): (u32, (&&'static str, Direction))| {
            let [calls, bytes] = read_counter(&self.programs, "accounts", key)?;
            Ok(FunctionCopies { function, direction, calls, bytes })
        };
        (0..).zip(kinds).map(account).collect()
    }
}

fn attach_to_function(program: &mut Program, function: &str, kernel: &Btf) -> Result<(), ProgramError> {
    let program: &mut FEntry = program.try_into()?;
    program.load(function, kernel)?;
    program.attach().map(drop)
}

#[derive(Debug)]
pub(crate) struct CopyCounts(Vec<FunctionCopies>);

/// Bytes that one function copied one way.
#[derive(Debug, Serialize)]
pub(crate) struct FunctionCopies {
    pub(crate) function: &'static str,
    #[serde(skip)]
    direction: Direction,
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
}

impl CopyCounts {
    pub(crate) fn of_direction(&self, direction: Direction) -> Vec<&FunctionCopies> {
        self.0.iter().filter(|account| account.direction == direction).collect()
    }

    pub(crate) fn copied_bytes(&self, direction: Direction) -> u64 {
        self.of_direction(direction).iter().map(|account| account.bytes).sum()
    }

    /// Bytes copied that way, without headers alone: a TCP packet that is sent again while its first copy is
    /// still queued gets headers of its own, and shares the payload (`tcp_retransmit_skb`, `skb_unclone`). A
    /// slow machine makes the kernel send again.
    pub(crate) fn payload_bytes(&self, direction: Direction) -> u64 {
        let accounts = self.of_direction(direction).into_iter();
        accounts.filter(|account| !account.copies_only_headers()).map(|account| account.bytes).sum()
    }
}

impl FunctionCopies {
    fn copies_only_headers(&self) -> bool {
        self.function == "pskb_expand_head" && self.bytes <= self.calls * HEADERS_BYTES_MAX
    }
}
