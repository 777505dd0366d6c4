//! Exceptions: one class for each refusal that a program handles, under `nocopy.Error`, an `OSError`.

use std::io;

use nocopy::Reason;
use nocopy::message::{self, LostReason};
use pyo3::exceptions::{PyOSError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use pyo3::{PyTypeInfo, create_exception};

create_exception!(
    nocopy,
    Error,
    PyOSError,
    "An operation failed: fact, cause, what to do. `errno` is the kernel's, if it gave one."
);
create_exception!(
    nocopy,
    NoBuffers,
    Error,
    "All memory to receive into is kept by arrays: delete some, and receive again."
);
create_exception!(nocopy, OpenError, Error, "It was not opened.");
create_exception!(
    nocopy,
    Unsupported,
    OpenError,
    "This machine, or this process, lacks what is needed: `capability` names it."
);
create_exception!(nocopy, Rejected, Error, "It was not sent.");
create_exception!(nocopy, Full, Rejected, "There is no room: flush, or receive, and send again.");
create_exception!(nocopy, TooLong, Rejected, "It is longer than can be sent.");
create_exception!(
    nocopy,
    NotConnected,
    Rejected,
    "There is no connection: it has no destination, or the peer refused, or did not answer."
);
create_exception!(nocopy, Finished, Rejected, "This side has ended its sending.");
create_exception!(nocopy, Gone, Rejected, "The peer is no longer connected.");
create_exception!(nocopy, Lost, Error, "The connection ended before the response came.");
create_exception!(nocopy, TooManyPeers, Error, "The endpoint has as many peers as it was opened for.");
create_exception!(
    nocopy,
    TooManyOthers,
    Error,
    "Other messages fill the memory for those that are kept while a response is waited for."
);

pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let classes = [
        ("Error", Error::type_object(py)),
        ("NoBuffers", NoBuffers::type_object(py)),
        ("OpenError", OpenError::type_object(py)),
        ("Unsupported", Unsupported::type_object(py)),
        ("Rejected", Rejected::type_object(py)),
        ("Full", Full::type_object(py)),
        ("TooLong", TooLong::type_object(py)),
        ("NotConnected", NotConnected::type_object(py)),
        ("Finished", Finished::type_object(py)),
        ("Gone", Gone::type_object(py)),
        ("Lost", Lost::type_object(py)),
        ("TimedOut", timed_out(py)?.clone()),
        ("TooManyPeers", TooManyPeers::type_object(py)),
        ("TooManyOthers", TooManyOthers::type_object(py)),
    ];
    classes.into_iter().try_for_each(|(name, class)| module.add(name, class))
}

/// The class `TimedOut`: no answer came in time. It is a `TimeoutError`, too, as Python's own sockets raise
/// it.
fn timed_out(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.get_or_try_init(py, || {
        let bases = (Error::type_object(py), PyTimeoutError::type_object(py));
        let members = PyDict::new(py);
        members.set_item("__module__", "nocopy")?;
        members.set_item("__doc__", "No answer came in time.")?;
        let class = py.get_type::<PyType>().call1(("TimedOut", bases, members))?;
        PyResult::Ok(class.cast_into::<PyType>()?.unbind())
    })?;
    Ok(class.bind(py))
}

/// The kernel's errno of an error, or of what caused it.
fn errno_of(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        let Some(io_error) = error.downcast_ref::<io::Error>() else {
            next = error.source();
            continue;
        };
        if let Some(errno) = io_error.raw_os_error() {
            return Some(errno);
        }
        // Its source would be that of what it wraps.
        next = io_error.get_ref().map(|wrapped| -> &(dyn std::error::Error + 'static) { wrapped });
    }
    None
}

/// An exception of that class, with the error's words, and with the kernel's errno if there is one.
pub(crate) fn raise<C: PyTypeInfo>(error: &(dyn std::error::Error + 'static)) -> PyErr {
    match errno_of(error) {
        Some(errno) => PyErr::new::<C, _>((errno, error.to_string())),
        None => PyErr::new::<C, _>((error.to_string(),)),
    }
}

/// The exception for an error of a system call or of the library.
pub(crate) fn from_io(error: io::Error) -> PyErr {
    match error.downcast::<Reason>() {
        Ok(reason) => from_reason(&reason),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => raise::<NoBuffers>(&error),
        Err(error) => raise::<Error>(&error),
    }
}

/// The exception for a refused send.
pub(crate) fn from_reason(reason: &Reason) -> PyErr {
    match reason {
        Reason::Full => raise::<Full>(reason),
        Reason::TooLong { .. } => raise::<TooLong>(reason),
        Reason::NotConnected => raise::<NotConnected>(reason),
        Reason::Finished => raise::<Finished>(reason),
        Reason::Gone => raise::<Gone>(reason),
        _ => raise::<Rejected>(reason),
    }
}

/// The exception for a refused connection.
pub(crate) fn not_connected(reason: &LostReason) -> PyErr {
    raise::<NotConnected>(reason)
}

/// The exception for an endpoint that has no connection or no response.
pub(crate) fn from_message(py: Python<'_>, error: message::Error) -> PyErr {
    use message::Error as E;
    match error {
        E::NotSent(reason) => from_reason(&reason),
        E::Network(source) => from_io(source),
        E::TooManyPeers { .. } => raise::<TooManyPeers>(&error),
        E::NotConnected { .. } => raise::<NotConnected>(&error),
        E::ConnectTimedOut { .. } | E::TimedOut { .. } => match timed_out(py) {
            Ok(class) => PyErr::from_type(class.clone(), (error.to_string(),)),
            Err(raised) => raised,
        },
        E::Lost => raise::<Lost>(&error),
        E::TooManyOthers => raise::<TooManyOthers>(&error),
        _ => raise::<Error>(&error),
    }
}

/// The exception for something that was not opened; `capability` is the name of what is lacking, if that is
/// the cause.
pub(crate) fn from_open(
    py: Python<'_>,
    error: &(dyn std::error::Error + 'static),
    capability: Option<&str>,
) -> PyErr {
    let Some(capability) = capability else { return raise::<OpenError>(error) };
    let raised = raise::<Unsupported>(error);
    match raised.value(py).setattr("capability", capability) {
        Ok(()) => raised,
        Err(other) => other,
    }
}
