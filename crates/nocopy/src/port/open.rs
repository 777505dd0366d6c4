//! Opening a port: the checks of interface and area that are the same in every mode.

use std::io;
use std::time::{Duration, Instant};

use super::af_xdp::XdpModeAttempts;
use super::drivers::{self, PAGE_BYTES, QuirkEffect};
use super::granted::GrantedPortParts;
use super::ladder::OpenStep;
use super::{Mode, OpenError, Port, PortBuilder, packet_ring};
use crate::memory::area::{Area, AreaConfig, PACKET_HEADROOM_BYTES};
use crate::sys::interface::{Interface, InterfaceError, InterfaceQuery, PromiscuousGuard};
use crate::sys::xsk::XskSocket;

const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Ethernet header and two VLAN tags: the bytes that a received frame may have beyond the MTU.
const LINK_HEADER_BYTES: u32 = 14 + 2 * 4;

/// The largest frame chosen by default: it holds 9,000 bytes and more; larger ones would use too much memory.
const LONG_FRAME_BYTES_MAX: u32 = 16 << 10;

/// Tries the modes until one works, the fastest for this interface and purpose first; with a socket that was
/// granted only those of AF_XDP, since the grant has done the privileged part.
pub(super) fn open_by_ladder(
    mut settings: PortBuilder,
    grant: Option<(XskSocket, GrantedPortParts)>,
) -> Result<Port, OpenError> {
    let interface = settings.check_interface()?;
    settings.mtu_bytes = interface.mtu_bytes;
    let area = settings.area_for_ports(&interface, 1)?;
    settings.check_area(&interface, &area)?;
    // Also before opening: closing or refusing an earlier port may have reset the link.
    settings.wait_for_carrier(false)?;
    let mut order = settings.mode_order(&interface);
    if grant.is_some() {
        order.modes.retain(|mode| *mode != Mode::PacketRing);
    }
    let mut refusals = Vec::new();
    let mut xdp = XdpModeAttempts::with_grant(grant);
    let mut blocked: Option<OpenError> = None;
    for &mode in &order.modes {
        if mode == Mode::PacketRing {
            if let (Some(error), Some(mode)) = (&blocked, xdp.mode) {
                let reason = io::Error::other(error.to_string());
                refusals.push(settings.refusal_at_step(&interface, mode, OpenStep::Whole, reason));
            }
            match packet_ring::open_packet_ring(&settings, &interface, &area, &order, &mut refusals)? {
                Ok(port) => return Ok(port),
                Err(reason) => {
                    refusals.push(settings.refusal_at_step(&interface, mode, OpenStep::Socket, reason))
                }
            }
        } else if blocked.is_none() {
            match xdp.try_mode(&settings, &interface, &area, mode) {
                Ok(Ok(opened)) => return opened.into_port(settings, &interface, area, &order, refusals),
                Ok(Err(refusal)) => refusals.push(refusal),
                Err(error) if order.may_continue_after(&error) => blocked = Some(error),
                Err(error) => return Err(error),
            }
        }
    }
    // The reason that blocks AF_XDP as a whole is more useful than the refusal of the packet ring.
    Err(blocked.unwrap_or_else(|| settings.no_mode_error(refusals)))
}

fn frame_bytes_for_packet(packet_bytes: u32, headroom_bytes: u32) -> u32 {
    packet_bytes.saturating_add(PACKET_HEADROOM_BYTES).saturating_add(headroom_bytes)
}

impl PortBuilder {
    /// Opens the port.
    ///
    /// # Errors
    /// [`OpenError`] says what prevents it and what to do.
    pub fn open(self) -> Result<Port, OpenError> {
        self.check_settings()?;
        open_by_ladder(self, None)
    }

    /// The smallest frame size that holds a packet of the interface's MTU in every allowed mode.
    pub(crate) fn frame_bytes_for(&self, interface: &Interface) -> u32 {
        if self.mode == Some(Mode::PacketRing) && !Self::mtu_fits_frame(interface, PAGE_BYTES, 0) {
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

    /// An area only for packet sockets, instead of one made for AF_XDP, if the user gave no area and its
    /// frames do not hold a packet of the MTU: packets in one frame are sent faster than those in several.
    pub(super) fn packet_ring_area(&self, interface: &Interface, made: &Area) -> Result<Area, OpenError> {
        if self.area.is_some()
            || Self::mtu_fits_frame(interface, made.config().frame_bytes, made.config().headroom_bytes)
        {
            return Ok(made.clone());
        }
        let frame_bytes = Self::long_frame_bytes(interface);
        self.area_near_card(interface, frame_bytes, self.half_frame_total())
    }

    fn frame_bytes_needed(interface: &Interface, headroom_bytes: u32) -> u32 {
        frame_bytes_for_packet(interface.mtu_bytes.saturating_add(LINK_HEADER_BYTES), headroom_bytes)
    }

    /// The frame size if the device itself writes into frames.
    pub(super) fn zero_copy_frame_bytes(interface: &Interface, headroom_bytes: u32) -> u32 {
        let in_kib = drivers::has_quirk_effect(interface.driver.as_deref(), QuirkEffect::WholeKib);
        let packet_bytes = interface.mtu_bytes.saturating_add(LINK_HEADER_BYTES);
        let packet_bytes =
            if in_kib { packet_bytes.saturating_add(1023) / 1024 * 1024 } else { packet_bytes };
        frame_bytes_for_packet(packet_bytes, headroom_bytes)
    }

    pub(crate) fn look_up_interface(&self) -> Result<Interface, OpenError> {
        Interface::look_up(&self.interface)
            .map_err(|error| self.interface_error("look up the interface", error))
    }

    /// The error for a refusal: the interface's state, or the failed operation.
    pub(super) fn interface_error(&self, operation: &'static str, error: io::Error) -> OpenError {
        InterfaceError::from_refusal(&self.interface, &error)
            .map_or_else(|| self.system_error(operation, error), OpenError::from)
    }

    /// Checks the interface and refuses what cannot work, before anything is changed.
    pub(super) fn check_interface(&self) -> Result<Interface, OpenError> {
        if self.mode == Some(Mode::Memory) {
            return Err(OpenError::MemoryMode);
        }
        let interface = self.look_up_interface()?;
        interface.check_usable()?;
        if self.queue >= interface.rx_queues {
            let (queue, queues) = (self.queue, interface.rx_queues);
            let interface = interface.name;
            return Err(OpenError::QueueOutOfRange { interface, queue, queues });
        }
        Ok(interface)
    }

    /// Whether a packet of the interface's MTU fits a frame.
    pub(crate) fn mtu_fits_frame(interface: &Interface, frame_bytes: u32, headroom_bytes: u32) -> bool {
        // In practice the MTU of the loopback interface limits no packet that a port on it receives.
        Self::frame_bytes_needed(interface, headroom_bytes) <= frame_bytes || interface.loopback
    }

    fn check_area(&self, interface: &Interface, area: &Area) -> Result<(), OpenError> {
        let &AreaConfig { frame_bytes, headroom_bytes, .. } = area.config();
        if frame_bytes > PAGE_BYTES && self.mode != Some(Mode::PacketRing) {
            return Err(OpenError::FrameSize { frame_bytes });
        }
        if !self.multi_buffer && !Self::mtu_fits_frame(interface, frame_bytes, headroom_bytes) {
            let needed_bytes = Self::frame_bytes_needed(interface, headroom_bytes);
            let (interface, mtu_bytes) = (interface.name.clone(), interface.mtu_bytes);
            return Err(OpenError::Mtu { interface, mtu_bytes, needed_bytes, frame_bytes });
        }
        Ok(())
    }

    /// The state that ports of every mode have, without their sockets.
    pub(super) fn promiscuous_and_query(
        &self,
        interface: &Interface,
    ) -> Result<(Option<PromiscuousGuard>, InterfaceQuery), OpenError> {
        let promiscuous = self.turn_on_promiscuous(interface)?;
        let query = InterfaceQuery::of(interface.index)
            .map_err(|error| self.system_error("open a socket to ask about the interface", error))?;
        Ok((promiscuous, query))
    }

    pub(super) fn turn_on_promiscuous(
        &self,
        interface: &Interface,
    ) -> Result<Option<PromiscuousGuard>, OpenError> {
        let promiscuous = self.promiscuous.then(|| PromiscuousGuard::turn_on(interface.index)).transpose();
        promiscuous.map_err(|error| self.system_error("turn on promiscuous mode", error))
    }

    pub(super) fn wait_for_carrier(&self, after_attach: bool) -> Result<(), OpenError> {
        let started = Instant::now();
        loop {
            let interface = Interface::look_up(&self.interface)
                .map_err(|error| self.system_error("look up the interface", error))?;
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
