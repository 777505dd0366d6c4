//! Loads the programs of bpf/profile.bpf.c and attaches them.

use std::io::ErrorKind;

use aya::programs::perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::programs::{BtfTracePoint, PerfEvent, ProgramError, RawTracePoint};
use aya::{Btf, Ebpf, EbpfLoader};

use super::calls;
use crate::Error;
use crate::error::root_cause_text;
use crate::measured::{RECEIVED_BY_SOCKET, SENT_BY_SOCKET, UnmeasuredQuantity};
use crate::target::ProfileTargets;

static PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../bpf/profile.bpf.o");

/// The size of the table of ports in the BPF programs.
const PORTS_MAX: usize = 16;

/// Programs without which no result is possible.
const NEEDED: [&str; 2] = ["sys_enter", "sys_exit"];

/// Programs by the name of their tracepoint, and the figures that are missing without them.
const REFINEMENTS: [(&str, &str); 10] = [
    ("sock_recv_length", RECEIVED_BY_SOCKET),
    ("sock_send_length", SENT_BY_SOCKET),
    ("skb_copy_datagram_iovec", "bytes copied to user space"),
    ("sched_switch", "time sleeping"),
    ("sched_process_fork", "children of the target"),
    ("sched_process_free", "children of the target after the 4,096th"),
    ("sched_process_exit", "processor time of threads that ended"),
    ("tcp_probe", "packets that came up to TCP, and the window"),
    ("inet_sock_set_state", ENDS),
    ("kfree_skb", "drops"),
];

/// The program for `kfree_skb` before Linux 6.11.
const OLD_DROPS: &str = "kfree_skb_of_sender";

/// The figures that are missing without one of these tracepoints.
const ENDS: &str = "TCP's counters of connections";
pub(super) const OPEN_COUNTERS: &str = "TCP's counters of connections that go on";

/// The program that takes samples; one per architecture, because registers differ.
const SAMPLER: &str = if cfg!(target_arch = "aarch64") { "sample_arm64" } else { "sample_x86" };

/// The BPF program that reads a socket's counters.
pub(super) const READER: &str = "read_socket";

/// Loads the programs for these targets, without attaching them.
pub(super) fn load_programs(targets: &ProfileTargets, kernel: &Btf) -> Result<Ebpf, Error> {
    let kinds =
        calls::kinds_by_call_number().ok_or(Error::Architecture { architecture: std::env::consts::ARCH })?;
    let count = targets.ports.len();
    if count > PORTS_MAX {
        return Err(Error::TooManyPorts { max: PORTS_MAX });
    }
    let mut ports = [0_u16; PORTS_MAX];
    ports[..count].copy_from_slice(&targets.ports);
    let port_count = u32::try_from(count).expect("at most 16");
    let any_process = u32::from(targets.processes.is_empty());
    let mut loader = EbpfLoader::new();
    loader.btf(Some(kernel)).override_global("call_kinds", &kinds[..], true);
    loader.override_global("ports", &ports[..], true).override_global("port_count", &port_count, true);
    loader.override_global("any_process", &any_process, true);
    loader.load(PROGRAMS).map_err(Error::Load)
}

/// Attaches all programs that this kernel accepts; returns the others.
pub(super) fn attach_programs(
    programs: &mut Ebpf,
    kernel: &Btf,
    samples_per_second: u32,
) -> Result<Vec<UnmeasuredQuantity>, Error> {
    for tracepoint in NEEDED {
        attach_tracepoint(programs, tracepoint, tracepoint, kernel)
            .map_err(|source| Error::Attach { tracepoint, source })?;
    }
    let mut absent = Vec::new();
    for (tracepoint, what) in REFINEMENTS {
        let mut attached = attach_tracepoint(programs, tracepoint, tracepoint, kernel);
        if attached.is_err() && tracepoint == "kfree_skb" {
            attached = attach_tracepoint(programs, OLD_DROPS, tracepoint, kernel);
        }
        if let Err(error) = attached {
            absent.push(UnmeasuredQuantity { what, why: root_cause_text(&error) });
        }
    }
    // Sockets that still exist are found by the events at their end.
    if !absent.iter().any(|absent| absent.what == ENDS)
        && let Err(error) = load_socket_reader(programs)
    {
        absent.push(UnmeasuredQuantity { what: OPEN_COUNTERS, why: root_cause_text(&error) });
    }
    if let Err(error) = attach_sampling_clock(programs, samples_per_second) {
        absent.push(UnmeasuredQuantity { what: "time by category", why: root_cause_text(&error) });
    }
    Ok(absent)
}

fn attach_tracepoint(
    programs: &mut Ebpf,
    program: &str,
    tracepoint: &str,
    kernel: &Btf,
) -> Result<(), ProgramError> {
    let program: &mut BtfTracePoint = programs.program_mut(program).expect("it is there").try_into()?;
    load_despite_signals(|| program.load(tracepoint, kernel))?;
    program.attach().map(drop)
}

/// How often a program is given to the verifier, as in the library (`sys/bpf.rs`).
const LOAD_ATTEMPTS: u32 = 100;

/// Loads a program; tries again if the verifier stopped with `EAGAIN` because a signal arrived (`bpf_check`).
fn load_despite_signals(mut load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    (1..LOAD_ATTEMPTS).map(|_| load()).find(|loaded| !was_interrupted_by_signal(loaded)).unwrap_or_else(load)
}

fn was_interrupted_by_signal(loaded: &Result<(), ProgramError>) -> bool {
    match loaded {
        Err(ProgramError::LoadError { io_error, .. }) => io_error.kind() == ErrorKind::WouldBlock,
        _ => false,
    }
}

/// Loads the program that user space runs itself, without a tracepoint.
fn load_socket_reader(programs: &mut Ebpf) -> Result<(), ProgramError> {
    let program: &mut RawTracePoint = programs.program_mut(READER).expect("it is there").try_into()?;
    load_despite_signals(|| program.load())
}

fn attach_sampling_clock(programs: &mut Ebpf, samples_per_second: u32) -> Result<(), ProgramError> {
    let program: &mut PerfEvent = programs.program_mut(SAMPLER).expect("it is there").try_into()?;
    load_despite_signals(|| program.load())?;
    let clock = PerfEventConfig::Software(SoftwareEvent::CpuClock);
    for cpu in aya::util::online_cpus().map_err(|(_, source)| ProgramError::IOError(source))? {
        let scope = PerfEventScope::AllProcessesOneCpu { cpu };
        program.attach(clock, scope, SamplePolicy::Frequency(samples_per_second.into()), false)?;
    }
    Ok(())
}
