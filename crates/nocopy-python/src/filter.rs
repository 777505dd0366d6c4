//! The keyword `filter`: which packets the kernel delivers.

use nocopy::filter::{CompileError, Program, compile};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error;

/// An expression of pcap-filter(7), or a program as `tcpdump -ddd` prints it, which begins with the number of
/// its instructions.
///
/// # Errors
/// `ValueError`: it is neither. `Unsupported`: nothing on this machine compiles expressions.
pub(crate) fn program(py: Python<'_>, text: Option<&str>) -> PyResult<Option<Program>> {
    let Some(text) = text else { return Ok(None) };
    if text.split([',', '\n']).next().is_some_and(|count| count.trim().parse::<u16>().is_ok()) {
        return Program::parse(text)
            .map(Some)
            .map_err(|error| PyValueError::new_err(format!("filter: no program that can be used; {error}")));
    }
    // Names in it may be looked up.
    py.detach(|| compile(text)).map(Some).map_err(|refused| match refused {
        CompileError::NoLibrary { .. } => error::from_open(py, &refused, Some("libpcap")),
        _ => PyValueError::new_err(refused.to_string()),
    })
}
