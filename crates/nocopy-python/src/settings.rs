//! Keywords of several classes, as the library's settings.

use nocopy::Wait;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::number::duration;

/// `"spin"`, `"interrupt"`, `("adaptive", seconds)` or `("coalesced", packets, seconds)`.
///
/// # Errors
/// `ValueError` for anything else.
pub(crate) fn wait(object: &Bound<'_, PyAny>) -> PyResult<Wait> {
    let wait = if let Ok(word) = object.extract::<String>() {
        match &*word {
            "spin" => Some(Wait::Spin),
            "interrupt" => Some(Wait::Interrupt),
            _ => None,
        }
    } else if let Ok((word, spin)) = object.extract::<(String, f64)>() {
        let spin = duration("wait", spin)?;
        (word == "adaptive").then_some(Wait::Adaptive { spin })
    } else if let Ok((word, packets, delay)) = object.extract::<(String, u32, f64)>() {
        let delay = duration("wait", delay)?;
        (word == "coalesced").then_some(Wait::Coalesced { packets, delay })
    } else {
        None
    };
    wait.ok_or_else(|| {
        PyValueError::new_err(
            "wait: not known; give 'spin', 'interrupt', ('adaptive', seconds) or ('coalesced', packets, seconds)",
        )
    })
}

/// The value with that name among all, each of which prints its name; `argument` is the keyword.
///
/// # Errors
/// `ValueError` with all names.
pub(crate) fn by_name<T: Copy + std::fmt::Display>(argument: &str, name: &str, all: &[T]) -> PyResult<T> {
    let named: Vec<(String, T)> = all.iter().map(|value| (value.to_string(), *value)).collect();
    one_of(argument, name, &named)
}

/// The value beside that name; `argument` is the keyword.
///
/// # Errors
/// `ValueError` with all names.
pub(crate) fn one_of<T: Copy>(argument: &str, name: &str, all: &[(impl AsRef<str>, T)]) -> PyResult<T> {
    let found = all.iter().find(|(known, _)| known.as_ref() == name);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<String> = all.iter().map(|(known, _)| format!("'{}'", known.as_ref())).collect();
        PyValueError::new_err(format!("{argument}: '{name}' is not known; give one of {}", names.join(", ")))
    })
}
