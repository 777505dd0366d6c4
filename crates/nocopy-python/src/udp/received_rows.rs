//! What `receive_into` put into rows of the caller's array.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nocopy::udp::{FilledRow, FilledRows};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};

use crate::address;
use crate::memory::array_of;
use crate::number::Int;

/// What is known about each row that was filled, in arrays: nothing is made for one datagram. Each array is
/// made when it is first asked for: a program that only wants their number pays for none.
#[pyclass(frozen, module = "nocopy")]
pub(crate) struct ReceivedRows {
    /// In front of the others: one that was received before.
    first: Option<Row>,
    rows: FilledRows,
    lengths: PyOnceLock<Py<PyAny>>,
    times: PyOnceLock<Py<PyAny>>,
    sources: PyOnceLock<Py<PyAny>>,
}

/// What is known about one.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) bytes: usize,
    pub(super) source: SocketAddr,
    /// 0 if it is not known.
    pub(super) time_ns: u64,
}

impl From<FilledRow> for Row {
    fn from(row: FilledRow) -> Self {
        Self { bytes: row.bytes, source: row.source, time_ns: row.time.map_or(0, |time| time.ns) }
    }
}

/// As numpy sees an address.
#[derive(Clone, Copy)]
#[repr(C)]
struct SourceRecord {
    address: [u8; 16],
    port: u16,
}

impl ReceivedRows {
    pub(super) fn new(rows: FilledRows) -> Self {
        let (lengths, times, sources) = (PyOnceLock::new(), PyOnceLock::new(), PyOnceLock::new());
        Self { first: None, rows, lengths, times, sources }
    }

    pub(super) fn of_one(row: Row) -> Self {
        Self { first: Some(row), ..Self::new(FilledRows::default()) }
    }

    fn rows(&self) -> impl Iterator<Item = Row> {
        self.first.into_iter().chain(self.rows.iter().map(Row::from))
    }

    /// The array of one value of each row.
    fn array<'py, T: Copy + Send + 'static, D: IntoPyObject<'py> + Copy>(
        &self,
        py: Python<'py>,
        made: &PyOnceLock<Py<PyAny>>,
        dtype: D,
        value: impl Fn(Row) -> T,
    ) -> PyResult<Py<PyAny>> {
        let make = || {
            let values = self.rows().map(value).collect();
            array_of::<T, _>(py, values, dtype).map(Bound::unbind)
        };
        made.get_or_try_init(py, make).map(|array| array.clone_ref(py))
    }
}

fn source_record(from: SocketAddr) -> SourceRecord {
    let address: Ipv6Addr = match from.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    SourceRecord { address: address.octets(), port: from.port() }
}

#[pymethods]
impl ReceivedRows {
    /// Bytes of each datagram, int64; more than a row has if its end was cut off.
    #[getter]
    fn lengths(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.array(py, &self.lengths, "i8", |row| row.bytes as i64)
    }

    /// When each arrived, in nanoseconds, uint64; 0 if that is not known (see `receive_times`).
    #[getter]
    fn times(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.array(py, &self.times, "u8", |row| row.time_ns)
    }

    /// Of each the sender: `address` (16 bytes; IPv4 as ::ffff:a.b.c.d) and `port`.
    #[getter]
    fn sources(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let dtype = PyList::empty(py);
        dtype.append(("address", "u1", (16,)))?;
        dtype.append(("port", "u2"))?;
        self.array(py, &self.sources, &dtype, |row| source_record(row.source))
    }

    /// The address that sent the datagram in that row, as sockets have it.
    fn source<'py>(&self, py: Python<'py>, row: Int<usize>) -> PyResult<Bound<'py, PyTuple>> {
        let Int(row) = row;
        let found = self.rows().nth(row).ok_or_else(|| {
            PyIndexError::new_err(format!("row: {row} was not filled; {} were", self.__len__()))
        })?;
        address::to_python(py, found.source)
    }

    /// Rows that were filled: the first ones.
    fn __len__(&self) -> usize {
        usize::from(self.first.is_some()) + self.rows.len()
    }
}
