//! Counts the system calls of a thread, and shows in which one it waits. Counts show whether a wait sleeps or
//! calls without a pause, however slow the machine is; processor time does not. A loop without system calls
//! is not noticed. (The library's own unit tests use this file, too.)
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::thread;
use std::time::{Duration, Instant};

use libc::c_long;
use nocopy_lab::patience::PATIENCE;

/// Calls that wait for descriptors.
pub(crate) const POLL: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
];

/// Calls that wait for time to pass.
pub(crate) const SLEEP: &[c_long] = &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep];

/// Calls that receive, and may wait for what they receive.
pub(crate) const RECEIVE: &[c_long] = &[libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg];

/// Calls that send, and may wait for room.
pub(crate) const SEND: &[c_long] = &[libc::SYS_sendto, libc::SYS_sendmsg];

#[derive(Debug, Clone)]
pub(crate) struct SyscallCounter {
    counts: Arc<SyscallCounts>,
}

#[derive(Debug)]
struct SyscallCounts {
    /// The descriptor by which the kernel reports calls, or one of the values below.
    listener: AtomicI32,
    by_number: [AtomicU64; NUMBERS],
}

const NUMBERS: usize = 1024;
const NOT_YET: i32 = -1;
const REFUSED: i32 = -2;

impl SyscallCounter {
    pub(crate) fn new() -> Self {
        let by_number = [const { AtomicU64::new(0) }; NUMBERS];
        Self { counts: Arc::new(SyscallCounts { listener: AtomicI32::new(NOT_YET), by_number }) }
    }

    /// Counts each system call of the calling thread from here on until the thread ends, and of the threads
    /// that it starts.
    ///
    /// A call that SIGSTOP and SIGCONT interrupt is repeated, and counted again.
    pub(crate) fn count_this_thread(&self) {
        let counts = Arc::clone(&self.counts);
        thread::spawn(move || counts.answer_until_the_last_thread_ends());
        let listener = install_call_listener();
        // No system call may come before this, because nothing would answer it. Pairs with the Acquire in
        // `SyscallCounts::answer_until_the_last_thread_ends`, which must see the descriptor open.
        self.counts.listener.store(*listener.as_ref().unwrap_or(&REFUSED), Release);
        if let Err(error) = listener {
            let hint = match error.raw_os_error() {
                Some(libc::EBUSY) => {
                    "; the container runtime or another program already listens by seccomp(2): run this test outside of it"
                }
                _ => "",
            };
            panic!("system calls cannot be counted (seccomp_unotify(2)): {error}{hint}");
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.counts.by_number.iter().map(|count| count.load(Relaxed)).sum()
    }

    pub(crate) fn count_of(&self, numbers: &[c_long]) -> u64 {
        numbers.iter().map(|&number| self.counts.by_number[number as usize].load(Relaxed)).sum()
    }
}

impl SyscallCounts {
    /// Counts reported calls, and lets them continue, until no reporting thread is left. Allocates nothing: a
    /// thread that waits for the answer may hold the allocator's lock.
    fn answer_until_the_last_thread_ends(&self) {
        let listener = loop {
            // Pairs with the Release in `SyscallCounter::count_this_thread`.
            match self.listener.load(Acquire) {
                NOT_YET => thread::sleep(Duration::from_micros(100)),
                REFUSED => return,
                // SAFETY: nothing else owns or closes this descriptor.
                descriptor => break unsafe { OwnedFd::from_raw_fd(descriptor) },
            }
        };
        let descriptor = listener.as_raw_fd();
        loop {
            let mut polled = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
            // SAFETY: `polled` is one such structure.
            unsafe { libc::poll(&raw mut polled, 1, -1) };
            if polled.revents & libc::POLLIN != 0 {
                self.count_one(descriptor);
            } else if polled.revents & libc::POLLHUP != 0 {
                return;
            }
        }
    }

    fn count_one(&self, listener: i32) {
        // Zeros, as the kernel demands, and room for the structure of a later kernel.
        let mut request = [0_u64; 64];
        // SAFETY: the kernel writes less than there is room for.
        if unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, request.as_mut_ptr()) } != 0 {
            return; // a signal came in between: the call is reported again
        }
        // SAFETY: the kernel has written such a structure; all bits are values of its fields.
        let request = unsafe { request.as_ptr().cast::<libc::seccomp_notif>().read() };
        self.by_number[request.data.nr as usize % NUMBERS].fetch_add(1, Relaxed);
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut answer = libc::seccomp_notif_resp { id: request.id, val: 0, error: 0, flags };
        // SAFETY: `answer` is such a structure. It is refused if the call is over by a signal, which is as
        // well.
        unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    }
}

/// Makes the kernel report each system call of this thread, which then waits for the answer.
fn install_call_listener() -> io::Result<i32> {
    let report = (libc::BPF_RET | libc::BPF_K) as u16;
    let mut filter = libc::sock_filter { code: report, jt: 0, jf: 0, k: libc::SECCOMP_RET_USER_NOTIF };
    let program = libc::sock_fprog { len: 1, filter: &raw mut filter };
    // SAFETY: the program is one instruction, and outlives the call.
    let listener = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    if listener < 0 { Err(io::Error::last_os_error()) } else { Ok(listener as i32) }
}

/// Runs the work on a thread of its own, and counts its system calls.
pub(crate) fn count_calls<T: Send>(work: impl FnOnce() -> T + Send) -> (T, SyscallCounter) {
    let calls = SyscallCounter::new();
    let counting = calls.clone();
    let done = thread::scope(|scope| {
        let working = scope.spawn(move || {
            counting.count_this_thread();
            work()
        });
        working.join()
    });
    match done {
        Ok(done) => (done, calls),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The calling thread's number, for other threads.
pub(crate) fn this_thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Waits until a thread of this process sleeps in one of these calls, or is about to make it, if its calls
/// are counted: the kernel also shows a call while it waits for the counting thread's answer. `false`: the
/// thread has ended.
pub(crate) fn wait_until_thread_is_in_call(thread: i32, calls: &[c_long]) -> bool {
    let give_up = Instant::now() + PATIENCE;
    // After a stop of the process, waits with a timeout continue under another name (restart_syscall(2)).
    let restarts = calls.iter().any(|call| POLL.contains(call) || SLEEP.contains(call));
    loop {
        // "running", or the number of the call and what it was given (proc_pid_syscall(5)).
        let Ok(seen) = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")) else {
            return false;
        };
        let number = seen.split_whitespace().next().and_then(|number| number.parse::<c_long>().ok());
        let is_waiting =
            |number| calls.contains(&number) || (restarts && number == libc::SYS_restart_syscall);
        if number.is_some_and(is_waiting) {
            return true;
        }
        assert!(Instant::now() < give_up, "the thread waits in no such call, but: {seen}");
        thread::sleep(Duration::from_micros(200));
    }
}
