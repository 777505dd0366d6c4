//! The settings of an endpoint.

use std::time::Duration;

use nocopy::message::{Builder, Endpoint, OpenError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::{error, port, settings};

/// Keywords, of which `None` leaves the default.
pub(super) struct Keywords<'a, 'py> {
    pub(super) max_message_bytes: Option<usize>,
    pub(super) datagram_bytes: Option<u16>,
    pub(super) crc: bool,
    pub(super) accept: bool,
    pub(super) peers_max: Option<usize>,
    pub(super) keep_alive: Option<f64>,
    pub(super) dead_after: Option<f64>,
    pub(super) keep_alive_thread: bool,
    pub(super) wait: Option<&'a Bound<'py, PyAny>>,
    pub(super) memory: Option<usize>,
    pub(super) port: Option<&'a Bound<'py, PyAny>>,
    pub(super) streams: bool,
}

impl Keywords<'_, '_> {
    pub(super) fn into_builder(self) -> PyResult<Builder> {
        let mut builder = Endpoint::builder()
            .crc(self.crc)
            .accept(self.accept)
            .keep_alive_thread(self.keep_alive_thread)
            .streams(self.streams);
        if let Some(bytes) = self.max_message_bytes {
            builder = builder.max_message_bytes(bytes);
        }
        if let Some(bytes) = self.datagram_bytes {
            builder = builder.datagram_bytes(bytes);
        }
        if let Some(peers) = self.peers_max {
            builder = builder.peers_max(peers);
        }
        if let Some(silence) = self.keep_alive {
            builder = builder.keep_alive(seconds("keep_alive", silence)?);
        }
        if let Some(silence) = self.dead_after {
            builder = builder.dead_after(seconds("dead_after", silence)?);
        }
        if let Some(wait) = self.wait {
            builder = builder.wait(settings::wait(wait)?);
        }
        if let Some(bytes) = self.memory {
            builder = builder.memory(bytes);
        }
        if let Some(below) = self.port {
            builder = builder.port(port::below(below)?);
        }
        Ok(builder)
    }
}

fn seconds(argument: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero()).ok_or_else(|| {
        PyValueError::new_err(format!("{argument}: {seconds} s is no such time; give seconds greater than 0"))
    })
}

pub(super) fn from_open(py: Python<'_>, error: &OpenError) -> PyErr {
    error::from_open(py, error, None)
}
