//! Memory for units that come over streams (docs/protocol.md §16.3).

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use nocopy_proto::message::framing::CHUNK_HEADER_BYTES_MAX;
use nocopy_proto::message::{are_within_shares, network_of};

use crate::memory::pool::{Buffer, BufferMut, Pool};
use crate::message::HEADER_BYTES;
use crate::message::arrivals::Lone;
use crate::message::carrier::Received;
use crate::message::placing::{Posted, Registered, Slot};

/// Bytes of a buffer for short units, one or many.
pub(super) const CHUNK_BYTES: usize = 256 << 10;
/// A unit that arrived alone and is no longer than this is copied into a buffer of this length.
pub(super) const SMALL_BYTES: usize = 2 << 10;
const SMALL_BUFFERS: u32 = 1024;
/// Bytes of all buffers of either kind, at least; memory that was never used costs nothing.
const POOL_BYTES_MIN: usize = 16 << 20;
/// Buffers of either kind, at least.
const BUFFERS_MIN: usize = 4;
/// The longest unit of several messages, without its header.
pub(super) const UNIT_BYTES_MAX: usize = CHUNK_BYTES - HEADER_BYTES;

/// Buffers into which units are received.
#[derive(Debug)]
pub(super) struct Memory {
    /// For short units that arrived alone.
    small: Buffers,
    chunks: Buffers,
    /// Each holds the longest unit.
    long: Buffers,
    /// One more, for a unit that everything waits for.
    reserve: Buffers,
    /// The address for which memory is taken now.
    from: IpAddr,
    /// The longest unit, with its header.
    unit_bytes_max: usize,
    /// Buffers for long messages, if there ever were some.
    posted: Option<Arc<Posted>>,
    /// The addresses whose messages are being read into them: those to which something else refers.
    placing: Vec<Arc<IpAddr>>,
    /// Memory that peers write to, if there ever was some.
    registered: Option<Arc<Registered>>,
    in_place: InPlace,
}

/// A unit that is read where it lies.
#[derive(Debug, Default)]
struct InPlace {
    /// The next one may be.
    may_read: bool,
    lone: Option<Lone>,
    unit: Option<Received>,
}

/// Buffers of one length. `lent` keeps those to which parts refer, so that they are reused when the parts are
/// dropped, without an allocation.
#[derive(Debug)]
struct Buffers {
    pool: Pool,
    lent: Vec<Arc<Buffer>>,
    /// By the number of a buffer: for which address it was taken, if it was not free when that was last seen.
    takers: Vec<Option<IpAddr>>,
    /// By how many more than half of them are free at least.
    plenty: isize,
}

impl Buffers {
    fn new(pool: Pool) -> Self {
        let total = pool.total();
        Self { pool, lent: Vec::new(), takers: vec![None; total], plenty: (total - total / 2) as isize }
    }

    /// Takes an unused buffer in its whole length, if it is within the share of an address.
    fn take(&mut self, from: IpAddr) -> Option<Arc<Buffer>> {
        if self.plenty > 0 || self.has_share(from) { self.take_any(from) } else { None }
    }

    /// The same, whatever the address has.
    fn take_any(&mut self, from: IpAddr) -> Option<Arc<Buffer>> {
        // The most recently used buffer is likely to be in a cache.
        let mut buffer = match self.lent.iter().rposition(is_free) {
            Some(place) => self.lent.swap_remove(place),
            None => Arc::new(self.pool.take()?.freeze()),
        };
        // Nothing else refers to it, so nothing can from here on.
        own(&mut buffer).resize(self.pool.buffer_bytes());
        self.takers[self.pool.index_of(&buffer)?] = Some(from);
        self.plenty -= 1;
        Some(buffer)
    }

    /// Takes back a buffer that is not used.
    fn give_back(&mut self, buffer: Arc<Buffer>) {
        self.lent.push(buffer);
        self.plenty += 1;
    }

    fn has_free(&self) -> bool {
        self.pool.available() > 0 || self.lent.iter().any(is_free)
    }

    /// Whether more than half of the buffers are free, or one more is within the shares of an address and its
    /// network (docs/protocol.md §8.1).
    #[cold]
    fn has_share(&mut self, from: IpAddr) -> bool {
        let Self { pool, lent, takers, plenty } = self;
        pool.for_each_available(|number| takers[number] = None);
        for number in lent.iter().filter(|buffer| is_free(buffer)).filter_map(|buffer| pool.index_of(buffer))
        {
            takers[number] = None;
        }
        let count = |of: &dyn Fn(IpAddr) -> bool| takers.iter().flatten().filter(|taker| of(**taker)).count();
        let free = pool.total() - count(&|_| true);
        *plenty = free as isize - (pool.total() / 2) as isize;
        let network = network_of(from);
        *plenty > 0
            || are_within_shares(
                count(&|taker| taker == from),
                count(&|taker| network_of(taker) == network),
                free,
            )
    }
}

/// Whether no part refers to a buffer.
fn is_free(buffer: &Arc<Buffer>) -> bool {
    Arc::strong_count(buffer) == 1
}

impl Memory {
    /// For messages of up to `message_bytes_max`.
    pub(super) fn new(message_bytes_max: usize) -> io::Result<Self> {
        let count = |bytes: usize| (POOL_BYTES_MIN / bytes).max(BUFFERS_MIN) as u32;
        Self::of_buffers(message_bytes_max, SMALL_BUFFERS, count)
    }

    /// With so few buffers that units wait for them.
    #[cfg(any(feature = "fuzzing", test))]
    pub(super) fn scarce(message_bytes_max: usize) -> io::Result<Self> {
        Self::of_buffers(message_bytes_max, 2, |_| 1)
    }

    pub(super) fn of_buffers(
        message_bytes_max: usize,
        small: u32,
        count: impl Fn(usize) -> u32,
    ) -> io::Result<Self> {
        let unit_bytes_max = HEADER_BYTES + (message_bytes_max + CHUNK_HEADER_BYTES_MAX).max(UNIT_BYTES_MAX);
        Ok(Self {
            small: Buffers::new(Pool::with_shared_pages(small, SMALL_BYTES)?),
            chunks: Buffers::new(Pool::new(count(CHUNK_BYTES), CHUNK_BYTES)?),
            long: Buffers::new(Pool::new(count(unit_bytes_max), unit_bytes_max)?),
            reserve: Buffers::new(Pool::new(1, unit_bytes_max)?),
            from: Ipv4Addr::UNSPECIFIED.into(),
            unit_bytes_max,
            posted: None,
            placing: Vec::new(),
            registered: None,
            in_place: InPlace::default(),
        })
    }

    #[inline]
    pub(super) fn read_in_place(&mut self, may_read: bool) {
        self.in_place.unit = None;
        self.in_place.may_read = may_read;
    }

    #[inline]
    pub(super) fn take_lone(&mut self) -> Option<Lone> {
        self.in_place.lone.take()
    }

    #[inline]
    pub(super) fn held(&mut self) -> &mut Option<Received> {
        &mut self.in_place.unit
    }

    /// Whether a unit is taken to be read in place; `read` finds its message.
    #[inline]
    pub(super) fn takes_in_place(
        &mut self,
        unit: &Arc<Buffer>,
        read: impl FnOnce(&[u8]) -> Option<Lone>,
    ) -> bool {
        let InPlace { may_read, lone, unit: held } = &mut self.in_place;
        if *may_read {
            *lone = read(unit);
            *may_read = lone.is_none();
            if lone.is_some() {
                *held = Some(Received::Unit(Part::new(unit, 0, unit.len())));
                return true;
            }
        }
        false
    }

    /// From here on messages are read into posted buffers, too.
    pub(super) fn post_to(&mut self, posted: &Arc<Posted>) {
        self.posted.get_or_insert_with(|| Arc::clone(posted));
    }

    /// From here on puts are read into registered memory, too.
    pub(super) fn put_to(&mut self, registered: &Arc<Registered>) {
        self.registered.get_or_insert_with(|| Arc::clone(registered));
    }

    #[inline]
    pub(super) fn registered(&self) -> Option<&Arc<Registered>> {
        self.registered.as_ref()
    }

    /// Posted buffers, if there are any now.
    #[inline]
    pub(super) fn posted(&self) -> Option<&Arc<Posted>> {
        self.posted.as_ref().filter(|posted| posted.has_any())
    }

    /// A posted buffer for a message of so many bytes, and what counts it for the address while it is read,
    /// if there is one within the shares of the address and its network.
    pub(super) fn take_posted(&mut self, bytes: usize) -> Option<(Slot, Arc<IpAddr>)> {
        let posted = self.posted.as_ref()?;
        let is_used = |share: &&Arc<IpAddr>| Arc::strong_count(share) > 1;
        let count = |of: &dyn Fn(IpAddr) -> bool| {
            self.placing.iter().filter(is_used).filter(|share| of(***share)).count()
        };
        let (from, network) = (self.from, network_of(self.from));
        let of_network = count(&|ip| network_of(ip) == network);
        if !are_within_shares(count(&|ip| ip == from), of_network, posted.count()) {
            return None;
        }
        let slot = posted.take(bytes)?;
        let unused = self.placing.iter().position(|share| !is_used(&share));
        let mut share = unused.map_or_else(|| Arc::new(from), |unused| self.placing.swap_remove(unused));
        *Arc::get_mut(&mut share).expect("nothing else refers to it") = from;
        self.placing.push(Arc::clone(&share));
        Some((slot, share))
    }

    /// Whether a unit may have so many bytes, with its header.
    pub(super) fn allows(&self, bytes: usize) -> bool {
        bytes <= self.unit_bytes_max
    }

    /// From here on memory is taken for an address.
    #[inline]
    pub(super) fn is_for(&mut self, from: IpAddr) {
        self.from = from;
    }

    /// A buffer for so many bytes, if one is within the share of the address.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Arc<Buffer>> {
        let chunk = if bytes <= CHUNK_BYTES { self.chunks.take(self.from) } else { None };
        chunk.or_else(|| self.long.take(self.from))
    }

    /// Whether the reserve is free.
    pub(super) fn has_reserve(&self) -> bool {
        self.reserve.has_free()
    }

    /// The buffer for a unit that everything waits for.
    pub(super) fn take_reserve(&mut self) -> Option<Arc<Buffer>> {
        self.reserve.take_any(self.from)
    }

    /// Copies a few bytes into a short buffer, if one is free.
    pub(super) fn small_copy(&mut self, bytes: &[u8]) -> Option<Arc<Buffer>> {
        let mut small = self.small.take(self.from)?;
        own(&mut small).fill(bytes).ok()?;
        Some(small)
    }

    /// Takes back a buffer that is not used.
    pub(super) fn give_back(&mut self, buffer: Arc<Buffer>) {
        self.of(&buffer).give_back(buffer);
    }

    /// Lends a buffer to parts.
    pub(super) fn lend(&mut self, buffer: &Arc<Buffer>) {
        self.of(buffer).lent.push(Arc::clone(buffer));
    }

    fn of(&mut self, buffer: &Buffer) -> &mut Buffers {
        let Self { small, chunks, long, reserve, .. } = self;
        match buffer {
            _ if chunks.pool.owns(buffer) => chunks,
            _ if long.pool.owns(buffer) => long,
            _ if reserve.pool.owns(buffer) => reserve,
            _ => small,
        }
    }
}

/// A buffer of a pool that nothing else refers to, to be written.
pub(super) fn own(buffer: &mut Arc<Buffer>) -> &mut BufferMut {
    let buffer = Arc::get_mut(buffer).expect("no part refers to it");
    buffer.writable().expect("memory of a pool")
}

/// A piece of bytes received over a stream. Its memory is free when the last piece is dropped.
#[derive(Debug, Clone)]
pub(in crate::message) struct Part {
    buffer: Arc<Buffer>,
    start: u32,
    end: u32,
}

impl Part {
    pub(super) fn new(buffer: &Arc<Buffer>, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= buffer.len(), "a part of the buffer");
        Self { buffer: Arc::clone(buffer), start: start as u32, end: end as u32 }
    }

    /// The same bytes, if they are few, without the memory for many in which they lie.
    pub(super) fn without_much_memory(self) -> Self {
        if self.has_much_memory() || self.buffer.len() <= SMALL_BYTES {
            return self;
        }
        let copy = Arc::new(Buffer::from(self.as_ref().to_vec()));
        Self::new(&copy, 0, copy.len())
    }

    /// Whether the bytes are many.
    pub(super) fn has_much_memory(&self) -> bool {
        self.as_ref().len() > SMALL_BYTES
    }
}

impl AsRef<[u8]> for Part {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.start as usize..self.end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address in a network.
    fn ip(network: u16, host: u16) -> IpAddr {
        [0x2001, 0xdb8, 0, network, 0, 0, 0, host].into()
    }

    /// Takes buffers for an address while it gets some, up to 100.
    fn take_all(buffers: &mut Buffers, from: IpAddr) -> Vec<Arc<Buffer>> {
        std::iter::from_fn(|| buffers.take(from)).take(100).collect()
    }

    fn buffers(count: u32) -> Buffers {
        Buffers::new(Pool::new(count, 4096).unwrap())
    }

    #[test]
    fn an_address_leaves_buffers_to_others() {
        let mut buffers = buffers(64);
        let mut taken: Vec<_> = (1..=8).map(|network| take_all(&mut buffers, ip(network, 1))).collect();
        assert!(taken.iter().map(Vec::len).eq([32, 16, 8, 4, 2, 1, 1, 0]));
        taken[0].truncate(31);
        assert!(buffers.take(ip(1, 1)).is_none() && buffers.take(ip(2, 1)).is_none(), "they have some");
        assert!(buffers.take(ip(9, 1)).is_some());
    }

    #[test]
    fn a_network_leaves_a_quarter_of_the_buffers() {
        let mut buffers = buffers(64);
        let of_one: Vec<_> = (1..=9).flat_map(|host| take_all(&mut buffers, ip(1, host))).collect();
        assert_eq!((of_one.len(), take_all(&mut buffers, ip(2, 1)).len()), (48, 8));
    }

    /// Buffers count for whom they were taken until nothing refers to them, whatever became of them.
    #[test]
    fn buffers_are_an_addresss_until_they_are_free() {
        let mut buffers = buffers(8);
        let (one, other) = (ip(1, 1), ip(2, 1));
        for _ in 0..3 {
            let mut taken = take_all(&mut buffers, one);
            assert_eq!(taken.len(), 4);
            buffers.give_back(taken.pop().unwrap());
            taken[..2].iter().for_each(|buffer| buffers.lent.push(Arc::clone(buffer)));
            assert_eq!(take_all(&mut buffers, one).len(), 1);
            assert_eq!(take_all(&mut buffers, other).len(), 3, "the given and the lent ones count");
        }
    }

    #[test]
    fn buffers_that_are_not_used_cost_no_share() {
        let mut buffers = buffers(8);
        let _kept: Vec<_> = take_all(&mut buffers, ip(1, 1));
        for _ in 0..100 {
            let buffer = buffers.take(ip(2, 1)).expect("it has none");
            buffers.give_back(buffer);
        }
        assert!(buffers.take(ip(1, 1)).is_none());
    }

    /// An address that leaves its messages incomplete leaves posted buffers to others.
    #[test]
    fn an_address_leaves_posted_buffers_to_others() {
        const BYTES: usize = 8 << 10;
        let (pool, posted) = (Pool::new(8, BYTES).unwrap(), Arc::<Posted>::default());
        (0..8).for_each(|_| posted.post(pool.take().unwrap()));
        let mut memory = Memory::scarce(BYTES).unwrap();
        memory.post_to(&posted);
        let mut take_all = |network| {
            memory.is_for(ip(network, 1));
            let taken: Vec<_> = std::iter::from_fn(|| memory.take_posted(BYTES)).collect();
            taken
        };
        let mut taken: Vec<_> = (1..=4).map(&mut take_all).collect();
        assert!(taken.iter().map(Vec::len).eq([4, 2, 1, 1]));
        assert!(take_all(5).is_empty());
        // Complete ones do not count: the program has them.
        let (complete, _) = taken[0].drain(..).unzip::<_, _, Vec<_>, Vec<_>>();
        assert!(take_all(1).is_empty() && pool.available() == 0);
        drop(complete);
        assert_eq!(take_all(1).len(), 2);
    }

    #[test]
    fn the_reserve_is_of_one_at_a_time() {
        let mut memory = Memory::scarce(1000).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| memory.take(100)).collect();
        assert!(taken.len() == 2 && memory.has_reserve());
        let reserve = memory.take_reserve().unwrap();
        assert!(!memory.has_reserve() && memory.take_reserve().is_none());
        memory.give_back(reserve);
        assert!(memory.has_reserve() && memory.take(100).is_none());
    }
}
