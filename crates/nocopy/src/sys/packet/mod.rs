//! Packet sockets and their rings (kernel: Documentation/networking/packet_mmap.rst, `linux/if_packet.h`).

mod arrival;
mod blocks;
mod header;
mod memory;
mod outgoing;
mod owned;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub(crate) use arrival::read_arrival;
use blocks::ReceivingBlocks;
pub(crate) use blocks::{IN_BLOCKS, PacketAnnouncer, PieceLimits};
use header::VLAN_TAG_BYTES;
use memory::BlockMemory;
pub(crate) use memory::SINGLE_FRONT_BYTES;
pub(crate) use outgoing::OutgoingBatch;
pub(crate) use owned::OwnedBlocks;
pub(crate) use owned::PcapngBlock;
pub use owned::{Block, BlockReader, Captured, Contents, PcapngLayout};

use nocopy_proto::filter::Instruction;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::memory::Mapping;
use super::option::{self, classic_instruction};
use super::xsk::Descriptor;
use crate::ring::Producer;

/// Every protocol, in network byte order.
const EVERYTHING: u16 = (libc::ETH_P_ALL as u16).to_be();
/// No protocol: a socket that only sends receives nothing.
const NOTHING: u16 = 0;

/// Room in front of a packet whose block becomes part of a file: it aligns packets with an Ethernet header,
/// also a tagged one, to a multiple of four (kernel: `tpacket_rcv` rounds up to 16 before adding this).
const ALIGNING_BYTES: u32 = 2;

/// The least that the kernel allocates at a time for single packets: a multiple of every page size.
const PIECE_BYTES: u32 = 1 << 16;

/// About what it allocates at a time for long single packets: it rounds up to a power of two.
const LARGE_PIECE_BYTES: u32 = 1 << 20;

/// For version 3 only a lower limit of blocks: packets are packed densely.
const FRAME_BYTES: u32 = 2048;

/// How packets are distributed among the sockets of a fanout group (`PACKET_FANOUT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fanout {
    /// By flow: packets of one connection go to one socket.
    Hash,
    /// By the processor that received the packet.
    Cpu,
    /// To one socket until its ring is full, then to the next.
    Rollover,
}

impl Fanout {
    const fn kernel_number(self) -> u32 {
        match self {
            Self::Hash => libc::PACKET_FANOUT_HASH,
            Self::Cpu => libc::PACKET_FANOUT_CPU,
            Self::Rollover => libc::PACKET_FANOUT_ROLLOVER,
        }
    }
}

/// Which packets a packet socket receives, and its memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketSocketSettings {
    pub(crate) interface_index: u32,
    pub(crate) receives: bool,
    /// Packets of one receive queue only.
    pub(crate) share: Option<QueueShare>,
    pub(crate) fanout: Option<(u16, Fanout)>,
    /// Packets that leave the interface, too.
    pub(crate) outgoing: bool,
    /// The flow's hash in each packet's header.
    pub(crate) hash: bool,
    pub(crate) block_bytes: u32,
    pub(crate) block_count: u32,
    /// When a block that is not full is handed over.
    pub(crate) block_timeout: Duration,
}

impl PacketSocketSettings {
    /// The instructions for the socket, if `filter` applies to packets of its share.
    fn share_filter(&self, filter: &[Instruction]) -> Vec<Instruction> {
        let everything = [classic_instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX)];
        match self.share {
            Some(share) if filter.is_empty() => [&share.queue_filter()[..], &everything].concat(),
            Some(share) => [&share.queue_filter(), filter].concat(),
            None => filter.to_vec(),
        }
    }
}

/// One receive queue of several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueShare {
    pub(crate) queue: u32,
    pub(crate) queues: u32,
}

impl QueueShare {
    /// Continues with the following instructions for packets of the queue, by the number that the driver
    /// noted: each packet belongs to one queue, also if the driver noted none (queue 0), or an invalid one.
    fn queue_filter(self) -> Vec<Instruction> {
        let Self { queue, queues } = self;
        let load_queue = (libc::SKF_AD_OFF + libc::SKF_AD_QUEUE).cast_unsigned();
        let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let calculate = libc::BPF_ALU | libc::BPF_K;
        vec![
            classic_instruction(load, 0, 0, load_queue),
            // None noted; otherwise the kernel keeps one more than the queue.
            classic_instruction(equals, 2, 0, 0),
            classic_instruction(calculate | libc::BPF_SUB, 0, 0, 1),
            classic_instruction(calculate | libc::BPF_MOD, 0, 0, queues),
            classic_instruction(equals, 1, 0, queue),
            classic_instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
            classic_instruction(libc::BPF_LD | libc::BPF_IMM, 0, 0, 0), // as a program finds it at its start
        ]
    }
}

/// A filter for an ordinary UDP socket, so that it does not also receive what a packet socket of the same
/// process receives: whole datagrams without IP options that arrived on an interface, on one of its queues.
/// Those longer than the MTU arrived in fragments; what the host sends to a group returns to it on the
/// interface, and packet sockets do not see it.
pub(crate) fn complement_filter(
    interface_index: u32,
    mtu_bytes: u32,
    share: QueueShare,
    is_ipv4: bool,
) -> Vec<Instruction> {
    let kernel_word = |word: i32| (libc::SKF_AD_OFF + word).cast_unsigned();
    let network = libc::SKF_NET_OFF.cast_unsigned();
    let load = |size| libc::BPF_LD | size | libc::BPF_ABS;
    let (equals, greater) =
        (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K);
    // IPv6's length does not count its header; version and header length of IPv4, next header of IPv6.
    let (length_at, longest, plain_at, plain) =
        if is_ipv4 { (2, mtu_bytes, 0, 0x45) } else { (4, mtu_bytes.saturating_sub(40), 6, 17) };
    let mut filter = vec![
        classic_instruction(load(libc::BPF_W), 0, 0, kernel_word(libc::SKF_AD_IFINDEX)),
        classic_instruction(equals, 1, 0, interface_index),
        classic_instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        classic_instruction(load(libc::BPF_W), 0, 0, kernel_word(libc::SKF_AD_PKTTYPE)),
        classic_instruction(equals, 4, 0, libc::PACKET_LOOPBACK.into()),
        classic_instruction(load(libc::BPF_H), 0, 0, network + length_at),
        classic_instruction(greater, 2, 0, longest),
        classic_instruction(load(libc::BPF_B), 0, 0, network + plain_at),
        classic_instruction(equals, 1, 0, plain),
        classic_instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
    ];
    // Continues for packets of the queue and returns 0 for others: the two results are exchanged here.
    if share.queues > 1 {
        let mut of_queue = share.queue_filter();
        of_queue[5].constant = u32::MAX;
        filter.extend(of_queue);
    }
    filter.push(classic_instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0));
    filter
}

/// The kernel's counts for a packet socket since the last call (`struct tpacket_stats_v3`).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PacketSocketCounts {
    /// All packets that passed the filter, including packets dropped later.
    pub(crate) packets: u32,
    pub(crate) drops: u32,
    pub(crate) freezes: u32,
}

#[derive(Debug)]
pub(crate) struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    fn new() -> io::Result<Self> {
        let fd =
            rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { fd })
    }

    /// A socket that receives packets passing `filter`, if there is one, into blocks, and announces them on
    /// `rx`, in pieces.
    pub(crate) fn new_receiving(
        capture: &PacketSocketSettings,
        filter: &[Instruction],
        rx: Producer<Descriptor>,
        pieces: PieceLimits,
    ) -> io::Result<(Self, PacketAnnouncer)> {
        let (socket, memory) = Self::with_receive_ring(capture, VLAN_TAG_BYTES)?;
        socket.start_receiving(capture, filter)?;
        Ok((socket, PacketAnnouncer::new(ReceivingBlocks::new(memory), rx, pieces)))
    }

    /// A socket that receives packets passing a filter into blocks, which can be owned one by one.
    pub(crate) fn new_with_owned_blocks(
        capture: &PacketSocketSettings,
        filter: &[Instruction],
    ) -> io::Result<(Self, OwnedBlocks)> {
        let (socket, memory) = Self::with_receive_ring(capture, ALIGNING_BYTES)?;
        socket.start_receiving(capture, filter)?;
        Ok((socket, OwnedBlocks::new(memory)))
    }

    /// As `new_with_owned_blocks`, with blocks of one packet each, which are handed over at once.
    pub(crate) fn new_with_owned_packets(
        capture: &PacketSocketSettings,
        filter: &[Instruction],
    ) -> io::Result<(Self, OwnedBlocks)> {
        let socket = Self::new()?;
        // What we call a block is a frame here, and the kernel's block holds several. It has no other bytes,
        // so frames are contiguous.
        let frame_bytes = capture.block_bytes;
        let frames = if frame_bytes <= PIECE_BYTES { PIECE_BYTES } else { LARGE_PIECE_BYTES } / frame_bytes;
        let (frames, pieces) = (frames.max(1), capture.block_count.div_ceil(frames.max(1)));
        let (piece_bytes, block_count) = (frames * frame_bytes, pieces * frames);
        socket.set_packet_option(libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V2)?;
        socket.set_packet_option(libc::PACKET_RESERVE, &memory::SINGLE_RESERVE_BYTES)?;
        let request = libc::tpacket_req {
            tp_block_size: piece_bytes,
            tp_block_nr: pieces,
            tp_frame_size: frame_bytes,
            tp_frame_nr: block_count,
        };
        socket.set_packet_option(libc::PACKET_RX_RING, &request)?;
        let memory = socket.map_ring(capture, piece_bytes, pieces)?;
        socket.start_receiving(capture, filter)?;
        let memory = BlockMemory::of_single_packets(memory, frame_bytes, block_count);
        Ok((socket, OwnedBlocks::new(memory)))
    }

    /// A socket with a receiving ring that receives nothing yet.
    fn with_receive_ring(
        capture: &PacketSocketSettings,
        reserve_bytes: u32,
    ) -> io::Result<(Self, BlockMemory)> {
        let socket = Self::new()?;
        let PacketSocketSettings { block_bytes, block_count, .. } = *capture;
        let timeout_ms = u32::try_from(capture.block_timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        socket.set_packet_option(libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V3)?;
        socket.set_packet_option(libc::PACKET_RESERVE, &reserve_bytes)?;
        let request = libc::tpacket_req3 {
            tp_block_size: block_bytes,
            tp_block_nr: block_count,
            tp_frame_size: FRAME_BYTES,
            tp_frame_nr: block_count * (block_bytes / FRAME_BYTES),
            tp_retire_blk_tov: timeout_ms,
            tp_sizeof_priv: 0,
            // The kernel then calculates a hash for packets without one.
            tp_feature_req_word: if capture.hash { libc::TP_FT_REQ_FILL_RXHASH } else { 0 },
        };
        socket.set_packet_option(libc::PACKET_RX_RING, &request)?;
        let memory = socket.map_ring(capture, block_bytes, block_count)?;
        Ok((socket, BlockMemory::new(memory, block_bytes, block_count)))
    }

    /// Maps a ring of this many blocks, before any packet is received.
    fn map_ring(
        &self,
        capture: &PacketSocketSettings,
        block_bytes: u32,
        block_count: u32,
    ) -> io::Result<Mapping> {
        if !capture.outgoing {
            self.set_packet_option(libc::PACKET_IGNORE_OUTGOING, &1_i32)?;
        }
        Mapping::of_ring(self.fd.as_fd(), 0, block_bytes as usize * block_count as usize)
    }

    /// Starts receiving packets that pass `filter`, if there is one.
    fn start_receiving(&self, capture: &PacketSocketSettings, filter: &[Instruction]) -> io::Result<()> {
        let filter = capture.share_filter(filter);
        let fanout = capture.fanout.filter(|_| capture.receives);
        if fanout.is_some() {
            self.reject_all()?; // until it is a member: before, it would have what the others have
        } else if !filter.is_empty() {
            option::attach_filter(&self.fd, &filter)?;
        }
        self.bind(capture.interface_index, if capture.receives { EVERYTHING } else { NOTHING })?;
        if let Some((group, fanout)) = fanout {
            self.set_packet_option(libc::PACKET_FANOUT, &(u32::from(group) | fanout.kernel_number() << 16))?;
            match filter.is_empty() {
                // SAFETY: the option takes an `int`, and does not look at it.
                true => unsafe {
                    option::set_option(&self.fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32)?;
                },
                false => option::attach_filter(&self.fd, &filter)?,
            }
        }
        Ok(())
    }

    /// Replaces the filter; packets already in blocks stay.
    pub(crate) fn replace_filter(&self, filter: &[Instruction]) -> io::Result<()> {
        option::attach_filter(&self.fd, filter)
    }

    pub(crate) fn reject_all(&self) -> io::Result<()> {
        option::attach_reject_all_filter(&self.fd)
    }

    /// Whether the kernel accepts a filter with its prefix, tested on a socket that receives nothing.
    pub(crate) fn accepts_filter(capture: &PacketSocketSettings, filter: &[Instruction]) -> io::Result<()> {
        let fd =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        option::attach_filter(&fd, &capture.share_filter(filter))
    }

    /// A socket that sends, bypassing the queueing discipline.
    pub(crate) fn new_sending(interface_index: u32) -> io::Result<Self> {
        let socket = Self::new()?;
        socket.set_packet_option(libc::PACKET_QDISC_BYPASS, &1_i32)?;
        socket.bind(interface_index, NOTHING)?;
        Ok(socket)
    }

    fn bind(&self, interface_index: u32, protocol: u16) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol,
            sll_ifindex: interface_index.cast_signed(),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let bytes = libc::socklen_t::try_from(size_of_val(&address)).expect("small");
        // SAFETY: the pointer and length describe `address`, which outlives the call.
        let result = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), bytes) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Packets and drops since the last call: the kernel resets its counts each time.
    pub(crate) fn take_counts(&self) -> io::Result<PacketSocketCounts> {
        let mut counts = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        let mut bytes = libc::socklen_t::try_from(size_of_val(&counts)).expect("small");
        // SAFETY: the pointers describe `counts` and its length, which outlive the call.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut counts).cast(),
                &raw mut bytes,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(PacketSocketCounts {
            packets: counts.tp_packets,
            drops: counts.tp_drops,
            freezes: counts.tp_freeze_q_cnt,
        })
    }

    /// Clears the socket's error, which would end every wait.
    pub(crate) fn clear_error(&self) -> io::Result<()> {
        sockopt::socket_error(&self.fd)?.ok();
        Ok(())
    }

    /// Sends packets from the front of `batch`, and returns how many. Errors: the kernel's, for the first
    /// packet, which was not sent.
    pub(crate) fn send(&self, batch: &mut OutgoingBatch) -> io::Result<usize> {
        batch.send(self.fd.as_fd())
    }

    /// Sets one of the options of packet(7), which take numbers and structures of numbers.
    fn set_packet_option<T>(&self, option: i32, value: &T) -> io::Result<()> {
        // SAFETY: this file gives each option the type that `linux/if_packet.h` says; none holds a pointer.
        unsafe { option::set_option(&self.fd, libc::SOL_PACKET, option, value) }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
