//! What a process is doing, as the kernel reports it: so no test has to guess how long something takes.

use std::fs;
use std::os::fd::AsFd;

pub(crate) use nocopy_lab::patience::{uninterrupted, wait_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

/// Attempts something that has to be done within a number of seconds, with more and more of them: the last is
/// longer than any machine stands still. An attempt returns `None` only if it has seen that the time was over
/// before it was done, and panics at any other failure.
pub(crate) fn retry_with_more_seconds<T>(mut attempt: impl FnMut(u64) -> Option<T>) -> T {
    let seconds = [1, 4, 15, 60];
    seconds.into_iter().find_map(&mut attempt).unwrap_or_else(|| panic!("not within {seconds:?} seconds"))
}

/// How often the first thread of a process has gone to sleep. A spinning thread never does.
pub(crate) fn sleep_count(process: u32) -> u64 {
    count_in_status_file(&format!("/proc/{process}/status"), "voluntary_ctxt_switches:")
}

/// How often each thread of a process has left a processor: while they sleep, these numbers do not change.
pub(crate) fn context_switches_by_thread(process: u32) -> Vec<(String, u64)> {
    let both = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
    let count = |thread: String| {
        let path = format!("{thread}/status");
        (thread, both.map(|key| count_in_status_file(&path, key)).iter().sum())
    };
    let mut all: Vec<_> = thread_directories(process).into_iter().map(count).collect();
    all.sort();
    all
}

fn count_in_status_file(path: &str, key: &str) -> u64 {
    let status = fs::read_to_string(path).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix(key));
    count.unwrap().trim().parse().unwrap()
}

/// Waits until the first thread of a process sleeps in a system call, by its number.
pub(crate) fn wait_until_asleep_in_call(process: u32, call: libc::c_long) {
    let start = format!("{call} ");
    wait_until(&format!("system call {call}"), || {
        fs::read_to_string(format!("/proc/{process}/syscall")).is_ok_and(|said| said.starts_with(&start))
    });
}

/// Whether a descriptor can be read (`IN`) or written (`OUT`) now.
pub(crate) fn is_descriptor_ready(descriptor: impl AsFd, events: PollFlags) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&descriptor, events)], Some(&now)).unwrap() > 0
}

/// Runs a closure while a process is stopped, so that it later finds all effects at once.
pub(crate) fn run_while_stopped<T>(process: Pid, act: impl FnOnce() -> T) -> T {
    wait_until("it stands still", || {
        kill_process(process, Signal::STOP).unwrap();
        is_stopped(process)
    });
    let done = act();
    kill_process(process, Signal::CONT).unwrap();
    done
}

/// Whether all threads of a process are stopped (`t` if they are traced, too), or have ended.
pub(crate) fn is_stopped(process: Pid) -> bool {
    thread_directories(process.as_raw_nonzero().get().cast_unsigned()).iter().all(|thread| {
        let stat = fs::read_to_string(format!("{thread}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['T', 't', 'Z', 'X']))
    })
}

/// Directories of the threads of a process, without those of the kernel's that work for it (io_uring's).
fn thread_directories(process: u32) -> Vec<String> {
    let all = fs::read_dir(format!("/proc/{process}/task")).unwrap().map_while(Result::ok);
    let paths = all.map(|thread| thread.path().display().to_string());
    let is_of_kernel =
        |path: &String| fs::read_to_string(format!("{path}/comm")).unwrap_or_default().starts_with("iou-");
    paths.filter(|path| !is_of_kernel(path)).collect()
}
