//! Arrays as messages, and waiting for room to send them.

use std::io;
use std::time::{Duration, Instant};

use nocopy::integration::poll;
use nocopy::message::{Endpoint, Payload, Peer};
use nocopy::{Buffer, Reason, Rejected, SenderHalf};
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags};

use crate::error;
use crate::exported::{Access, RowBuffers, contiguous, rows};
use crate::half::wait;

/// Rows shorter than this are copied into packets with others, which costs less than a reference to each.
const PACKED_BYTES_MAX: usize = 256;

/// One message of the bytes of an argument.
///
/// # Errors
/// `TypeError`, `ValueError`: the argument cannot be sent.
pub(super) fn payload(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Payload> {
    Ok(match contiguous(argument, object, Access::Read)?.into_buffers() {
        RowBuffers::Contiguous(buffer) => buffer.into(),
        RowBuffers::Apart(buffers) => buffers.into(),
    })
}

/// Messages that are sent one after another, each when there is room.
pub(super) struct Outgoing {
    rows: OutgoingRows,
    /// One that was refused.
    refused: Option<Payload>,
    sent: usize,
}

enum OutgoingRows {
    /// Rows to be copied: all bytes, how many rows, and the bytes of each.
    Packed(Buffer, usize, usize),
    /// Rows to be sent from where they lie.
    Owned(Box<dyn Iterator<Item = Buffer> + Send>),
}

impl Outgoing {
    /// A row a message.
    ///
    /// # Errors
    /// `TypeError`, `ValueError`: the argument cannot be sent.
    pub(super) fn of_rows(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let rows = rows(argument, object, Access::Read)?;
        let (count, row_bytes) = (rows.count, rows.row_bytes);
        let rows = match row_bytes < PACKED_BYTES_MAX {
            false => OutgoingRows::Owned(Box::new(rows.into_each())),
            true => match rows.into_buffers() {
                RowBuffers::Contiguous(buffer) => OutgoingRows::Packed(buffer, count, row_bytes),
                RowBuffers::Apart(buffers) => OutgoingRows::Owned(Box::new(buffers.into_iter())),
            },
        };
        Ok(Self { rows, refused: None, sent: 0 })
    }

    /// Messages that were queued.
    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    /// Queues as many as there is room for.
    ///
    /// # Errors
    /// `Full`, if some are left; others are final.
    pub(super) fn queue(&mut self, endpoint: &mut Endpoint, to: Peer) -> Result<(), Reason> {
        let Self { rows, refused, sent } = self;
        match rows {
            OutgoingRows::Packed(bytes, count, row_bytes) => {
                while *sent < *count {
                    let at = *sent * *row_bytes;
                    endpoint.send_copy_to(&bytes[at..at + *row_bytes], to)?;
                    *sent += 1;
                }
            }
            OutgoingRows::Owned(each) => {
                while let Some(payload) = refused.take().or_else(|| each.next().map(Payload::from)) {
                    if let Err(Rejected { item, reason }) = endpoint.send_to(payload, to) {
                        *refused = Some(item);
                        return Err(reason);
                    }
                    *sent += 1;
                }
            }
        }
        Ok(())
    }
}

/// Repeats an attempt to send while there is no room, for `timeout` at most. Received messages are kept
/// meanwhile.
///
/// # Errors
/// `Full` when the time is over; that of the attempt; what a signal's handler raises.
pub(super) fn with_room<R: Send>(
    py: Python<'_>,
    endpoint: &mut Endpoint,
    timeout: Option<Duration>,
    mut attempt: impl FnMut(&mut Endpoint) -> Result<R, Reason> + Send,
) -> PyResult<R> {
    let sent = wait(py, timeout, |time| {
        let deadline = Instant::now() + time;
        loop {
            match attempt(endpoint) {
                Err(Reason::Full) => {}
                outcome => return Ok(Some(outcome)),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            wait_for_room(endpoint, left)?;
        }
    })?;
    sent.unwrap_or(Err(Reason::Full)).map_err(|reason| error::from_reason(&reason))
}

/// An attempt that gives a payload away, and gets it back if there was no room.
pub(super) fn retried<'a, R>(
    payload: Payload,
    mut send: impl FnMut(&mut Endpoint, Payload) -> Result<R, Rejected<Payload>> + Send + 'a,
) -> impl FnMut(&mut Endpoint) -> Result<R, Reason> + Send + 'a {
    let mut payload = Some(payload);
    move |endpoint| {
        let item = payload.take().expect("it was refused before");
        send(endpoint, item).map_err(|Rejected { item, reason }| {
            payload = Some(item);
            reason
        })
    }
}

/// Waits until there may be room; messages that wait to be received do not end it.
fn wait_for_room(endpoint: &mut Endpoint, time: Duration) -> io::Result<()> {
    if !SenderHalf::arm(&mut **endpoint)? {
        poll(&mut [PollFd::new(&**endpoint, PollFlags::IN)], Some(time))?;
    }
    Ok(())
}

/// Waits on the endpoint's descriptor, after it was armed, until `look` has an outcome or the time is over.
pub(super) fn poll_until<R>(
    endpoint: &mut Endpoint,
    time: Duration,
    mut look: impl FnMut(&mut Endpoint) -> io::Result<Option<R>>,
) -> io::Result<Option<R>> {
    let deadline = Instant::now() + time;
    loop {
        if let Some(outcome) = look(endpoint)? {
            return Ok(Some(outcome));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        poll(&mut [PollFd::new(&**endpoint, PollFlags::IN)], Some(left))?;
    }
}
