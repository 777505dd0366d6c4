//! How an endpoint over a port divides its memory.

use super::super::OpenError;
use super::number;
use crate::port::PortBuilder;
use crate::sys::interface::Interface;

/// How many frames an endpoint over a port has, for each queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::message) struct Frames {
    pub(in crate::message) receive: u32,
    pub(in crate::message) send: u32,
    /// A packet of the interface's MTU may lie in several frames.
    pub(in crate::message) several: bool,
}

/// Bytes of a frame for an Ethernet packet, and of the longest frame that AF_XDP allows.
const FRAME_BYTES: usize = 2048;
const LONG_FRAME_BYTES: usize = 4096;
/// The largest MTUs whose packets fit `FRAME_BYTES` and `LONG_FRAME_BYTES`.
const FRAME_MTU: u32 = 1770;
const LONG_FRAME_MTU: u32 = 3818;
/// The least frames that the kernel has to receive into.
const LENT_MIN: usize = 1024;
/// Frames for control datagrams, and for datagrams through the kernel.
const CONTROL_FRAMES: usize = 128;

impl Frames {
    /// Divides `memory_bytes` (by default as much as is enough).
    pub(in crate::message) fn of(
        memory_bytes: Option<usize>,
        port: &PortBuilder,
        window_packets: usize,
    ) -> Result<Self, OpenError> {
        // If there is no such interface, opening the port reports it.
        let (mtu, queues) = Interface::look_up(port.interface_name())
            .map_or((1500, 1), |interface| (interface.mtu_bytes, interface.rx_queues.max(1) as usize));
        let frame_bytes = if mtu > FRAME_MTU { LONG_FRAME_BYTES } else { FRAME_BYTES };
        // All peers may arrive at one queue; everything is sent by one queue, from the frames of all.
        let (receive, send) = (2 * window_packets + LENT_MIN, 2 * window_packets / queues + CONTROL_FRAMES);
        let needed_bytes = (receive + send) * frame_bytes * queues;
        let more = match memory_bytes {
            None => 0,
            Some(memory_bytes) => memory_bytes
                .checked_sub(needed_bytes)
                .ok_or(OpenError::TooLittleMemory { memory_bytes, needed_bytes })?,
        };
        let more = more / frame_bytes / 2 / queues;
        let several = mtu > LONG_FRAME_MTU;
        Ok(Self { receive: number(receive + more), send: number(send + more), several })
    }

    /// How many receive frames may be held.
    pub(in crate::message) fn held_max(&self) -> u32 {
        self.receive - number(LENT_MIN)
    }
}
