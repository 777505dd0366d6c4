//! Our state beside a program's `pcap_t`.

mod live;
mod sending;
mod stop;

use std::ffi::{CStr, CString, c_int};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi::{Pcap, SNAP_BYTES_MAX, Statistics};
use crate::capture::{Counts, Refusal};
use crate::fork::{Generation, generation};
use crate::report::{self, Library};
use crate::system::system;

pub(crate) use live::Live;
pub(crate) use stop::Stop;

/// `PCAP_TSTAMP_HOST_*`: time stamps of the kernel's, which ours are.
const HOST_TIMES: [c_int; 4] = [-1, 0, 1, 2];

/// What a program asked for before it activated the handle.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// As it was given; see [`Settings::snap_bytes`].
    pub(crate) snap_bytes_asked: c_int,
    pub(crate) promiscuous: bool,
    /// 0 for none.
    pub(crate) timeout_ms: c_int,
    /// 0 for libpcap's default.
    pub(crate) buffer_bytes: c_int,
    pub(crate) nanoseconds: bool,
    pub(crate) immediate: bool,
    pub(crate) monitor: bool,
    /// `PCAP_TSTAMP_*`, -1 for the default.
    pub(crate) time_stamps: c_int,
    /// EtherType; 0 for all.
    pub(crate) protocol: c_int,
    pub(crate) nonblocking: bool,
}

impl Settings {
    fn new() -> Self {
        Self {
            snap_bytes_asked: 0,
            promiscuous: false,
            timeout_ms: 0,
            buffer_bytes: 0,
            nanoseconds: false,
            immediate: false,
            monitor: false,
            time_stamps: -1,
            protocol: 0,
            nonblocking: false,
        }
    }

    /// How much of a packet is kept: what makes no sense is libpcap's most.
    pub(crate) fn snap_bytes(&self) -> c_int {
        if (1..=SNAP_BYTES_MAX).contains(&self.snap_bytes_asked) {
            self.snap_bytes_asked
        } else {
            SNAP_BYTES_MAX
        }
    }

    /// Whether a capture of ours, of whatever kind, can do what was asked for.
    ///
    /// # Errors
    /// What it cannot.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let why = match self {
            Self { monitor: true, .. } => "monitor mode is for wireless interfaces",
            Self { time_stamps, .. } if !HOST_TIMES.contains(time_stamps) => {
                "time stamps of the adapter are asked for"
            }
            Self { protocol, .. } if *protocol != 0 => "packets of one protocol are asked for",
            Self { timeout_ms: ..0, .. } => "a negative timeout is left to the kernel",
            _ => return Ok(()),
        };
        Err(Refusal(why.into()))
    }
}

/// A handle that a program got from `pcap_create` or `pcap_open_live`.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Counts handles, for the report.
    pub(crate) number: u64,
    device: CString,
    settings: Mutex<Settings>,
    /// Once it is activated, and ours.
    live: OnceLock<Live>,
    /// Once it is activated, and the system's.
    is_theirs: AtomicBool,
    made_in: Generation,
}

impl Handle {
    /// For a device; null is `any`, as libpcap has it.
    pub(crate) fn new(device: Option<&CStr>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: COUNT.fetch_add(1, Ordering::Relaxed),
            device: device.unwrap_or(c"any").to_owned(),
            settings: Mutex::new(Settings::new()),
            live: OnceLock::new(),
            is_theirs: AtomicBool::new(false),
            made_in: generation(),
        }
    }

    /// What the program asked for, to be read and changed.
    pub(crate) fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The capture, if it is activated and ours.
    #[inline]
    pub(crate) fn live(&self) -> Option<&Live> {
        self.live.get()
    }

    /// Opens our capture.
    ///
    /// # Errors
    /// The system's libpcap has to, and why.
    ///
    /// # Safety
    /// `real` is the open handle of the system's libpcap that this is beside.
    pub(crate) unsafe fn activate(&self, real: *mut Pcap) -> Result<(), Refusal> {
        let settings = self.settings().clone();
        // SAFETY: by contract.
        let live = unsafe { Live::open(real, self.number, &self.device, &settings) }?;
        // A second thread that activates the same handle loses, and its capture is closed.
        let library = live.control.library();
        let _ = self.live.set(live);
        self.report_opened(library);
        Ok(())
    }

    /// Notes that the system's libpcap captures.
    pub(crate) fn is_theirs(&self, why: &Refusal) {
        self.is_theirs.store(true, Ordering::Relaxed);
        self.report_opened(Library::System { why: why.to_string() });
    }

    fn report_opened(&self, library: Library) {
        let settings = self.settings();
        let snap_bytes = settings.snap_bytes().cast_unsigned();
        report::opened(
            self.number,
            &self.device.to_string_lossy(),
            library,
            settings.promiscuous,
            snap_bytes,
        );
    }

    /// What it counted, if it was activated.
    fn counts(&self, real: *mut Pcap) -> Option<Counts> {
        match self.live() {
            Some(live) => Some(live.control.counts().unwrap_or_default()),
            None if self.is_theirs.load(Ordering::Relaxed) => Some(their_counts(real)),
            None => None,
        }
    }

    /// Closes it: as whoever opened it, or as the child of a fork, whose parent may go on. `real` is closed afterwards.
    pub(crate) fn close(self: Box<Self>, real: *mut Pcap) {
        let is_inherited = self.made_in != generation();
        if let Some(counts) = self.counts(real).filter(|_| !is_inherited) {
            let Counts { received, dropped, interface_dropped } = counts;
            let (sent, sending) = self.live().map_or((0, None), Live::finish_sending);
            let counts = report::Counts { received, dropped, interface_dropped, sent };
            report::closed(self.number, counts, sending.as_deref());
        }
        if let Some(live) = self.live().filter(|live| live.is_reading()) {
            live.abandon();
            Box::leak(self); // the loop goes on with it until its callback returns
        } else if let Some(live) = self.live.into_inner() {
            live.close(is_inherited);
        }
    }
}

/// What the system's libpcap counted.
fn their_counts(real: *mut Pcap) -> Counts {
    let mut statistics = Statistics::default();
    // SAFETY: the handle is open, and the statistics are there to be written.
    unsafe { (system().pcap_stats)(real, &raw mut statistics) };
    Counts {
        received: statistics.received.into(),
        dropped: statistics.dropped.into(),
        interface_dropped: statistics.interface_dropped.into(),
    }
}
