//! Settings of a placed receiver, and how numbers are read from datagrams.

use super::super::message::DATAGRAM_BYTES_MAX;
use super::super::open_error::OpenError;
use super::window::{Number, NumberSpace};

/// The most chunks of a ring.
const RING_MAX: usize = 1 << 16;

/// A field of at most this many bytes is read by one load of as many.
const LOAD_BYTES: usize = size_of::<u64>();

/// Where a number lies in each datagram: from which byte on, how many bytes (1 to 8), and their order.
///
/// ```
/// use nocopy::udp::Field;
/// let counter = Field::big_endian(8, 6); // bytes 8 to 13, the highest first
/// assert_ne!(counter, Field::little_endian(8, 6));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    offset: usize,
    bytes: usize,
    is_big_endian: bool,
}

impl Field {
    /// A field whose first byte is the highest, as in most protocols.
    pub const fn big_endian(offset: usize, bytes: usize) -> Self {
        Self { offset, bytes, is_big_endian: true }
    }

    /// A field whose first byte is the lowest.
    pub const fn little_endian(offset: usize, bytes: usize) -> Self {
        Self { offset, bytes, is_big_endian: false }
    }

    /// The byte behind it.
    fn end(&self) -> usize {
        self.offset.saturating_add(self.bytes)
    }

    fn bits(&self) -> u32 {
        // At most 64: it was checked.
        self.bytes as u32 * 8
    }
}

/// How [`Receiver::place`](super::super::Receiver::place) puts datagrams into rows.
///
/// The payload of each datagram is one row of a chunk. A chunk has a fixed number of rows, and a number in
/// the datagram's header says which row it is: row `n % rows` of chunk `n / rows`. Lengths and offsets are in
/// bytes, and offsets count from the first byte of the UDP payload.
///
/// The memory is `ring` chunks, each of `rows * (row_bytes + 1)` bytes, rounded up to pages. It is taken at
/// once, and never grows.
///
/// ```
/// use nocopy::udp::{Field, Placing};
/// // A counter in bytes 8 to 15, then a row of 1384 bytes; 4096 rows a chunk, of which 8 exist.
/// let counted = Placing::by_number(Field::big_endian(8, 8)).payload(16).shape(4096, 1384).ring(8);
/// // SPEAD-64-48: heaps of 256 datagrams, the heap's number and the offset in it.
/// let spead = Placing::by_heap(Field::big_endian(10, 6), Field::big_endian(26, 6), 256).payload(48);
/// let spead = spead.shape(4096, 1024); // 16 heaps a chunk
/// ```
#[derive(Debug, Clone)]
#[must_use = "settings alone receive nothing"]
pub struct Placing {
    number: Field,
    /// The offset in a heap, and the rows of one.
    within_heap: Option<(Field, u64)>,
    payload: Option<usize>,
    rows: usize,
    row_bytes: usize,
    ring: usize,
}

impl Placing {
    /// By one field: the number of the row.
    pub fn by_number(number: Field) -> Self {
        Self { number, within_heap: None, payload: None, rows: 0, row_bytes: 0, ring: 4 }
    }

    /// By two fields, as SPEAD has them: the number of a heap, and the offset in it, in bytes. The row is
    /// `heap * rows_per_heap + offset / row_bytes`. An offset that is not a multiple of `row_bytes`, or
    /// beyond the heap, is counted as `foreign`.
    pub fn by_heap(heap: Field, offset: Field, rows_per_heap: u64) -> Self {
        Self { within_heap: Some((offset, rows_per_heap)), ..Self::by_number(heap) }
    }

    /// Where the row begins in the datagram (default: behind the last field).
    pub fn payload(mut self, offset: usize) -> Self {
        self.payload = Some(offset);
        self
    }

    /// The rows of a chunk, and the bytes of a row. There is no default.
    pub fn shape(mut self, rows: usize, row_bytes: usize) -> Self {
        (self.rows, self.row_bytes) = (rows, row_bytes);
        self
    }

    /// How many chunks exist (default: 4): those being filled, two if there are at least three, and those
    /// that the program has.
    pub fn ring(mut self, chunks: usize) -> Self {
        self.ring = chunks;
        self
    }

    /// Checks the settings, for datagrams of at most `datagram_bytes_max` bytes.
    pub(super) fn check(&self, datagram_bytes_max: usize) -> Result<Layout, OpenError> {
        let Self { number, within_heap, rows, row_bytes, ring, .. } = *self;
        let offset = within_heap.map(|(offset, _)| offset);
        for field in [Some(number), offset].into_iter().flatten() {
            check_range("bytes of a field", field.bytes, 1, LOAD_BYTES)?;
        }
        let rows_per_heap = within_heap.map_or(1, |(_, rows_per_heap)| rows_per_heap);
        check_range("rows of a heap", rows_per_heap, 1, u64::from(u32::MAX))?;
        check_range("chunks in the ring", ring, 1, RING_MAX)?;
        let space = NumberSpace { bits: number.bits(), rows_per_heap, rows: rows as u64, ring: ring as u64 };
        check_range("rows of a chunk", space.rows, 1, space.rows_max())?;
        let datagram_bytes_max = datagram_bytes_max.min(DATAGRAM_BYTES_MAX);
        check_range("bytes of a row", row_bytes, 1, datagram_bytes_max)?;
        let fields_end = number.end().max(offset.map_or(0, |offset| offset.end()));
        let payload = self.payload.unwrap_or(fields_end);
        let datagram_bytes = payload.saturating_add(row_bytes);
        check_range("bytes of a datagram", datagram_bytes, LOAD_BYTES, datagram_bytes_max)?;
        check_range("end of a field", fields_end, 1, datagram_bytes)?;
        Ok(Layout {
            number: FieldReader::new(number, datagram_bytes),
            within_heap: offset.map(|offset| FieldReader::new(offset, datagram_bytes)),
            space,
            fields_end,
            payload,
            row_bytes,
        })
    }
}

fn check_range<T: TryInto<u64> + PartialOrd + Copy>(
    setting: &'static str,
    value: T,
    least: T,
    most: T,
) -> Result<(), OpenError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let [value, least, most] = [value, least, most].map(|number| number.try_into().unwrap_or(u64::MAX));
    Err(OpenError::Placing { setting, value, least, most })
}

/// Checked settings.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    number: FieldReader,
    within_heap: Option<FieldReader>,
    pub(super) space: NumberSpace,
    /// The byte behind the last field.
    fields_end: usize,
    payload: usize,
    pub(super) row_bytes: usize,
}

impl Layout {
    /// The length of a datagram with a row.
    #[inline]
    pub(super) fn datagram_bytes(&self) -> usize {
        self.payload + self.row_bytes
    }

    pub(super) fn rows(&self) -> usize {
        self.space.rows as usize // it was checked
    }

    pub(super) fn ring(&self) -> usize {
        self.space.ring as usize // it was checked
    }

    /// Whether the row has nothing of the number.
    pub(super) fn has_numbers_in_header(&self) -> bool {
        self.fields_end <= self.payload
    }

    /// The number in a datagram of the right length; `None` if its offset in the heap is that of no row.
    #[inline]
    pub(super) fn number_of(&self, datagram: &[u8]) -> Option<Number> {
        let heap = self.number.read(datagram);
        let Some(offset) = &self.within_heap else { return Some(Number { heap, row: 0 }) };
        let (offset, row_bytes) = (offset.read(datagram), self.row_bytes as u64);
        let row = offset / row_bytes;
        (row * row_bytes == offset && row < self.space.rows_per_heap).then_some(Number { heap, row })
    }

    /// The row in a datagram of the right length.
    #[inline]
    pub(super) fn row_of<'a>(&self, datagram: &'a [u8]) -> &'a [u8] {
        &datagram[self.payload..]
    }
}

/// Reads a field by one load, which may begin before the field, or end behind it.
#[derive(Debug, Clone, Copy)]
struct FieldReader {
    at: usize,
    is_big_endian: bool,
    shift: u32,
    mask: u64,
}

impl FieldReader {
    /// Of datagrams of that length, in which the field and a load have room.
    fn new(field: Field, datagram_bytes: usize) -> Self {
        let at = field.offset.min(datagram_bytes - LOAD_BYTES);
        let behind = if field.is_big_endian { at + LOAD_BYTES - field.end() } else { field.offset - at };
        let mask = u64::MAX >> (u64::BITS - field.bits());
        Self { at, is_big_endian: field.is_big_endian, shift: behind as u32 * 8, mask }
    }

    #[inline]
    fn read(&self, datagram: &[u8]) -> u64 {
        let bytes = datagram[self.at..].first_chunk().expect("the length was checked");
        let all = if self.is_big_endian { u64::from_be_bytes(*bytes) } else { u64::from_le_bytes(*bytes) };
        (all >> self.shift) & self.mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_at_any_offset_is_read() {
        let datagram: Vec<u8> = (1..=20).collect();
        for offset in 0..20 {
            for bytes in 1..=8.min(20 - offset) {
                let read = |field| {
                    let placing = Placing::by_number(field).payload(12).shape(1, 8);
                    placing.check(1500).unwrap().number_of(&datagram).unwrap().heap
                };
                let part = &datagram[offset..offset + bytes];
                let high_first = part.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
                let low_first = part.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
                assert_eq!(read(Field::big_endian(offset, bytes)), high_first, "{offset} {bytes}");
                assert_eq!(read(Field::little_endian(offset, bytes)), low_first, "{offset} {bytes}");
            }
        }
    }

    #[test]
    fn an_offset_between_rows_or_beyond_the_heap_is_foreign() {
        let placing = Placing::by_heap(Field::big_endian(0, 4), Field::big_endian(4, 4), 3).shape(6, 100);
        let layout = placing.check(1500).unwrap();
        assert_eq!(layout.datagram_bytes(), 108);
        let row = |offset: u32| {
            let mut datagram = [0; 108];
            datagram[3] = 7;
            datagram[4..8].copy_from_slice(&offset.to_be_bytes());
            layout.number_of(&datagram).map(|number| (number.heap, number.row))
        };
        assert_eq!([row(0), row(200)], [Some((7, 0)), Some((7, 2))]);
        assert_eq!([row(50), row(300), row(u32::MAX)], [None; 3]);
    }

    #[test]
    fn impossible_settings_are_refused_by_name() {
        let number = Field::big_endian(0, 8);
        let good = || Placing::by_number(number).shape(4, 100);
        let refused = |placing: Placing| match placing.check(1500) {
            Err(OpenError::Placing { setting, value, .. }) => (setting, value),
            other => panic!("{other:?}"),
        };
        assert!(good().check(1500).is_ok());
        assert_eq!(refused(Placing::by_number(number)), ("rows of a chunk", 0));
        assert_eq!(refused(good().shape(4, 0)), ("bytes of a row", 0));
        assert_eq!(refused(good().ring(0)), ("chunks in the ring", 0));
        assert_eq!(refused(good().payload(1401)), ("bytes of a datagram", 1501));
        assert_eq!(refused(good().payload(usize::MAX)), ("bytes of a datagram", u64::MAX));
        assert_eq!(
            refused(Placing::by_number(Field::big_endian(0, 9)).shape(4, 100)),
            ("bytes of a field", 9)
        );
        assert_eq!(
            refused(Placing::by_number(Field::big_endian(0, 0)).shape(4, 100)),
            ("bytes of a field", 0)
        );
        let narrow = Placing::by_number(Field::big_endian(0, 1)); // 128 numbers ahead, 6 chunks
        assert!(narrow.clone().shape(21, 100).check(1500).is_ok());
        assert_eq!(refused(narrow.shape(22, 100)), ("rows of a chunk", 22));
        let far = Placing::by_number(Field::big_endian(200, 4)).payload(8).shape(4, 100);
        assert_eq!(refused(far), ("end of a field", 204));
        assert_eq!(refused(Placing::by_heap(number, number, 0).shape(4, 100)), ("rows of a heap", 0));
        let text = good().ring(0).check(1500).unwrap_err().to_string();
        assert_eq!(text, "chunks in the ring: 0 is refused; 1 to 65536 are possible; give such a number");
    }
}
