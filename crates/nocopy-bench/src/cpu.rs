//! Processor time, and the processors of threads.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Processor time of the calling thread, softirqs that ran in its context included (this clock counts
/// them unless the kernel has CONFIG_IRQ_TIME_ACCOUNTING).
pub(crate) fn thread_cpu_time() -> Duration {
    read_clock(ClockId::ThreadCPUTime)
}

/// Processor time of all threads of the calling process.
pub(crate) fn process_cpu_time() -> Duration {
    read_clock(ClockId::ProcessCPUTime)
}

fn read_clock(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Processor time of all current threads of a process, including kernel threads started for it.
pub(crate) fn cpu_time_of_process(id: u32) -> io::Result<Duration> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{id}/task"))? {
        // A thread may end during the loop.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        total += text.split_whitespace().next().and_then(|time| time.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(total))
}

/// The peak memory of a process in its page tables, in KiB; `self` is this process.
pub(crate) fn peak_memory_kib(process: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    peak.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/status has no VmHWM"))
}

/// Time since boot that the processors were idle or taken away by another machine, in total; and the number
/// of processors.
///
/// Busy time is the rest of the elapsed time. The kernel's own busy columns are samples taken at timer ticks,
/// which are wrong for work in short bursts; idle time is measured. It is measured in steps of 10 ms: sum
/// many windows before dividing.
pub(crate) fn machine_idle_time() -> io::Result<(Duration, u32)> {
    let text = fs::read_to_string("/proc/stat")?;
    let (ticks, processors) = parse_idle_ticks(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/stat does not start with 'cpu'"))?;
    let idle = Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
    Ok((idle, processors))
}

/// The load of all processors while the calling thread sleeps.
pub(crate) fn busy_percent(look: Duration) -> io::Result<f64> {
    let (start, (before, processors)) = (Instant::now(), machine_idle_time()?);
    std::thread::sleep(look);
    let idle = machine_idle_time()?.0.saturating_sub(before);
    let whole = start.elapsed() * processors.max(1);
    Ok((1.0 - idle.as_secs_f64() / whole.as_secs_f64()).max(0.0) * 100.0)
}

/// The time since boot that another machine took from this one's processors, in total.
pub(crate) fn stolen_time() -> io::Result<Duration> {
    let text = fs::read_to_string("/proc/stat")?;
    Ok(Duration::from_secs_f64(
        parse_stolen_ticks(&text).unwrap_or(0) as f64 / rustix::param::clock_ticks_per_second() as f64,
    ))
}

fn parse_stolen_ticks(stat: &str) -> Option<u64> {
    stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()
}

/// idle + iowait + steal over all processors, and the number of processors.
fn parse_idle_ticks(stat: &str) -> Option<(u64, u32)> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let numbers: Vec<u64> = fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [_user, _nice, _system, idle, iowait, _irq, _softirq, steal, ..] = numbers[..] else { return None };
    let is_processor = |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| !rest.starts_with(' '));
    let processors = stat.lines().filter(is_processor).count();
    Some((idle + iowait + steal, u32::try_from(processors).ok()?))
}

/// Two processors for the two sides of a test; the same one twice if there is only one.
///
/// If possible, the first has an even number and the second an odd one: veth and packet sockets choose one of
/// two queues by the processor's number.
pub(crate) fn processor_pair() -> io::Result<[usize; 2]> {
    let allowed = sched_getaffinity(None)?;
    let indices: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&index| allowed.is_set(index)).collect();
    Ok(choose_processor_pair(&indices))
}

fn choose_processor_pair(indices: &[usize]) -> [usize; 2] {
    let of_parity = |parity| indices.iter().copied().find(|index| index % 2 == parity);
    match (of_parity(0), of_parity(1), indices) {
        (Some(even), Some(odd), _) => [even, odd],
        (_, _, [first, second, ..]) => [*first, *second],
        (_, _, [only]) => [*only; 2],
        (_, _, []) => [0; 2],
    }
}

pub(crate) fn pin_thread(index: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(index);
    sched_setaffinity(None, &set)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_includes_iowait_and_steal() {
        let stat = "cpu  100 20 30 4000 500 6 7 80 9 0\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\n";
        assert_eq!(parse_idle_ticks(stat), Some((4580, 2)));
        assert_eq!(parse_stolen_ticks(stat), Some(80));
        assert_eq!(parse_idle_ticks("intr 1"), None);
    }

    #[test]
    fn a_processor_pair_is_even_and_odd_if_possible() {
        assert_eq!(choose_processor_pair(&[0, 1]), [0, 1]);
        assert_eq!(choose_processor_pair(&[3, 5, 6]), [6, 3]);
        assert_eq!(choose_processor_pair(&[2, 4]), [2, 4]);
        assert_eq!(choose_processor_pair(&[7]), [7, 7]);
    }

    #[test]
    fn a_spinning_thread_uses_cpu_time() {
        let before = thread_cpu_time();
        let give_up = Instant::now() + Duration::from_secs(60);
        while thread_cpu_time() <= before {
            assert!(Instant::now() < give_up, "it uses none");
        }
    }
}
