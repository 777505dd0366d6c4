//! Memory that peers may write to (docs/protocol.md §17.2): the regions, their peers, and checks of puts.

use std::io;
use std::ops::Range;

use super::Peer;
use crate::wire::field::Field;

/// Bytes of the header of a put, and of an answer. No message on a connection for puts is shorter.
pub const PUT_HEADER_BYTES: usize = 16;

const DONE: u32 = 0;
const NO_REGION: u32 = 1;
const OUT_OF_RANGE: u32 = 2;

type Index = Field<0, 4>;
type Generation = Field<4, 4>;
type Long = Field<8, 8>;
type Status = Field<8, 4>;

/// The name of memory that one peer may write to. It is the same at both ends, and crosses in a message as 16
/// bytes.
///
/// ```
/// use nocopy_proto::message::Region;
/// let told = [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 16, 0];
/// let region = Region::from(told);
/// assert_eq!((region.bytes, <[u8; 16]>::from(region)), (4096, told));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    index: u32,
    generation: u32,
    /// Its length.
    pub bytes: u64,
}

impl From<[u8; 16]> for Region {
    fn from(told: [u8; 16]) -> Self {
        let (index, generation) = (Index::number(&told), Generation::number(&told));
        Self { index, generation, bytes: Long::number(&told) }
    }
}

impl From<Region> for [u8; 16] {
    fn from(region: Region) -> Self {
        let mut told = [0; 16];
        Index::put_number(&mut told, region.index);
        Generation::put_number(&mut told, region.generation);
        Long::put_number(&mut told, region.bytes);
        told
    }
}

/// Why a put was not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutRefusal {
    /// There is no such region for this end, or it was withdrawn.
    #[error("the peer has no such region for this endpoint, or has withdrawn it; ask for another one")]
    NoRegion,
    /// The bytes do not lie within the region.
    #[error("the bytes do not lie within the region; put fewer, or elsewhere")]
    OutOfRange,
    /// The connection for puts was lost before the answer came: the bytes may have been written or not.
    #[error("no answer came; the bytes may have been written or not, and can be put again")]
    Unknown,
}

impl From<PutRefusal> for io::Error {
    /// An error of a matching kind, from which `get_ref` returns the refusal.
    fn from(refusal: PutRefusal) -> Self {
        let kind = match refusal {
            PutRefusal::NoRegion => io::ErrorKind::NotFound,
            PutRefusal::OutOfRange => io::ErrorKind::InvalidInput,
            PutRefusal::Unknown => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, refusal)
    }
}

/// The header of a put, which precedes its bytes in a request: where it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutHeader {
    index: u32,
    generation: u32,
    /// The first byte to write, from the start of the region.
    pub offset: u64,
}

impl PutHeader {
    /// A header for a put that begins at `offset`.
    pub fn new(region: Region, offset: u64) -> Self {
        Self { index: region.index, generation: region.generation, offset }
    }

    /// Reads a header; any bytes are valid.
    pub fn parse(bytes: &[u8; PUT_HEADER_BYTES]) -> Self {
        let (index, generation) = (Index::number(bytes), Generation::number(bytes));
        Self { index, generation, offset: Long::number(bytes) }
    }

    /// The header as bytes.
    pub fn bytes(&self) -> [u8; PUT_HEADER_BYTES] {
        Region { index: self.index, generation: self.generation, bytes: self.offset }.into()
    }
}

/// The answer to a put: the bytes of a response.
pub fn put_answer(result: Result<(), PutRefusal>) -> [u8; PUT_HEADER_BYTES] {
    let mut bytes = [0; PUT_HEADER_BYTES];
    let status = match result {
        Ok(()) => DONE,
        Err(PutRefusal::NoRegion | PutRefusal::Unknown) => NO_REGION,
        Err(PutRefusal::OutOfRange) => OUT_OF_RANGE,
    };
    Status::put_number(&mut bytes, status);
    bytes
}

/// Reads the answer to a put.
///
/// # Errors
/// The put was refused, or the answer is not known to this version.
pub fn parse_put_answer(answer: &[u8]) -> Result<(), PutRefusal> {
    let bytes = answer.first_chunk::<PUT_HEADER_BYTES>().ok_or(PutRefusal::Unknown)?;
    match Status::number(bytes) {
        DONE => Ok(()),
        NO_REGION => Err(PutRefusal::NoRegion),
        OUT_OF_RANGE => Err(PutRefusal::OutOfRange),
        _ => Err(PutRefusal::Unknown),
    }
}

/// The regions of an endpoint; `M` is the memory of one.
#[derive(Debug)]
pub struct Regions<M> {
    slots: Vec<Slot<M>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<M> {
    /// The generation of the present region, or of the next one.
    generation: u32,
    registered: Option<Registered<M>>,
}

#[derive(Debug)]
struct Registered<M> {
    writer: Peer,
    bytes: u64,
    memory: M,
}

impl<M> Default for Regions<M> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<M> Regions<M> {
    /// Whether no region is registered.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| slot.registered.is_none())
    }

    /// Registers `bytes` bytes of memory, to which only `writer` may write.
    pub fn register(&mut self, writer: Peer, memory: M, bytes: u64) -> Region {
        let registered = Some(Registered { writer, bytes, memory });
        let index = self.free.pop().unwrap_or(self.slots.len() as u32);
        match self.slots.get_mut(index as usize) {
            Some(slot) => slot.registered = registered,
            None => self.slots.push(Slot { generation: 1, registered }),
        }
        Region { index, generation: self.slots[index as usize].generation, bytes }
    }

    /// Ends a region, and returns its memory; `None` if it was withdrawn before.
    pub fn withdraw(&mut self, region: Region) -> Option<M> {
        self.get(region)?;
        let slot = &mut self.slots[region.index as usize];
        // A place without further generations is not used again.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(region.index);
        }
        slot.registered.take().map(|registered| registered.memory)
    }

    fn get(&self, region: Region) -> Option<&Registered<M>> {
        let slot = self.slots.get(region.index as usize)?;
        slot.registered.as_ref().filter(|_| slot.generation == region.generation)
    }

    /// The memory of a region that is registered.
    pub fn memory(&self, region: Region) -> Option<&M> {
        self.get(region).map(|registered| &registered.memory)
    }

    /// Finds the place for `bytes` bytes of a peer's put: the region, its memory, and the range in it.
    ///
    /// # Errors
    /// There is no such region for this peer, or the bytes do not lie within it.
    pub fn place(
        &mut self,
        from: Peer,
        put: &PutHeader,
        bytes: usize,
    ) -> Result<(Region, &mut M, Range<usize>), PutRefusal> {
        let slot = self.slots.get_mut(put.index as usize).filter(|slot| slot.generation == put.generation);
        let registered = slot.and_then(|slot| slot.registered.as_mut());
        let registered =
            registered.filter(|registered| registered.writer == from).ok_or(PutRefusal::NoRegion)?;
        let end = put.offset.checked_add(bytes as u64).filter(|end| *end <= registered.bytes);
        let end = end.ok_or(PutRefusal::OutOfRange)?;
        let region = Region { index: put.index, generation: put.generation, bytes: registered.bytes };
        Ok((region, &mut registered.memory, put.offset as usize..end as usize))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WRITER: Peer = Peer { index: 1, generation: 2 };
    const OTHER: Peer = Peer { index: 1, generation: 3 };

    fn place(
        regions: &mut Regions<char>,
        from: Peer,
        put: PutHeader,
        bytes: usize,
    ) -> Result<char, PutRefusal> {
        regions.place(from, &put, bytes).map(|(_, memory, _)| *memory)
    }

    #[test]
    fn only_the_writer_of_a_registered_region_writes() {
        let mut regions = Regions::default();
        let [a, b] = ['a', 'b'].map(|memory| regions.register(WRITER, memory, 100));
        let at = |region| PutHeader::new(region, 0);
        assert_eq!(place(&mut regions, WRITER, at(a), 100), Ok('a'));
        assert_eq!(place(&mut regions, WRITER, at(b), 100), Ok('b'));
        assert_eq!(place(&mut regions, OTHER, at(a), 1), Err(PutRefusal::NoRegion));
        assert_eq!((regions.withdraw(a), regions.withdraw(a)), (Some('a'), None));
        assert_eq!(place(&mut regions, WRITER, at(a), 1), Err(PutRefusal::NoRegion));
        let again = regions.register(WRITER, 'c', 100);
        assert_eq!(again.index, a.index, "its place is used again");
        assert_eq!(place(&mut regions, WRITER, at(a), 1), Err(PutRefusal::NoRegion), "by another generation");
        assert_eq!(place(&mut regions, WRITER, at(again), 1), Ok('c'));
        assert_eq!((regions.memory(a), regions.memory(again)), (None, Some(&'c')));
        assert!(regions.withdraw(b).is_some() && regions.withdraw(again).is_some() && regions.is_empty());
    }

    #[test]
    fn a_place_is_left_before_its_generations_repeat() {
        let mut regions = Regions::default();
        let first = regions.register(WRITER, 'a', 1);
        regions.slots[0].generation = u32::MAX;
        let last = Region { generation: u32::MAX, ..first };
        assert_eq!(regions.withdraw(last), Some('a'));
        assert_ne!(regions.register(WRITER, 'b', 1).index, first.index);
        assert_eq!(place(&mut regions, WRITER, PutHeader::new(last, 0), 1), Err(PutRefusal::NoRegion));
    }

    proptest! {
        #[test]
        fn what_is_written_lies_within(length in 0u64..1_000, offset: u64, small in 0u64..1_100, bytes in 0usize..1_100) {
            let mut regions = Regions::default();
            let region = regions.register(WRITER, (), length);
            for offset in [offset, small, u64::MAX - small] {
                let placed = regions.place(WRITER, &PutHeader::new(region, offset), bytes);
                let lies_within = u128::from(offset) + bytes as u128 <= u128::from(length);
                match placed {
                    Ok((_, (), range)) => {
                        prop_assert!(lies_within && range == (offset as usize..offset as usize + bytes));
                    }
                    Err(refusal) => prop_assert!(!lies_within && refusal == PutRefusal::OutOfRange),
                }
            }
        }

        #[test]
        fn any_words_come_back(told: [u8; 16]) {
            prop_assert_eq!(<[u8; 16]>::from(Region::from(told)), told);
            prop_assert_eq!(PutHeader::parse(&told).bytes(), told);
            let _ = parse_put_answer(&told);
        }
    }

    #[test]
    fn answers_come_back() {
        let mut regions = Regions::default();
        let region = regions.register(WRITER, (), 10);
        let refused = [
            (
                OTHER,
                "the peer has no such region for this endpoint, or has withdrawn it; ask for another one",
            ),
            (WRITER, "the bytes do not lie within the region; put fewer, or elsewhere"),
        ];
        for (from, expected) in refused {
            let refusal = regions.place(from, &PutHeader::new(region, 1), 10).unwrap_err();
            assert_eq!(refusal.to_string(), expected);
            assert_eq!(parse_put_answer(&put_answer(Err(refusal))), Err(refusal));
        }
        assert_eq!(parse_put_answer(&put_answer(Ok(()))), Ok(()));
        assert_eq!(parse_put_answer(&[0; 15]), Err(PutRefusal::Unknown));
        assert_eq!(parse_put_answer(&[9; 16]), Err(PutRefusal::Unknown));
    }
}
