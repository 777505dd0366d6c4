//! Numbers of Python: integers in the range of a type, and seconds.

use std::time::Duration;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

/// The longest time: longer than any process runs.
const SECONDS_MAX: f64 = 1e9;

/// An integer from 0 to the highest of its type; another one is a `ValueError`, to which PyO3 adds the
/// argument's name.
#[derive(Clone, Copy)]
pub(crate) struct Int<T>(pub(crate) T);

impl<'a, 'py, T: FromPyObject<'a, 'py, Error = PyErr>> FromPyObject<'a, 'py> for Int<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        object.extract().map(Self).map_err(|error| {
            if !error.is_instance_of::<PyOverflowError>(object.py()) {
                return error;
            }
            let highest = u64::MAX >> (u64::BITS as usize - 8 * size_of::<T>());
            let object = object.to_owned();
            PyValueError::new_err(format!("{object} is out of range; give an integer from 0 to {highest}"))
        })
    }
}

/// The same, for an argument whose default is a number (`from_py_with`).
pub(crate) fn int<T>(object: &Bound<'_, PyAny>) -> PyResult<T>
where
    Int<T>: for<'py> FromPyObjectOwned<'py, Error = PyErr>,
{
    object.extract().map(|Int(value)| value)
}

/// Two of them, as the library takes them.
pub(crate) fn pair<A, B>((Int(first), Int(second)): (Int<A>, Int<B>)) -> (A, B) {
    (first, second)
}

/// Seconds as a duration; `argument` is the keyword. Infinite ones are the longest time.
///
/// # Errors
/// `ValueError`: negative, or not a number.
pub(crate) fn duration(argument: &str, seconds: f64) -> PyResult<Duration> {
    // Not `min`, which makes a number of none.
    let time = Duration::try_from_secs_f64(if seconds > SECONDS_MAX { SECONDS_MAX } else { seconds });
    time.map_err(|_| {
        PyValueError::new_err(format!("{argument}: {seconds} s is no time; give seconds from 0 on"))
    })
}
