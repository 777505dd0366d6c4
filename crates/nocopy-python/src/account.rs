//! What a half did, as dictionaries.

use nocopy::{Ledger, Stats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Bytes by their evidence: `{"zero-copy": …, "copied (socket call)": …, "unknown": …}`, and `datagrams`.
pub(crate) fn ledger_dict(py: Python<'_>, ledger: Ledger) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("datagrams", ledger.datagrams())?;
    dict.set_item("bytes", ledger.bytes())?;
    for (evidence, bytes) in ledger {
        dict.set_item(evidence.to_string(), bytes)?;
    }
    Ok(dict)
}

/// All counters by their names.
pub(crate) fn stats_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("moved", stats.moved)?;
    dict.set_item("bytes", stats.bytes)?;
    dict.set_item("dropped", stats.dropped)?;
    dict.set_item("faults", stats.faults)?;
    dict.set_item("flushes", stats.flushes)?;
    for counter in stats {
        dict.set_item(&*counter.name, counter.value)?;
    }
    Ok(dict)
}

/// What was made of each half's account; of the sending one alone, if another object receives.
pub(crate) fn halves_dict<'py, T>(
    py: Python<'py>,
    received: Option<T>,
    sent: T,
    convert: impl Fn(Python<'py>, T) -> PyResult<Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    if let Some(received) = received {
        dict.set_item("received", convert(py, received)?)?;
    }
    dict.set_item("sent", convert(py, sent)?)?;
    Ok(dict)
}
