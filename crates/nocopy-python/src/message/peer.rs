//! Peers of an endpoint, and what happens to them.

use std::fmt;
use std::net::SocketAddr;

use nocopy::message as library;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::address;

/// One connection of an endpoint. Equal to another one only if it is the same; a value is never used again
/// for another connection.
#[pyclass(frozen, eq, hash, module = "nocopy")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    peer: library::Peer,
    /// Number of its endpoint in this process: in another one the same value may be another peer.
    endpoint: u64,
}

impl Peer {
    pub(super) fn new(peer: library::Peer, endpoint: u64) -> Self {
        Self { peer, endpoint }
    }

    /// The library's value, for the endpoint of that number.
    ///
    /// # Errors
    /// `ValueError`: it is a peer of another endpoint.
    pub(super) fn of(&self, endpoint: u64) -> PyResult<library::Peer> {
        match self.endpoint == endpoint {
            true => Ok(self.peer),
            false => Err(PyValueError::new_err(
                "to: is a peer of another endpoint; give one that this endpoint connected to or received from",
            )),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<Peer {}>", self.peer.index())
    }
}

#[pymethods]
impl Peer {
    /// A number that no other peer of the endpoint has at the same time, from 0 on: for tables. The same as
    /// in the arrays `peers` of received messages.
    #[getter]
    fn index(&self) -> usize {
        self.peer.index()
    }

    fn __repr__(&self) -> String {
        self.to_string()
    }
}

/// What happened to a peer.
///
/// `kind` is one of: 'connected' (a connection that was asked for is established), 'accepted' (a peer has
/// connected), 'writable' (there is room again to send to it), 'finished' (it sends no more, and everything
/// that it sent was received), 'closed' (both sides have ended, and everything arrived), 'lost' (the
/// connection was lost, for `reason`; what was not acknowledged may have arrived or not).
#[pyclass(frozen, module = "nocopy")]
pub(crate) struct Event {
    /// What happened, in one word.
    #[pyo3(get)]
    kind: &'static str,
    /// The peer.
    #[pyo3(get)]
    peer: Peer,
    /// Why it was lost, in words; otherwise None.
    #[pyo3(get)]
    reason: Option<String>,
    at: Option<SocketAddr>,
}

impl Event {
    /// `None` for an event of a kind that needs memory registered for peers, which Python cannot register.
    pub(super) fn new(event: library::Event, endpoint: u64) -> Option<Self> {
        use library::Event as E;
        let (kind, at, reason) = match event {
            E::Connected(_, at) => ("connected", Some(at), None),
            E::Accepted(_, at) => ("accepted", Some(at), None),
            E::Writable(_) => ("writable", None, None),
            E::Finished(_) => ("finished", None, None),
            E::Closed(_) => ("closed", None, None),
            E::Lost(_, reason) => ("lost", None, Some(reason.to_string())),
            _ => return None,
        };
        Some(Self { kind, peer: Peer::new(event.peer(), endpoint), reason, at })
    }
}

#[pymethods]
impl Event {
    /// The peer's address, (host, port), if it is 'connected' or 'accepted'; otherwise None.
    #[getter]
    fn address<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.at.map(|at| address::to_python(py, at)).transpose()
    }

    fn __repr__(&self) -> String {
        match &self.reason {
            Some(reason) => format!("<Event: {} {}; {reason}>", self.peer, self.kind),
            None => format!("<Event: {} {}>", self.peer, self.kind),
        }
    }
}

/// What is known of a connection.
pub(super) fn stats_dict<'py>(py: Python<'py>, stats: &library::PeerStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("address", address::to_python(py, stats.address)?)?;
    dict.set_item("round_trip", stats.round_trip.as_secs_f64())?;
    dict.set_item("round_trip_min", stats.round_trip_min.as_secs_f64())?;
    dict.set_item("window_packets", stats.window_packets)?;
    dict.set_item("in_flight", stats.in_flight)?;
    dict.set_item("queued", stats.queued)?;
    dict.set_item("unread", stats.unread)?;
    Ok(dict)
}
