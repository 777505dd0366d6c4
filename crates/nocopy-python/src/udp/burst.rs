//! Datagrams that arrived together, as one array.

use std::net::SocketAddr;
use std::ptr;

use nocopy::Buffer;
use nocopy::udp::{Burst as OwnedBurst, Metadata};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::received_rows::Row;
use crate::address;
use crate::exported::Rows;
use crate::memory::{Layout, Memory, array_over};

/// Datagrams of one sender that arrived together: all of one length. Its memory is kept while an array of it
/// lives.
#[pyclass(frozen, module = "nocopy")]
pub(crate) struct Burst {
    memory: Py<Memory>,
    /// Where its rows begin in the memory.
    offset: usize,
    rows: usize,
    row_bytes: usize,
    from: SocketAddr,
    metadata: Metadata,
    is_truncated: bool,
}

impl Burst {
    /// The datagrams of a burst, whose last one becomes a burst of its own if it is shorter: an array has
    /// rows of one length.
    pub(super) fn of_equal_lengths(py: Python<'_>, burst: OwnedBurst) -> PyResult<Vec<Self>> {
        let (from, metadata, is_truncated) = (burst.source(), burst.metadata(), burst.is_truncated());
        let bytes = burst.len();
        let each = metadata.segment_bytes.min(bytes).max(1);
        let (whole, rest) = (bytes / each, bytes % each);
        let memory = Py::new(py, Memory::of(Buffer::from(burst)))?;
        let part = |offset, rows, row_bytes, is_truncated| Self {
            memory: memory.clone_ref(py),
            offset,
            rows,
            row_bytes,
            from,
            metadata,
            is_truncated,
        };
        Ok(match (whole, rest) {
            // An empty datagram is one.
            (0, _) => vec![part(0, 1, bytes, is_truncated)],
            (_, 0) => vec![part(0, whole, each, is_truncated)],
            _ => vec![part(0, whole, each, false), part(whole * each, 1, rest, is_truncated)],
        })
    }

    /// A copy of all bytes.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.rows * self.row_bytes];
        // SAFETY: the burst's bytes lie in its memory, which nothing writes to; the vector is as long.
        unsafe { ptr::copy_nonoverlapping(self.first_byte(), bytes.as_mut_ptr(), bytes.len()) }
        bytes
    }

    /// Copies its first datagram into the first row, as far as that goes; returns how many bytes.
    pub(super) fn copy_into_row(&self, rows: &Rows) -> usize {
        let bytes = self.row_bytes.min(rows.row_bytes);
        // SAFETY: as above; a row is exported memory of so many bytes, and not this burst's.
        unsafe { ptr::copy_nonoverlapping(self.first_byte(), rows.row(0).as_ptr(), bytes) }
        bytes
    }

    fn first_byte(&self) -> *const u8 {
        // Within the memory, since the burst's bytes are.
        self.memory.get().first().wrapping_add(self.offset)
    }

    /// What is known about its first datagram.
    pub(super) fn as_row(&self) -> Row {
        let time_ns = self.metadata.time.map_or(0, |time| time.ns);
        Row { bytes: self.row_bytes, source: self.from, time_ns }
    }
}

#[pymethods]
impl Burst {
    /// The payloads: uint8, a row for each datagram, read-only, not copied.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shape = [self.rows, self.row_bytes];
        let layout = Layout { shape: &shape, dtype: "u1", offset: self.offset, strides: None };
        array_over(py, self.memory.bind(py).as_any(), &layout)
    }

    /// The address that sent them, as sockets have it: `(host, port)`.
    #[getter]
    fn source<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        address::to_python(py, self.from)
    }

    /// When they arrived, in nanoseconds since 1970 (over a port: of the card's clock), or None; see
    /// `receive_times`.
    #[getter]
    fn time(&self) -> Option<u64> {
        self.metadata.time.map(|time| time.ns)
    }

    /// The address to which they were sent, or None; see `receive_metadata`.
    #[getter]
    fn destination(&self) -> Option<String> {
        self.metadata.destination.map(|address| address.to_string())
    }

    /// Index of the interface on which they arrived, or None; see `receive_metadata`.
    #[getter]
    fn interface(&self) -> Option<u32> {
        self.metadata.interface
    }

    /// Whether the end was cut off, because the buffer was too small.
    #[getter]
    fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    fn __len__(&self) -> usize {
        self.rows
    }

    fn __repr__(&self) -> String {
        format!("<Burst: {} datagram(s) of {} B from {}>", self.rows, self.row_bytes, self.from)
    }
}
