//! Processor time of the target's threads, as the kernel accounts it (`/proc/PID/task`).

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThreadCpuUsage {
    /// Exact, in nanoseconds.
    pub runtime: Duration,
    /// User and system time in ticks; only their proportion is used.
    pub user_ticks: u64,
    pub system_ticks: u64,
    /// How often the thread was scheduled; 0 if the kernel does not count it.
    pub runs: u64,
}

/// Processor times by thread number.
pub(crate) type Threads = HashMap<u32, ThreadCpuUsage>;

/// Processor times of all threads of the processes that still exist.
pub(crate) fn read_cpu_usages(processes: impl IntoIterator<Item = u32>) -> Threads {
    processes.into_iter().flat_map(process_thread_usages).collect()
}

fn process_thread_usages(process: u32) -> Vec<(u32, ThreadCpuUsage)> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let thread = |path: &Path| {
        let id = path.file_name()?.to_str()?.parse().ok()?;
        Some((id, read_thread_usage(path)?))
    };
    tasks.filter_map(|task| thread(&task.ok()?.path())).collect()
}

fn read_thread_usage(thread: &Path) -> Option<ThreadCpuUsage> {
    let [user_ticks, system_ticks] = stat_ticks(&fs::read_to_string(thread.join("stat")).ok()?)?;
    let exact = fs::read_to_string(thread.join("schedstat")).ok();
    let [exact, _waited, runs] = exact.and_then(|text| schedstat_numbers(&text)).unwrap_or_default();
    let runtime = Some(Duration::from_nanos(exact)).filter(|runtime| !runtime.is_zero());
    // A kernel without SCHED_INFO has but the ticks.
    let runtime =
        runtime.unwrap_or_else(|| TICK * u32::try_from(user_ticks + system_ticks).unwrap_or(u32::MAX));
    Some(ThreadCpuUsage { runtime, user_ticks, system_ticks, runs })
}

/// How long a thread has been runnable while another one ran, since its start; zero if the kernel does not
/// count it, or the thread has ended.
pub(crate) fn run_delay(id: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{id}/task/{id}/schedstat")).ok();
    let [_, waited_ns, _] = text.and_then(|text| schedstat_numbers(&text)).unwrap_or_default();
    Duration::from_nanos(waited_ns)
}

/// The numbers of `/proc/PID/schedstat`: time on a processor, time runnable without one, and how often it
/// ran.
fn schedstat_numbers(schedstat: &str) -> Option<[u64; 3]> {
    let mut fields = schedstat.split_ascii_whitespace();
    Some([fields.next()?.parse().ok()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?])
}

/// The tick of /proc, whatever the kernel's own is (`USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

/// User and system time in a line of `/proc/PID/stat`. They follow the name, which may contain any character.
fn stat_ticks(stat: &str) -> Option<[u64; 2]> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(11);
    Some([fields.next()?.parse().ok()?, fields.next()?.parse().ok()?])
}

/// User and system time between the two, summed.
pub(crate) fn cpu_time_between(before: &Threads, after: &Threads) -> [Duration; 2] {
    let mut sum = [Duration::ZERO; 2];
    for (id, after) in after {
        let before = before.get(id).copied().unwrap_or_default();
        let runtime = after.runtime.saturating_sub(before.runtime);
        let [user, system] = [
            after.user_ticks.saturating_sub(before.user_ticks),
            after.system_ticks.saturating_sub(before.system_ticks),
        ];
        // With less than a tick, the shares are those over the thread's life.
        let [user, system] =
            if user + system > 0 { [user, system] } else { [after.user_ticks, after.system_ticks] };
        let share = user as f64 / ((user + system) as f64).max(1.0);
        let user = runtime.mul_f64(share);
        sum = [sum[0] + user, sum[1] + (runtime - user)];
    }
    sum
}

/// How often the threads were scheduled between the two.
pub(crate) fn scheduled_runs_between(before: &Threads, after: &Threads) -> u64 {
    let before = |id| before.get(id).map_or(0, |before| before.runs);
    after.iter().map(|(id, after)| after.runs.saturating_sub(before(id))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu_usage(runtime_ms: u64, user_ticks: u64, system_ticks: u64) -> ThreadCpuUsage {
        ThreadCpuUsage { runtime: Duration::from_millis(runtime_ms), user_ticks, system_ticks, runs: 0 }
    }

    #[test]
    fn ticks_are_parsed_after_any_process_name() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 21 42 0 0 20 0 1 0";
        assert_eq!(stat_ticks(stat), Some([21, 42]));
        assert_eq!(stat_ticks("7 (a"), None);
    }

    #[test]
    fn runtime_is_split_into_user_and_system_like_the_ticks() {
        let before =
            Threads::from([(1, cpu_usage(100, 10, 0)), (2, cpu_usage(5, 0, 0)), (4, cpu_usage(9, 9, 9))]);
        let after =
            Threads::from([(1, cpu_usage(140, 11, 3)), (2, cpu_usage(6, 0, 0)), (3, cpu_usage(10, 0, 1))]);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let [user, system] = cpu_time_between(&before, &after).map(ms);
        assert!((user - 10.0).abs() < 1e-6 && (system - 41.0).abs() < 1e-6, "{user} {system}");
    }
}
