//! Packets of one block of the kernel's ring, as arrays.

use nocopy::capture::Block as OwnedBlock;
use nocopy::integration::{BlockReader, Generation};
use pyo3::prelude::*;

use crate::memory::Memory;
use crate::number::Int;
use crate::packets::{PacketRecord, Packets, signed_ns, vlan_of};

/// Packets that the kernel handed over together. The memory is the kernel's ring: nothing was copied after
/// the kernel did. It returns to the kernel when this object and all arrays of it are gone.
#[pyclass(frozen, module = "nocopy")]
pub(crate) struct Block(Packets);

/// A block whose packets were all read.
pub(super) struct ReadBlock {
    reader: HeldBlock,
    records: Vec<PacketRecord>,
    /// Bytes of its memory, up to the end of the last packet.
    bytes: usize,
}

impl ReadBlock {
    /// Reads the headers of all packets.
    pub(super) fn new(block: OwnedBlock) -> Self {
        let mut reader = block.into_reader();
        let start = reader.memory().as_ptr().addr();
        let mut records = Vec::with_capacity(reader.packets_left().min(RECORDS_RESERVED_MAX) as usize);
        let mut bytes = 0;
        while let Some(packet) = reader.next_packet() {
            let offset = packet.bytes.as_ptr().addr() - start;
            bytes = offset + packet.bytes.len();
            records.push(PacketRecord {
                offset: offset as i64,
                time_ns: signed_ns(packet.time_ns),
                // Shorter than a block, which is shorter than 4 GiB.
                length: packet.bytes.len() as u32,
                original_length: packet.original_bytes,
                vlan: vlan_of(packet.vlan.map(|tag| tag.control)),
                outgoing: packet.outgoing,
                padding: [0; 5],
            });
        }
        Self { reader: HeldBlock::new(reader), records, bytes }
    }

    /// Packets lost because the kernel's headers contradict themselves.
    pub(super) fn malformed_count(&self) -> u32 {
        self.reader.0.as_ref().map_or(0, |(reader, _)| reader.malformed_count())
    }
}

/// The number of packets comes from shared memory: room for more is made as they are found.
const RECORDS_RESERVED_MAX: u32 = 1 << 16;

/// A block that is the kernel's again when it is dropped; in a forked child nothing happens to it, because
/// the parent uses the same memory.
struct HeldBlock(Option<(BlockReader, Generation)>);

impl HeldBlock {
    fn new(reader: BlockReader) -> Self {
        Self(Some((reader, Generation::current())))
    }
}

impl Drop for HeldBlock {
    fn drop(&mut self) {
        if let Some((reader, _)) = self.0.take_if(|(_, made_in)| made_in.is_outdated()) {
            reader.disown();
        }
    }
}

impl Block {
    pub(super) fn new(py: Python<'_>, block: ReadBlock) -> PyResult<Self> {
        let ReadBlock { reader, records, bytes } = block;
        let first = reader.0.as_ref().map_or(std::ptr::null(), |(reader, _)| reader.memory().as_ptr());
        // SAFETY: the block is ours while the reader lives, and neither it nor the kernel writes there: all
        // packets were read. It is mapped, and not moved with the reader.
        let memory = unsafe { Memory::readable(first, bytes, reader) };
        // SAFETY: the records are of packets in that memory.
        Ok(Self(unsafe { Packets::new(py, memory, records) }?))
    }
}

#[pymethods]
impl Block {
    /// All bytes of the block up to the end of the last packet: uint8, read-only, not copied. Between packets
    /// lie the kernel's headers. `packets["offset"]` says where each packet begins.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.data(py)
    }

    /// What is known about each packet, in the order of their arrival: a structured array, read-only, with
    /// the fields offset (int64, in `data`), length (uint32, captured bytes), original_length (uint32, bytes
    /// on the wire), time (int64, nanoseconds since 1970), vlan (int16, identifier; -1 without a tag, which
    /// otherwise is in its place in the packet) and outgoing (bool, sent by this host).
    #[getter]
    fn packets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.records(py)
    }

    /// One header field of all packets: `(values, mask)`. The field begins `offset` bytes into the packet,
    /// and is of that dtype: `column(26, ">u4")` is the source address of IPv4 without VLAN tags. The mask
    /// (bool) is true where the packet is too short for the field, as in numpy.ma; the value is 0 there.
    ///
    /// Raises ValueError: offset negative, dtype without bytes. TypeError: a dtype of objects.
    fn column<'py>(
        &self,
        py: Python<'py>,
        offset: Int<usize>,
        dtype: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        self.0.column(py, offset.0, dtype)
    }

    /// The number of packets.
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("<Block: {} packet(s)>", self.0.len())
    }
}
