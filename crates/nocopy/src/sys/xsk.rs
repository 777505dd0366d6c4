//! The AF_XDP socket: registration, rings, binding, wake-ups (kernel: Documentation/networking/af_xdp.rst).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::memory::Mapping;
use super::option;
use crate::counter::{Counter, counters};
use crate::facts::metadata::Request;
use crate::ring::{self, Consumer, Producer, RingLayout};

/// `XDP_MAX_TX_SKB_BUDGET` of `linux/if_xdp.h`, since Linux 6.18: frames one system call may send in copy
/// mode.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// `XDP_PKT_CONTD` of `linux/if_xdp.h`: the packet continues in the next entry.
pub(crate) const PACKET_CONTINUES: u32 = 1;

/// `XDP_TX_METADATA` of `linux/if_xdp.h`: in front of the packet lies a [`SendMetadata`].
pub(crate) const REQUESTED: u32 = 1 << 1;

// linux/if_xdp.h
const XDP_UMEM_TX_SW_CSUM: u32 = 1 << 1;
const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;
const XDP_TXMD_FLAGS_TIMESTAMP: u64 = 1 << 0;
const XDP_TXMD_FLAGS_CHECKSUM: u64 = 1 << 1;

/// A request to the kernel or the card, in front of the packet (`struct xsk_tx_metadata` as in the first
/// kernels that had it, without launch time).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SendMetadata {
    flags: u64,
    /// Place of the checksum (`csum_start`, `csum_offset`); after sending, the departure time.
    pub(crate) answer: u64,
}

/// Bytes of a [`SendMetadata`]: the free space needed in front of every packet of a socket that may send
/// requests.
pub(crate) const SEND_METADATA_BYTES: u32 = size_of::<SendMetadata>() as u32;

impl SendMetadata {
    pub(crate) fn from_request(request: &Request) -> Self {
        let Request { checksum, timestamp } = request;
        let flags = checksum.map_or(0, |_| XDP_TXMD_FLAGS_CHECKSUM)
            | timestamp.map_or(0, |_| XDP_TXMD_FLAGS_TIMESTAMP);
        let answer = checksum.map_or(0, |place| {
            let ([a, b], [c, d]) = (place.start.to_ne_bytes(), place.offset.to_ne_bytes());
            u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
        });
        Self { flags, answer }
    }
}

/// One entry of an rx or tx ring (`struct xdp_desc`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Offset of the packet from the start of the area.
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) options: u32,
}

/// The fewest entries of an rx ring whose number another process can find out: one page of them. Twice as
/// many need a page more.
pub(crate) fn checkable_entries_min() -> u32 {
    (rustix::param::page_size() / size_of::<Descriptor>()) as u32
}

/// Sizes of a port's four rings, in entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingSizes {
    pub(crate) fill: u32,
    pub(crate) completion: u32,
    pub(crate) rx: u32,
    pub(crate) tx: u32,
}

/// The program's ends of a port's four rings.
#[derive(Debug)]
pub(crate) struct PortRings {
    pub(crate) fill: Producer<u64>,
    pub(crate) completion: Consumer<u64>,
    pub(crate) rx: Consumer<Descriptor>,
    pub(crate) tx: Producer<Descriptor>,
}

counters! {
    /// What the kernel counts for the socket of one port, under the kernel's names (`struct xdp_statistics`,
    /// and `tp_…`).
    pub struct Statistics {
        /// Packets dropped because there was no frame to receive into, or because they were longer than one.
        rx_dropped,
        /// Addresses on the fill ring that were refused.
        rx_invalid_descs,
        /// Sends refused because the tx ring named a bad frame.
        tx_invalid_descs,
        /// Packets dropped because the rx ring was full.
        rx_ring_full,
        /// How often the kernel needed a frame and found the fill ring empty: the usual cause of `rx_dropped`
        /// in copy mode. In zero-copy mode the device itself drops packets, and the interface's counters
        /// count them.
        rx_fill_ring_empty_descs,
        /// How often the kernel looked for a frame to send and found none.
        tx_ring_empty_descs,
        /// Packets dropped because every block of a packet ring was full (`struct tpacket_stats_v3`).
        tp_drops,
        /// How often every block of a packet ring was full.
        tp_freeze_q_cnt,
    }
}

impl Statistics {
    pub(crate) fn counters_named<'name>(
        &self,
        names: &'name [&str],
    ) -> impl Iterator<Item = Counter> + use<'name> {
        self.counters().filter(|counter| names.contains(&&*counter.name))
    }

    /// Packets that reached this socket and were dropped there (`xsk_rcv` in the kernel's `net/xdp/xsk.c`:
    /// the other terms are reasons, not further packets).
    pub fn rx_lost(&self) -> u64 {
        self.rx_dropped + self.rx_ring_full + self.tp_drops
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct XskBinding {
    pub(crate) interface_index: u32,
    pub(crate) queue: u32,
    pub(crate) zero_copy: bool,
    pub(crate) need_wakeup: bool,
    /// Packets of several frames (`XDP_USE_SG`, since Linux 6.6).
    pub(crate) multi_buffer: bool,
}

#[derive(Debug)]
pub(crate) struct XskSocket {
    fd: OwnedFd,
    /// Whether packets were to be sent with a [`SendMetadata`], and whether they can.
    pub(crate) asked_for_requests: bool,
    pub(crate) takes_requests: bool,
}

impl XskSocket {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { fd, asked_for_requests: false, takes_requests: false })
    }

    /// Registers an area as this socket's umem. The kernel pins the pages itself, so they stay valid for it
    /// even if they are unmapped. If asked for and possible (Linux 6.11), packets may then be sent with
    /// requests; the kernel itself completes their checksums in copy mode. (Drivers such as veth would pass
    /// them on incomplete.)
    pub(crate) fn register_umem(
        &mut self,
        (base, bytes): (NonNull<u8>, usize),
        frame_bytes: u32,
        headroom_bytes: u32,
        requests: bool,
    ) -> io::Result<()> {
        let plain = XdpUmemReg {
            addr: base.as_ptr().addr() as u64,
            len: bytes as u64,
            chunk_size: frame_bytes,
            headroom: headroom_bytes,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        let with_requests = XdpUmemReg {
            flags: XdpUmemRegFlags::from_bits_retain(XDP_UMEM_TX_METADATA_LEN | XDP_UMEM_TX_SW_CSUM),
            tx_metadata_len: SEND_METADATA_BYTES,
            ..plain
        };
        self.asked_for_requests = requests;
        if requests {
            match sockopt::set_xdp_umem_reg(&self.fd, with_requests) {
                Err(rustix::io::Errno::INVAL) => {} // flags of a later kernel, or a mistake that will show once more
                done => {
                    self.takes_requests = done.is_ok();
                    return Ok(done?);
                }
            }
        }
        Ok(sockopt::set_xdp_umem_reg(&self.fd, plain)?)
    }

    /// Sizes the rx ring: an XDP map refuses a socket without one (since Linux 7.1, and in maintained older
    /// kernels: "xskmap: reject TX-only AF_XDP sockets").
    pub(crate) fn size_rx_ring(&self, entries: u32) -> io::Result<()> {
        Ok(sockopt::set_xdp_rx_ring_size(&self.fd, entries)?)
    }

    /// Whether the rx ring, which another process made, has that many entries; at least
    /// [`checkable_entries_min`].
    ///
    /// The kernel does not report a ring's length, but maps only whole pages that exist (`xsk_mmap`).
    pub(crate) fn has_rx_ring(&self, entries: u32) -> io::Result<bool> {
        let first = sockopt::xdp_mmap_offsets(&self.fd)?.rx.desc;
        let is_there = |entries: u64| {
            let bytes = usize::try_from(first + entries * size_of::<Descriptor>() as u64);
            let bytes = bytes.map_err(|_| io::ErrorKind::OutOfMemory)?;
            match Mapping::of_ring(self.fd.as_fd(), XDP_PGOFF_RX_RING, bytes) {
                Ok(_) => Ok(true),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
                Err(error) => Err(error),
            }
        };
        Ok(is_there(entries.into())? && !is_there(2 * u64::from(entries))?)
    }

    /// Sizes the other three rings and maps all of them; before binding, because kernels before 6.4 refuse
    /// afterwards.
    pub(crate) fn make_rings(&self, sizes: RingSizes) -> io::Result<PortRings> {
        let (tx, completion) = self.make_send_rings(sizes)?;
        let offsets = sockopt::xdp_mmap_offsets(&self.fd)?;
        let fill = self.map_ring(offsets.fr, XDP_UMEM_PGOFF_FILL_RING, sizes.fill, size_of::<u64>())?;
        let rx = self.map_ring(offsets.rx, XDP_PGOFF_RX_RING, sizes.rx, size_of::<Descriptor>())?;
        // SAFETY: as in `make_send_rings`.
        unsafe {
            Ok(PortRings {
                fill: ring::map_producer(fill.0.base(), fill.1, fill.0),
                completion,
                rx: ring::map_consumer(rx.0.base(), rx.1, rx.0),
                tx,
            })
        }
    }

    /// Maps the rings of a socket that only sends: it has no rx ring, and a fill ring only because binding
    /// requires one.
    pub(crate) fn make_send_rings(
        &self,
        sizes: RingSizes,
    ) -> io::Result<(Producer<Descriptor>, Consumer<u64>)> {
        sockopt::set_xdp_umem_fill_ring_size(&self.fd, sizes.fill)?;
        sockopt::set_xdp_umem_completion_ring_size(&self.fd, sizes.completion)?;
        sockopt::set_xdp_tx_ring_size(&self.fd, sizes.tx)?;
        let offsets = sockopt::xdp_mmap_offsets(&self.fd)?;
        let completion =
            self.map_ring(offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, sizes.completion, size_of::<u64>())?;
        let tx = self.map_ring(offsets.tx, XDP_PGOFF_TX_RING, sizes.tx, size_of::<Descriptor>())?;
        // SAFETY: offsets and sizes are the kernel's own, checked against the mapping in `map_ring`; each
        // ring is mapped once and has one program end; all bit patterns are valid addresses and descriptors.
        unsafe {
            Ok((
                ring::map_producer(tx.0.base(), tx.1, tx.0),
                ring::map_consumer(completion.0.base(), completion.1, completion.0),
            ))
        }
    }

    fn map_ring(
        &self,
        at: XdpRingOffset,
        page_offset: u64,
        capacity: u32,
        entry_bytes: usize,
    ) -> io::Result<(Arc<Mapping>, RingLayout)> {
        let flags = at.flags.unwrap_or(at.consumer); // Linux before 5.4 has no flags word; bit 0 is never trusted there
        let offset = |bytes: u64| usize::try_from(bytes).expect("offsets lie within a mapping");
        let layout = RingLayout {
            producer_bytes: offset(at.producer),
            consumer_bytes: offset(at.consumer),
            flags_bytes: offset(flags),
            entries_bytes: offset(at.desc),
            capacity,
        };
        let bytes = layout.entries_bytes + capacity as usize * entry_bytes;
        let words = [layout.producer_bytes, layout.consumer_bytes, layout.flags_bytes];
        assert!(
            words.iter().all(|word| word % 4 == 0 && word + 4 <= bytes),
            "ring words outside their mapping"
        );
        assert!(layout.entries_bytes.is_multiple_of(8), "misaligned ring entries");
        Ok((Arc::new(Mapping::of_ring(self.fd.as_fd(), page_offset, bytes)?), layout))
    }

    pub(crate) fn bind(&self, binding: XskBinding) -> io::Result<()> {
        let mut flags =
            if binding.zero_copy { SocketAddrXdpFlags::XDP_ZEROCOPY } else { SocketAddrXdpFlags::XDP_COPY };
        flags.set(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP, binding.need_wakeup);
        flags.set(SocketAddrXdpFlags::XDP_USE_SG, binding.multi_buffer);
        Ok(rustix::net::bind(&self.fd, &SocketAddrXdp::new(flags, binding.interface_index, binding.queue))?)
    }

    /// Whether the kernel reports that this socket moves packets without copying.
    pub(crate) fn is_zero_copy(&self) -> io::Result<bool> {
        Ok(sockopt::xdp_options(&self.fd)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    pub(crate) fn statistics(&self) -> io::Result<Statistics> {
        let kernel = sockopt::xdp_statistics(&self.fd)?;
        Ok(Statistics {
            rx_dropped: kernel.rx_dropped,
            rx_invalid_descs: kernel.rx_invalid_descs,
            tx_invalid_descs: kernel.tx_invalid_descs,
            rx_ring_full: kernel.rx_ring_full.unwrap_or(0),
            rx_fill_ring_empty_descs: kernel.rx_fill_ring_empty_descs.unwrap_or(0),
            tx_ring_empty_descs: kernel.tx_ring_empty_descs.unwrap_or(0),
            ..Statistics::default()
        })
    }

    /// Lets one system call send up to `frames` frames in copy mode instead of [`TX_BUDGET`]. Kernels before
    /// 6.18 do not have the option; their calls send fewer. Returns whether this kernel has it.
    pub(crate) fn raise_tx_budget(&self, frames: u32) -> bool {
        self.set_option(libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, frames).is_ok()
    }

    /// Turns on preferred busy polling (Documentation/networking/napi.rst).
    pub(crate) fn set_busy_poll(&self, duration: Duration, budget: u32) -> io::Result<()> {
        let us = u32::try_from(duration.as_micros()).unwrap_or(u32::MAX);
        self.set_option(libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, 1)?;
        self.set_option(libc::SOL_SOCKET, libc::SO_BUSY_POLL, us)?;
        self.set_option(libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, budget)
    }

    fn set_option(&self, level: i32, option: i32, value: u32) -> io::Result<()> {
        // SAFETY: the options used here take a number of 32 bits.
        unsafe { option::set_option(&self.fd, level, option, &value) }
    }

    /// Makes the kernel read the tx ring. Its "try again" answers are not errors: unsent packets stay in the
    /// ring.
    pub(crate) fn kick_tx(&self) -> io::Result<TxKick> {
        match rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(TxKick::Done),
            Err(rustix::io::Errno::BUSY) => Ok(TxKick::Busy),
            Err(errno) if is_transient(errno) => Ok(TxKick::Again),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes the kernel read the fill ring.
    pub(crate) fn kick_rx(&self) -> io::Result<()> {
        match rustix::net::recv(&self.fd, &mut [0_u8; 0], RecvFlags::DONTWAIT) {
            Ok(_) => Ok(()),
            Err(errno) if is_transient(errno) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl From<OwnedFd> for XskSocket {
    fn from(fd: OwnedFd) -> Self {
        Self { fd, asked_for_requests: false, takes_requests: false }
    }
}

impl AsFd for XskSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Frames that one system call sends in copy mode by default (`TX_BATCH_SIZE` in `net/xdp/xsk.c`).
pub(crate) const TX_BUDGET: u32 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TxKick {
    /// Nothing to do now.
    Done,
    /// `EBUSY`: in copy mode, one frame was taken and dropped by the device (`xsk_generic_xmit`).
    Busy,
    /// No memory now, or the budget of one call is used up.
    Again,
}

fn is_transient(errno: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(errno, Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR)
}
