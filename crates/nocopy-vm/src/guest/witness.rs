//! Counts by kprobes what a process receives and sends by TCP (`bpf/witness.bpf.c`), at other functions than
//! `nocopy profile`.
//!
//! It also reports what it missed. The kernel skips a kprobe on a processor that is inside another one, so a
//! packet that interrupts a counted call is not counted. That is rare, unless the processor is emulated and
//! its host busy. The kernel counts these cases, and they are reported.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

use aya::maps::{MapData, PerCpuArray};
use aya::programs::KProbe;
use aya::{Ebpf, EbpfLoader};
use serde::Serialize;

use crate::failure::Failure;

static PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../bpf/witness.bpf.o");

const FUNCTIONS: [&str; 4] = ["tcp_recvmsg", "tcp_sendmsg", "skb_copy_datagram_iter", "tcp_rcv_established"];

/// Watches until it is dropped.
pub(crate) struct KprobeCounter {
    programs: Ebpf,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct KprobeTotals {
    pub(crate) receives: CallCounts,
    pub(crate) sends: CallCounts,
    /// Copied from packets to the process.
    pub(crate) copied: CallCounts,
    /// Packets that reached TCP, of any socket.
    pub(crate) packets: CallCounts,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct CallCounts {
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
    /// Calls that were not seen.
    pub(crate) missed: u64,
}

impl CallCounts {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls - before.calls,
            bytes: self.bytes - before.bytes,
            missed: self.missed - before.missed,
        }
    }
}

impl KprobeCounter {
    pub(crate) fn of_this_process() -> Result<Self, Failure> {
        let process = std::process::id();
        let mut programs = EbpfLoader::new().override_global("process", &process, true).load(PROGRAMS)?;
        for function in FUNCTIONS {
            let program = programs.program_mut(function).expect("there is a program for each function");
            let program: &mut KProbe = program.try_into()?;
            program.load()?;
            program.attach(function, 0)?;
        }
        Ok(Self { programs })
    }

    /// The counts so far, on all processors.
    pub(crate) fn totals(&self) -> Result<KprobeTotals, Failure> {
        let count = |key: u32| {
            let [calls, bytes] = read_counter(&self.programs, "counts", key)?;
            let missed = self.missed_calls(FUNCTIONS[key as usize])?;
            Ok::<_, Failure>(CallCounts { calls, bytes, missed })
        };
        Ok(KprobeTotals { receives: count(0)?, sends: count(1)?, copied: count(2)?, packets: count(3)? })
    }

    /// Calls of the function that passed its kprobe over (kernel: kprobes_inc_nmissed_count), or its program
    /// (trace_call_bpf).
    fn missed_calls(&self, function: &str) -> Result<u64, Failure> {
        let program = self.programs.program(function).expect("there is a program for each function");
        let account = descriptor_info(program.fd()?.as_fd().as_raw_fd())?;
        let by_program =
            info_field(&account, "recursion_misses:").and_then(|count| count.parse::<u64>().ok());
        let by_kprobe = missed_kprobe_calls(function)?;
        by_program.zip(by_kprobe).map(|(program, kprobe)| program + kprobe).ok_or_else(|| {
            Failure(format!("{function}: the kernel does not say what its kprobe has missed: it must be of Linux 6.17 or newer"))
        })
    }
}

/// Found among the descriptors of this process, since the library keeps the descriptor of the link to itself.
fn missed_kprobe_calls(function: &str) -> Result<Option<u64>, Failure> {
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        // A descriptor that is closed meanwhile is not the link.
        let Ok(account) = fs::read_to_string(entry?.path()) else { continue };
        if info_field(&account, "name:") == Some(function) {
            return Ok(info_field(&account, "missed:").and_then(|count| count.parse().ok()));
        }
    }
    Ok(None)
}

/// The calls and bytes that programs have counted on all processors, in an entry of their only map.
pub(super) fn read_counter(programs: &Ebpf, map: &str, key: u32) -> Result<[u64; 2], Failure> {
    let map = programs.map(map).expect("the programs have one map");
    let processors = PerCpuArray::<&MapData, [u64; 2]>::try_from(map)?.get(&key, 0)?;
    Ok([0, 1].map(|field| processors.iter().map(|count| count[field]).sum()))
}

/// What the kernel says of a descriptor of this process.
pub(super) fn descriptor_info(descriptor: i32) -> std::io::Result<String> {
    fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}"))
}

/// The value of a field in a file of `/proc/self/fdinfo`.
pub(super) fn info_field<'a>(account: &'a str, name: &str) -> Option<&'a str> {
    account.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
