//! Packets that a port received together, as arrays.

use nocopy::port::Batch as BorrowedBatch;
use nocopy::{Frame, Packet};
use pyo3::prelude::*;

use crate::half::OfProcess;
use crate::memory::Memory;
use crate::number::Int;
use crate::packets::{PacketRecord, Packets, signed_ns, vlan_of};

/// Packets that a port received together. Their frames are the program's until this object and all arrays of
/// it are gone.
#[pyclass(frozen, module = "nocopy")]
pub(crate) struct Batch(Packets);

/// Packets whose frames were taken.
pub(super) struct TakenBatch {
    frames: OfProcess<Vec<Frame>>,
    records: Vec<PacketRecord>,
    /// Addresses of the first byte of all frames, and after the last one.
    memory: std::ops::Range<usize>,
}

impl TakenBatch {
    /// Takes the frames of all packets; `None` if there are none.
    pub(super) fn new(batch: BorrowedBatch<'_>) -> Option<Self> {
        let (mut frames, mut records) = (Vec::new(), Vec::new());
        let (mut first, mut end) = (usize::MAX, 0);
        for packet in batch {
            let mut record = record_of(&packet);
            let frame = packet.take();
            let start = frame.as_ptr().expose_provenance();
            (first, end) = (first.min(start), end.max(start + frame.len()));
            // From the first frame on, below: which that is, is not known yet.
            record.offset = start as i64;
            records.push(record);
            frames.push(frame);
        }
        records.iter_mut().for_each(|record| record.offset -= first as i64);
        (!frames.is_empty()).then(|| Self { frames: OfProcess::new(frames), records, memory: first..end })
    }
}

fn record_of(packet: &Packet<'_>) -> PacketRecord {
    let arrival = packet.arrival();
    // A frame is not longer than 32 KiB.
    let length = packet.len() as u32;
    PacketRecord {
        offset: 0,
        time_ns: arrival.timestamp.map_or(0, |time| signed_ns(time.ns)),
        length,
        original_length: length,
        vlan: vlan_of(arrival.vlan.ok().map(|tag| tag.control)),
        outgoing: arrival.outgoing.unwrap_or(false),
        padding: [0; 5],
    }
}

impl Batch {
    pub(super) fn new(py: Python<'_>, batch: TakenBatch) -> PyResult<Self> {
        let TakenBatch { frames, records, memory } = batch;
        let first = std::ptr::with_exposed_provenance(memory.start);
        // SAFETY: all frames of a port lie in one mapping, which exists while one of them does; what lies
        // between them may be written by others meanwhile, as `data` says.
        let memory = unsafe { Memory::readable(first, memory.len(), frames) };
        // SAFETY: the records are of frames that are held, which nothing writes.
        Ok(Self(unsafe { Packets::new(py, memory, records) }?))
    }
}

#[pymethods]
impl Batch {
    /// The part of the port's memory in which the packets lie: uint8, read-only, not copied.
    /// `packets["offset"]` says where each packet begins. Only these packets are the batch's: what lies
    /// between them belongs to others, and may change at any time.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.data(py)
    }

    /// What is known about each packet, in the order of their arrival: a structured array, read-only, with
    /// the fields of `Block.packets`. The time is 0 if nothing reports it (see `receive_metadata`); in the
    /// mode 'packet ring' it is in nanoseconds since 1970.
    #[getter]
    fn packets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.records(py)
    }

    /// One header field of all packets: `(values, mask)`; see `Block.column`.
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
        format!("<Batch: {} packet(s)>", self.0.len())
    }
}
