//! The settings of an endpoint.

use std::time::Duration;

use nocopy::message::{Builder, Endpoint, OpenError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::number::{self, Int};
use crate::{error, port, settings};

/// Keywords, of which `None` leaves the default.
pub(super) struct Keywords<'a, 'py> {
    pub(super) max_message_bytes: Option<Int<usize>>,
    pub(super) datagram_bytes: Option<Int<u16>>,
    pub(super) crc: bool,
    pub(super) accept: bool,
    pub(super) peers_max: Option<Int<usize>>,
    pub(super) keep_alive: Option<f64>,
    pub(super) dead_after: Option<f64>,
    pub(super) wait: Option<&'a Bound<'py, PyAny>>,
    pub(super) memory: Option<Int<usize>>,
    pub(super) port: Option<&'a Bound<'py, PyAny>>,
    pub(super) streams: bool,
}

impl Keywords<'_, '_> {
    pub(super) fn into_builder(self) -> PyResult<Builder> {
        let mut builder = Endpoint::builder().crc(self.crc).accept(self.accept).streams(self.streams);
        if let Some(Int(bytes)) = self.max_message_bytes {
            builder = builder.max_message_bytes(bytes);
        }
        if let Some(Int(bytes)) = self.datagram_bytes {
            builder = builder.datagram_bytes(bytes);
        }
        if let Some(Int(peers)) = self.peers_max {
            builder = builder.peers_max(peers);
        }
        if let Some(seconds) = self.keep_alive {
            builder = builder.keep_alive(silence("keep_alive", seconds)?);
        }
        if let Some(seconds) = self.dead_after {
            builder = builder.dead_after(silence("dead_after", seconds)?);
        }
        if let Some(wait) = self.wait {
            builder = builder.wait(settings::wait(wait)?);
        }
        if let Some(Int(bytes)) = self.memory {
            builder = builder.memory(bytes);
        }
        if let Some(below) = self.port {
            builder = builder.port(port::below(below)?);
        }
        Ok(builder)
    }
}

/// A time that is not 0.
fn silence(argument: &str, seconds: f64) -> PyResult<Duration> {
    match number::duration(argument, seconds)? {
        Duration::ZERO => {
            Err(PyValueError::new_err(format!("{argument}: is 0; give seconds greater than 0")))
        }
        time => Ok(time),
    }
}

pub(super) fn from_open(py: Python<'_>, error: &OpenError) -> PyErr {
    error::from_open(py, error, None)
}
