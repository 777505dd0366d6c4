//! The kernel's log: which lines are complaints, and which only report that the machine was paused.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

use crate::event::KernelLogLines;

/// Messages about certain or possible errors of the kernel, each with the case in which it is printed.
const COMPLAINTS: &[&str] = &[
    "WARNING:",
    "BUG:",
    "BUG at",
    "Oops",
    TRACE,
    "refcount_t:",
    "general protection fault",
    "unable to handle",
    "unregister_netdevice: waiting",
    // A card has not sent its packets for seconds.
    "NETDEV WATCHDOG",
    "possible recursive locking",
    "possible circular locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "hard LOCKUP",
    "UBSAN:",
    "KASAN:",
    "DMA-API:",
    "stack-protector:",
    "Bad page state",
    "Memory leak",
];

/// The header of a stack trace, which belongs to the message before it.
const TRACE: &str = "Call Trace:";

/// Messages of the kernel that it did not run for seconds, each with the function that prints it and a trace.
/// They appear when the host does not run the machine. A test that makes the kernel hang does not end, and
/// fails by that.
const STALLS: &[&str] = &[
    "rcu: INFO:",           // print_other_cpu_stall, print_cpu_stall, synchronize_rcu_expedited_wait
    "kthread starved for",  // rcu_check_gp_kthread_starvation
    "kthread timer wakeup", // rcu_check_gp_kthread_expired_fqs_timer
    "detected stalls on tasks", // check_all_holdout_tasks, of RCU tasks
    "soft lockup",          // watchdog_timer_fn
    "workqueue lockup",     // wq_watchdog_timer_fn
    "blocked for more than", // check_hung_task
    "hung task",            // check_hung_uninterruptible_tasks
];

/// Messages in one line about pauses that are too short to excuse a failure.
const HICCUPS: &[&str] = &[
    "Marking clocksource", // clocksource_watchdog: '… as unstable because the skew is too large'
    "Marking TSC unstable", // mark_tsc_unstable
    "Long readout interval", // clocksource_watchdog
    "clocksource: Watchdog", // clocksource_watchdog: 'remote CPU 1 read timed out'
    "hrtimer: interrupt took", // hrtimer_interrupt
    "perf: interrupt took too long", // perf_duration_warn
];

/// The number of lines after a complaint or a stall that belong to it.
const TRACE_LINES: usize = 40;

/// The lines of the kernel's log, from the first on.
pub(crate) struct KernelLogReader {
    file: File,
}

impl KernelLogReader {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a small constant");
        Ok(Self { file: OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg")? })
    }

    /// Relevant lines that the kernel has logged since the last call.
    pub(crate) fn new_lines(&mut self) -> io::Result<KernelLogLines> {
        Ok(sort_lines(self.read_new_lines()?))
    }

    fn read_new_lines(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut record = [0; 8192];
        loop {
            match self.file.read(&mut record) {
                Ok(bytes) => lines.extend(record_text(&String::from_utf8_lossy(&record[..bytes]))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(lines),
                // Records were overwritten before they were read; the next read continues after them.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    lines.push("WARNING: the kernel's log overflowed, lines are missing".into());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The text of a record: `priority,sequence,microseconds,flags;text`, then lines of key=value.
fn record_text(record: &str) -> Option<String> {
    Some(record.split_once(';')?.1.lines().next()?.to_owned())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineKind {
    Complaint,
    Stall,
    Hiccup,
    /// A stack trace, which belongs to the lines before it.
    Trace,
}

fn line_kind(line: &str) -> Option<LineKind> {
    let has = |words: &&str| line.contains(*words);
    // A soft lockup is printed as a BUG: so check for stalls first.
    if STALLS.iter().any(has) {
        Some(LineKind::Stall)
    } else if HICCUPS.iter().any(has) {
        Some(LineKind::Hiccup)
    } else if line.contains(TRACE) {
        Some(LineKind::Trace)
    } else {
        COMPLAINTS.iter().any(has).then_some(LineKind::Complaint)
    }
}

/// Whether the line reports that the kernel did not run for seconds.
pub(crate) fn is_long_stall(line: &str) -> bool {
    line_kind(line) == Some(LineKind::Stall)
}

/// Complaints and stalls, each with the lines that follow it. A trace that nothing was said before is a
/// complaint; a complaint amid the lines of a stall is one, too.
fn sort_lines(lines: Vec<String>) -> KernelLogLines {
    let (mut left, mut current) = (0, LineKind::Complaint);
    let mut log = KernelLogLines::default();
    for line in lines {
        match line_kind(&line) {
            Some(LineKind::Trace) => {
                if left == 0 {
                    current = LineKind::Complaint;
                }
                left = TRACE_LINES;
            }
            Some(LineKind::Hiccup) => {
                log.stalls.push(line);
                continue;
            }
            Some(kind_of_block) => (left, current) = (TRACE_LINES, kind_of_block),
            None => {}
        }
        if left > 0 {
            left -= 1;
            if current == LineKind::Stall { log.stalls.push(line) } else { log.complaints.push(line) }
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted_log(text: &str) -> KernelLogLines {
        sort_lines(text.lines().map(str::to_owned).collect())
    }

    #[test]
    fn a_kernel_complaint_includes_its_trace() {
        let mut lines: Vec<String> = (0..100).map(|i| format!("line {i}")).collect();
        assert_eq!(sort_lines(lines.clone()), KernelLogLines::default());
        lines[30] = "WARNING: CPU: 1 PID: 7 at net/xdp/xsk.c:1".into();
        let found = sort_lines(lines.clone());
        assert_eq!(found.complaints, lines[30..30 + TRACE_LINES]);
        assert!(found.stalls.is_empty());
    }

    /// Each as kernels have printed it, the first lines only.
    const STALLED: &[&str] = &[
        "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:\n\
         rcu: \t1-...!: (0 ticks this GP) idle=1c0/0/0x0 softirq=1142/1142 fqs=0\n\
         rcu: \t(detected by 0, t=5252 jiffies, g=1013, q=86 ncpus=2)\n\
         Sending NMI from CPU 0 to CPUs 1:\n\
         NMI backtrace for cpu 1\n\
         Call Trace:\n <TASK>\n default_idle+0xf/0x20",
        "rcu: INFO: rcu_preempt self-detected stall on CPU\n\
         rcu: rcu_preempt kthread starved for 5250 jiffies! g1201 f0x0 RCU_GP_WAIT_FQS(5) ->state=0x0 ->cpu=1\n\
         rcu: \tUnless rcu_preempt kthread gets sufficient CPU time, OOM is now expected behavior.\n\
         rcu: RCU grace-period kthread stack dump:\n\
         task:rcu_preempt     state:R  running task     stack:0     pid:16    ppid:2      flags:0x00004000\n\
         Call Trace:\n <TASK>\n __schedule+0x34d/0x9e0",
        "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-.... } 25 jiffies s: 77 root: 0x2/.",
        "watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [kworker/0:1:8]\n\
         Modules linked in: igb i2c_algo_bit dca\n\
         CPU: 0 PID: 8 Comm: kworker/0:1 Not tainted 6.1.0-50-amd64 #1  Debian 6.1.170-1\n\
         Call Trace:\n <IRQ>\n __do_softirq+0xf0/0x2cb",
        "BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 34s!\n\
         Showing busy workqueues and worker pools:",
        "INFO: task kworker/1:2:61 blocked for more than 120 seconds.\n      \
         Not tainted 6.1.0-50-amd64 #1 Debian 6.1.170-1\n\
         \"echo 0 > /proc/sys/kernel/hung_task_timeout_secs\" disables this message.\n\
         task:kworker/1:2     state:D stack:0     pid:61    ppid:2      flags:0x00004000\n\
         Call Trace:\n <TASK>\n schedule+0x5a/0xd0",
    ];

    #[test]
    fn a_stall_of_the_host_is_no_complaint() {
        for text in STALLED {
            let log = sorted_log(text);
            assert_eq!(log.complaints, [""; 0], "{text}");
            assert_eq!(log.stalls.len(), text.lines().count(), "{text}");
            assert!(is_long_stall(&log.stalls[0]), "{text}");
        }
    }

    #[test]
    fn short_clock_stalls_are_logged_but_excuse_no_failure() {
        for line in [
            "clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc' as unstable because the skew is too large:",
            "tsc: Marking TSC unstable due to clocksource watchdog",
            "clocksource: Long readout interval, skipping watchdog check: cs_nsec: 1213241 wd_nsec: 1213302",
            "clocksource: Watchdog remote CPU 1 read timed out",
            "hrtimer: interrupt took 21385902 ns",
            "perf: interrupt took too long (2501 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
        ] {
            let log = sorted_log(&format!(
                "{line}\nigb 0000:02:00.0 nc1: igb: nc1 NIC Link is Up 1000 Mbps Full Duplex"
            ));
            assert_eq!((log.stalls, log.complaints.len()), (vec![line.to_owned()], 0));
            assert!(!is_long_stall(line));
        }
    }

    #[test]
    fn a_long_stall_report_with_traces_is_no_complaint() {
        let mut text = String::from("watchdog: BUG: soft lockup - CPU#1 stuck for 23s! [swapper/1:0]\n");
        for cpu in 0..4 {
            text += &format!("NMI backtrace for cpu {cpu}\nCall Trace:\n");
            (0..TRACE_LINES - 5).for_each(|line| text += &format!(" function_{line}+0x1/0x2\n"));
        }
        let log = sorted_log(&text);
        assert_eq!((log.complaints.len(), log.stalls.len()), (0, text.lines().count()));
    }

    #[test]
    fn kernel_errors_are_complaints() {
        for text in [
            "WARNING: CPU: 1 PID: 7 at net/core/dev.c:1234 napi_disable+0x1/0x2 [igb]",
            "BUG: kernel NULL pointer dereference, address: 0000000000000010",
            "BUG: scheduling while atomic: nocopy/412/0x00000002",
            "BUG: sleeping function called from invalid context at kernel/locking/mutex.c:283",
            "kernel BUG at mm/slub.c:4321!",
            "Oops: 0000 [#1] PREEMPT SMP PTI",
            "refcount_t: underflow; use-after-free.",
            "WARNING: possible circular locking dependency detected",
            "WARNING: suspicious RCU usage",
            "unregister_netdevice: waiting for nc0 to become free. Usage count = 2",
            "igb 0000:01:00.0 nc0: NETDEV WATCHDOG: CPU: 1: transmit queue 0 timed out 6512 ms",
            "watchdog: Watchdog detected hard LOCKUP on cpu 1",
            "Call Trace:",
        ] {
            let log = sorted_log(text);
            assert_eq!((log.complaints, log.stalls.len()), (vec![text.to_owned()], 0));
        }
    }

    #[test]
    fn a_complaint_during_a_stall_is_reported() {
        let log = sorted_log(
            "rcu: INFO: rcu_sched self-detected stall on CPU\nCall Trace:\n function+0x1/0x2\n\
                      BUG: unable to handle page fault for address: ffff888000000000\nCall Trace:",
        );
        assert_eq!((log.stalls.len(), log.complaints.len()), (3, 2));
    }

    #[test]
    fn a_log_record_is_parsed_to_its_text() {
        assert_eq!(record_text("4,1049,1975437,-;PCI: Using\n SUBSYSTEM=pci\n").unwrap(), "PCI: Using");
    }
}
