//! A half of the library as Python uses it: by one thread at a time, not after fork(2), waiting without the
//! interpreter, and ending a wait on Ctrl-C.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use nocopy::integration::Generation;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::{error, exported, number};

/// The longest wait before signals are looked at: one that comes just before a wait, or while the receiver
/// spins, does not end it.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// A value that is left alone in a forked child, where its descriptors and its shared memory are the
/// parent's: it is not dropped there.
pub(crate) struct OfProcess<T> {
    value: ManuallyDrop<T>,
    made_in: Generation,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), made_in: Generation::current() }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.made_in.is_outdated() {
            // SAFETY: it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

/// A half, until it is closed.
pub(crate) struct Half<T> {
    what: &'static str,
    half: OfProcess<Mutex<Option<T>>>,
}

/// A half in use.
pub(crate) struct Used<'a, T> {
    guard: MutexGuard<'a, Option<T>>,
}

impl<T> std::ops::Deref for Used<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("checked when it was locked")
    }
}

impl<T> std::ops::DerefMut for Used<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("checked when it was locked")
    }
}

impl<T> Used<'_, T> {
    /// Takes it out: the half is closed from now on.
    pub(crate) fn take(mut self) -> T {
        self.guard.take().expect("checked when it was locked")
    }

    /// Turns the half into something else: it is closed then. What is refused stays.
    pub(crate) fn become_other<R, E>(mut self, convert: impl FnOnce(T) -> Result<R, (T, E)>) -> Result<R, E> {
        let value = self.guard.take().expect("checked when it was locked");
        convert(value).map_err(|(value, error)| {
            *self.guard = Some(value);
            error
        })
    }
}

impl<T> Half<T> {
    /// `what` names it in errors.
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self { what, half: OfProcess::new(Mutex::new(Some(value))) }
    }

    /// # Errors
    /// `RuntimeError`: it is the parent process's.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        if self.half.made_in.is_outdated() {
            return Err(PyRuntimeError::new_err(format!(
                "{}: belongs to the process that forked this one; open another in this process",
                self.what
            )));
        }
        Ok(())
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Option<T>>> {
        self.check_process()?;
        let what = self.what;
        match self.half.value.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(format!(
                "{what}: is in use by another thread; give each thread its own, or take turns"
            ))),
            Err(TryLockError::Poisoned(_)) => {
                Err(PyRuntimeError::new_err(format!("{what}: an earlier call panicked; open another")))
            }
        }
    }

    /// The half, for this thread alone.
    ///
    /// # Errors
    /// `RuntimeError`: another thread uses it, or it is the parent process's. `ValueError`: it is closed.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<Used<'_, T>> {
        let closed = || PyValueError::new_err(format!("{}: is closed; open another", self.what));
        self.get_open(py)?.ok_or_else(closed)
    }

    /// The half, for this thread alone; `None` if it is closed.
    ///
    /// # Errors
    /// As [`get`](Self::get), but for closed ones.
    pub(crate) fn get_open(&self, py: Python<'_>) -> PyResult<Option<Used<'_, T>>> {
        // Before a lock that a thread of the parent may have held at the fork.
        self.check_process()?;
        exported::release_unused(py);
        let guard = self.lock()?;
        Ok(guard.is_some().then_some(Used { guard }))
    }

    /// Takes the half out: it is closed from now on. `None` if it was.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn take(&self) -> PyResult<Option<T>> {
        Ok(self.lock()?.take())
    }
}

/// Timeouts in seconds.
///
/// # Errors
/// `ValueError`: negative, or not a number.
pub(crate) fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    seconds.map(|seconds| number::duration("timeout", seconds)).transpose()
}

/// What is left of a timeout, if it began then.
pub(crate) fn time_left(timeout: Option<Duration>, start: Instant) -> Option<Duration> {
    timeout.map(|timeout| timeout.saturating_sub(start.elapsed()))
}

/// Repeats a call that waits for at most some time, without the interpreter, until it returns something, the
/// time is over, or Ctrl-C raises.
///
/// # Errors
/// Those of the call; what a signal's handler raises.
pub(crate) fn wait<R: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut call: impl FnMut(Duration) -> io::Result<Option<R>> + Send,
) -> PyResult<Option<R>> {
    let start = Instant::now();
    // At first exactly what the caller gave: a socket keeps its timeout, and another one is a system call.
    let mut left = timeout;
    loop {
        let this_wait = left.map_or(WAIT_MAX, |left| left.min(WAIT_MAX));
        if let Some(received) = py.detach(|| call(this_wait)).map_err(error::from_io)? {
            return Ok(Some(received));
        }
        py.check_signals()?;
        // A call may return early: by a signal, or by what is not for this half.
        left = time_left(timeout, start);
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
    }
}

/// Closes both halves of a port or socket. Before that it waits until everything was sent, for at most
/// `timeout`, or until Ctrl-C. Returns false if something was given up.
///
/// # Errors
/// `RuntimeError`: a half is in use, or the parent process's; then neither is closed. Those of sending; what
/// a signal's handler raises.
pub(crate) fn close_both<R: Send, S: Send>(
    py: Python<'_>,
    receiver: &Half<R>,
    sender: &Half<S>,
    [drain, close]: [fn(&mut S, Duration) -> io::Result<bool>; 2],
    timeout: Duration,
) -> PyResult<bool> {
    let (receiver, mut sender) = (receiver.get_open(py)?, sender.get_open(py)?);
    let drained = sender.as_mut().map_or(Ok(None), |sender| {
        let sender = &mut **sender;
        wait(py, Some(timeout), |time| Ok(drain(sender, time)?.then_some(())))
    });
    let (receiver, sender) = (receiver.map(Used::take), sender.map(Used::take));
    let closed = py.detach(move || {
        drop(receiver);
        sender.map_or(Ok(true), |mut sender| close(&mut sender, Duration::ZERO))
    });
    exported::release_unused(py);
    drained?;
    closed.map_err(error::from_io)
}
