//! This library's state for a program's `pcap_t`.

mod claim;
mod lazy_injector;
mod live;
mod reading;

use std::ffi::{CStr, CString, c_int};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use nocopy::integration::Generation;

use crate::abi::{ERROR, Pcap, Statistics};
use crate::capture::receive_off::stop_receiving;
use crate::capture::{Capture, Counts, OpenedCapture, Refusal, Settings};
use crate::report::{self, CapturingLibrary, ReportingProcess};
use crate::system::system_libpcap;
use crate::text;
use crate::timed_wait::lock_within;

pub(crate) use claim::{Claim, StackMark, StackPosition};
pub(crate) use live::LiveCapture;
pub(crate) use reading::{ReadAction, ReadCall, ReadCallKind};

/// The buffer of the system's handle if this library captures: as few blocks as a ring may have.
const SMALL_BUFFER_BYTES: c_int = 1 << 16;

/// How long another thread may have the settings: it only copies them.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

const IN_USE: &str =
    "settings: not available; another call was left while it had them; close the handle, and open another";

/// A handle that a program got from `pcap_create` or `pcap_open_live`.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) number: u64,
    device: CString,
    settings: Mutex<Settings>,
    /// Set once the handle is activated with this library.
    live: OnceLock<LiveCapture>,
    /// True once the handle is activated and the system's libpcap captures for it.
    is_system_capture: AtomicBool,
    generation: Generation,
    /// Set once the handle is activated under `nocopy run`.
    opener: OnceLock<ReportingProcess>,
}

impl Handle {
    /// For a device; null means `any`, as in libpcap.
    pub(crate) fn new(device: Option<&CStr>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: COUNT.fetch_add(1, Ordering::Relaxed),
            device: device.unwrap_or(c"any").to_owned(),
            settings: Mutex::new(Settings::new()),
            live: OnceLock::new(),
            is_system_capture: AtomicBool::new(false),
            generation: Generation::current(),
            opener: OnceLock::new(),
        }
    }

    /// The settings that the program asked for. Fails in the child of a fork during another thread's call,
    /// and after such a call was left.
    pub(crate) fn settings(&self) -> Result<Settings, &'static str> {
        self.change_settings(|settings| settings.clone())
    }

    /// Changes the settings; fails likewise.
    pub(crate) fn change_settings<R>(&self, run: impl FnOnce(&mut Settings) -> R) -> Result<R, &'static str> {
        lock_within(&self.settings, LOCK_TIMEOUT).map(|mut settings| run(&mut settings)).ok_or(IN_USE)
    }

    /// The capture, if this library activated the handle.
    #[inline]
    pub(crate) fn live_capture(&self) -> Option<&LiveCapture> {
        self.live.get()
    }

    /// Whether it is activated, with this library or the system's.
    pub(crate) fn is_activated(&self) -> bool {
        self.live_capture().is_some() || self.is_system_capture.load(Ordering::Relaxed)
    }

    /// Opens our capture. The error is the reason why the system's libpcap has to capture instead.
    pub(crate) fn open_capture(&self) -> Result<OpenedCapture, Refusal> {
        let settings = self.settings().map_err(|why| Refusal(why.into()))?;
        Capture::open(&self.device, &settings)
    }

    /// Activates the system's handle and starts our capture. The system's handle has the smallest buffer and
    /// receives nothing; libpcap compiles filters for it, opens files and refuses calls that come too late,
    /// as for its own captures. Returns the result of `pcap_activate`; below 0 the capture is closed.
    ///
    /// # Safety
    /// `real` is the open handle of the system's libpcap to which this state belongs.
    pub(crate) unsafe fn activate(&self, real: *mut Pcap, opened: OpenedCapture) -> c_int {
        let OpenedCapture { capture, control, library } = opened;
        // Before the system's handle is activated: an error then leaves it unchanged.
        let settings = self.settings().map_err(str::to_owned).and_then(|settings| {
            if settings.nonblocking {
                live::set_nonblocking_flag(control.descriptor(), true)?;
            }
            Ok(settings)
        });
        let settings = match settings {
            Ok(settings) => settings,
            Err(words) => {
                // SAFETY: by contract.
                unsafe { text::set_error_text(real, &words) };
                return ERROR;
            }
        };
        // SAFETY: by contract.
        let status = unsafe {
            (system_libpcap().pcap_set_buffer_size)(real, SMALL_BUFFER_BYTES);
            (system_libpcap().pcap_set_immediate_mode)(real, 1);
            (system_libpcap().pcap_activate)(real)
        };
        if status < 0 {
            return status;
        }
        // SAFETY: the handle is activated.
        let live = unsafe {
            stop_receiving((system_libpcap().pcap_fileno)(real));
            LiveCapture::new(real, self.number, &self.device, &settings, (capture, control))
        };
        if self.live.set(live).is_ok() {
            self.report_opened(library);
            if let Some(live) = self.live_capture() {
                live.control.share_filter_with_runner(self.number);
            }
        }
        status
    }

    /// Notes that the system's libpcap captures.
    pub(crate) fn record_system_capture(&self, why: &Refusal) {
        self.is_system_capture.store(true, Ordering::Relaxed);
        self.report_opened(CapturingLibrary::System { why: why.to_string() });
    }

    fn report_opened(&self, library: CapturingLibrary) {
        let Ok(settings) = self.settings() else { return };
        let snap_bytes = settings.snap_bytes().cast_unsigned();
        let device = self.device.to_string_lossy();
        let opener = report::report_opened(self.number, &device, library, settings.promiscuous, snap_bytes);
        if let Some(opener) = opener {
            let _ = self.opener.set(opener); // a handle is activated once
        }
    }

    /// The counts, if it was activated.
    fn counts(&self, real: *mut Pcap) -> Option<Counts> {
        match self.live_capture() {
            Some(live) => Some(live.control.counts().unwrap_or_default()),
            None if self.is_system_capture.load(Ordering::Relaxed) => Some(system_counts(real)),
            None => None,
        }
    }

    /// Sends queued frames, reports the counters, and ends the calls that wait; does less in a forked child
    /// whose parent continues. `real` is closed afterwards.
    pub(crate) fn stop(&self, real: *mut Pcap) {
        if let Some(live) = self.live_capture() {
            live.finish_sending();
        }
        self.report_closed(real);
        if let Some(live) = self.live_capture() {
            live.end_waiting_calls();
        }
    }

    /// As [`Self::stop`], of a handle that is never freed, because a step of a call still uses it: the host
    /// gets its packets.
    pub(crate) fn stop_in_use(&self, real: *mut Pcap) {
        self.stop(real);
        if let Some(live) = self.live_capture().filter(|_| !self.is_inherited_by_fork()) {
            live.control.stop_receiving();
        }
    }

    /// Reports the counts, as the handle is closed or the program ends; not in a forked child, unless that is
    /// a daemon, which has the handle alone.
    pub(crate) fn report_closed(&self, real: *mut Pcap) {
        if self.is_inherited_by_fork() {
            let Some(&opener) = self.opener.get().filter(|opener| opener.has_exited()) else { return };
            report::report_inherited(self.number, opener);
        }
        // Reading the kernel's counters resets them: in the child of a fork they are left for the parent to
        // read.
        let Some(Counts { received, dropped, interface_dropped }) = self.counts(real) else { return };
        let (sent, sending) = self.live_capture().map_or((0, None), LiveCapture::sent_totals);
        let counts = report::HandleCounts { received, dropped, interface_dropped, sent };
        report::report_closed(self.number, counts, sending.as_deref());
    }

    fn is_inherited_by_fork(&self) -> bool {
        self.generation.is_outdated()
    }

    /// Closes the capture.
    ///
    /// # Safety
    /// Only the caller has it, it comes from a box, and it is invalid afterwards.
    pub(crate) unsafe fn close_and_free(handle: NonNull<Self>) {
        // SAFETY: by contract.
        let handle = unsafe { Box::from_raw(handle.as_ptr()) };
        let is_inherited = handle.is_inherited_by_fork();
        if let Some(live) = handle.live.into_inner() {
            live.close(is_inherited);
        }
    }
}

/// The counts of the system's libpcap.
fn system_counts(real: *mut Pcap) -> Counts {
    let mut statistics = Statistics::default();
    // SAFETY: the handle is open, and the statistics are there to be written.
    unsafe { (system_libpcap().pcap_stats)(real, &raw mut statistics) };
    Counts {
        received: statistics.received.into(),
        dropped: statistics.dropped.into(),
        interface_dropped: statistics.interface_dropped.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_stay_locked_are_an_error() {
        let handle = Handle::new(Some(c"lo"));
        std::mem::forget(handle.settings.lock());
        assert_eq!(handle.change_settings(|settings| settings.promiscuous = true), Err(IN_USE));
        assert_eq!(handle.open_capture().err().map(|why| why.to_string()).as_deref(), Some(IN_USE));
    }
}
