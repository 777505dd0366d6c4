//! The settings that a program made before it activated the handle.

use std::ffi::c_int;

use super::Refusal;
use crate::abi::SNAP_BYTES_MAX;

/// `PCAP_TSTAMP_HOST_*`: the kernel's time stamps, which this library uses.
const HOST_TIMES: [c_int; 4] = [-1, 0, 1, 2];

/// The settings made before the handle is activated; by default libpcap's.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// As the program gave it; see [`Settings::snap_bytes`].
    pub(crate) snap_bytes_requested: c_int,
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
    pub(crate) fn new() -> Self {
        Self {
            snap_bytes_requested: 0,
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

    /// How many bytes of a packet are captured: libpcap's maximum for invalid values.
    pub(crate) fn snap_bytes(&self) -> c_int {
        if (1..=SNAP_BYTES_MAX).contains(&self.snap_bytes_requested) {
            self.snap_bytes_requested
        } else {
            SNAP_BYTES_MAX
        }
    }

    /// Whether all our captures support these settings. The error is the setting that nocopy does not
    /// support.
    pub(crate) fn check_supported(&self) -> Result<(), Refusal> {
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
