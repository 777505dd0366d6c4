//! Arrays as packets.

use std::io;
use std::time::{Duration, Instant};

use nocopy::{Reason, Sender};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::exported::{Access, Rows, rows_or_one};

/// A row a packet, if it is an array of rows; otherwise one packet.
///
/// # Errors
/// `TypeError`, `ValueError`: the argument cannot be sent.
pub(super) fn outgoing(data: &Bound<'_, PyAny>) -> PyResult<Rows> {
    let rows = rows_or_one("data", data, Access::Read)?;
    if rows.row_bytes == 0 && rows.count > 0 {
        return Err(PyValueError::new_err("data: has packets of 0 bytes; give at least an Ethernet header"));
    }
    Ok(rows)
}

/// Copies rows into free frames, from row `done` on, and makes room where it is needed. Returns once all are
/// queued, or after about `time`.
///
/// # Errors
/// The rows are too long; the interface is down or was removed; the port has no frames to send from.
pub(super) fn queue_rows(
    sender: &mut Sender,
    rows: &Rows,
    done: &mut usize,
    time: Duration,
) -> io::Result<Option<()>> {
    let end = Instant::now() + time;
    let mut was_stuck = false;
    while *done < rows.count {
        let mut drafts = sender.drafts(rows.count - *done, rows.row_bytes)?;
        let is_stuck = drafts.remaining() == 0;
        while let Some(mut draft) = drafts.next_draft() {
            let row = rows.row(*done);
            // SAFETY: a draft is as long as was asked for, and ours alone; the row is exported memory of as
            // many bytes, and not ours.
            unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), draft.as_mut_ptr(), rows.row_bytes) }
            draft.queue();
            *done += 1;
        }
        drop(drafts);
        if is_stuck && was_stuck {
            return Err(io::Error::other(
                "port: has no frames to send from; open it with some, by frame_count=(receive, send)",
            ));
        }
        // Frames are free again when the kernel has sent them.
        was_stuck = is_stuck;
        if is_stuck && !(sender.flush_timeout(time)? && sender.drain(time)?) {
            return Ok(None);
        }
        if *done < rows.count && Instant::now() >= end && !is_stuck {
            return Ok(None);
        }
    }
    Ok(Some(()))
}

/// Hands what is queued to the kernel.
///
/// # Errors
/// The interface is down or was removed.
pub(super) fn flush(sender: &mut Sender, time: Duration) -> io::Result<Option<()>> {
    Ok(sender.flush_timeout(time)?.then_some(()))
}

/// The longest row is checked before anything is queued.
///
/// # Errors
/// [`Reason::TooLong`].
pub(super) fn check_length(sender: &mut Sender, bytes: usize) -> Result<(), Reason> {
    sender.drafts(0, bytes).map(drop)
}
