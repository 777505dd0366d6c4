//! An activated handle for which this library captures.

use std::ffi::{CStr, c_int, c_uchar};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::claim::{Exclusive, Footing, Place};
use super::sending::Sending;
use crate::abi::{ERROR, ERROR_BREAK, PacketHeader, Pcap};
use crate::capture::{Capture, Control, Direction, Filter, Packet, Waited, Waiting};
use crate::capture::{Settings, Stop};
use crate::report::{self, FilterPlace};
use crate::text;

#[derive(Debug)]
pub(crate) struct Live {
    /// The system's handle, into which texts are written.
    real: *mut Pcap,
    number: u64,
    device: String,
    reader: Exclusive<Reader>,
    pub(crate) control: Control,
    pub(crate) stop: Stop,
    sending: Sending,
    /// Whether a call waits for a packet without a time limit.
    waits_for_packets: bool,
    nonblocking: AtomicBool,
    /// Whether the handle was closed by the callback of a loop that is not over.
    is_abandoned: AtomicBool,
}

// SAFETY: the pointers are to handles of libpcap, which may be used by any thread, by one at a time for functions that are not documented
// as thread-safe.
unsafe impl Send for Live {}
// SAFETY: as above.
unsafe impl Sync for Live {}

/// The state that the one reading thread uses.
#[derive(Debug)]
pub(crate) struct Reader {
    capture: Capture,
    nanoseconds: bool,
    snap_bytes: u32,
    /// The header to which `pcap_next_ex` returns a pointer.
    header: PacketHeader,
    /// A copied packet to which `pcap_next_ex` returns a pointer.
    kept: Vec<u8>,
}

impl Live {
    /// Joins an activated handle of the system's libpcap with this library's capture.
    ///
    /// # Safety
    /// `real` is that handle, and stays open as long as this is used.
    pub(super) unsafe fn new(
        real: *mut Pcap,
        number: u64,
        device: &CStr,
        settings: &Settings,
        (capture, control): (Capture, Control),
    ) -> Self {
        let snap_bytes = settings.snap_bytes();
        let time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        // Without a timeout; but in libpcap's immediate mode only until there is one, which may turn out to be none for the program.
        let is_one_by_one = settings.immediate && matches!(control, Control::Passive(_));
        let reader = Reader {
            capture,
            nanoseconds: settings.nanoseconds,
            snap_bytes: snap_bytes.cast_unsigned(),
            header: PacketHeader { time, captured_bytes: 0, original_bytes: 0 },
            kept: Vec::new(),
        };
        Self {
            real,
            number,
            device: device.to_string_lossy().into_owned(),
            reader: Exclusive::new(reader),
            control,
            stop: Stop::new(),
            sending: Sending::default(),
            waits_for_packets: settings.timeout_ms == 0 && !is_one_by_one,
            nonblocking: AtomicBool::new(settings.nonblocking),
            is_abandoned: AtomicBool::new(false),
        }
    }

    /// Reads packets, at most `max` of them, as libpcap's `pcap_read_linux_mmap_v3` does; returns the result of `pcap_dispatch`.
    fn read(
        &self,
        reader: &mut Reader,
        max: usize,
        deliver: &mut impl FnMut(&PacketHeader, Packet<'_>),
    ) -> c_int {
        let Reader { capture, nanoseconds, snap_bytes, .. } = reader;
        let (nanoseconds, snap_bytes) = (*nanoseconds, *snap_bytes);
        let mut deliver = |packet: Packet<'_>| deliver(&header_of(&packet, nanoseconds, snap_bytes), packet);
        let mut count = 0;
        loop {
            let nonblocking = self.nonblocking.load(Ordering::Relaxed);
            if !capture.is_ready() {
                let waiting = Waiting { stop: &self.stop, nonblocking };
                match capture.wait(waiting) {
                    Waited::Look => {}
                    Waited::Stopped => return ERROR_BREAK,
                    Waited::Failed(words) => return self.fail(&words),
                }
            }
            while count < max && capture.is_ready() {
                count += capture.hand_over(max - count, &self.stop, &mut deliver);
                if self.stop.take() {
                    return ERROR_BREAK;
                }
            }
            if count > 0 || nonblocking || !self.waits_for_packets {
                return c_int::try_from(count).unwrap_or(c_int::MAX);
            }
        }
    }

    /// `pcap_dispatch`: a count of 0 or less means all packets that are waiting now.
    pub(crate) fn dispatch(
        &self,
        reader: &mut Reader,
        count: c_int,
        deliver: &mut impl FnMut(&PacketHeader, Packet<'_>),
    ) -> c_int {
        self.read(reader, limit(count), deliver)
    }

    /// `pcap_loop`: reads the requested number of packets, and waits as often as needed; with a count of 0 or less it never ends.
    pub(crate) fn repeat(
        &self,
        reader: &mut Reader,
        count: c_int,
        deliver: &mut impl FnMut(&PacketHeader, Packet<'_>),
    ) -> c_int {
        let mut left = count;
        loop {
            let read = loop {
                match self.read(reader, limit(left), deliver) {
                    0 if self.is_abandoned.load(Ordering::Relaxed) => return ERROR_BREAK,
                    0 => {}
                    read => break read,
                }
            };
            if read < 0 {
                return read;
            }
            if count > 0 {
                left -= read;
                if left <= 0 {
                    return 0;
                }
            }
        }
    }

    /// `pcap_next_ex`: the next packet, in place until the next call.
    pub(crate) fn next(&self, reader: &mut Reader, found: &mut (*mut PacketHeader, *const c_uchar)) -> c_int {
        let mut kept = std::mem::take(&mut reader.kept);
        let mut header = reader.header;
        let mut bytes = std::ptr::null();
        let result = self.read(reader, 1, &mut |of_packet, packet| {
            header = *of_packet;
            bytes = if packet.stays {
                packet.bytes.as_ptr()
            } else {
                kept.clear();
                kept.extend_from_slice(packet.bytes);
                kept.as_ptr()
            };
        });
        reader.kept = kept; // moved, so what it points to stays
        reader.header = header;
        found.0 = &raw mut reader.header;
        if result > 0 {
            found.1 = bytes;
        }
        result
    }

    /// Takes the right to read, which only one call at a time can have. Sets the error text if another call has it. See [`super::claim`].
    pub(super) fn begin_reading(&self, footing: &Footing) -> Option<&mut Reader> {
        let reader = self.reader.claim(footing);
        if reader.is_none() {
            self.fail(
                "handle: cannot be read; another call is reading its packets; wait until that has returned",
            );
        }
        reader
    }

    /// Returns the right to read. If the handle was closed in between, the caller must free it.
    ///
    /// # Safety
    /// The caller has the right to read, and no longer uses the result of [`Self::begin_reading`].
    pub(super) unsafe fn end_reading(&self) -> ControlFlow<()> {
        // SAFETY: by contract.
        unsafe { self.reader.give_back() }
    }

    pub(crate) fn set_filter(&self, filter: Filter) -> c_int {
        match self.control.set_filter(filter) {
            Ok(place) => {
                self.report_filter(place);
                0
            }
            Err(words) => self.fail(&words),
        }
    }

    fn report_filter(&self, place: FilterPlace) {
        report::filter(self.number, Some(place));
    }

    pub(crate) fn set_direction(&self, direction: Direction) -> c_int {
        match self.control.set_direction(direction) {
            Ok(()) => 0,
            Err(words) => self.fail(&words),
        }
    }

    /// Sends a packet; returns the number of its bytes, as `pcap_inject` does.
    pub(crate) fn inject(&self, packet: &[u8]) -> c_int {
        match self.sending.inject(&self.device, &self.control, packet, self.is_nonblocking()) {
            Ok(sent) => c_int::try_from(sent).unwrap_or(c_int::MAX),
            Err(error) => self.fail(&text::of_errno("send", &error)),
        }
    }

    /// `pcap_fileno`, `pcap_get_selectable_fd`
    pub(crate) fn descriptor(&self) -> c_int {
        self.control.descriptor().as_raw_fd()
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Makes calls return at once, or wait. The descriptor's flag changes, too, as in libpcap. Errors are in libpcap's words.
    pub(crate) fn set_nonblocking(&self, on: bool) -> Result<(), String> {
        set_flag(self.control.descriptor(), on)?;
        self.nonblocking.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the text for `pcap_geterr`.
    pub(crate) fn fail(&self, words: &str) -> c_int {
        if !self.is_abandoned.load(Ordering::Relaxed) {
            // SAFETY: the handle is open as long as this is.
            unsafe { text::set(self.real, words) };
        }
        ERROR
    }

    /// Ends sending: how many frames were sent, and how.
    pub(super) fn finish_sending(&self) -> (u64, Option<String>) {
        self.sending.finish()
    }

    /// Whether a call is reading now, judged from the stack position of another call.
    pub(super) fn is_read(&self, from: Place) -> bool {
        self.reader.is_in_use(from)
    }

    /// Closes the handle for the program. If a call is reading right now (perhaps the one whose callback closes it), that call ends soon,
    /// and frees the handle: then this returns true, and the handle may already be invalid.
    pub(super) fn abandon(&self, from: Place) -> bool {
        self.is_abandoned.store(true, Ordering::Relaxed);
        self.stop.ask();
        self.reader.abandon(from).is_break()
    }

    /// Closes the capture. `is_inherited`: this is a forked child, and its parent's capture must continue.
    pub(super) fn close(self, is_inherited: bool) {
        let Self { reader, sending, .. } = self;
        let capture = reader.into_inner().capture;
        if is_inherited {
            sending.leave();
            capture.leave();
        } else {
            sending.close();
        }
    }
}

/// Makes calls on a descriptor wait, or not.
pub(super) fn set_flag(descriptor: BorrowedFd<'_>, nonblocking: bool) -> Result<(), String> {
    let fd = descriptor.as_raw_fd();
    // SAFETY: takes numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL, 0) };
    if flags < 0 {
        return Err(text::of_errno("F_GETFL", &io::Error::last_os_error()));
    }
    let flags = if nonblocking { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    // SAFETY: takes numbers.
    if unsafe { libc::fcntl(fd, libc::F_SETFL, flags) } < 0 {
        return Err(text::of_errno("F_SETFL", &io::Error::last_os_error()));
    }
    Ok(())
}

/// Converts the count of packets that a C caller gives to a limit.
fn limit(count: c_int) -> usize {
    usize::try_from(count).ok().filter(|&count| count > 0).unwrap_or(c_int::MAX as usize)
}

/// The header of a packet, with the captured length.
#[inline]
fn header_of(packet: &Packet<'_>, nanoseconds: bool, snap_bytes: u32) -> PacketHeader {
    let (seconds, ns) = (packet.time_ns / 1_000_000_000, packet.time_ns % 1_000_000_000);
    let fraction = if nanoseconds { ns } else { ns / 1000 };
    PacketHeader {
        time: libc::timeval { tv_sec: seconds.cast_signed(), tv_usec: fraction.cast_signed() },
        captured_bytes: (packet.bytes.len() as u32).min(snap_bytes),
        original_bytes: packet.original_bytes,
    }
}
