//! What `receive_into` put into rows of the caller's array.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::address;
use crate::memory::array_of;

/// What is known about each row that was filled, in arrays: nothing is made for one datagram.
#[pyclass(frozen, module = "nocopy")]
pub(crate) struct ReceivedRows {
    /// Bytes of each datagram, int64; more than a row has if its end was cut off.
    #[pyo3(get)]
    lengths: Py<PyAny>,
    /// When each arrived, in nanoseconds, uint64; 0 if that is not known (see `receive_times`).
    #[pyo3(get)]
    times: Py<PyAny>,
    /// Of each the sender: `address` (16 bytes; IPv4 as ::ffff:a.b.c.d) and `port`.
    #[pyo3(get)]
    sources: Py<PyAny>,
    each: Vec<SocketAddr>,
}

/// As numpy sees an address.
#[derive(Clone, Copy)]
#[repr(C)]
struct SourceRecord {
    address: [u8; 16],
    port: u16,
}

const SOURCE_DTYPE: &str = "(16,)u1, u2";

/// What is known about one datagram.
#[derive(Clone, Copy)]
pub(super) struct RowReport {
    pub(super) bytes: usize,
    pub(super) time_ns: u64,
    pub(super) from: SocketAddr,
}

impl ReceivedRows {
    pub(super) fn new(py: Python<'_>, reports: &[RowReport]) -> PyResult<Self> {
        let lengths = reports.iter().map(|report| report.bytes as i64).collect();
        let times = reports.iter().map(|report| report.time_ns).collect();
        let sources = reports.iter().map(|report| source_record(report.from)).collect();
        Ok(Self {
            lengths: array_of::<i64>(py, lengths, "i8")?.unbind(),
            times: array_of::<u64>(py, times, "u8")?.unbind(),
            sources: array_of::<SourceRecord>(py, sources, SOURCE_DTYPE)?.unbind(),
            each: reports.iter().map(|report| report.from).collect(),
        })
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
    /// The address that sent the datagram in that row, as sockets have it.
    fn source<'py>(&self, py: Python<'py>, row: usize) -> PyResult<Bound<'py, PyTuple>> {
        let from = self.each.get(row).ok_or_else(|| {
            PyIndexError::new_err(format!("row: {row} was not filled; {} were", self.each.len()))
        })?;
        address::to_python(py, *from)
    }

    /// Rows that were filled: the first ones.
    fn __len__(&self) -> usize {
        self.each.len()
    }
}
