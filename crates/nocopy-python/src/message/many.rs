//! Many received messages, without an object of Python for each.

use std::mem::offset_of;
use std::sync::Arc;

use nocopy::message as library;
use nocopy::message::Kind;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::peer::Peer;
use crate::memory::{Layout, Memory, array_over};
use crate::number::Int;

/// What is known about one message, as numpy sees it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Record {
    offset: u64,
    length: u32,
    peer: u32,
    call: u32,
    kind: u32,
}

/// What is known about messages, in their order.
#[derive(Default)]
pub(super) struct Records {
    each: Vec<Record>,
    /// Peers, each with the number of its first message in a row.
    runs: Vec<(usize, library::Peer)>,
    bytes: usize,
    has_unequal_lengths: bool,
}

impl Records {
    pub(super) fn len(&self) -> usize {
        self.each.len()
    }

    /// Bytes of all messages.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub(super) fn push(&mut self, peer: library::Peer, kind: Kind, bytes: usize) {
        if self.runs.last().is_none_or(|(_, last)| *last != peer) {
            self.runs.push((self.each.len(), peer));
        }
        let (kind, call) = match kind {
            Kind::Plain => (0, 0),
            Kind::Request(call) => (1, call),
            Kind::Response(call) => (2, call),
        };
        // Both fit: a message has at most 16 MiB, and an endpoint 2^20 peers.
        let (length, peer) = (bytes as u32, peer.index() as u32);
        self.has_unequal_lengths |= self.each.first().is_some_and(|first| first.length != length);
        self.each.push(Record { offset: self.bytes as u64, length, peer, call, kind });
        self.bytes += bytes;
    }
}

/// The records that Python reads and nothing writes.
struct Shared(Arc<[Record]>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as many initialised bytes; records have no padding.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(&*self.0)) }
    }
}

const _: () = assert!(size_of::<Record>() == size_of::<u64>() + 4 * size_of::<u32>());

/// What is known about messages that were received together, in arrays: a row for each, in the order in which
/// they came.
#[pyclass(frozen, subclass, module = "nocopy")]
pub(crate) struct MessageRows {
    records: Arc<[Record]>,
    memory: Py<Memory>,
    runs: Vec<(usize, library::Peer)>,
    endpoint: u64,
}

impl MessageRows {
    pub(super) fn new(py: Python<'_>, records: Records, endpoint: u64) -> PyResult<Self> {
        let (runs, records): (_, Arc<[Record]>) = (records.runs, records.each.into());
        let memory = Py::new(py, Memory::of(Shared(Arc::clone(&records))))?;
        Ok(Self { records, memory, runs, endpoint })
    }

    /// One field of all records, which are not copied.
    fn field<'py>(&self, py: Python<'py>, dtype: &str, offset: usize) -> PyResult<Bound<'py, PyAny>> {
        let (shape, strides) = ([self.records.len()], [size_of::<Record>()]);
        // In no bytes there is no other offset.
        let offset = if self.records.is_empty() { 0 } else { offset };
        let layout = Layout { shape: &shape, dtype, offset, strides: Some(&strides) };
        array_over(py, self.memory.bind(py).as_any(), &layout)
    }
}

#[pymethods]
impl MessageRows {
    /// Bytes of each message: uint32, read-only.
    #[getter]
    fn lengths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.field(py, "u4", offset_of!(Record, length))
    }

    /// The peer of each message: uint32, its `index`; read-only.
    #[getter]
    fn peers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.field(py, "u4", offset_of!(Record, peer))
    }

    /// What each message is: uint32, 0 plain, 1 request, 2 response; read-only.
    #[getter]
    fn kinds<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.field(py, "u4", offset_of!(Record, kind))
    }

    /// The number of each request or response: uint32, 0 for plain messages; read-only.
    #[getter]
    fn calls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.field(py, "u4", offset_of!(Record, call))
    }

    /// The peer that sent the message in that row.
    ///
    /// Raises IndexError if there is no such row.
    fn peer(&self, row: Int<usize>) -> PyResult<Peer> {
        let (Int(row), rows) = (row, self.records.len());
        if row >= rows {
            return Err(PyIndexError::new_err(format!("row: {row} does not exist; {rows} were received")));
        }
        let after = self.runs.partition_point(|(first, _)| *first <= row);
        Ok(Peer::new(self.runs[after - 1].1, self.endpoint))
    }

    fn __len__(&self) -> usize {
        self.records.len()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        Ok(format!("<{}: {}>", slf.get_type().name()?, slf.get().records.len()))
    }
}

/// Messages that were received together, in the order in which they came, with their bytes. `messages[row]`
/// is the array of one message.
#[pyclass(frozen, extends = MessageRows, module = "nocopy")]
pub(crate) struct Messages {
    memory: Py<Memory>,
    bytes: usize,
    has_unequal_lengths: bool,
}

impl Messages {
    pub(super) fn new(
        py: Python<'_>,
        mut bytes: Vec<u8>,
        records: Records,
        endpoint: u64,
    ) -> PyResult<Py<Self>> {
        let (first, count) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the vector's memory stays where it is when the vector is moved, and nothing else uses it.
        let memory = Py::new(py, unsafe { Memory::writable(first, count, bytes) })?;
        let this = Self { memory, bytes: count, has_unequal_lengths: records.has_unequal_lengths };
        let rows = MessageRows::new(py, records, endpoint)?;
        Py::new(py, PyClassInitializer::from(rows).add_subclass(this))
    }

    fn array<'py>(&self, py: Python<'py>, shape: &[usize], offset: usize) -> PyResult<Bound<'py, PyAny>> {
        let layout = Layout { shape, dtype: "u1", offset, strides: None };
        array_over(py, self.memory.bind(py).as_any(), &layout)
    }
}

#[pymethods]
impl Messages {
    /// Messages of one length: uint8, two dimensions, a row for each.
    ///
    /// Raises ValueError if their lengths differ.
    #[getter]
    fn data<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (this, rows) = (slf.get(), &slf.as_super().get().records);
        if this.has_unequal_lengths {
            let lengths = || rows.iter().map(|record| record.length);
            let (least, most) = (lengths().min().unwrap_or(0), lengths().max().unwrap_or(0));
            return Err(PyValueError::new_err(format!(
                "data: the messages have different lengths, from {least} to {most} B; use bytes with offsets and lengths, or messages[row]"
            )));
        }
        let row_bytes = rows.first().map_or(0, |first| first.length as usize);
        this.array(slf.py(), &[rows.len(), row_bytes], 0)
    }

    /// The bytes of all messages, one behind another: uint8, one dimension.
    #[getter]
    fn bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.array(py, &[self.bytes], 0)
    }

    /// Where each message begins in `bytes`: uint64, read-only.
    #[getter]
    fn offsets<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.as_super().get().field(slf.py(), "u8", offset_of!(Record, offset))
    }

    fn __getitem__<'py>(slf: &Bound<'py, Self>, row: isize) -> PyResult<Bound<'py, PyAny>> {
        let rows = &slf.as_super().get().records;
        let at = if row < 0 { row.checked_add_unsigned(rows.len()).unwrap_or(-1) } else { row };
        let record = usize::try_from(at).ok().and_then(|at| rows.get(at)).ok_or_else(|| {
            PyIndexError::new_err(format!("row: {row} does not exist; {} were received", rows.len()))
        })?;
        slf.get().array(slf.py(), &[record.length as usize], record.offset as usize)
    }
}
