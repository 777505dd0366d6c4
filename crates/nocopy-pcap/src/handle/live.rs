//! An activated handle for which this library captures.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::claim::StackPosition;
use super::lazy_injector::LazyInjector;
use crate::abi::{ERROR, PacketHeader, Pcap};
use crate::capture::{Capture, CaptureControl, Direction, Filter, Settings, StopRequest};
use crate::injection::{SendResult, SingleSend};
use crate::report::{self, FilterLocation};
use crate::text;

#[derive(Debug)]
pub(crate) struct LiveCapture {
    /// The system's handle, into which texts are written.
    real: *mut Pcap,
    number: u64,
    device: String,
    /// Used by the holder of the claim.
    reader: UnsafeCell<ReaderState>,
    pub(crate) control: CaptureControl,
    pub(crate) stop: StopRequest,
    injector: LazyInjector,
    /// Whether a call waits for a packet without a time limit.
    pub(super) waits_for_packets: bool,
    nonblocking: AtomicBool,
    /// Whether the handle was closed, perhaps by a signal handler that interrupted a step.
    is_abandoned: AtomicBool,
}

// SAFETY: the pointers are to handles of libpcap, which may be used by any thread, by one at a time for
// functions that are not documented as thread-safe. The reader is used by the holder of the claim alone.
unsafe impl Send for LiveCapture {}
// SAFETY: as above.
unsafe impl Sync for LiveCapture {}

/// The state that the one reading thread uses.
#[derive(Debug)]
pub(crate) struct ReaderState {
    pub(super) capture: Capture,
    pub(super) nanoseconds: bool,
    pub(super) snap_bytes: u32,
    /// The call whose callback looks at a packet, or was left.
    pub(super) delivering: Option<StackPosition>,
    /// The header to which `pcap_next_ex` returns a pointer.
    pub(super) header: PacketHeader,
    /// A copied packet to which `pcap_next_ex` returns a pointer.
    pub(super) packet_copy: Vec<u8>,
}

impl LiveCapture {
    /// Joins an activated handle of the system's libpcap with this library's capture.
    ///
    /// # Safety
    /// `real` is that handle, and stays open as long as this is used.
    pub(super) unsafe fn new(
        real: *mut Pcap,
        number: u64,
        device: &CStr,
        settings: &Settings,
        (capture, control): (Capture, CaptureControl),
    ) -> Self {
        let snap_bytes = settings.snap_bytes();
        let time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        // Without a timeout; but in libpcap's immediate mode only until there is one, which may turn out to
        // be none for the program.
        let is_one_by_one = settings.immediate && matches!(control, CaptureControl::Passive(_));
        let reader = ReaderState {
            capture,
            nanoseconds: settings.nanoseconds,
            snap_bytes: snap_bytes.cast_unsigned(),
            delivering: None,
            header: PacketHeader { time, captured_bytes: 0, original_bytes: 0 },
            packet_copy: Vec::new(),
        };
        Self {
            real,
            number,
            device: device.to_string_lossy().into_owned(),
            reader: UnsafeCell::new(reader),
            control,
            stop: StopRequest::new(),
            injector: LazyInjector::default(),
            waits_for_packets: settings.timeout_ms == 0 && !is_one_by_one,
            nonblocking: AtomicBool::new(settings.nonblocking),
            is_abandoned: AtomicBool::new(false),
        }
    }

    /// What a step of a reading call uses.
    ///
    /// # Safety
    /// The caller has the claim of this handle ([`super::claim`]), and one such reference.
    #[expect(clippy::mut_from_ref, reason = "there is one claim at a time")]
    #[inline]
    pub(crate) unsafe fn reader_state(&self) -> &mut ReaderState {
        // SAFETY: by contract.
        unsafe { &mut *self.reader.get() }
    }

    pub(crate) fn set_filter(&self, filter: Filter) -> c_int {
        match self.control.set_filter(filter) {
            Ok(place) => {
                self.report_filter(place);
                0
            }
            Err(words) => self.fail_with_text(&words),
        }
    }

    fn report_filter(&self, place: FilterLocation) {
        report::report_filter(self.number, Some(place));
    }

    pub(crate) fn set_direction(&self, direction: Direction) -> c_int {
        match self.control.set_direction(direction) {
            Ok(()) => 0,
            Err(words) => self.fail_with_text(&words),
        }
    }

    /// Sends a packet: `Ok` with what `pcap_inject` returns, `Err` with how to send it alone.
    pub(crate) fn inject(&self, packet: &[u8]) -> Result<c_int, SingleSend> {
        match self.injector.inject(&self.device, &self.control, packet, self.is_nonblocking()) {
            Ok(None) => Ok(inject_return_value(packet)),
            Ok(Some(single)) => Err(single),
            Err(error) => Ok(self.fail_with_text(&text::errno_text("send", &error))),
        }
    }

    /// What `pcap_inject` returns for a packet that was sent alone.
    pub(crate) fn finish_inject(&self, packet: &[u8], sent: SendResult) -> c_int {
        match sent.into_io_result() {
            Ok(()) => {
                self.injector.count_single_send();
                inject_return_value(packet)
            }
            Err(error) => self.fail_with_text(&text::errno_text("send", &error)),
        }
    }

    /// `pcap_fileno`, `pcap_get_selectable_fd`
    pub(crate) fn descriptor(&self) -> c_int {
        self.control.descriptor().as_raw_fd()
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Makes calls return at once, or wait. The descriptor's flag changes, too, as in libpcap. Errors are in
    /// libpcap's words.
    pub(crate) fn set_nonblocking(&self, on: bool) -> Result<(), String> {
        set_nonblocking_flag(self.control.descriptor(), on)?;
        self.nonblocking.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Sets the text for `pcap_geterr`.
    pub(crate) fn fail_with_text(&self, words: &str) -> c_int {
        if !self.is_abandoned.load(Ordering::Relaxed) {
            // SAFETY: the handle is open as long as this is.
            unsafe { text::set_error_text(self.real, words) };
        }
        ERROR
    }

    /// How many frames were sent, and how.
    pub(super) fn sent_totals(&self) -> (u64, Option<String>) {
        self.injector.sent_totals()
    }

    /// Sends queued frames.
    pub(super) fn finish_sending(&self) {
        self.injector.flush_frames();
    }

    /// Ends the calls that wait, as the program has closed the handle.
    pub(super) fn end_waiting_calls(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
        self.stop.request();
    }

    /// Closes the capture. `is_inherited`: this is a forked child, and its parent's capture must continue.
    pub(super) fn close(self, is_inherited: bool) {
        let Self { reader, injector, .. } = self;
        let capture = reader.into_inner().capture;
        if is_inherited {
            injector.close_in_forked_child();
            capture.close_in_forked_child();
        } else {
            injector.close();
        }
    }
}

/// Makes calls on a descriptor wait, or not.
pub(super) fn set_nonblocking_flag(descriptor: BorrowedFd<'_>, nonblocking: bool) -> Result<(), String> {
    let flags = fcntl_getfl(descriptor).map_err(|error| text::errno_text("F_GETFL", &error.into()))?;
    let flags = if nonblocking { flags | OFlags::NONBLOCK } else { flags - OFlags::NONBLOCK };
    fcntl_setfl(descriptor, flags).map_err(|error| text::errno_text("F_SETFL", &error.into()))
}

/// The number of a packet's bytes, as `pcap_inject` returns it.
fn inject_return_value(packet: &[u8]) -> c_int {
    c_int::try_from(packet.len()).unwrap_or(c_int::MAX)
}
