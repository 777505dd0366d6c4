//! Where packets come from.
//!
//! A capture has two sides. [`Capture`] is what one thread at a time reads from: it waits for packets and hands them over where they
//! lie. [`Control`] is what anybody may use meanwhile, other threads, signal handlers and the program's own callback: it sets
//! the filter and tells counts. What is set there holds from the next packet on.

pub(crate) mod deaf;
mod filter;
mod interface;
mod passive;
mod settings;
mod stop;
mod take;

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

pub(crate) use filter::{Filter, goes_back};
use passive::Passive;
pub(crate) use settings::Settings;
pub(crate) use stop::Stop;
use take::Take;

use crate::environment;
use crate::report::{CaptureMode, FilterPlace, Library};

/// A packet, where it lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) bytes: &'a [u8],
    /// How long it was on the wire.
    pub(crate) original_bytes: u32,
    /// Since 1970.
    pub(crate) time_ns: u64,
    /// Whether it stays there until [`Capture::is_ready`] or [`Capture::hand_over`] is called next.
    pub(crate) stays: bool,
}

/// What `pcap_stats` tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Packets that matched the filter, also those that were dropped then.
    pub(crate) received: u64,
    /// Packets dropped because the program was too slow; and those taken from the host that did not match and could not be handed back.
    pub(crate) dropped: u64,
    /// Packets that the interface lost.
    pub(crate) interface_dropped: u64,
}

/// Which packets a program wants (`pcap_direction_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Direction {
    Both,
    In,
    Out,
}

/// Why a capture is not ours, to go behind "the system's libpcap captures, because".
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) String);

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// How a wait ended.
#[derive(Debug)]
pub(crate) enum Waited {
    /// It is worth a look whether there are packets. There need not be any: then the time was up.
    Look,
    /// `pcap_breakloop` was called, and that was taken note of.
    Stopped,
    /// With an error, in libpcap's words.
    Failed(String),
}

/// What to wait by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting<'a> {
    pub(crate) stop: &'a Stop,
    /// Whether not to wait, but only to look for errors.
    pub(crate) nonblocking: bool,
}

/// The side of a capture that is read.
#[derive(Debug)]
pub(crate) enum Capture {
    /// The host keeps its traffic.
    Passive(Box<Passive>),
    /// Packets that come in are taken from the host.
    Take(Box<Take>),
}

impl Capture {
    /// Opens a capture on a device, as the program has set it.
    ///
    /// # Errors
    /// What the system's libpcap has to do instead, and why.
    pub(crate) fn open(device: &std::ffi::CStr, settings: &Settings) -> Result<(Self, Control), Refusal> {
        settings.check()?;
        let why_not = match environment::takes().then(|| Take::open(device, settings)) {
            None => None,
            Some(Ok((take, control))) => return Ok((Self::Take(Box::new(take)), Control::Take(control))),
            Some(Err(why)) => Some(format!("packets are not taken from the host: {why}")),
        };
        match Passive::open(device, settings) {
            Ok((passive, control)) => {
                Ok((Self::Passive(Box::new(passive)), Control::Passive(control, why_not)))
            }
            Err(why) => {
                Err(Refusal([Some(why.0), why_not].into_iter().flatten().collect::<Vec<_>>().join("; ")))
            }
        }
    }

    /// Whether there are packets in hand; takes those that are there if there are none.
    #[inline]
    pub(crate) fn is_ready(&mut self) -> bool {
        match self {
            Self::Passive(passive) => passive.is_ready(),
            Self::Take(take) => take.is_ready(),
        }
    }

    /// Goes through packets in hand, at most `max` of them, also counting those that the program does not want; ends earlier if
    /// `stop` is asked for. Returns how many were handed over.
    #[inline]
    pub(crate) fn hand_over(
        &mut self,
        max: usize,
        stop: &Stop,
        deliver: &mut impl FnMut(Packet<'_>),
    ) -> usize {
        match self {
            Self::Passive(passive) => passive.hand_over(max, stop, deliver),
            Self::Take(take) => take.hand_over(max, stop, deliver),
        }
    }

    /// Waits until it is worth a look; called when nothing is in hand.
    pub(crate) fn wait(&mut self, waiting: Waiting<'_>) -> Waited {
        match self {
            Self::Passive(passive) => passive.wait(waiting),
            Self::Take(take) => take.wait(waiting),
        }
    }

    /// Closes it in the child of a fork: what the parent reads stays as it is.
    pub(crate) fn leave(self) {
        match self {
            Self::Passive(passive) => passive.leave(),
            Self::Take(take) => take.leave(),
        }
    }
}

/// The side of a capture that anybody may use, at any time.
#[derive(Debug)]
pub(crate) enum Control {
    /// Of [`Capture::Passive`]; with the reason, if packets were to be taken.
    Passive(passive::Control, Option<String>),
    /// Of [`Capture::Take`].
    Take(take::Control),
}

impl Control {
    /// Has the program see only packets that match, from the next packet on.
    ///
    /// # Errors
    /// In libpcap's words. The old filter stays.
    pub(crate) fn set_filter(&self, filter: Filter) -> Result<FilterPlace, String> {
        match self {
            Self::Passive(control, _) => control.set_filter(filter),
            Self::Take(control) => control.set_filter(filter),
        }
    }

    /// Has the program see only packets of a direction, from the next packet on.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn set_direction(&self, direction: Direction) -> Result<(), String> {
        match self {
            Self::Passive(control, _) => {
                control.set_direction(direction);
                Ok(())
            }
            Self::Take(control) => control.set_direction(direction),
        }
    }

    /// Notes that the handle of this number was told of, and lets whoever was told replace the filter in front of its packets.
    pub(crate) fn introduce(&self, handle: u64) {
        if let Self::Take(control) = self {
            control.introduce(handle);
        }
    }

    /// What the report says of who captures, and how.
    pub(crate) fn library(&self) -> Library {
        match self {
            Self::Passive(_, why_not) => Library::Ours { mode: CaptureMode::Passive, note: why_not.clone() },
            Self::Take(control) => Library::Ours { mode: control.mode(), note: None },
        }
    }

    /// Leaves to the host what comes in from now on, as far as this can be done while a call reads: what that has not read yet stays.
    pub(crate) fn deafen(&self) {
        match self {
            Self::Passive(control, _) => deaf::deafen(control.descriptor().as_raw_fd()),
            Self::Take(control) => control.leave_to_host(),
        }
    }

    /// What was counted so far. A signal handler may ask.
    ///
    /// # Errors
    /// In libpcap's words.
    pub(crate) fn counts(&self) -> Result<Counts, String> {
        match self {
            Self::Passive(control, _) => control.counts(),
            Self::Take(control) => control.counts(),
        }
    }

    /// What `pcap_fileno` and `pcap_get_selectable_fd` give: readable when it is worth a look.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Passive(control, _) => control.descriptor(),
            Self::Take(control) => control.descriptor(),
        }
    }

    /// A socket on which libpcap would send: bound to the interface, and not hearing what was sent on it.
    pub(crate) fn sending_socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Passive(control, _) => control.descriptor(),
            Self::Take(control) => control.sending_socket(),
        }
    }

    /// Whether filters see VLAN tags where they are on the wire, and not beside the frame, as packet sockets have them.
    pub(crate) fn sees_tags_in_frames(&self) -> bool {
        match self {
            Self::Passive(..) => false,
            Self::Take(_) => true,
        }
    }

    /// Whether a program that sleeps in select(2) has to call once a millisecond, because the interface is down and may be gone.
    pub(crate) fn needs_looks(&self) -> bool {
        match self {
            Self::Passive(control, _) => control.needs_looks(),
            Self::Take(control) => control.needs_looks(),
        }
    }
}
