//! The packet ring mode: packets arrive in the blocks of one packet socket, and are sent through another.
//!
//! The halves use the same rings as with AF_XDP; this module is at the kernel's ends of them. A
//! [`PacketAnnouncer`](crate::sys::packet::PacketAnnouncer) puts descriptors of the packets in the blocks on
//! the rx ring; the receiver runs it, and only while no packet is borrowed. [`SendRing`] passes packets on
//! the tx ring to the socket, directly from their frames. No frames are lent for receiving: a packet is read
//! in place, and a frame is kept free so that it can be taken.
//!
//! Packets are sent by `sendmmsg` and not through a ring of their own (`PACKET_TX_RING`): such a ring copies
//! each packet once more, into its slot, and is slower at every length (`nocopy bench packet-send`).
//!
//! A packet's address is not in a frame, so claiming it takes a slow path, which reserves a free frame for
//! each packet; this mode costs the loop over AF_XDP packets nothing. Taking a packet copies it into the
//! reserved frame, and the copy is counted. While no frame is free, packets wait in their blocks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nocopy_proto::errno::ErrorCause;
use nocopy_proto::filter::Instruction;

use super::backend::Backend;
use super::drivers;
use super::ladder::ModeOrder;
use super::user_filter::{UnmatchedDestination, UserFilter};
use super::{
    FilterPlace, Mode, OpenError, Port, PortBuilder, Refusal, SharedPort, Statistics, Wait, assemble_port,
};
use crate::facts::metadata::Unsupported;
use crate::memory::area::{Area, ArrivalMetadataSource, PoolDirection, no_metadata_for_mode};
use crate::ring::{self, Consumer, Producer};
use crate::sys::interface::{Interface, InterfaceQuery, LinkState, PromiscuousGuard};
use crate::sys::packet::{OutgoingBatch, PacketSocket, PacketSocketSettings, PieceLimits, QueueShare};
use crate::sys::poll::{Wakeup, wait_readable_or_broken};
use crate::sys::xsk::{Descriptor, PACKET_CONTINUES, PortRings, TxKick};

/// Bytes of a block: the best of several sizes tried at full rate (`nocopy bench capture`; with 64 KiB a
/// third is lost at 1400 bytes, with 256 KiB a tenth).
const BLOCK_BYTES: u32 = 1 << 20;
const BLOCKS_MIN: u32 = 4;

/// How long a packet may wait in a block that is not full, unless the receiver's wait allows more.
const BLOCK_TIMEOUT: Duration = Duration::from_millis(1);

pub(super) struct PacketRingBackend {
    receiving: PacketSocket,
    /// Packets that the [`PacketAnnouncer`] did not announce.
    unannounced: Arc<AtomicU64>,
    send_ring: Mutex<SendRing>,
    drop_counts: Mutex<KernelDropTotals>,
    query: InterfaceQuery,
    _promiscuous: Option<PromiscuousGuard>,
}

/// Sum of the kernel's drops, because the kernel resets its counter at each read.
#[derive(Debug, Default)]
struct KernelDropTotals {
    drops: u64,
    freezes: u64,
}

struct SendRing {
    socket: PacketSocket,
    tx: Consumer<Descriptor>,
    completion: Producer<u64>,
    area: Area,
    batch: OutgoingBatch,
    /// Pieces of each packet in the batch.
    counts: Vec<u32>,
    /// Pieces of the packet being added.
    pieces: Vec<Descriptor>,
    invalid: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SendRing {
    /// Passes packets of the tx ring to the kernel, as many as it accepts.
    fn send_from_ring(&mut self) -> io::Result<TxKick> {
        // Ends: each round completes at least one of the packets that wait, or returns.
        loop {
            self.gather_batch();
            if self.counts.is_empty() {
                return Ok(TxKick::Done);
            }
            let sent = match self.batch.is_empty() {
                true => Err(io::ErrorKind::InvalidData.into()), // the first packet's own words are wrong
                false => self.socket.send(&mut self.batch),
            };
            self.batch.clear();
            match sent {
                Ok(sent) => self.complete_packets(sent),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => return Ok(TxKick::Again),
                    // As with AF_XDP: a packet that the interface cannot send is completed, and counted.
                    None | Some(libc::EMSGSIZE | libc::EINVAL) => {
                        self.invalid += 1;
                        self.complete_packets(1);
                    }
                    Some(_) => return Err(error),
                },
            }
        }
    }

    /// Collects packets from the front of the tx ring, as many as can be completed; removes none.
    fn gather_batch(&mut self) {
        self.counts.clear();
        let room = self.completion.free_slots(u32::MAX) as usize;
        let waiting = self.tx.ready_entries(u32::MAX);
        let (mut next, mut given) = (0, 0);
        while let Some(descriptor) = waiting.entry_at(next) {
            next += 1;
            self.pieces.push(descriptor);
            if descriptor.options & PACKET_CONTINUES != 0 {
                continue;
            }
            given += self.pieces.len();
            let added = given <= room
                && match self.area.add_lent_to_batch(&self.pieces, &mut self.batch) {
                    Some(added) => added,
                    None => self.counts.is_empty(), // alone, to be refused
                };
            if !added {
                break;
            }
            self.counts.push(self.pieces.len() as u32);
            self.pieces.clear();
            if self.batch.is_empty() {
                break;
            }
        }
        self.pieces.clear();
    }

    fn complete_packets(&mut self, packets: usize) {
        // In range: at most the batch was sent, or its first packet refused, and there is a count for each.
        let frames = self.counts[..packets].iter().sum();
        for descriptor in self.tx.ready_entries(frames) {
            let _ = self.completion.push(descriptor.address); // there is room (`gather_batch`)
        }
        self.completion.publish();
    }
}

impl Backend for PacketRingBackend {
    fn kick_tx(&self) -> io::Result<TxKick> {
        lock(&self.send_ring).send_from_ring()
    }

    fn wait_readable(&self, timeout: Duration) -> io::Result<Wakeup> {
        let (wakeup, broken) = wait_readable_or_broken(self.receiving.as_fd(), timeout)?;
        if broken || wakeup == Wakeup::TimedOut {
            self.check_alive()?;
        }
        Ok(wakeup)
    }

    // The socket's own error is read only to clear it: it may be old.
    fn check_alive(&self) -> io::Result<()> {
        self.receiving.clear_error()?;
        match self.query.link_state() {
            LinkState::Up => Ok(()),
            LinkState::Down => Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
            LinkState::Gone => Err(io::Error::from_raw_os_error(libc::ENXIO)),
        }
    }

    fn statistics(&self) -> io::Result<Statistics> {
        let mut drop_counts = lock(&self.drop_counts);
        let counts = self.receiving.take_counts()?;
        drop_counts.drops += u64::from(counts.drops);
        drop_counts.freezes += u64::from(counts.freezes);
        Ok(Statistics {
            rx_dropped: self.unannounced.load(Relaxed),
            tx_invalid_descs: lock(&self.send_ring).invalid,
            tp_drops: drop_counts.drops,
            tp_freeze_q_cnt: drop_counts.freezes,
            ..Statistics::default()
        })
    }
}

impl AsFd for PacketRingBackend {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiving.as_fd()
    }
}

/// Opens a port in this mode; a refusal of the sockets is the inner error.
pub(super) fn open_packet_ring(
    settings: &PortBuilder,
    interface: &Interface,
    area: &Area,
    order: &ModeOrder,
    refusals: &mut Vec<Refusal>,
) -> Result<Result<Port, io::Error>, OpenError> {
    let area = &settings.packet_ring_area(interface, area)?;
    let (rx_end, rx) = ring::pair(settings.rings.rx);
    let (tx, tx_end) = ring::pair(settings.rings.tx);
    let (completion_end, completion) = ring::pair(settings.rings.completion);
    let count_max = if settings.multi_buffer { settings.rx_frames } else { 1 };
    let pieces = PieceLimits { bytes_max: area.packet_bytes_max(), count_max };
    let capture = settings.receiving_socket_settings(interface);
    let (filter, place) = match settings.socket_filter(&capture) {
        Ok(filter) => filter,
        Err(refused) => return Ok(Err(refused)),
    };
    let opened = PacketSocket::new_receiving(&capture, &filter, rx_end, pieces)
        .and_then(|receiving| Ok((receiving, PacketSocket::new_sending(interface.index)?)));
    let ((receiving, announcer), socket) = match opened {
        Ok(opened) => opened,
        Err(refused) => return Ok(Err(refused)),
    };
    let (mut receive, mut send) = (
        area.pool(PoolDirection::Receive, settings.rx_frames)?,
        area.pool(PoolDirection::Send, settings.tx_frames)?,
    );
    receive.receive_from_blocks(announcer.block_mapping());
    receive.set_arrivals(ArrivalMetadataSource::Unknown(match settings.receive_metadata {
        true => Unsupported::Absent,
        false => Unsupported::NotRequested,
    }));
    receive.set_without_wire(drivers::may_have_unfinished_checksums(interface));
    send.set_offers(no_metadata_for_mode(Mode::PacketRing).1);
    let (promiscuous, query) = settings.promiscuous_and_query(interface)?;
    let send_ring = SendRing {
        socket,
        tx: tx_end,
        completion: completion_end,
        area: area.clone(),
        batch: OutgoingBatch::new(),
        counts: Vec::new(),
        pieces: Vec::new(),
        invalid: 0,
    };
    let backend = PacketRingBackend {
        receiving,
        unannounced: announcer.unannounced_counter(),
        send_ring: Mutex::new(send_ring),
        drop_counts: Mutex::default(),
        query,
        _promiscuous: promiscuous,
    };
    let rings = PortRings { fill: ring::closed_producer(), completion, rx, tx };
    let (mode, frames_max) = (Mode::PacketRing, OutgoingBatch::PIECES_MAX);
    let mut inner = SharedPort::new(settings, interface.index, mode, frames_max, area.clone(), backend);
    (inner.order, inner.refusals, inner.filter) = (order.why, std::mem::take(refusals), place);
    let in_user_space = matches!(inner.filter, Some(FilterPlace::UserSpace(_)));
    let mut port = assemble_port(inner, rings, (receive, send), Some(announcer), settings);
    if let Some(program) = settings.filter.as_ref().filter(|_| in_user_space) {
        port.receiver.set_user_filter(UserFilter::new(
            program.clone(),
            interface.index,
            settings.queue,
            UnmatchedDestination::HostHas,
        ));
    }
    Ok(Ok(port))
}

impl PortBuilder {
    /// The filter for the kernel, and where it runs. Errors: the kernel refuses it, and user space cannot run
    /// it.
    fn socket_filter(
        &self,
        capture: &PacketSocketSettings,
    ) -> io::Result<(Vec<Instruction>, Option<FilterPlace>)> {
        let Some(program) = &self.filter else { return Ok((Vec::new(), None)) };
        // Matching packets are received whole, as in the other modes.
        let why = match program.with_snap_length(u32::MAX).and_then(|program| program.for_packet_socket()) {
            Ok(program) => match PacketSocket::accepts_filter(capture, program.instructions()) {
                Ok(()) => return Ok((program.instructions().to_vec(), Some(FilterPlace::Socket))),
                Err(error) => {
                    let (count, advice) = (
                        program.instructions().len(),
                        "shorten it, or raise 'sysctl net.core.optmem_max' (4096 is the most)",
                    );
                    format!("the kernel refused its {count} instructions{}; {advice}", ErrorCause(&error))
                }
            },
            Err(error) => error.to_string(),
        };
        match program.check_answerable() {
            Ok(()) => Ok((Vec::new(), Some(FilterPlace::UserSpace(why)))),
            Err(error) => Err(io::Error::new(io::ErrorKind::Unsupported, format!("{why}; {error}"))),
        }
    }

    /// The receiving socket's settings: as much memory as the frames of an AF_XDP port of the same size.
    fn receiving_socket_settings(&self, interface: &Interface) -> PacketSocketSettings {
        let bytes = u64::from(self.rings.rx) * 2048;
        let block_timeout = match (self.tuning.block_timeout, self.wait) {
            (Some(timeout), _) => timeout,
            (None, Wait::Coalesced { delay, .. }) => delay,
            (None, _) => BLOCK_TIMEOUT,
        };
        let queues = interface.rx_queues;
        PacketSocketSettings {
            interface_index: interface.index,
            receives: !self.only_sends(),
            share: (queues > 1 && self.tuning.fanout.is_none())
                .then_some(QueueShare { queue: self.queue, queues }),
            fanout: self.tuning.fanout,
            outgoing: self.tuning.outgoing,
            hash: self.receive_metadata,
            block_bytes: BLOCK_BYTES,
            block_count: u32::try_from(bytes / u64::from(BLOCK_BYTES)).unwrap_or(u32::MAX).max(BLOCKS_MIN),
            block_timeout,
        }
    }
}
