//! The kernel's side of a profile: programs at tracepoints and on the processor clock, which sum up in the
//! kernel.

mod calls;
mod drop_reason;
mod load;
mod overhead;
mod sums;

use std::fs;
use std::time::Duration;

use aya::maps::MapError;
use aya::programs::ProgramFd;
use aya::{Btf, Ebpf};
use rustix::thread::{CapabilitySet, capabilities};
use rustix::time::{ClockId, clock_gettime};

use super::Error;
use super::measured::{CallCounts, UnmeasuredQuantity, WindowMeasurement};
use super::symbols::KernelSymbols;
use super::target::ProfileTargets;
use super::tasks::{self, Threads};
use drop_reason::DropReasonNames;
use overhead::ProgramTimer;
use sums::{BpfSums, ThreadInsideCall};

/// On each processor, by default. The interrupt for a sample stops a virtual processor for some 20 us, and a
/// stream between two busy ones loses far more time than that: 997 a second cost 5 to 18 % of the throughput,
/// 97 cost 1 to 4. Not a round number, so that samples do not coincide with periodic work.
pub const SAMPLES_PER_SECOND: u32 = 97;

/// Capabilities to load the programs: for tracing and for their times (`BPF_ENABLE_STATS`), for addresses of
/// functions, and for the current calls of other processes.
pub const CAPABILITIES: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::SYS_PTRACE);

/// The type information of the running kernel. Reading it takes long, so it is read once for many windows.
#[derive(Debug)]
pub struct KernelTypes {
    types: Btf,
    drop_reasons: DropReasonNames,
}

impl KernelTypes {
    /// # Errors
    /// Without type information, or without the capabilities that profiling needs.
    pub fn read() -> Result<Self, Error> {
        require_capabilities()?;
        KernelSymbols::read()?;
        Ok(Self { types: Btf::from_sys_fs().map_err(Error::Types)?, drop_reasons: DropReasonNames::read() })
    }
}

/// Checked first, because the kernel's EPERM does not name the missing capability.
fn require_capabilities() -> Result<(), Error> {
    let Ok(held) = capabilities(None) else { return Ok(()) };
    if held.effective.contains(CapabilitySet::SYS_ADMIN) {
        return Ok(()); // which stands for the two
    }
    let needed = [(CapabilitySet::BPF, "CAP_BPF"), (CapabilitySet::PERFMON, "CAP_PERFMON")];
    match needed.into_iter().find(|(capability, _)| !held.effective.contains(*capability)) {
        Some((_, name)) => Err(Error::Capability { name }),
        None => Ok(()),
    }
}

/// A window of profiling: open from its creation until it is read.
#[derive(Debug)]
pub struct ProfilingWindow<'a> {
    kernel: &'a KernelTypes,
    programs: Ebpf,
    absent: Vec<UnmeasuredQuantity>,
    before: StartCounters,
    cost: ProgramTimer,
    /// Between two samples.
    period: Duration,
}

/// Counters at the beginning of the window.
#[derive(Debug)]
struct StartCounters {
    at_ns: u64,
    threads: Threads,
    machine_packets: u32,
    has_ports: bool,
}

impl<'a> ProfilingWindow<'a> {
    /// Opens a window for these targets. Fails only if no result is possible without the refused part; other
    /// refusals are recorded in the measurement.
    pub fn open(
        kernel: &'a KernelTypes,
        targets: &ProfileTargets,
        samples_per_second: u32,
    ) -> Result<Self, Error> {
        targets.check_processes_exist()?;
        let mut programs = load::load_programs(targets, &kernel.types)?;
        let absent = load::attach_programs(&mut programs, &kernel.types, samples_per_second)?;
        let fds = programs.programs().filter_map(|(_, program)| program.fd().ok()?.try_clone().ok());
        let fds: Vec<ProgramFd> = fds.collect();
        let waiting = threads_inside_calls(&targets.processes);
        let before = StartCounters {
            at_ns: monotonic_now_ns(),
            threads: tasks::read_cpu_usages(targets.processes.iter().copied()),
            machine_packets: machine_packet_count(),
            has_ports: !targets.ports.is_empty(),
        };
        begin_counting(&mut programs, targets, &waiting, before.at_ns).map_err(Error::Read)?;
        Ok(Self {
            kernel,
            programs,
            absent,
            before,
            cost: ProgramTimer::start(fds),
            period: Duration::from_secs(1) / samples_per_second,
        })
    }

    /// Closes the window, and returns its measurement.
    pub fn close_and_read(mut self) -> Result<WindowMeasurement, Error> {
        if let Some(error) = BpfSums(&self.programs).refresh_socket_counters().map_err(Error::Read)? {
            self.absent.push(UnmeasuredQuantity { what: load::OPEN_COUNTERS, why: error.to_string() });
        }
        sums::set_window_open(&mut self.programs, false).map_err(Error::Read)?;
        let now_ns = monotonic_now_ns();
        // First of all: the threads run on.
        let threads = read_thread_usages(&BpfSums(&self.programs)).map_err(Error::Read)?;
        let elapsed = Duration::from_nanos(now_ns - self.before.at_ns);
        let (overhead, is_timed) = self.cost.stop_and_scale(elapsed);
        if !is_timed {
            let why = "the kernel does not time BPF programs for this process: grant CAP_SYS_ADMIN";
            self.absent.push(UnmeasuredQuantity { what: "overhead", why: why.into() });
        }
        let machine_packets = machine_packet_count().wrapping_sub(self.before.machine_packets).into();
        let mut measured = WindowMeasurement {
            elapsed,
            machine_packets,
            overhead,
            absent: self.absent,
            ..WindowMeasurement::default()
        };
        let sums = BpfSums(&self.programs);
        add_call_counts(&mut measured, &sums, now_ns).map_err(Error::Read)?;
        add_task_times(&mut measured, &self.before, &threads);
        let sampled = sums.sampled_stacks(&KernelSymbols::read()?, self.period).map_err(Error::Read)?;
        (measured.sampling, measured.stacks) = sampled;
        let processors = aya::util::online_cpus().map_or(0, |all| all.len());
        measured.sampling.ticks_due = elapsed.div_duration_f64(self.period) as u64 * processors as u64;
        add_tcp_drops_and_losses(&mut measured, &sums, &self.kernel.drop_reasons).map_err(Error::Read)?;
        Ok(measured)
    }
}

fn begin_counting(
    programs: &mut Ebpf,
    targets: &ProfileTargets,
    waiting: &[ThreadInsideCall],
    now_ns: u64,
) -> Result<(), MapError> {
    sums::add_threads_inside_calls(programs, waiting, now_ns)?;
    sums::set_window_open(programs, true)?;
    sums::add_target_processes(programs, &targets.processes)
}

/// Threads that are sleeping inside a counted call.
fn threads_inside_calls(processes: &[u32]) -> Vec<ThreadInsideCall> {
    let threads = processes.iter().flat_map(|process| {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
        tasks.filter_map(|task| {
            let task = task.ok()?;
            // "running", or the number of the call and its arguments.
            let call = fs::read_to_string(task.path().join("syscall")).ok()?;
            let number = call.split_ascii_whitespace().next()?.parse().ok()?;
            let id = task.file_name().to_str()?.parse().ok()?;
            Some(ThreadInsideCall { id, kind: calls::kind_of_call(number)?, run_delay: tasks::run_delay(id) })
        })
    });
    threads.collect()
}

fn add_call_counts(measured: &mut WindowMeasurement, sums: &BpfSums, now_ns: u64) -> Result<(), MapError> {
    let kinds = [
        (calls::RECEIVE, &mut measured.receives),
        (calls::SEND, &mut measured.sends),
        (calls::POLL, &mut measured.polls),
    ];
    let threads = sums.thread_states()?;
    measured.tasks.threads = u32::try_from(threads.len()).unwrap_or(u32::MAX);
    let inside = threads.iter().filter(|(_, thread)| sums::is_inside_call(thread));
    let unfinished: Vec<_> = inside
        .filter_map(|(id, thread)| sums::unfinished_call_times(thread, now_ns, tasks::run_delay(*id)))
        .collect();
    for (kind, calls) in kinds {
        let of_kind = sums.call_sums(kind)?;
        *calls = of_kind.calls;
        measured.delivered_packets += of_kind.udp_packets;
        if kind == calls::RECEIVE {
            measured.copied = of_kind.copied;
        }
        for &(_, [inside, sleeping, runnable]) in unfinished.iter().filter(|(of, _)| *of == kind) {
            calls.inside += inside;
            calls.sleeping += sleeping;
            calls.runnable += runnable;
        }
    }
    Ok(())
}

/// Processor time of the target's threads, including threads that have ended.
fn read_thread_usages(sums: &BpfSums) -> Result<Threads, MapError> {
    let mut threads = tasks::read_cpu_usages(sums.target_processes()?);
    threads.extend(sums.ended_threads()?);
    Ok(threads)
}

/// Adds all threads of target processes; for a target port, only the calls on it.
fn add_task_times(measured: &mut WindowMeasurement, before: &StartCounters, after: &Threads) {
    let WindowMeasurement { tasks, receives, sends, .. } = measured;
    tasks.switches = tasks::scheduled_runs_between(&before.threads, after);
    if before.has_ports {
        let on_processor = |calls: &CallCounts| calls.inside.saturating_sub(calls.sleeping + calls.runnable);
        tasks.system = on_processor(receives) + on_processor(sends);
    } else {
        tasks.threads = u32::try_from(after.len()).unwrap_or(u32::MAX);
        [tasks.user, tasks.system] = tasks::cpu_time_between(&before.threads, after);
    }
}

fn add_tcp_drops_and_losses(
    measured: &mut WindowMeasurement,
    sums: &BpfSums,
    names: &DropReasonNames,
) -> Result<(), MapError> {
    let outside_bytes = sums.call_sums(calls::OUTSIDE)?.calls.socket_bytes;
    if outside_bytes > 0 {
        let why = format!("{outside_bytes} bytes went by io_uring, or by calls that had begun before");
        measured.absent.push(UnmeasuredQuantity { what: "all that was moved", why });
    }
    measured.tcp = sums.tcp_counters()?;
    measured.delivered_packets += measured.tcp.packets_in;
    measured.drops = sums.dropped_packets(names)?;
    measured.overhead.lost_events += sums.lost_events()?;
    Ok(())
}

/// The time on the clock of the BPF programs (`bpf_ktime_get_ns`).
fn monotonic_now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Packets that the receive softirqs of all processors handled since the machine started, with the kernel's
/// number of bits (kernel: net/core/net-procfs.c).
fn machine_packet_count() -> u32 {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let processed = |line: &str| u32::from_str_radix(line.split_ascii_whitespace().next()?, 16).ok();
    text.lines().filter_map(processed).fold(0, u32::wrapping_add)
}
