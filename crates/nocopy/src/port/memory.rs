//! The memory mode: two linked ports of one process, over the same rings as AF_XDP.
//!
//! A [`OneWayLink`] for each direction takes the kernel's part. It runs when the sender kicks it, on the
//! sender's thread, and does what AF_XDP does in copy mode: takes a descriptor off the tx ring and a frame
//! off the peer's fill ring, copies, and announces both on the rx and completion rings. A packet without a
//! frame is dropped and counted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::EventfdFlags;

use super::backend::Backend;
use super::sender::LINK_HEADER_BYTES;
use super::user_filter::{UnmatchedDestination, UserFilter};
use super::{FilterPlace, Mode, OpenError, Port, PortBuilder, SharedPort, Statistics, assemble_port};
use crate::memory::area::{Area, PoolDirection, no_metadata_for_mode};
use crate::port::filter::Program;
use crate::port::xdp;
use crate::ring::{self, Consumer, Producer};
use crate::sys::xsk::{Descriptor, PACKET_CONTINUES, PortRings, TxKick};

/// One direction of a link: the kernel's ends of the rings it moves packets between.
struct OneWayLink {
    tx: Consumer<Descriptor>,
    completion: Producer<u64>,
    fill: Consumer<u64>,
    rx: Producer<Descriptor>,
    from: Area,
    to: Area,
    /// Whether both ends exist; otherwise packets are dropped, as by a NIC without a link partner.
    linked: bool,
    sent: Statistics,
    received: Statistics,
}

impl OneWayLink {
    /// Moves packets from the tx ring while the completion ring has room; returns how many were delivered.
    fn move_packets(&mut self) -> u64 {
        let mut delivered = 0;
        let room = self.completion.free_slots(u32::MAX);
        let mut waiting = self.tx.ready_entries(room);
        loop {
            let continues = |piece: Descriptor| piece.options & PACKET_CONTINUES != 0;
            let more =
                (0..).take_while(|place| waiting.entry_at(*place).is_some_and(continues)).count() as u32;
            if waiting.entry_at(more).is_none() {
                break; // nothing left, or a packet that is not all there
            }
            // Like the kernel, a wire delivers a packet whole or not at all, and completes the packets that
            // it drops.
            let bytes_max = self.to.packet_bytes_max();
            let is_cut_for_it = |place| waiting.entry_at(place).is_some_and(|piece| piece.len <= bytes_max);
            let refusal = if !self.linked || !(0..=more).all(is_cut_for_it) {
                Some(&mut self.received.rx_dropped) // nobody there, or longer than the frames there
            } else if self.rx.free_slots(more + 1) <= more {
                Some(&mut self.received.rx_ring_full)
            } else if self.fill.available(more + 1) <= more {
                self.received.rx_fill_ring_empty_descs += 1;
                Some(&mut self.received.rx_dropped)
            } else {
                None
            };
            let takes = refusal.is_none();
            if let Some(dropped) = refusal {
                *dropped += 1;
            }
            // All pushes have room: no more is peeked than fits the completion ring, and `takes` covers the
            // other two.
            for piece in waiting.by_ref().take(more as usize + 1) {
                let _ = self.completion.push(piece.address);
                let Some(address) = takes.then(|| self.fill.ready_entries(1).next()).flatten() else {
                    continue;
                };
                match self.from.copy_packet(piece, &self.to, address) {
                    Some(received) => {
                        let _ = self.rx.push(received);
                        delivered += u64::from(!continues(piece));
                    }
                    None => self.sent.tx_invalid_descs += 1,
                }
            }
        }
        drop(waiting);
        self.completion.publish();
        self.rx.publish();
        delivered
    }
}

/// The other ends of one memory port's rings.
pub(super) struct MemoryBackend {
    outgoing: Arc<Mutex<OneWayLink>>,
    incoming: Arc<Mutex<OneWayLink>>,
    /// Readable if packets have arrived since it was last cleared.
    event: Arc<OwnedFd>,
    peer_event: Arc<OwnedFd>,
}

fn lock_link(wire: &Mutex<OneWayLink>) -> MutexGuard<'_, OneWayLink> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryBackend {
    /// Delivers the packets of the tx ring and wakes the peer.
    #[inline(never)] // the instruction count of `nocopy-loops` leaves it out by name
    fn transmit(&self) -> io::Result<TxKick> {
        // The event after `move_packets` has published, so that the peer that it wakes finds the packets.
        if lock_link(&self.outgoing).move_packets() > 0 {
            rustix::io::write(&self.peer_event, &1_u64.to_ne_bytes())?;
        }
        Ok(TxKick::Done)
    }
}

impl Backend for MemoryBackend {
    fn kick_tx(&self) -> io::Result<TxKick> {
        self.transmit()
    }

    /// Makes the event unreadable until something arrives.
    fn kick_rx(&self) -> io::Result<()> {
        // No wake-up is lost: callers look at the rx ring after this.
        match rustix::io::read(&self.event, &mut [0_u8; 8]) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn statistics(&self) -> io::Result<Statistics> {
        // One lock at a time: the peer's endpoint takes the same two in the other order.
        let tx_invalid_descs = lock_link(&self.outgoing).sent.tx_invalid_descs;
        Ok(Statistics { tx_invalid_descs, ..lock_link(&self.incoming).received })
    }
}

impl AsFd for MemoryBackend {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for MemoryBackend {
    fn drop(&mut self) {
        // After this, neither wire uses this port's frames.
        lock_link(&self.outgoing).linked = false;
        lock_link(&self.incoming).linked = false;
    }
}

struct MemoryRingEnds {
    program: PortRings,
    kernel_fill: Consumer<u64>,
    kernel_completion: Producer<u64>,
    kernel_rx: Producer<Descriptor>,
    kernel_tx: Consumer<Descriptor>,
}

impl MemoryRingEnds {
    fn new(settings: &PortBuilder) -> Self {
        let sizes = settings.rings;
        let (fill, kernel_fill) = ring::pair(sizes.fill);
        let (kernel_completion, completion) = ring::pair(sizes.completion);
        let (kernel_rx, rx) = ring::pair(sizes.rx);
        let (tx, kernel_tx) = ring::pair(sizes.tx);
        Self {
            program: PortRings { fill, completion, rx, tx },
            kernel_fill,
            kernel_completion,
            kernel_rx,
            kernel_tx,
        }
    }
}

impl PortBuilder {
    /// Makes two ports linked to each other in this process; begin with [`Port::memory_builder`].
    ///
    /// # Errors
    /// Invalid settings, or not enough memory.
    pub fn memory_pair(self) -> Result<(Port, Port), OpenError> {
        self.check_settings()?;
        linked_ports(&self)
    }
}

fn linked_ports(settings: &PortBuilder) -> Result<(Port, Port), OpenError> {
    if let Some(Err(source)) = settings.filter.as_ref().map(Program::check_answerable) {
        return Err(xdp::Error::Filter { source: source.into() }.into());
    }
    let event = || {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Arc::new)
            .map_err(|errno| settings.system_error("make an eventfd", errno.into()))
    };
    let (left, right) = (MemoryRingEnds::new(settings), MemoryRingEnds::new(settings));
    let area = || settings.given_or_new_area(2048, settings.half_frame_total(), None);
    let (left_area, right_area) = (area()?, area()?);
    // As on a link: no packet is sent that is too long for the other end.
    let mtu_bytes = match settings.multi_buffer {
        true => u32::from(u16::MAX),
        false => right_area.packet_bytes_max() - LINK_HEADER_BYTES,
    };
    let settings = &PortBuilder { mtu_bytes, queue: 0, ..settings.clone() };
    let (left_event, right_event) = (event()?, event()?);
    let wire = |tx, completion, fill, rx, from: &Area, to: &Area| {
        let (sent, received) = (Statistics::default(), Statistics::default());
        let (from, to) = (from.clone(), to.clone());
        Arc::new(Mutex::new(OneWayLink { tx, completion, fill, rx, from, to, linked: true, sent, received }))
    };
    let (there, back) = (
        wire(
            left.kernel_tx,
            left.kernel_completion,
            right.kernel_fill,
            right.kernel_rx,
            &left_area,
            &right_area,
        ),
        wire(
            right.kernel_tx,
            right.kernel_completion,
            left.kernel_fill,
            left.kernel_rx,
            &right_area,
            &left_area,
        ),
    );
    let left_end = MemoryBackend {
        outgoing: Arc::clone(&there),
        incoming: Arc::clone(&back),
        event: Arc::clone(&left_event),
        peer_event: Arc::clone(&right_event),
    };
    let right_end =
        MemoryBackend { outgoing: back, incoming: there, event: right_event, peer_event: left_event };
    Ok((
        memory_port(settings, left_area, left.program, left_end)?,
        memory_port(settings, right_area, right.program, right_end)?,
    ))
}

fn memory_port(
    settings: &PortBuilder,
    area: Area,
    rings: PortRings,
    endpoint: MemoryBackend,
) -> Result<Port, OpenError> {
    let (mut receive, mut send) = (
        area.pool(PoolDirection::Receive, settings.rx_frames)?,
        area.pool(PoolDirection::Send, settings.tx_frames)?,
    );
    let (arrivals, offers) = no_metadata_for_mode(Mode::Memory);
    receive.set_arrivals(arrivals);
    receive.set_without_wire(settings.tuning.wireless);
    send.set_offers(offers);
    let mut inner = SharedPort::new(settings, 0, Mode::Memory, usize::MAX, area, endpoint);
    let in_user_space = FilterPlace::UserSpace("a memory port has no kernel behind it".into());
    inner.filter = settings.filter.as_ref().map(|_| in_user_space);
    let mut port = assemble_port(inner, rings, (receive, send), None, settings);
    if let Some(program) = &settings.filter {
        port.receiver.set_user_filter(UserFilter::new(program.clone(), 0, 0, UnmatchedDestination::Lost));
    }
    Ok(port)
}
