//! Takes messages out of an endpoint, for arrays.

use std::io;
use std::time::Duration;

use nocopy::message as library;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::many::Records;
use super::received::Taken;
use crate::exported::{Access, Rows, rows_or_one};

/// The most messages that are received together, and about the most bytes: peers do not decide how much
/// memory that takes.
const MESSAGES_MAX: usize = 1 << 16;
const BYTES_MAX: usize = 8 << 20;

/// An endpoint, and a message that did not fit where it was to be received.
pub(super) struct Receiver {
    pub(super) endpoint: library::Endpoint,
    too_long: Option<library::Message<'static>>,
}

/// What ended a wait.
pub(super) enum Ended<T> {
    ByMessage(T),
    ByEvent,
}

impl Receiver {
    pub(super) fn new(endpoint: library::Endpoint) -> Self {
        Self { endpoint, too_long: None }
    }

    /// The next message that is there.
    pub(super) fn try_receive(&mut self) -> io::Result<Option<Taken>> {
        if let Some(message) = self.too_long.take() {
            return Ok(Some(Taken::new(message)));
        }
        Ok(self.endpoint.try_receive()?.map(Taken::new))
    }

    /// Whether there is a message or an event, at the latest after that time.
    pub(super) fn wait(&mut self, time: Duration) -> io::Result<bool> {
        Ok(self.too_long.is_some() || self.endpoint.wait(time)?)
    }

    /// As [`wait`](Self::wait), without waiting; the descriptor becomes readable otherwise.
    pub(super) fn arm(&mut self) -> io::Result<bool> {
        Ok(self.too_long.is_some() || self.endpoint.arm()?)
    }

    /// Repeats `look` until it finds a message, an event comes, or the time is over. Without time events are
    /// left for a later wait.
    pub(super) fn receive_within<T>(
        &mut self,
        time: Duration,
        mut look: impl FnMut(&mut Self) -> io::Result<Option<T>>,
    ) -> io::Result<Option<Ended<T>>> {
        if let Some(found) = look(self)? {
            return Ok(Some(Ended::ByMessage(found)));
        }
        if time.is_zero() || !self.wait(time)? {
            return Ok(None);
        }
        Ok(Some(look(self)?.map_or(Ended::ByEvent, Ended::ByMessage)))
    }

    /// Copies all messages that are there behind one another.
    pub(super) fn gather(&mut self) -> io::Result<Option<(Vec<u8>, Records)>> {
        let (mut bytes, mut records) = (Vec::new(), Records::default());
        let mut take = |message: library::Message<'_>| {
            records.push(message.peer(), message.kind(), message.len());
            message.pieces().for_each(|piece| bytes.extend_from_slice(piece));
            (records.len(), records.bytes())
        };
        let mut taken = self.too_long.take().map_or((0, 0), &mut take);
        while taken.0 < MESSAGES_MAX && taken.1 < BYTES_MAX {
            match self.endpoint.try_receive_each(|message| taken = take(message)) {
                Ok(0) => break,
                Ok(_) => {}
                // An error comes again; what was copied is not lost for it.
                Err(error) if taken.0 == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok((taken.0 > 0).then_some((bytes, records)))
    }

    /// Copies messages that are there into rows, as many as there are rows. One that is longer than a row is
    /// kept for the next call, with its length as the error if it is the first.
    pub(super) fn fill(&mut self, rows: &Rows) -> io::Result<Option<Result<Records, usize>>> {
        let mut records = Records::default();
        while records.len() < rows.count {
            let message = match self.too_long.take() {
                Some(message) => message,
                None => match self.endpoint.try_receive() {
                    Ok(Some(message)) if message.len() > rows.row_bytes => message.take(),
                    Ok(Some(message)) => {
                        copy(&message, rows, &mut records);
                        continue;
                    }
                    Ok(None) => break,
                    Err(error) if records.len() == 0 => return Err(error),
                    Err(_) => break,
                },
            };
            let bytes = message.len();
            if bytes <= rows.row_bytes {
                copy(&message, rows, &mut records);
                continue;
            }
            self.too_long = Some(message);
            match records.len() {
                0 => return Ok(Some(Err(bytes))),
                _ => break,
            }
        }
        Ok((records.len() > 0).then_some(Ok(records)))
    }
}

/// Copies a message that fits into the next row.
fn copy(message: &library::Message<'_>, rows: &Rows, records: &mut Records) {
    assert!(message.len() <= rows.row_bytes);
    let mut to = rows.row(records.len()).as_ptr();
    for piece in message.pieces() {
        // SAFETY: the row is exported, writable memory of at least as many bytes as all pieces have, and none
        // of ours.
        unsafe {
            std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len());
            to = to.add(piece.len());
        }
    }
    records.push(message.peer(), message.kind(), message.len());
}

/// The rows of an array that is received into: an array of one dimension is one row.
///
/// # Errors
/// `TypeError`, `ValueError`: it cannot be written, or has no rows.
pub(super) fn rows_of(argument: &str, array: &Bound<'_, PyAny>) -> PyResult<Rows> {
    let rows = rows_or_one(argument, array, Access::Write)?;
    match rows.count {
        0 => Err(PyValueError::new_err(format!(
            "{argument}: has no rows; give one with a row for each message"
        ))),
        _ => Ok(rows),
    }
}

pub(super) fn too_long(argument: &str, rows: &Rows, bytes: usize) -> PyErr {
    PyValueError::new_err(format!(
        "{argument}: has rows of {} B, and the next message has {bytes} B; receive it with receive(), or give longer rows",
        rows.row_bytes
    ))
}
