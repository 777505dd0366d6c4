//! Captures: the sources of packets.
//!
//! A capture has two sides. One thread at a time reads from [`Capture`]: it finds packets, which the program
//! gets without a copy, or what to wait for ([`PlannedSleep`]). It never waits itself, and never calls the
//! program: a thread may leave both in any way. [`CaptureControl`] may be used at the same time by other
//! threads, by signal handlers and by the program's own callback: it sets the filter and returns counts. A
//! new setting applies from the next packet on.
//!
//! If nocopy captures for a handle, the system's libpcap activates the handle, too, with a small buffer and a
//! socket bound to no protocol. So libpcap compiles filters as for any live capture (they expect the VLAN tag
//! separate from the frame), and refuses calls that come too late. Whether nocopy can capture is decided
//! once, in `pcap_activate`; the report names the reason if not. A forked child changes nothing of its
//! parent's captures.

mod filter;
mod filter_slot;
mod interface;
mod passive;
pub(crate) mod receive_off;
mod settings;
mod sleep;
mod stop;
mod take;

use std::ffi::CStr;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

pub(crate) use filter::{Filter, has_backward_jump};
use passive::PassiveCapture;
pub(crate) use settings::Settings;
pub(crate) use sleep::{PlannedSleep, SleepResult};
pub(crate) use stop::StopRequest;
use take::TakeCapture;

use crate::environment;
use crate::report::{CaptureMode, CapturingLibrary, FilterLocation};

/// A packet, in the memory to which the kernel wrote it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) original_bytes: u32,
    /// When it arrived, since 1970.
    pub(crate) time_ns: u64,
    /// Whether `bytes` stay valid after [`Capture::pause_delivery`].
    pub(crate) outlives_pause: bool,
}

/// The counts that `pcap_stats` returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Packets that matched the filter, including those that were dropped afterwards.
    pub(crate) received: u64,
    /// Packets dropped because the program was too slow, and packets taken from the host that did not match
    /// the filter and could not be handed back.
    pub(crate) dropped: u64,
    /// Packets that the interface lost.
    pub(crate) interface_dropped: u64,
}

/// Which packets a program asked for (`pcap_direction_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Direction {
    Both,
    In,
    Out,
}

/// Why nocopy cannot capture, and the system's libpcap has to: the end of a sentence that begins "the
/// system's libpcap captures, because".
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) String);

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[derive(Debug)]
pub(crate) enum WaitResult {
    /// Sleep, and go on with the result.
    Sleep(PlannedSleep),
    /// Packets may have arrived, or the timeout is over: check.
    Check,
    /// `pcap_breakloop` was called; the request is cleared.
    Stopped,
    /// The wait failed, with an error in libpcap's words.
    Failed(String),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitOptions<'a> {
    pub(crate) stop: &'a StopRequest,
    /// Return at once: only check for errors.
    pub(crate) nonblocking: bool,
}

/// The reading side of a capture.
#[derive(Debug)]
pub(crate) enum Capture {
    /// Copies of packets; the host gets its traffic as usual.
    Passive(Box<PassiveCapture>),
    /// Incoming packets are taken from the host.
    Take(Box<TakeCapture>),
}

impl Capture {
    /// Opens a capture on a device, with the program's settings.
    /// The error is the reason why nocopy cannot capture this, and the system's libpcap must.
    pub(crate) fn open(device: &CStr, settings: &Settings) -> Result<OpenedCapture, Refusal> {
        settings.check_supported()?;
        let note = match environment::is_take_requested().then(|| TakeCapture::open(device, settings)) {
            None => None,
            Some(Ok((take, control, mode))) => {
                let (capture, control) = (Self::Take(Box::new(take)), CaptureControl::Take(control));
                return Ok(OpenedCapture {
                    capture,
                    control,
                    library: CapturingLibrary::Ours { mode, note: None },
                });
            }
            Some(Err(why)) => Some(format!("packets are not taken from the host: {why}")),
        };
        match PassiveCapture::open(device, settings) {
            Ok((passive, control)) => {
                let (capture, control) = (Self::Passive(Box::new(passive)), CaptureControl::Passive(control));
                let library = CapturingLibrary::Ours { mode: CaptureMode::Passive, note };
                Ok(OpenedCapture { capture, control, library })
            }
            Err(why) => Err(Refusal(note.map_or(why.to_string(), |note| format!("{why}; {note}")))),
        }
    }

    /// Whether packets were claimed and not yet passed to the program; claims those that have arrived if
    /// there are none.
    #[inline]
    pub(crate) fn ensure_packets_claimed(&mut self) -> bool {
        match self {
            Self::Passive(passive) => passive.ensure_packets_claimed(),
            Self::Take(take) => take.ensure_packets_claimed(),
        }
    }

    /// The next claimed packet that matches. `None` if none is left, if a stop is requested, or if it is not
    /// found without a system call: then [`Self::next_packet`] finds it.
    #[inline]
    pub(crate) fn next_without_syscall(&mut self, stop: &StopRequest) -> Option<Packet<'_>> {
        match self {
            Self::Passive(passive) => passive.next_packet(stop),
            Self::Take(take) => take.next_without_syscall(stop),
        }
    }

    /// The next claimed packet that matches; `None` if none is left, or a stop is requested.
    pub(crate) fn next_packet(&mut self, stop: &StopRequest) -> Option<Packet<'_>> {
        match self {
            Self::Passive(passive) => passive.next_packet(stop),
            Self::Take(take) => take.next_packet(stop),
        }
    }

    /// Called when the program gets no more packets for now: returns what it does not hold, and keeps the
    /// descriptor readable if any are left.
    #[inline]
    pub(crate) fn pause_delivery(&mut self) {
        match self {
            Self::Passive(passive) => passive.pause_delivery(),
            Self::Take(take) => take.pause_delivery(),
        }
    }

    /// Waits until packets may have arrived, in steps; called when no claimed packet is left, without
    /// `slept`, and then after each sleep.
    pub(crate) fn advance_wait(
        &mut self,
        waiting: WaitOptions<'_>,
        slept: Option<SleepResult>,
    ) -> WaitResult {
        match self {
            Self::Passive(passive) => passive.advance_wait(waiting, slept),
            Self::Take(take) => take.advance_wait(waiting, slept),
        }
    }

    /// Closes it in a forked child; the parent's capture continues.
    pub(crate) fn close_in_forked_child(self) {
        match self {
            Self::Passive(passive) => passive.close_in_forked_child(),
            Self::Take(take) => take.close_in_forked_child(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct OpenedCapture {
    pub(crate) capture: Capture,
    pub(crate) control: CaptureControl,
    /// How this library captures, for the report.
    pub(crate) library: CapturingLibrary,
}

#[derive(Debug)]
pub(crate) enum CaptureControl {
    Passive(passive::PassiveControl),
    Take(take::TakeControl),
}

impl CaptureControl {
    /// Sets the filter: from the next packet on the program gets only packets that match.
    /// Errors are in libpcap's words; the old filter stays.
    pub(crate) fn set_filter(&self, filter: Filter) -> Result<FilterLocation, String> {
        match self {
            Self::Passive(control) => control.set_filter(filter),
            Self::Take(control) => control.set_filter(filter),
        }
    }

    /// Sets the direction: from the next packet on the program gets only packets of that direction.
    /// Errors: this capture cannot see that direction.
    pub(crate) fn set_direction(&self, direction: Direction) -> Result<(), String> {
        match self {
            Self::Passive(control) => {
                control.set_direction(direction);
                Ok(())
            }
            Self::Take(control) => control.set_direction(direction),
        }
    }

    /// Lets `nocopy run` replace the filter in the kernel later; called once the handle's number was reported
    /// to it.
    pub(crate) fn share_filter_with_runner(&self, handle: u64) {
        if let Self::Take(control) = self {
            control.share_filter_with_runner(handle);
        }
    }

    /// Leaves packets that arrive from now on to the host, as far as that is possible for a capture that is
    /// not freed.
    pub(crate) fn stop_receiving(&self) {
        match self {
            Self::Passive(control) => receive_off::stop_receiving(control.descriptor().as_raw_fd()),
            Self::Take(control) => control.stop_redirecting(),
        }
    }

    /// The counts so far. May be called in a signal handler. Errors are in libpcap's words.
    pub(crate) fn counts(&self) -> Result<Counts, String> {
        match self {
            Self::Passive(control) => control.counts(),
            Self::Take(control) => control.counts(),
        }
    }

    /// The descriptor for `pcap_fileno` and `pcap_get_selectable_fd`: readable when packets may have arrived.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Passive(control) => control.descriptor(),
            Self::Take(control) => control.descriptor(),
        }
    }

    /// The socket to send on: bound to the interface, and not receiving the frames that it sends.
    pub(crate) fn sending_socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Passive(control) => control.descriptor(),
            Self::Take(control) => control.sending_socket(),
        }
    }

    /// Whether filters see VLAN tags inside the frame, as on the wire; packet sockets have them separately.
    pub(crate) fn sees_vlan_tags_in_frames(&self) -> bool {
        match self {
            Self::Passive(_) => false,
            Self::Take(_) => true,
        }
    }

    /// Whether a program that waits by select(2) has to call once a millisecond, because the interface is
    /// down, and no event would report its removal.
    pub(crate) fn needs_polling(&self) -> bool {
        match self {
            Self::Passive(control) => control.needs_polling(),
            Self::Take(control) => control.needs_polling(),
        }
    }
}
