//! Zero-copy sends of a socket by io_uring, from memory registered once.
//!
//! Each send has two completions: its result, and, once the kernel no longer reads the memory, a notification
//! whether it copied. They are reported as one.

#[cfg(feature = "tcp")]
mod stream;

use nocopy_proto::errno::ErrorCause;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};

use super::udp_send::{KernelAddress, KernelDestination, MessageControls};
use crate::facts::features;

// linux/io_uring.h: flags of a send, and the result of its notification.
const IORING_RECVSEND_FIXED_BUF: u16 = 1 << 2;
const IORING_SEND_ZC_REPORT_USAGE: u16 = 1 << 3;
const IORING_NOTIF_USAGE_ZC_COPIED: u32 = 1 << 31;

/// The most sends in flight: each may have two completions waiting, and a ring takes 65,536
/// (`IORING_MAX_CQ_ENTRIES`).
const SENDS_MAX: u32 = 1 << 15;

/// The most bytes that the kernel takes in a call (`MAX_RW_COUNT` of `linux/fs.h`).
const CALL_BYTES_MAX: usize = (i32::MAX as usize) & !4095;

/// The longest piece of memory that the kernel accepts as one registered buffer (`io_buffer_validate` of
/// io_uring/rsrc.c).
const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// The only registered buffer that gathered sends can use: the crate builds their entries with this number.
const GATHERED_BUFFER: u16 = 0;

/// The socket is the ring's only file.
const SOCKET: types::Fixed = types::Fixed(0);

#[derive(Debug, thiserror::Error)]
pub(crate) enum UringError {
    #[error(
        "io_uring: turned off; kernel.io_uring_disabled is {setting}; 'sysctl -w kernel.io_uring_disabled=0' turns it on"
    )]
    TurnedOff {
        /// 1: for those without CAP_SYS_ADMIN and not of `kernel.io_uring_group`; 2: for all.
        setting: u8,
        #[source]
        source: io::Error,
    },
    #[error(
        "io_uring: no zero-copy sends; this kernel does not report whether they copied; use Linux {} or newer, built with io_uring",
        features::URING_SEND.kernel
    )]
    TooOld(#[source] io::Error),
    /// The limit of locked memory is too low.
    #[error(
        "io_uring: {bytes} bytes cannot be locked{cause}; raise the limit ('ulimit -l'), or use fewer buffers", cause = ErrorCause(.source))]
    Locked { bytes: usize, source: io::Error },
    #[error(
        "io_uring: no memory can be locked for its ring{cause}; raise the limit ('ulimit -l'), which all processes of the user share", cause = ErrorCause(.0))]
    NoMemory(#[source] io::Error),
    #[error("io_uring: refused{cause}; run it where no sandbox forbids it", cause = ErrorCause(.0))]
    Kernel(#[source] io::Error),
}

impl UringError {
    fn from_setup_error(error: io::Error) -> Self {
        let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
        Self::with_setting(error, setting.and_then(|setting| setting.trim().parse().ok()).unwrap_or(0))
    }

    /// The text as a short constant.
    pub(crate) fn why(&self) -> &'static str {
        match self {
            Self::TurnedOff { .. } => {
                "io_uring is turned off here: 'sysctl -w kernel.io_uring_disabled=0' turns it on"
            }
            Self::TooOld(_) => "the kernel's io_uring has no zero-copy sends: Linux 6.2 or newer has",
            Self::Locked { .. } => {
                "the pool cannot be locked for io_uring: raise the limit ('ulimit -l'), or use fewer buffers"
            }
            Self::NoMemory(_) => "io_uring has no memory to lock for its ring: raise the limit ('ulimit -l')",
            Self::Kernel(_) => "io_uring refused: a sandbox may forbid it",
        }
    }

    fn with_setting(error: io::Error, setting: u8) -> Self {
        match (error.raw_os_error(), setting) {
            (Some(libc::EPERM), 1..) => Self::TurnedOff { setting, source: error },
            (Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP), _) => Self::TooOld(error),
            (Some(libc::ENOMEM), _) => Self::NoMemory(error),
            _ => Self::Kernel(error),
        }
    }
}

/// The maximum number of sends is in flight; reap some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingFull;

/// Arguments of a send that the kernel reads in addition to the bytes.
///
/// It is kept until the result arrives. Addresses and pieces are read when the send is submitted
/// (`IORING_FEAT_SUBMIT_STABLE`), but the control message at each attempt to send, which may be later, if the
/// socket's send buffer was full: `io_sendmsg_zc` of io_uring/net.c keeps the pointer (`sr->msg_control`),
/// and `____sys_sendmsg` copies from there.
struct SendArguments {
    header: libc::msghdr,
    address: MaybeUninit<KernelAddress>,
    controls: MessageControls,
    pieces: Vec<libc::iovec>,
}

impl SendArguments {
    fn empty() -> Self {
        // SAFETY: all-zero is a valid `msghdr`.
        let header = unsafe { std::mem::zeroed() };
        Self {
            header,
            address: MaybeUninit::uninit(),
            controls: MessageControls::empty(),
            pieces: Vec::new(),
        }
    }

    /// Points the header to the other fields, which must not move afterwards.
    fn assemble_header(&mut self, to: KernelDestination<'_>, segment_bytes: Option<u16>) {
        self.header.msg_iov = self.pieces.as_mut_ptr();
        self.header.msg_iovlen = self.pieces.len() as _;
        (self.header.msg_name, self.header.msg_namelen) = self.write_address(to.address);
        let (control, bytes) = self.controls.write(segment_bytes, to.controls);
        (self.header.msg_control, self.header.msg_controllen) = (control, bytes as _);
    }

    fn write_address(&mut self, to: Option<&KernelAddress>) -> (*mut libc::c_void, libc::socklen_t) {
        match to {
            None => (std::ptr::null_mut(), 0),
            Some(to) => {
                let kept = self.address.write(*to);
                (kept.pointer(), kept.bytes)
            }
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct SendInFlight {
    /// The caller's number for it.
    user_data: u64,
    is_open: bool,
    generation: u32,
    result: Option<i32>,
    /// Whether the result announced a notification.
    awaits_notice: bool,
    /// Whether the notification reported a copy.
    copied: Option<bool>,
}

impl SendInFlight {
    fn completion_key(&self, place: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(place)
    }

    /// Its outcome as for [`UringSender::reap`], if its memory is free: the result has arrived, and the
    /// notification, if there is to be one.
    fn finished_result(&self) -> Option<(io::Result<usize>, bool)> {
        let result = self.result.filter(|_| !self.awaits_notice || self.copied.is_some())?;
        let result =
            usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()));
        Some((result, self.copied.unwrap_or(false)))
    }
}

/// Registered memory: consecutive buffers, all of the largest size except the last.
#[derive(Debug, Clone, Copy)]
struct RegisteredMemory {
    start: usize,
    bytes: usize,
}

impl RegisteredMemory {
    /// The number of the buffer that contains all of a piece.
    fn registered_buffer(&self, piece: &[u8]) -> Option<u16> {
        let first = (piece.as_ptr() as usize).checked_sub(self.start)?;
        let end = first.checked_add(piece.len())?;
        let (number, last) = (first / REGISTERED_BYTES_MAX, end.saturating_sub(1) / REGISTERED_BYTES_MAX);
        (!piece.is_empty() && end <= self.bytes && number == last).then_some(number as u16)
    }
}

/// A ring for the zero-copy sends of one socket, which it keeps open.
///
/// **Memory in flight**: a send reads its memory until it was reaped, even if ring and socket are dropped. A
/// dropped ring reports nothing any more: so its owner keeps it until [`in_flight`](Self::in_flight) is 0, or
/// never uses that memory again. Registered memory stays pinned, and replaced pages (`MADV_DONTNEED`) are not
/// those that the ring sends.
///
/// It may move between threads. Sends for which the socket's send buffer has no room wait in the kernel, and
/// others may overtake them: a caller that needs their order submits no more than there is room for.
pub(crate) struct UringSender {
    uring: IoUring,
    registered: Option<RegisteredMemory>,
    /// Whether gathered sends may use registered memory ([`features::URING_GATHERED_SEND`]).
    gathers_registered: bool,
    arguments: Box<[SendArguments]>,
    flights: Box<[SendInFlight]>,
    free: Vec<u32>,
    queued: usize,
    /// Sends without a result yet.
    undecided: usize,
    /// Places of sends whose memory is free, to be reported.
    over: Vec<u32>,
    /// The kernel refused a send that belongs to a stream.
    is_broken: bool,
    /// Completions of sends that do not exist.
    faults: u64,
}

// SAFETY: the pointers are into the boxes beside them, and into memory whose owner vouches for it
// (`queue_send`).
unsafe impl Send for UringSender {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for UringSender {}

impl UringSender {
    /// A ring for that many sends at a time, rounded up to a power of two. Pieces in `memory` are sent as
    /// registered: the kernel then need not look up their pages for each send.
    ///
    /// # Safety
    /// `memory` stays mapped as long as the ring exists.
    pub(crate) unsafe fn new(
        socket: BorrowedFd<'_>,
        memory: Option<(NonNull<u8>, usize)>,
        sends: u32,
    ) -> Result<Self, UringError> {
        let sends = sends.clamp(1, SENDS_MAX).next_power_of_two();
        let uring = IoUring::builder()
            .dontfork()
            // A refused send does not hold back later ones.
            .setup_submit_all()
            // Notifications need not interrupt this thread: they are handled when it next enters the kernel.
            // A flag tells when to.
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            // Never short: as many as all sends can have waiting.
            .setup_cqsize(2 * sends)
            .build(sends)
            .map_err(UringError::from_setup_error)?;
        uring.submitter().register_files(&[socket.as_raw_fd()]).map_err(UringError::Kernel)?;
        let mut ring = Self {
            uring,
            registered: None,
            gathers_registered: false,
            arguments: (0..sends).map(|_| SendArguments::empty()).collect(),
            flights: vec![SendInFlight::default(); sends as usize].into(),
            free: (0..sends).rev().collect(),
            queued: 0,
            undecided: 0,
            over: Vec::with_capacity(sends as usize),
            is_broken: false,
            faults: 0,
        };
        ring.check_support()?;
        if let Some((start, bytes)) = memory {
            // SAFETY: by contract.
            unsafe { ring.register_memory(start, bytes)? };
        }
        Ok(ring)
    }

    /// Checks that the kernel has the needed features, by sends that it refuses.
    fn check_support(&mut self) -> Result<(), UringError> {
        let mut known = Probe::new();
        self.uring.submitter().register_probe(&mut known).map_err(UringError::from_setup_error)?;
        if ![opcode::SendZc::CODE, opcode::SendMsgZc::CODE].into_iter().all(|code| known.is_supported(code)) {
            return Err(UringError::TooOld(io::Error::from_raw_os_error(libc::EINVAL)));
        }
        // The kernel checks flags first (EINVAL), and only then the file (EBADF).
        let nowhere = types::Fd(-1);
        let plain =
            opcode::SendZc::new(nowhere, std::ptr::null(), 0).zc_flags(IORING_SEND_ZC_REPORT_USAGE).build();
        let error = self.submit_refused_entry(plain)?;
        if error.raw_os_error() != Some(libc::EBADF) {
            return Err(UringError::from_setup_error(error));
        }
        let none = Box::new(SendArguments::empty());
        let flags = IORING_SEND_ZC_REPORT_USAGE | IORING_RECVSEND_FIXED_BUF;
        let gathered = opcode::SendMsgZc::new(nowhere, &raw const none.header).ioprio(flags).build();
        self.gathers_registered = self.submit_refused_entry(gathered)?.raw_os_error() != Some(libc::EINVAL);
        Ok(())
    }

    /// Submits something that the kernel refuses, and returns the reason.
    fn submit_refused_entry(&mut self, entry: squeue::Entry) -> Result<io::Error, UringError> {
        // SAFETY: of no file and no memory; what else it points to outlives the wait.
        unsafe { self.uring.submission().push(&entry) }.expect("the ring is empty");
        self.uring.submit_and_wait(1).map_err(UringError::Kernel)?;
        let mut error = None;
        while let Some(completion) = self.uring.completion().next() {
            // The first is the result; a notification after it does not matter.
            error.get_or_insert(io::Error::from_raw_os_error(completion.result().saturating_neg()));
        }
        error.ok_or_else(|| UringError::Kernel(io::ErrorKind::InvalidData.into()))
    }

    /// # Safety
    /// The memory stays mapped as long as the ring lives.
    unsafe fn register_memory(&mut self, start: NonNull<u8>, bytes: usize) -> Result<(), UringError> {
        let buffers: Vec<libc::iovec> = (0..bytes)
            .step_by(REGISTERED_BYTES_MAX)
            .map(|offset| libc::iovec {
                iov_base: start.as_ptr().wrapping_add(offset).cast(),
                iov_len: REGISTERED_BYTES_MAX.min(bytes - offset),
            })
            .collect();
        // SAFETY: mapped, by contract.
        match unsafe { self.uring.submitter().register_buffers(&buffers) } {
            Ok(()) => {}
            Err(source) if source.raw_os_error() == Some(libc::ENOMEM) => {
                return Err(UringError::Locked { bytes, source });
            }
            Err(error) => return Err(UringError::Kernel(error)),
        }
        self.registered = Some(RegisteredMemory { start: start.as_ptr() as usize, bytes });
        Ok(())
    }

    /// Puts a send into the queue: of pieces that are gathered into one message, to that address or the one
    /// the socket is connected to, cut into datagrams of `segment_bytes` if given. Errors: [`RingFull`];
    /// nothing was queued.
    ///
    /// # Safety
    /// The memory of the pieces stays in place, unchanged, until `user_data` was reaped.
    pub(crate) unsafe fn queue_send<'p>(
        &mut self,
        user_data: u64,
        pieces: impl IntoIterator<Item = &'p [u8]>,
        to: KernelDestination<'_>,
        segment_bytes: Option<u16>,
    ) -> Result<(), RingFull> {
        // SAFETY: by contract.
        unsafe { self.queue_send_with_flags(user_data, pieces, to, segment_bytes, 0) }.map(drop)
    }

    /// As [`queue_send`](Self::queue_send), with flags of send(2); returns the place of the send.
    ///
    /// # Safety
    /// As for `queue_send`.
    unsafe fn queue_send_with_flags<'p>(
        &mut self,
        user_data: u64,
        pieces: impl IntoIterator<Item = &'p [u8]>,
        to: KernelDestination<'_>,
        segment_bytes: Option<u16>,
        message_flags: i32,
    ) -> Result<usize, RingFull> {
        // Taken off the list below, when the entry is in the queue.
        let place = *self.free.last().ok_or(RingFull)?;
        let arguments = &mut self.arguments[place as usize];
        arguments.pieces.clear();
        let (mut buffer, mut first) = (None, true);
        for piece in pieces {
            let lies_in = self.registered.and_then(|registered| registered.registered_buffer(piece));
            buffer = if first { lies_in } else { buffer.filter(|buffer| Some(*buffer) == lies_in) };
            first = false;
            arguments
                .pieces
                .push(libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
        }
        let flight = &mut self.flights[place as usize];
        let generation = flight.generation.wrapping_add(1);
        *flight = SendInFlight { user_data, is_open: true, generation, ..SendInFlight::default() };
        let entry = match arguments.pieces[..] {
            [piece] if segment_bytes.is_none() && to.controls.is_none() => {
                let (address, address_bytes) = arguments.write_address(to.address);
                opcode::SendZc::new(SOCKET, piece.iov_base.cast(), piece.iov_len.min(CALL_BYTES_MAX) as u32)
                    .dest_addr(address.cast())
                    .dest_addr_len(address_bytes)
                    .buf_index(buffer)
                    .flags(message_flags)
                    .zc_flags(IORING_SEND_ZC_REPORT_USAGE)
                    .build()
            }
            _ => {
                arguments.assemble_header(to, segment_bytes);
                let registered = self.gathers_registered && buffer == Some(GATHERED_BUFFER);
                let fixed = if registered { IORING_RECVSEND_FIXED_BUF } else { 0 };
                let flags = IORING_SEND_ZC_REPORT_USAGE | fixed;
                opcode::SendMsgZc::new(SOCKET, &raw const arguments.header)
                    .ioprio(flags)
                    .flags(message_flags.cast_unsigned())
                    .build()
            }
        };
        // SAFETY: the memory by contract; the arguments stay in their box until the result is there, also
        // when the ring is dropped.
        let pushed = unsafe { self.uring.submission().push(&entry.user_data(flight.completion_key(place))) };
        assert!(pushed.is_ok(), "as many entries as places");
        self.free.pop();
        self.queued += 1;
        self.undecided += 1;
        Ok(place as usize)
    }

    /// Submits queued sends by one system call.
    /// Errors: the kernel is short of memory (`EAGAIN`), or refuses. Refused sends stay queued: call again.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("the ring is out of order"));
        }
        while self.queued > 0 {
            match self.uring.submit() {
                Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(taken) => self.queued = self.queued.saturating_sub(taken),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Cancels sends that wait for room in the socket's send buffer: the kernel would otherwise read their
    /// memory later, even after the ring was dropped. They are reported as refused (`ECANCELED`).
    pub(crate) fn cancel_waiting_sends(&mut self) {
        // Fails if there is nothing to cancel. Linux 6.0 has this call, as it has zero-copy sends.
        let all = types::CancelBuilder::any().all();
        let _ = self.uring.submitter().register_sync_cancel(Some(types::Timespec::new().sec(1)), all);
    }

    /// Reports each send whose memory is free, once, without waiting: the caller's number for it, the bytes
    /// sent or the error, and whether the kernel copied all or part (meaningless with an error). Returns how
    /// many.
    pub(crate) fn reap(&mut self, mut each: impl FnMut(u64, io::Result<usize>, bool)) -> usize {
        if self.uring.submission().taskrun() {
            // Lets the kernel write the completions of this thread's sends. An error leaves them for the next
            // time.
            let _ = self.run_kernel_tasks();
        }
        self.read_completions();
        let over = std::mem::take(&mut self.over);
        let count = over.len();
        for &place in &over {
            let flight = &mut self.flights[place as usize];
            flight.is_open = false;
            self.free.push(place);
            if let Some((result, copied)) = flight.finished_result() {
                each(flight.user_data, result, copied);
            }
        }
        self.over = over; // its memory is used again
        self.over.clear();
        count
    }

    /// Reads completions; finished sends wait to be reported.
    fn read_completions(&mut self) {
        for entry in self.uring.completion() {
            // The lower half. The upper one is compared below: it tells a late completion from one of the
            // send that has the place now.
            let place = entry.user_data() as u32;
            let flight = self.flights.get_mut(place as usize);
            let known =
                flight.filter(|flight| flight.is_open && flight.completion_key(place) == entry.user_data());
            let Some(flight) = known else {
                self.faults += 1;
                continue;
            };
            let (was_undecided, was_done) = (flight.result.is_none(), flight.finished_result().is_some());
            self.faults += u64::from(!record_completion(flight, &entry));
            // Once for each send: only its first result counts.
            self.undecided -= usize::from(was_undecided && flight.result.is_some());
            if !was_done && flight.finished_result().is_some() {
                self.over.push(place);
            }
        }
    }

    fn run_kernel_tasks(&self) -> io::Result<usize> {
        // linux/io_uring.h
        const IORING_ENTER_GETEVENTS: u32 = 1 << 0;
        // SAFETY: nothing is submitted, and no argument given.
        unsafe { self.uring.submitter().enter::<()>(0, 0, IORING_ENTER_GETEVENTS, None) }
    }

    /// Whether sends wait in the kernel, because the socket's send buffer had no room: later ones may
    /// overtake them.
    pub(crate) fn has_waiting_sends(&self) -> bool {
        self.undecided > 0
    }

    /// Sends that were queued and not reaped.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.flights.len()
    }

    /// Completions of sends that were never made, or already finished: a fault of the kernel.
    pub(crate) fn faults(&self) -> u64 {
        self.faults
    }
}

fn record_completion(flight: &mut SendInFlight, entry: &cqueue::Entry) -> bool {
    if cqueue::notif(entry.flags()) {
        let copied = entry.result().cast_unsigned() & IORING_NOTIF_USAGE_ZC_COPIED != 0;
        return flight.copied.replace(copied).is_none();
    }
    flight.awaits_notice = cqueue::more(entry.flags());
    flight.result.replace(entry.result()).is_none()
}

impl AsFd for UringSender {
    /// Readable while there are completions to be reaped.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has it open, and is borrowed as long.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }
}

impl Drop for UringSender {
    fn drop(&mut self) {
        let results_missing = self.flights.iter().any(|flight| flight.is_open && flight.result.is_none());
        if results_missing {
            // The kernel may still read them.
            std::mem::forget(std::mem::take(&mut self.arguments));
        }
        if self.in_flight() == 0 {
            // The kernel frees a closed ring later, and would keep the socket's port until then.
            let _ = self.uring.submitter().unregister_files();
        }
    }
}

impl fmt::Debug for UringSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UringSender({} of {} in flight)", self.in_flight(), self.capacity())
    }
}

#[cfg(test)]
mod tests;
