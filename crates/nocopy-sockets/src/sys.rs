//! System calls without the C library: they set no `errno`, are no cancellation points, and run in a thread
//! that the C library does not know. They return the kernel's result; a negative number is an error.

use std::arch::asm;
use std::ffi::c_void;
use std::mem::size_of;
use std::ptr::null_mut;

/// Selects the assembly text for this processor.
#[cfg(target_arch = "x86_64")]
macro_rules! by_processor {
    (x86_64: $text:literal, aarch64: $_other:literal $(,)?) => {
        $text
    };
}

/// Selects the assembly text for this processor.
#[cfg(target_arch = "aarch64")]
macro_rules! by_processor {
    (x86_64: $_other:literal, aarch64: $text:literal $(,)?) => {
        $text
    };
}

pub(crate) use by_processor;

/// Makes a system call.
///
/// # Safety
/// The call's own requirements: pointers are valid for what the call reads or writes, as long as it runs.
#[inline]
pub(crate) unsafe fn raw_syscall(number: i64, arguments: [usize; 6]) -> isize {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by contract; the kernel keeps all registers but these.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") first, in("rsi") second, in("rdx") third,
            in("r10") fourth, in("r8") fifth, in("r9") sixth,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: by contract; the kernel keeps all registers but the first.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first => result,
            in("x1") second, in("x2") third, in("x3") fourth, in("x4") fifth, in("x5") sixth,
            options(nostack),
        );
    }
    result
}

#[inline]
pub(crate) fn result_errno(result: isize) -> Option<i32> {
    (result < 0).then_some(-result as i32)
}

fn syscall<const N: usize>(number: i64, arguments: [usize; N]) -> isize {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: only used below, for calls that take numbers, or pointers to references that outlive them.
    unsafe { raw_syscall(number, all) }
}

pub(crate) fn process_id() -> isize {
    syscall(libc::SYS_getpid, [])
}

/// A number that identifies this thread among those that the C library knows: the address of its data.
#[inline]
pub(crate) fn thread_identity() -> usize {
    let own: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word of a thread's data is its own address (System V ABI for thread-local storage).
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) own, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) own, options(nostack, nomem, preserves_flags));
    }
    own
}

/// The stack pointer.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let stack: usize;
    // SAFETY: reads a register.
    unsafe {
        asm!(
            by_processor!(x86_64: "mov {}, rsp", aarch64: "mov {}, sp"),
            out(reg) stack, options(nostack, nomem, preserves_flags),
        );
    }
    stack
}

/// The stack on which signal handlers of this thread may run (sigaltstack(2)); empty if there is none.
pub(crate) fn signal_stack_range() -> std::ops::Range<usize> {
    // SAFETY: all zero is valid.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    syscall(libc::SYS_sigaltstack, [0, (&raw mut stack) as usize]);
    let first = stack.ss_sp as usize;
    first..first + stack.ss_size
}

pub(crate) fn yield_processor() {
    syscall(libc::SYS_sched_yield, []);
}

pub(crate) fn close(descriptor: i32) {
    syscall(libc::SYS_close, [descriptor as usize]);
}

/// Nanoseconds of the monotonic clock.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `now`. It makes no system call, and takes no lock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// As [`now_ns`], without the C library.
pub(crate) fn now_ns_by_syscall() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    syscall(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, (&raw mut now) as usize]);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

pub(crate) fn sleep_ns(ns: u64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns as _ };
    syscall(libc::SYS_nanosleep, [(&raw const time) as usize, 0]);
}

/// A set of signals, one bit for each of 64.
pub(crate) type Signals = u64;

/// Blocks all signals of this thread; returns those that were blocked before.
pub(crate) fn block_signals() -> Signals {
    set_blocked_signals(u64::MAX)
}

pub(crate) fn set_blocked_signals(signals: Signals) -> Signals {
    let mut before: u64 = 0;
    let (new, old) = ((&raw const signals) as usize, (&raw mut before) as usize);
    syscall(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, new, old, size_of::<u64>()]);
    before
}

/// Waits until the word differs from `value`, until it is woken, or until the timeout.
pub(crate) fn futex_wait(word: &std::sync::atomic::AtomicU32, value: u32, timeout_ns: u64) {
    let time = timespec_from_ns(timeout_ns);
    let address = word.as_ptr() as usize;
    // Not a private one: the kernel wakes waits for the end of a thread only so.
    let operation = libc::FUTEX_WAIT as usize;
    syscall(libc::SYS_futex, [address, operation, value as usize, (&raw const time) as usize]);
}

/// The signal that wakes the thread for the deadline. The C library reserves it, so no program waits for it.
/// It is sent only to that thread, which blocks it, so no handler runs.
const TICK: i32 = 32;

/// Wakes a thread of this process that [waits for it](wait_for_wake_signal).
pub(crate) fn wake_thread(thread: u32) {
    syscall(libc::SYS_tgkill, [process_id() as usize, thread as usize, TICK as usize]);
}

/// Waits at most `timeout_ns` for the signal; returns whether it came.
pub(crate) fn wait_for_wake_signal(timeout_ns: u64) -> bool {
    let set: Signals = 1 << (TICK - 1);
    let time = timespec_from_ns(timeout_ns);
    let (set, time) = ((&raw const set) as usize, (&raw const time) as usize);
    result_errno(syscall(libc::SYS_rt_sigtimedwait, [set, 0, time, size_of::<Signals>()])).is_none()
}

fn timespec_from_ns(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ }
}

/// A timer that signals a thread of this process.
pub(crate) fn create_thread_timer(thread: i32) -> Option<i32> {
    // SAFETY: all zero is an event of the first kind, without a value.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_THREAD_ID, TICK);
    event.sigev_notify_thread_id = thread;
    let mut timer: i32 = 0;
    let (event, number) = ((&raw const event) as usize, (&raw mut timer) as usize);
    let made = syscall(libc::SYS_timer_create, [libc::CLOCK_MONOTONIC as usize, event, number]);
    result_errno(made).is_none().then_some(timer)
}

/// Sets a timer to fire once, at this time of the monotonic clock.
pub(crate) fn set_timer(timer: i32, at_ns: u64) {
    let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let setting = libc::itimerspec { it_interval: never, it_value: timespec_from_ns(at_ns) };
    let setting = (&raw const setting) as usize;
    syscall(libc::SYS_timer_settime, [timer as usize, libc::TIMER_ABSTIME as usize, setting, 0]);
}

pub(crate) fn delete_timer(timer: i32) {
    syscall(libc::SYS_timer_delete, [timer as usize]);
}

pub(crate) fn thread_exists(thread: u32) -> bool {
    syscall(libc::SYS_tgkill, [process_id() as usize, thread as usize, 0]) == 0
}

/// Ends this thread, which the C library does not know.
pub(crate) fn end_thread() -> ! {
    loop {
        // SAFETY: ends this thread alone.
        unsafe { raw_syscall(libc::SYS_exit, [0; 6]) };
    }
}

/// From here on this thread has descriptors of its own, and begins with none.
pub(crate) fn unshare_descriptors() {
    syscall(libc::SYS_close_range, [0, u32::MAX as usize, libc::CLOSE_RANGE_UNSHARE as usize]);
}

pub(crate) fn socket_option<T: Default>(descriptor: i32, level: i32, name: i32) -> Result<T, i32> {
    let (mut value, mut bytes) = (T::default(), size_of::<T>() as u32);
    let arguments = [
        descriptor as usize,
        level as usize,
        name as usize,
        (&raw mut value) as usize,
        (&raw mut bytes) as usize,
    ];
    match result_errno(syscall(libc::SYS_getsockopt, arguments)) {
        None => Ok(value),
        Some(errno) => Err(errno),
    }
}

/// The number of a socket, which no other one has while the machine runs.
pub(crate) fn socket_cookie(descriptor: i32) -> Option<u64> {
    socket_option(descriptor, libc::SOL_SOCKET, libc::SO_COOKIE).ok()
}

pub(crate) fn is_nonblocking(descriptor: i32) -> bool {
    let flags = syscall(libc::SYS_fcntl, [descriptor as usize, libc::F_GETFL as usize, 0]);
    flags >= 0 && flags as i32 & libc::O_NONBLOCK != 0
}

/// Waits for events of a descriptor, and returns those that are there. It takes nothing from the descriptor:
/// a pending error stays.
fn poll_events(descriptor: i32, events: i16, timeout_ns: u64) -> i16 {
    let mut wait = libc::pollfd { fd: descriptor, events, revents: 0 };
    let time = timespec_from_ns(timeout_ns);
    syscall(
        libc::SYS_ppoll,
        [(&raw mut wait) as usize, 1, (&raw const time) as usize, 0, size_of::<Signals>()],
    );
    wait.revents
}

/// Waits at most `timeout_ms` until a socket has room.
pub(crate) fn wait_until_writable(descriptor: i32, timeout_ms: u32) {
    poll_events(descriptor, libc::POLLOUT, u64::from(timeout_ms) * 1_000_000);
}

/// Whether a call that receives would find data, an end or an error now.
pub(crate) fn is_readable(descriptor: i32) -> bool {
    poll_events(descriptor, libc::POLLIN, 0) != 0
}

/// Whether a socket has an error that its next call returns.
pub(crate) fn has_error(descriptor: i32) -> bool {
    poll_events(descriptor, 0, 0) & libc::POLLERR != 0
}

/// Control data that gives the kernel the length of a burst's datagrams.
#[repr(C)]
#[derive(Debug)]
struct SegmentSizeControl {
    header: libc::cmsghdr,
    bytes: u16,
    filling: [u8; 6],
}

/// A datagram, or a burst of datagrams of one length, in the kernel's format. It must not move from
/// [`set_datagrams`](Self::set_datagrams) to [`send_message`].
#[repr(C)]
#[derive(Debug)]
pub(crate) struct BurstMessage {
    header: libc::mmsghdr,
    part: libc::iovec,
    segment: SegmentSizeControl,
    datagrams: usize,
}

impl BurstMessage {
    // SAFETY: all zero is a message without parts, and a header without data.
    pub(crate) const EMPTY: Self = unsafe { std::mem::zeroed() };

    /// `datagrams` datagrams of `bytes` bytes each.
    #[inline]
    pub(crate) fn set_datagrams(&mut self, to: &[u8], payload: &[u8], bytes: u16, datagrams: usize) {
        self.part = libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
        self.datagrams = datagrams;
        self.header.msg_len = 0;
        let message = &mut self.header.msg_hdr;
        message.msg_namelen = to.len() as u32;
        message.msg_name = if to.is_empty() { null_mut() } else { to.as_ptr().cast_mut().cast() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut self.part, 1);
        if datagrams > 1 {
            let segment = &mut self.segment;
            segment.header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<u16>()) as _;
            (segment.header.cmsg_level, segment.header.cmsg_type) = (libc::SOL_UDP, libc::UDP_SEGMENT);
            segment.bytes = bytes;
            message.msg_control = (&raw mut *segment).cast();
            message.msg_controllen = size_of::<SegmentSizeControl>() as _;
        } else {
            (message.msg_control, message.msg_controllen) = (null_mut(), 0);
        }
    }

    /// Makes the kernel refuse the message from now on, with `EMSGSIZE`, before it looks at the socket.
    ///
    /// # Safety
    /// Only code that this code interrupted uses it.
    pub(crate) unsafe fn invalidate(message: *mut Self) {
        // SAFETY: by contract.
        unsafe { (&raw mut (*message).header.msg_hdr.msg_iovlen).write_volatile(PARTS_TOO_MANY as _) };
    }

    /// Whether it was [invalidated](Self::invalidate) since it was last set.
    ///
    /// # Safety
    /// `message` is valid, and only signal handlers of this thread change it during the call.
    pub(crate) unsafe fn is_invalidated(message: *const Self) -> bool {
        // SAFETY: by contract.
        let parts = unsafe { (&raw const (*message).header.msg_hdr.msg_iovlen).read_volatile() };
        parts == PARTS_TOO_MANY
    }

    /// How many of its datagrams the kernel has: all or none.
    ///
    /// # Safety
    /// As [`invalidate`](Self::invalidate).
    pub(crate) unsafe fn accepted_datagrams(message: *mut Self) -> usize {
        // SAFETY: by contract. The kernel writes the length when it has taken a message, before the call
        // returns.
        unsafe {
            let bytes = (&raw const (*message).header.msg_len).read_volatile();
            if bytes > 0 { (*message).datagrams } else { 0 }
        }
    }
}

/// More parts than the kernel accepts (`UIO_MAXIOV`).
const PARTS_TOO_MANY: usize = 1 << 16;

/// The call does not wait.
const SEND_FLAGS: usize = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;

/// Sends a datagram or a burst; the message records that the kernel took it.
///
/// # Safety
/// The message is complete, and stays until the call returns.
#[inline]
pub(crate) unsafe fn send_message(descriptor: i32, message: *mut BurstMessage) -> isize {
    syscall(libc::SYS_sendmmsg, [descriptor as usize, message as usize, 1, SEND_FLAGS])
}

/// As [`send_message`], without the record.
pub(crate) fn send_message_unrecorded(descriptor: i32, message: &BurstMessage) -> isize {
    let header = &raw const message.header.msg_hdr;
    syscall(libc::SYS_sendmsg, [descriptor as usize, header as usize, SEND_FLAGS])
}

/// Opens a socket that asks for queueing disciplines.
pub(crate) fn open_netlink_socket() -> isize {
    syscall(
        libc::SYS_socket,
        [
            libc::AF_NETLINK as usize,
            (libc::SOCK_RAW | libc::SOCK_CLOEXEC) as usize,
            libc::NETLINK_ROUTE as usize,
        ],
    )
}

pub(crate) fn write_all(descriptor: i32, bytes: &[u8]) -> bool {
    syscall(libc::SYS_write, [descriptor as usize, bytes.as_ptr() as usize, bytes.len()])
        == bytes.len() as isize
}

pub(crate) fn receive(descriptor: i32, buffer: &mut [u8]) -> isize {
    let (address, bytes) = (buffer.as_mut_ptr() as usize, buffer.len());
    let flags = libc::MSG_DONTWAIT as usize;
    syscall(libc::SYS_recvfrom, [descriptor as usize, address, bytes, flags, 0, 0])
}

pub(crate) fn prctl(operation: i32, argument: usize) -> isize {
    syscall(libc::SYS_prctl, [operation as usize, argument, 0, 0, 0])
}

/// Maps a file that is shared with other processes.
pub(crate) fn map_shared_file(descriptor: i32, bytes: usize) -> Option<*mut c_void> {
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let mapped =
        syscall(libc::SYS_mmap, [0, bytes, access, libc::MAP_SHARED as usize, descriptor as usize, 0]);
    result_errno(mapped).is_none().then_some(mapped as *mut c_void)
}

/// Maps memory that cannot be read.
pub(crate) fn map_unreadable_page() -> Option<*mut c_void> {
    let how = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let mapped = syscall(libc::SYS_mmap, [0, 1, libc::PROT_NONE as usize, how, usize::MAX, 0]);
    result_errno(mapped).is_none().then_some(mapped as *mut c_void)
}

fn file_status(descriptor: i32) -> Option<libc::stat> {
    // SAFETY: all zero is a valid status.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    let result = syscall(libc::SYS_fstat, [descriptor as usize, (&raw mut status) as usize]);
    result_errno(result).is_none().then_some(status)
}

/// The inode of an open file and its length.
pub(crate) fn inode_and_length(descriptor: i32) -> Option<(u64, u64)> {
    file_status(descriptor).map(|status| (status.st_ino, status.st_size as u64))
}

/// Whether a file in memory cannot be made shorter (`F_SEAL_SHRINK`).
pub(crate) fn has_fixed_length(descriptor: i32) -> bool {
    let seals = syscall(libc::SYS_fcntl, [descriptor as usize, libc::F_GET_SEALS as usize, 0]);
    seals >= 0 && seals as i32 & libc::F_SEAL_SHRINK != 0
}

/// Whether a regular file is stored somewhere, and not made up by the kernel when it is read; `None` for
/// anything else.
pub(crate) fn is_stored_file(descriptor: i32) -> Option<bool> {
    let status = file_status(descriptor).filter(|status| status.st_mode & libc::S_IFMT == libc::S_IFREG)?;
    Some(status.st_blocks > 0)
}
