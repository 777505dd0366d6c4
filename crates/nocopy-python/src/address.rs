//! Addresses as Python's own sockets have them: `(host, port)`, or text `host:port`.

use std::net::{SocketAddr, SocketAddrV6, ToSocketAddrs};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::error;

/// All addresses of an argument: `(host, port)`, `(host, port, flowinfo, scope)` or `"host:port"`.
///
/// # Errors
/// `TypeError` or `ValueError` for what is no address; `Error` if the name is not found.
pub(crate) fn lookup(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<SocketAddr>> {
    if let Ok(text) = object.cast::<PyString>() {
        let text = text.to_str()?.to_owned();
        if let Ok(address) = text.parse() {
            return Ok(vec![address]);
        }
        if !text.contains(':') {
            return Err(PyValueError::new_err(format!("{argument}: '{text}' has no port; give 'host:port'")));
        }
        return resolve(object.py(), text);
    }
    let tuple = object.cast::<PyTuple>().ok().filter(|tuple| matches!(tuple.len(), 2 | 4));
    let Some(tuple) = tuple else {
        return Err(PyTypeError::new_err(format!(
            "{argument}: is no address; give 'host:port', or (host, port) as Python's sockets have it"
        )));
    };
    let host = tuple
        .get_item(0)?
        .cast_into::<PyString>()
        .map_err(|_| PyTypeError::new_err(format!("{argument}: its host is no text; give ('host', port)")))?;
    let port: u16 = tuple
        .get_item(1)?
        .extract()
        .map_err(|_| PyValueError::new_err(format!("{argument}: its port is no number from 0 to 65535")))?;
    let (flow, scope): (u32, u32) = match tuple.len() {
        4 => (tuple.get_item(2)?.extract()?, tuple.get_item(3)?.extract()?),
        _ => (0, 0),
    };
    let host = host.to_str()?;
    // As with Python's own sockets.
    let host = if host.is_empty() { "0.0.0.0" } else { host };
    if let Ok(ip) = host.parse() {
        return Ok(vec![match ip {
            std::net::IpAddr::V4(ip) => (ip, port).into(),
            std::net::IpAddr::V6(ip) => SocketAddrV6::new(ip, port, flow, scope).into(),
        }]);
    }
    resolve(object.py(), (host.to_owned(), port))
}

fn resolve(py: Python<'_>, name: impl ToSocketAddrs + Send + Sync) -> PyResult<Vec<SocketAddr>> {
    let found = py.detach(|| name.to_socket_addrs().map(Vec::from_iter));
    let found =
        found.map_err(|source| error::raise::<error::Error>(&nocopy::udp::OpenError::Lookup(source)))?;
    Ok(found)
}

/// The first address of an argument.
///
/// # Errors
/// As [`lookup`].
pub(crate) fn first(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<SocketAddr> {
    let found = lookup(argument, object)?.into_iter().next();
    found.ok_or_else(|| has_none(argument))
}

/// The exception for a name without an address.
pub(crate) fn has_none(argument: &str) -> PyErr {
    PyValueError::new_err(format!("{argument}: the name has no address; give another"))
}

/// As Python's own sockets give it: `(host, port)`, or for IPv6 `(host, port, flowinfo, scope)`.
pub(crate) fn to_python<'py>(py: Python<'py>, address: SocketAddr) -> PyResult<Bound<'py, PyTuple>> {
    match address {
        SocketAddr::V4(address) => (address.ip().to_string(), address.port()).into_pyobject(py),
        SocketAddr::V6(address) => {
            let ip = address.ip().to_string();
            (ip, address.port(), address.flowinfo(), address.scope_id()).into_pyobject(py)
        }
    }
}
