//! Datagrams that arrived together, as one array.

use std::net::SocketAddr;

use nocopy::Buffer;
use nocopy::udp::{Burst as OwnedBurst, Metadata};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::address;
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
