//! Counts by kprobes what a process receives and sends by TCP (`bpf/witness.bpf.c`): a witness that hooks elsewhere than `nocopy profile`.

use aya::maps::{MapData, PerCpuArray};
use aya::programs::KProbe;
use aya::{Ebpf, EbpfLoader};
use serde::Serialize;

use crate::registry::Failure;

static PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../../../bpf/witness.bpf.o");

/// The functions watched, by their number.
const FUNCTIONS: [&str; 4] = ["tcp_recvmsg", "tcp_sendmsg", "skb_copy_datagram_iter", "tcp_rcv_established"];

/// Watches while it lives.
pub(crate) struct Witness {
    programs: Ebpf,
}

/// What was seen.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Seen {
    pub(crate) receives: Count,
    pub(crate) sends: Count,
    /// Copied from packets to the process.
    pub(crate) copied: Count,
    /// That came up to TCP, whoever they were for.
    pub(crate) packets: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Count {
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
}

impl Witness {
    /// Watches this process.
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

    /// What it has seen so far, on all processors.
    pub(crate) fn seen(&self) -> Result<Seen, Failure> {
        let map = self.programs.map("counts").expect("the programs have one map");
        let map = PerCpuArray::<&MapData, [u64; 2]>::try_from(map)?;
        let count = |key| {
            let processors = map.get(&key, 0)?;
            let sum = |field: usize| processors.iter().map(|count| count[field]).sum();
            Ok::<_, Failure>(Count { calls: sum(0), bytes: sum(1) })
        };
        Ok(Seen { receives: count(0)?, sends: count(1)?, copied: count(2)?, packets: count(3)?.calls })
    }
}
