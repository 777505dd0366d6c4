//! `nocopy.UdpSocket`.

mod burst;
mod placed;
mod received_rows;
mod sending;
mod socket;

use nocopy::udp::OpenError;
use pyo3::prelude::*;

use crate::error;

pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<burst::Burst>()?;
    module.add_class::<received_rows::ReceivedRows>()?;
    module.add_class::<placed::Field>()?;
    module.add_class::<placed::PythonPlacedReceiver>()?;
    module.add_class::<placed::Chunk>()?;
    module.add_class::<socket::UdpSocket>()
}

/// The exception for a socket that was not opened.
fn from_open(py: Python<'_>, error: &OpenError) -> PyErr {
    let capability = match error {
        OpenError::Method { method, .. } => Some(method.to_string()),
        _ => None,
    };
    error::from_open(py, error, capability.as_deref())
}
