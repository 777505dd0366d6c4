//! The area: one block of memory cut into frames, and the record of who owns each of them (AF_XDP's *umem*).
//!
//! Everything in it is addressed by offset, never by pointer, because kernel and program map it at different
//! addresses.
//!
//! **Ownership.** Every frame has one state word: its *owner* (the pool it belongs to) and the half it is
//! *lent* to while the kernel holds it. A half hands out a frame only if the word says that this half lent
//! it, so an address that the kernel returns twice or invents is a counted fault, and never gives a frame a
//! second owner.
//!
//! **Lifetime.** Frames have no lifetime parameter and no reference count. An open pool keeps the area alive
//! for all its frames. When a pool closes, each of its frames still in use holds one reference to the area
//! until it returns. So the area is unmapped exactly when its last frame returns, and the hot path counts no
//! references.
#![allow(unsafe_code)]

mod arrival;
mod balance;
mod chain;
mod departures;
mod draft;
mod frame;
mod metadata;
pub(crate) mod note;
mod packet;
mod pool;
mod returns;
mod view;

use nocopy_proto::errno::ErrorCause;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU32 as PlainU32, AtomicU64 as PlainU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use balance::Balance;
pub use chain::Chain;
pub(crate) use departures::DepartureTimes;
pub use draft::{Draft, Drafts};
pub(crate) use frame::FrameRange;
pub use frame::{Frame, SharedFrame};
pub(crate) use metadata::{ArrivalMetadataSource, PacketOrigin, no_metadata_for_mode};
pub use packet::Packet;
pub(crate) use packet::PacketClaimer;
pub(crate) use pool::{Faults, FramePool, LentFramesOnClose, PoolDirection};

use crate::facts::io_error::convert_to_io_error;
use crate::sync::AtomicU32;
use crate::sys::memory::PageKind;
use crate::sys::memory::{Mapping, MappingError};
use crate::sys::packet::OutgoingBatch;
use crate::sys::xsk::Descriptor;
use returns::{FRAME_COUNT_MAX, ReturnList};

/// Bytes the kernel keeps free in front of every received packet (`XDP_PACKET_HEADROOM` of `linux/bpf.h`);
/// packets in frames made for sending start at the same offset, so a header can be put in front of either.
pub const PACKET_HEADROOM_BYTES: u32 = 256;

/// The most open pools of an area: one for each half of each port.
pub const POOL_COUNT_MAX: usize = 512;

/// The smallest frame (`XDP_UMEM_MIN_CHUNK_SIZE` of the kernel's `xdp_umem.c`).
const FRAME_BYTES_MIN: u32 = 2048;
/// Offsets and lengths inside a frame fit sixteen bits.
const FRAME_BYTES_MAX: u32 = 32768;

/// Why an area or a pool of it could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AreaError {
    /// The kernel or this library cannot use this frame size.
    #[error(
        "frame size {0} B: not possible; a frame must be a power of two from {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX} bytes; \
         use 2048 for MTU 1500 or 4096 for more"
    )]
    FrameBytes(u32),
    /// Frame count out of range.
    #[error("{0} frames: not possible; an area holds from 1 to {FRAME_COUNT_MAX} frames; ask for fewer")]
    FrameCount(u64),
    /// The headroom leaves no room for a packet.
    #[error(
        "headroom {headroom_bytes} B: too large; with the kernel's {PACKET_HEADROOM_BYTES} B it leaves no room in a frame of \
         {frame_bytes} B; ask for less headroom or larger frames"
    )]
    Headroom {
        /// Headroom asked for, in bytes.
        headroom_bytes: u32,
        /// Size of a frame.
        frame_bytes: u32,
    },
    /// There is not enough memory.
    #[error(
        "area of {bytes} B: the kernel gave no memory{cause}; ask for fewer or smaller frames, or free memory", cause = ErrorCause(.source))]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// The reason of `mmap` or `madvise`.
        source: io::Error,
    },
    /// The NUMA node has no memory for it.
    #[error(
        "NUMA node {node}: the kernel takes no memory from there{cause}; 'numactl --hardware' lists nodes, or leave \
         it out", cause = ErrorCause(.source))]
    NumaNode {
        /// The node asked for.
        node: u32,
        /// The reason of `mbind`.
        source: io::Error,
    },
    /// Too few frames are left for another pool.
    #[error("area of {total} frames: no pool of {wanted}; only {free} are free; make the area larger")]
    FramesExhausted {
        /// Frames wanted.
        wanted: u32,
        /// Frames not in any pool.
        free: u32,
        /// Frames in the area.
        total: u32,
    },
    /// [`POOL_COUNT_MAX`] pools are open.
    #[error(
        "area: no further pool; it has {POOL_COUNT_MAX} already, as many as are possible; close a port or make another area"
    )]
    PoolsExhausted,
}

convert_to_io_error!(AreaError {
    Self::FramesExhausted { .. } | Self::PoolsExhausted => io::ErrorKind::OutOfMemory,
    _ => io::ErrorKind::InvalidInput,
});

/// The sizes and settings of an area; see [`Area::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AreaConfig {
    /// Frames in the area.
    pub frame_count: u32,
    /// Bytes in a frame: a power of two from 2048 to 32768 (AF_XDP: at most a page).
    pub frame_bytes: u32,
    /// Bytes kept free in front of every packet, beyond the kernel's own [`PACKET_HEADROOM_BYTES`].
    pub headroom_bytes: u32,
    /// The NUMA node to allocate from, as long as it has memory; `None`: the node of the calling thread.
    pub numa_node: Option<u32>,
    /// Whether forked children share the memory. If false, it is not mapped in them, and touching it ends
    /// them. Shared memory is on transparent huge pages only if `transparent_hugepage/shmem_enabled` allows
    /// it.
    pub inherited: bool,
}

impl Default for AreaConfig {
    fn default() -> Self {
        Self { frame_count: 8192, frame_bytes: 2048, headroom_bytes: 0, numa_node: None, inherited: false }
    }
}

/// A block of memory cut into frames; a handle, cheap to clone.
///
/// The memory stays mapped until the last handle, port and frame is dropped.
///
/// Ports that share an area pass frames on to each other:
///
/// ```
/// use nocopy::{Area, Port, area::AreaConfig};
/// let area = Area::new(AreaConfig { frame_count: 16384, ..AreaConfig::default() })?;
/// let (mut left, mut right) = Port::memory_builder().area(&area).memory_pair()?;
/// left.sender().send_copy(b"hello")?;
/// left.sender().flush()?;
/// let frame = right.receiver().receive()?.next().expect("one packet").take();
/// left.sender().send(frame)?; // by another port of the same area: no byte is copied for that
/// left.sender().flush()?;
/// assert!(area.balance().is_balanced()); // each frame is in exactly one place
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Area {
    shared: Arc<SharedArea>,
}

impl Area {
    /// Maps an area, on huge pages if available; `explain` of a port reports the kind of pages.
    ///
    /// # Errors
    /// The configuration is invalid, or there is not enough memory.
    pub fn new(config: AreaConfig) -> Result<Self, AreaError> {
        let AreaConfig { frame_count, frame_bytes, headroom_bytes, numa_node, inherited } = config;
        if !frame_bytes.is_power_of_two() || !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&frame_bytes) {
            return Err(AreaError::FrameBytes(frame_bytes));
        }
        if frame_count == 0 || frame_count > FRAME_COUNT_MAX {
            return Err(AreaError::FrameCount(frame_count.into()));
        }
        let data_offset = PACKET_HEADROOM_BYTES.saturating_add(headroom_bytes);
        if data_offset >= frame_bytes {
            return Err(AreaError::Headroom { headroom_bytes, frame_bytes });
        }
        let bytes = frame_count as usize * frame_bytes as usize;
        let (memory, pages) =
            Mapping::for_area(bytes, numa_node, inherited).map_err(|refused| match refused {
                MappingError::Node(source) => AreaError::NumaNode { node: numa_node.unwrap_or(0), source },
                MappingError::Memory(source) => AreaError::Memory { bytes, source },
            })?;
        Ok(Self { shared: Arc::new(SharedArea::new(memory, pages, config)) })
    }

    /// The configuration in effect: as requested, but with the NUMA node of the first page (`None` on a
    /// kernel without NUMA).
    pub fn config(&self) -> &AreaConfig {
        &self.shared.config
    }

    /// The longest packet that fits a frame after the headroom.
    pub(crate) fn packet_bytes_max(&self) -> u32 {
        self.shared.packet_bytes_max()
    }

    #[cfg(feature = "message")]
    pub(crate) fn owns(&self, frame: &Frame) -> bool {
        std::ptr::eq(frame.shared.as_ptr(), Arc::as_ptr(&self.shared))
    }

    pub(crate) fn page_kind(&self) -> PageKind {
        self.shared.pages
    }

    /// Counts of all frames by state: exact while the halves are idle, approximate while they run.
    pub fn balance(&self) -> Balance {
        self.shared.balance()
    }

    /// Start and length of the memory.
    pub(crate) fn memory_range(&self) -> (NonNull<u8>, usize) {
        (self.shared.memory.base(), self.shared.frame_count as usize * self.shared.frame_bytes as usize)
    }

    /// Does the kernel's work in a memory port: copies a packet from a frame lent to send into a frame lent
    /// to receive, and returns its new descriptor. `None` if a state word or the descriptor is wrong.
    pub(crate) fn copy_packet(&self, packet: Descriptor, to: &Self, address: u64) -> Option<Descriptor> {
        let from_start = self.shared.locate(packet.address, packet.len)?;
        // No overflow: the offset is less than a frame. `locate` refuses an address outside of the area.
        let target = address - address % u64::from(to.shared.frame_bytes) + u64::from(to.shared.data_offset);
        let to_start = to.shared.locate(target, packet.len)?;
        // SAFETY: both ranges lie inside frames (`locate`) that are lent, so no half touches them; two lent
        // frames never overlap, and a frame is not lent both ways at once.
        unsafe { to_start.copy_from_nonoverlapping(from_start, packet.len as usize) };
        Some(Descriptor { address: target, ..packet })
    }

    /// Adds a packet that is lent to a packet socket to a batch of it: false if the batch is full, `None` if
    /// the descriptors are wrong. The batch is sent and cleared before the frames are returned.
    pub(crate) fn add_lent_to_batch(&self, pieces: &[Descriptor], batch: &mut OutgoingBatch) -> Option<bool> {
        if !pieces.iter().all(|piece| self.shared.locate(piece.address, piece.len).is_some()) {
            return None;
        }
        let pointers = pieces.iter().map(|piece| {
            let data = self.shared.locate(piece.address, piece.len).expect("looked at just now");
            (data.as_ptr().cast_const(), piece.len as usize)
        });
        // SAFETY: the pieces lie inside frames (`locate`) that are lent, so no half touches them until they
        // are given back.
        Some(unsafe { batch.push(pointers) })
    }

    pub(crate) fn pool(&self, half: PoolDirection, frames: u32) -> Result<FramePool, AreaError> {
        FramePool::take_from_area(Arc::clone(&self.shared), half, frames)
    }
}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AreaConfig { frame_count: frames, frame_bytes: bytes, .. } = self.config();
        f.debug_struct("Area")
            .field("frame_count", frames)
            .field("frame_bytes", bytes)
            .finish_non_exhaustive()
    }
}

/// Number of a pool inside its area; 0 means none.
type PoolId = u16;

/// Instead of a borrower: a zero-copy device may still write to the frame, so it is never used again.
const RETIRED: PoolId = PoolId::MAX;

/// Added to the borrower: after sending the frame returns to the program, not to its pool
/// ([`FramePool::keep`]). Larger than any pool number.
const KEPT: PoolId = 1 << 14;
const _: () = assert!(POOL_COUNT_MAX < KEPT as usize);

/// The state word of a frame: its pool, and its borrower.
const fn packed_state(owner: PoolId, lent_to: PoolId) -> u32 {
    (owner as u32) << 16 | lent_to as u32
}

const fn owner_in_state(state: u32) -> PoolId {
    (state >> 16) as PoolId
}

const fn borrower_in_state(state: u32) -> PoolId {
    // For a retired frame the result is larger than any pool's number.
    state as PoolId & !KEPT
}

const fn is_kept(state: u32) -> bool {
    state as PoolId & KEPT != 0
}

/// State shared by the halves, frames and handles of one area.
struct SharedArea {
    memory: Mapping,
    pages: PageKind,
    config: AreaConfig,
    // The two fields that every access to a frame needs.
    frame_count: u32,
    frame_bytes: u32,
    frame_shift: u32,
    /// Where packets start inside a frame.
    data_offset: u16,
    /// A [`packed_state`] word for each frame. Only the owner of a frame writes its word, and ownership moves
    /// with synchronisation (by rings, return lists, or whatever moved the `Frame`), so relaxed accesses
    /// suffice.
    states: Box<[PlainU32]>,
    /// The links of all return lists; a frame is on one list at the most.
    links: Box<[AtomicU32]>,
    /// Indexed by pool number minus one.
    pools: Box<[PoolRecord]>,
    state: Mutex<AreaState>,
}

#[repr(align(128))]
struct PoolRecord {
    returns: ReturnList,
    ledger: FrameCounts,
}

/// A half's account of its frames, stored by its owner once per batch so that any thread can add up the area.
#[derive(Default)]
struct FrameCounts {
    /// Frames in the half's own cache.
    free: PlainU64,
    /// Frames the kernel holds.
    lent: PlainU64,
    /// Frames that left this half, for the program or for other pools' return lists, minus frames that came
    /// back to it, from the program or from its own list; negative for a half that only sends what others
    /// received.
    in_use: AtomicI64,
    /// Whether `lent` counts frames lent to send (1) or to receive (0).
    sends: PlainU32,
}

struct AreaState {
    unassigned: Vec<u32>,
    /// Lent in zero-copy mode when their port closed: a device may still write to them, so they are never
    /// used again while the area exists.
    retired: u32,
    /// For each pool number: whether a half uses it.
    open: Vec<bool>,
    /// For each closed pool: its frames still in use. The number is reused when there are none.
    frames_in_use: Vec<u32>,
    /// The sum of `in_use` of closed pools, less the frames that returned since.
    in_use: i64,
}

impl SharedArea {
    fn new(memory: Mapping, pages: PageKind, config: AreaConfig) -> Self {
        let count = config.frame_count;
        let data_offset = PACKET_HEADROOM_BYTES + config.headroom_bytes;
        assert!(
            memory.bytes() >= count as usize * config.frame_bytes as usize,
            "area shorter than its frames"
        );
        Self {
            config: AreaConfig { numa_node: memory.first_page_node(), ..config },
            memory,
            pages,
            frame_count: count,
            frame_bytes: config.frame_bytes,
            frame_shift: config.frame_bytes.trailing_zeros(),
            data_offset: u16::try_from(data_offset).expect("less than a frame"),
            states: (0..count).map(|_| PlainU32::new(packed_state(0, 0))).collect(),
            links: (0..count).map(|_| AtomicU32::new(0)).collect(),
            pools: (0..POOL_COUNT_MAX)
                .map(|_| PoolRecord { returns: ReturnList::new(), ledger: FrameCounts::default() })
                .collect(),
            state: Mutex::new(AreaState {
                unassigned: (0..count).rev().collect(),
                retired: 0,
                open: vec![false; POOL_COUNT_MAX],
                frames_in_use: vec![0; POOL_COUNT_MAX],
                in_use: 0,
            }),
        }
    }

    /// The longest packet that fits a frame after the headroom.
    #[inline]
    fn packet_bytes_max(&self) -> u32 {
        self.frame_bytes - u32::from(self.data_offset)
    }

    #[inline]
    fn frame_pointer(&self, frame: u32, start: u16) -> NonNull<u8> {
        debug_assert!(frame < self.frame_count && u32::from(start) <= self.frame_bytes);
        // SAFETY: frame numbers are below the count and starts within a frame wherever they are made
        // (`AreaView::start`, `Frame`'s own edits), and the mapping covers all frames (`SharedArea::new`).
        unsafe { self.memory.base().add(((frame as usize) << self.frame_shift) + start as usize) }
    }

    /// Pointer to `len` bytes at an address, if they lie inside one frame.
    fn locate(&self, address: u64, len: u32) -> Option<NonNull<u8>> {
        let frame =
            u32::try_from(address >> self.frame_shift).ok().filter(|frame| *frame < self.frame_count)?;
        let start = u32::try_from(address & u64::from(self.frame_bytes - 1)).ok()?;
        let fits = start.checked_add(len)? <= self.frame_bytes;
        fits.then(|| self.frame_pointer(frame, u16::try_from(start).expect("less than a frame")))
    }

    fn pool_record(&self, pool: PoolId) -> &PoolRecord {
        &self.pools[usize::from(pool) - 1]
    }

    /// Ignores poisoning, because each update of the counts is a single step.
    fn lock_state(&self) -> MutexGuard<'_, AreaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn state_word(&self, frame: u32) -> &PlainU32 {
        debug_assert!(frame < self.frame_count);
        // SAFETY: frame numbers are below the count wherever they are made (`AreaView::frame_at`, the pools'
        // own), and there is a word for each frame.
        unsafe { self.states.get_unchecked(frame as usize) }
    }

    #[inline]
    fn state(&self, frame: u32) -> u32 {
        self.state_word(frame).load(Relaxed)
    }

    #[inline]
    fn set_state(&self, frame: u32, state: u32) {
        self.state_word(frame).store(state, Relaxed);
    }

    fn balance(&self) -> Balance {
        // Held to the end, so that no pool opens or closes while its terms are read.
        let state = self.lock_state();
        let mut balance = Balance {
            total: self.frame_count,
            free: state.unassigned.len() as u64,
            in_use: state.in_use,
            retired: state.retired,
            ..Balance::default()
        };
        for (record, _) in self.pools.iter().zip(&state.open).filter(|(_, open)| **open) {
            let ledger = &record.ledger;
            // Frames on the list are free, but the pool's own account has them as the program's until it
            // fetches them.
            let waiting = record.returns.count();
            balance.free += ledger.free.load(Relaxed) + u64::from(waiting);
            balance.in_use += ledger.in_use.load(Relaxed) - i64::from(waiting);
            let sends = ledger.sends.load(Relaxed) == 1;
            let lent = if sends { &mut balance.lent_tx } else { &mut balance.lent_rx };
            *lent += ledger.lent.load(Relaxed);
        }
        balance
    }
}

/// Returns a frame that is not dropped by its pool's half: to the pool's return list or, if the pool is
/// closed, to the area's unassigned frames.
///
/// # Safety
/// `shared` must be valid, and `frame` owned by the caller, who gives it up. If the frame's pool is closed,
/// the frame's reference to the area is released, so `shared` may be invalid afterwards.
unsafe fn return_frame_to_pool(shared: NonNull<SharedArea>, frame: u32) {
    // SAFETY: valid by contract: either the frame's pool is open and holds a count, or the frame does.
    let area = unsafe { shared.as_ref() };
    // Not 0: only unassigned and retired frames have no pool, and those are never given up by a caller.
    let owner = owner_in_state(area.state(frame));
    if area.pool_record(owner).returns.push(&area.links, frame).is_ok() {
        return; // `area` must not be touched any more: the pool may close and take the last count with it.
    }
    {
        let mut guard = area.lock_state();
        area.set_state(frame, packed_state(0, 0));
        guard.unassigned.push(frame);
        // No underflow: the list refuses frames only after closing, which counted this one under the same
        // lock.
        guard.frames_in_use[usize::from(owner) - 1] -= 1;
        guard.in_use -= 1;
    }
    // SAFETY: closing the pool gave this frame one count (`FramePool::close`), which ends here.
    unsafe { Arc::decrement_strong_count(shared.as_ptr()) };
}

#[cfg(test)]
mod tests;
