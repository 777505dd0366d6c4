//! Opening a port: the checks of interface and area that are the same in every mode.

use nocopy_proto::errno::{Why, remedy};
use std::io;
use std::time::{Duration, Instant};

use super::af_xdp::XdpRungs;
use super::drivers::{self, Effect};
use super::grant::Grant;
use super::ladder::Step;
use super::{Mode, Port, PortBuilder, Refusal, ToHostError, packet_ring};
use crate::memory::area::{Area, AreaConfig, AreaError, PACKET_HEADROOM_BYTES};
use crate::port::xdp::{self, KernelVersion};
use crate::sys::capability;
use crate::sys::interface::{Inquiry, Interface, InterfaceError, Promiscuous};

const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Ethernet header and two VLAN tags: the bytes that a received frame may have beyond the MTU.
const LINK_HEADER_BYTES: u32 = 14 + 2 * 4;

/// A page, in which a native XDP driver keeps room for `struct skb_shared_info` behind the packet.
pub(super) const PAGE_BYTES: u32 = 4096;

/// The largest frame chosen by default: it holds 9,000 bytes and more; larger ones would use too much memory.
const LONG_FRAME_BYTES_MAX: u32 = 16 << 10;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The interface cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The interface has no carrier.
    #[error("{interface}: no carrier{}; nothing is connected, or the other end is down; check both", if *.after_attach {
        " since XDP was attached (some drivers reset the link)"
    } else {
        ""
    })]
    NoCarrier {
        /// The interface.
        interface: String,
        /// Whether the carrier was present before the program was attached.
        after_attach: bool,
    },
    /// A packet of the interface's MTU does not fit a frame.
    #[error(
        "{interface}: frames of {frame_bytes} B are too short; its MTU of {mtu_bytes} needs {needed_bytes} B; {}",
        if *needed_bytes <= PAGE_BYTES {
            "use a frame size of 4096"
        } else {
            "receive packets in several frames (PortBuilder::multi_buffer), or lower the MTU to 3,818 or less"
        }
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// Bytes a frame would need.
        needed_bytes: u32,
        /// Bytes a frame has.
        frame_bytes: u32,
    },
    /// No such queue.
    #[error(
        "{interface} queue {queue}: no such queue; the interface has {queues}, counted from 0; try a lower queue, or \
         'ethtool -L {interface} combined {}'",
        queue + 1
    )]
    QueueOutOfRange {
        /// The interface.
        interface: String,
        /// The requested queue.
        queue: u32,
        /// The number of queues.
        queues: u32,
    },
    /// No queue was asked for.
    #[error("{interface}: no queue; the range is empty; queues are counted from 0, and '..' means all")]
    NoQueue {
        /// The interface.
        interface: String,
    },
    /// Another AF_XDP socket has the queue.
    #[error(
        "{interface} queue {queue}: in use; another AF_XDP socket is bound to it; close that port, or take another queue"
    )]
    QueueTaken {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// A capability is missing.
    #[error(
        "{interface}: a port cannot be opened; this process lacks {capability}; run as root, or grant it with {}",
        capability::GRANT
    )]
    Capability {
        /// The interface.
        interface: String,
        /// The capability, by its name in capabilities(7).
        capability: &'static str,
    },
    /// The kernel is too old, or was built without AF_XDP.
    #[error(
        "AF_XDP: not available; this is Linux {running}; use Linux {needed} or newer, built with CONFIG_XDP_SOCKETS"
    )]
    Kernel {
        /// The running kernel.
        running: KernelVersion,
        /// The oldest kernel that is new enough.
        needed: KernelVersion,
    },
    /// The kernel refuses to lock more memory.
    #[error(
        "{interface} queue {queue}: the kernel could not pin {bytes} B for the area{cause}; raise the limit with \
         'ulimit -l unlimited', grant CAP_IPC_LOCK, or ask for fewer frames", cause = Why(.source))]
    PinnedMemory {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Bytes to be locked.
        bytes: usize,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel has no rings of this size.
    #[error("{ring} ring of {entries} entries: not possible; rings have a power of two; try {}", next_size(*entries))]
    RingSize {
        /// Which ring.
        ring: &'static str,
        /// The requested number of entries.
        entries: u32,
    },
    /// A batch size of 0.
    #[error("batch of 0 packets: not possible; nothing could ever be received; use at least 1")]
    Batch,
    /// Frames larger than a page.
    #[error(
        "frames of {frame_bytes} B: too long; AF_XDP allows at most a page ({PAGE_BYTES} B); use 2048 or 4096, or the mode \
         'packet ring'"
    )]
    FrameSize {
        /// Bytes in a frame.
        frame_bytes: u32,
    },
    /// The mode is not for interfaces.
    #[error("mode 'memory': cannot be opened on an interface; memory ports have none; use Port::memory_pair")]
    MemoryMode,
    /// Every mode was refused.
    #[error("{interface} queue {queue}: cannot be opened in any mode; {}; 'nocopy doctor {interface}' shows what each mode needs", refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join(", "))]
    NoMode {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Each mode with the reason.
        refusals: Vec<Refusal>,
    },
    /// A setting that is not possible with a grant.
    #[error("{interface} queue {queue}: '{setting}' cannot be used; the port was granted; {advice}")]
    NotGranted {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The method of [`PortBuilder`] that requested it.
        setting: &'static str,
        /// Why, and what to do.
        advice: &'static str,
    },
    /// The kernel refuses the filter, and a filter in user space would withhold packets from the host.
    #[error(
        "filter: cannot run in user space; packets that do not match could not be returned to the host; {source}"
    )]
    Filter {
        /// Why packets could not be returned to the host.
        source: Box<ToHostError>,
    },
    /// The area could not be made or shared.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// The XDP program could not be loaded or attached.
    #[error(transparent)]
    Xdp(#[from] xdp::Error),
    /// The kernel refused another operation.
    #[error("{interface} queue {queue}: cannot {operation}{cause}; {}", remedy(.source), cause = Why(.source))]
    System {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The operation.
        operation: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

fn next_size(entries: u32) -> u32 {
    entries.max(2).checked_next_power_of_two().unwrap_or(1 << 15).min(1 << 15)
}

/// Tries the modes until one works, the fastest for this interface and purpose first.
pub(super) fn open(settings: PortBuilder) -> Result<Port, OpenError> {
    open_by(settings, None)
}

/// As [`open`]; with a grant only the AF_XDP modes, since the grant has done the privileged part.
pub(super) fn open_by(mut settings: PortBuilder, grant: Option<Grant>) -> Result<Port, OpenError> {
    let interface = settings.examine()?;
    settings.mtu_bytes = interface.mtu_bytes;
    let area = settings.area_for(&interface, 1)?;
    settings.check_area(&interface, &area)?;
    // Also before opening: closing or refusing an earlier port may have reset the link.
    settings.wait_for_carrier(false)?;
    let mut order = settings.order(&interface);
    if grant.is_some() {
        order.modes.retain(|mode| *mode != Mode::PacketRing);
    }
    let mut refusals = Vec::new();
    let mut xdp = XdpRungs::of(grant);
    let mut blocked: Option<OpenError> = None;
    for &mode in &order.modes {
        if mode == Mode::PacketRing {
            if let (Some(error), Some(mode)) = (&blocked, xdp.mode) {
                let reason = io::Error::other(error.to_string());
                refusals.push(settings.refusal(&interface, mode, Step::Whole, reason));
            }
            match packet_ring::open(&settings, &interface, &area, &order, &mut refusals)? {
                Ok(port) => return Ok(port),
                Err(reason) => refusals.push(settings.refusal(&interface, mode, Step::Socket, reason)),
            }
        } else if blocked.is_none() {
            match xdp.climb(&settings, &interface, &area, mode) {
                Ok(Ok(standing)) => return standing.open(settings, &interface, area, &order, refusals),
                Ok(Err(refusal)) => refusals.push(refusal),
                Err(error) if order.goes_on_after(&error) => blocked = Some(error),
                Err(error) => return Err(error),
            }
        }
    }
    // The reason that blocks AF_XDP as a whole is more useful than the refusal of the packet ring.
    Err(blocked.unwrap_or_else(|| settings.no_mode(refusals)))
}

fn frame_bytes(packet_bytes: u32, headroom_bytes: u32) -> u32 {
    packet_bytes.saturating_add(PACKET_HEADROOM_BYTES).saturating_add(headroom_bytes)
}

impl PortBuilder {
    /// The smallest frame size that holds a packet of the interface's MTU in every allowed mode.
    pub(crate) fn frame_bytes_for(&self, interface: &Interface) -> u32 {
        if self.mode == Some(Mode::PacketRing) && !Self::fits(interface, PAGE_BYTES, 0) {
            return Self::long_frame_bytes(interface);
        }
        let copies = matches!(self.mode, Some(Mode::XdpCopyNative | Mode::XdpCopyGeneric));
        let needed = if copies { Self::frame_bytes_needed } else { Self::zero_copy_frame_bytes };
        if needed(interface, 0) <= 2048 { 2048 } else { PAGE_BYTES }
    }

    /// The frame size without AF_XDP's limit, for an MTU too large for a page.
    fn long_frame_bytes(interface: &Interface) -> u32 {
        let needed = Self::frame_bytes_needed(interface, 0);
        needed.checked_next_power_of_two().unwrap_or(LONG_FRAME_BYTES_MAX).min(LONG_FRAME_BYTES_MAX)
    }

    /// An area only for packet sockets, instead of one made for AF_XDP, if the user gave no area and its frames do not hold a packet of the
    /// MTU: packets in one frame are sent faster than those in several.
    pub(super) fn packet_area(&self, interface: &Interface, made: &Area) -> Result<Area, OpenError> {
        if self.area.is_some()
            || Self::fits(interface, made.config().frame_bytes, made.config().headroom_bytes)
        {
            return Ok(made.clone());
        }
        let frame_bytes = Self::long_frame_bytes(interface);
        self.area_near(interface, frame_bytes, self.own_frames())
    }

    fn frame_bytes_needed(interface: &Interface, headroom_bytes: u32) -> u32 {
        frame_bytes(interface.mtu_bytes.saturating_add(LINK_HEADER_BYTES), headroom_bytes)
    }

    /// The frame size if the device itself writes into frames.
    pub(super) fn zero_copy_frame_bytes(interface: &Interface, headroom_bytes: u32) -> u32 {
        let in_kib = drivers::has(interface.driver.as_deref(), Effect::WholeKib);
        let packet_bytes = interface.mtu_bytes.saturating_add(LINK_HEADER_BYTES);
        let packet_bytes =
            if in_kib { packet_bytes.saturating_add(1023) / 1024 * 1024 } else { packet_bytes };
        frame_bytes(packet_bytes, headroom_bytes)
    }

    pub(crate) fn look_up(&self) -> Result<Interface, OpenError> {
        Interface::named(&self.interface).map_err(|error| self.of_interface("look up the interface", error))
    }

    /// The error for a refusal: the interface's state, or the failed operation.
    pub(super) fn of_interface(&self, operation: &'static str, error: io::Error) -> OpenError {
        InterfaceError::of(&self.interface, &error)
            .map_or_else(|| self.system(operation, error), OpenError::from)
    }

    /// Checks the interface and refuses what cannot work, before anything is changed.
    pub(super) fn examine(&self) -> Result<Interface, OpenError> {
        if self.mode == Some(Mode::Memory) {
            return Err(OpenError::MemoryMode);
        }
        let interface = self.look_up()?;
        interface.check()?;
        if self.queue >= interface.rx_queues {
            let (queue, queues) = (self.queue, interface.rx_queues);
            let interface = interface.name;
            return Err(OpenError::QueueOutOfRange { interface, queue, queues });
        }
        Ok(interface)
    }

    /// Whether a packet of the interface's MTU fits a frame.
    pub(crate) fn fits(interface: &Interface, frame_bytes: u32, headroom_bytes: u32) -> bool {
        // In practice the MTU of the loopback interface limits no packet that a port on it receives.
        Self::frame_bytes_needed(interface, headroom_bytes) <= frame_bytes || interface.loopback
    }

    fn check_area(&self, interface: &Interface, area: &Area) -> Result<(), OpenError> {
        let &AreaConfig { frame_bytes, headroom_bytes, .. } = area.config();
        if frame_bytes > PAGE_BYTES && self.mode != Some(Mode::PacketRing) {
            return Err(OpenError::FrameSize { frame_bytes });
        }
        if !self.multi_buffer && !Self::fits(interface, frame_bytes, headroom_bytes) {
            let needed_bytes = Self::frame_bytes_needed(interface, headroom_bytes);
            let (interface, mtu_bytes) = (interface.name.clone(), interface.mtu_bytes);
            return Err(OpenError::Mtu { interface, mtu_bytes, needed_bytes, frame_bytes });
        }
        Ok(())
    }

    /// The state that ports of every mode have, without their sockets.
    pub(super) fn attend(&self, interface: &Interface) -> Result<(Option<Promiscuous>, Inquiry), OpenError> {
        let promiscuous = self.promiscuous_on(interface)?;
        let inquiry = Inquiry::of(interface.index)
            .map_err(|error| self.system("open a socket to ask about the interface", error))?;
        Ok((promiscuous, inquiry))
    }

    pub(super) fn promiscuous_on(&self, interface: &Interface) -> Result<Option<Promiscuous>, OpenError> {
        let promiscuous = self.promiscuous.then(|| Promiscuous::on(interface.index)).transpose();
        promiscuous.map_err(|error| self.system("turn on promiscuous mode", error))
    }

    pub(super) fn wait_for_carrier(&self, after_attach: bool) -> Result<(), OpenError> {
        let started = Instant::now();
        loop {
            let interface = Interface::named(&self.interface)
                .map_err(|error| self.system("look up the interface", error))?;
            if interface.carrier {
                return Ok(());
            }
            if started.elapsed() >= self.tuning.carrier_timeout {
                return Err(OpenError::NoCarrier { interface: self.interface.clone(), after_attach });
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
}
