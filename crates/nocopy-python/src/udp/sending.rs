//! Arrays as datagrams.

use std::net::SocketAddr;

use nocopy::udp::{DATAGRAM_BYTES_MAX, Message, Sender};
use nocopy::{Buffer, Reason, Rejected};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::exported::{Access, RowBuffers, contiguous, dimensions, rows};
use crate::memory::Memory;

/// The messages that an argument becomes.
pub(super) enum Outgoing {
    /// Datagrams of one length.
    One(Message),
    /// One for each row.
    Apart(Vec<Buffer>),
}

/// A row a datagram, if it is an array of rows; otherwise one datagram, or several of `segment` bytes.
///
/// # Errors
/// `TypeError`, `ValueError`: the argument cannot be sent. `BufferError`: a buffer of ours with views.
pub(super) fn outgoing(object: &Bound<'_, PyAny>, segment: Option<usize>) -> PyResult<Outgoing> {
    if segment == Some(0) {
        return Err(PyValueError::new_err("segment: is 0; give the bytes of each datagram"));
    }
    if let Ok(memory) = object.cast::<Memory>()
        && let Some(buffer) = memory.get().take_buffer()?
    {
        return Ok(Outgoing::One(message(buffer.freeze(), segment)));
    }
    if dimensions(object) < 2 {
        return Ok(match contiguous("data", object, Access::Read)?.into_buffers() {
            RowBuffers::Contiguous(buffer) => Outgoing::One(message(buffer, segment)),
            RowBuffers::Apart(buffers) => Outgoing::Apart(buffers),
        });
    }
    if segment.is_some() {
        return Err(PyValueError::new_err(
            "segment: is for one buffer; each row of this array is a datagram already",
        ));
    }
    let rows = rows("data", object, Access::Read)?;
    let (count, row_bytes) = (rows.count, rows.row_bytes);
    if row_bytes > DATAGRAM_BYTES_MAX {
        return Err(PyValueError::new_err(format!(
            "data: has rows of {row_bytes} bytes; a datagram has at most {DATAGRAM_BYTES_MAX}; give shorter rows"
        )));
    }
    Ok(match rows.into_buffers() {
        // Rows of no bytes are datagrams, too.
        _ if row_bytes == 0 => Outgoing::Apart((0..count).map(|_| Buffer::from(Vec::new())).collect()),
        RowBuffers::Contiguous(_) if count == 0 => Outgoing::Apart(Vec::new()),
        RowBuffers::Contiguous(buffer) => Outgoing::One(Message::segments(buffer, row_bytes)),
        RowBuffers::Apart(buffers) => Outgoing::Apart(buffers),
    })
}

fn message(buffer: Buffer, segment: Option<usize>) -> Message {
    match segment {
        Some(bytes) => Message::segments(buffer, bytes),
        None => buffer.into(),
    }
}

/// Queues what is to be sent, and makes room for it where that is needed.
///
/// # Errors
/// The reason, with the number of datagrams that were queued before.
pub(super) fn queue(sender: &mut Sender, outgoing: Outgoing, to: Option<SocketAddr>) -> Result<(), Reason> {
    match outgoing {
        Outgoing::One(message) => queue_message(sender, message, to),
        Outgoing::Apart(buffers) => {
            buffers.into_iter().try_for_each(|buffer| queue_message(sender, buffer.into(), to))
        }
    }
}

fn queue_message(sender: &mut Sender, message: Message, to: Option<SocketAddr>) -> Result<(), Reason> {
    #[expect(clippy::result_large_err, reason = "what is rejected comes back, and allocates nothing")]
    let send = |sender: &mut Sender, message| match to {
        Some(to) => sender.send_to(message, to),
        None => sender.send(message),
    };
    match send(sender, message) {
        Ok(_) => Ok(()),
        Err(Rejected { item, reason: Reason::Full }) => {
            sender.flush().map_err(Reason::System)?;
            send(sender, item).map(drop).map_err(|rejected| rejected.reason)
        }
        Err(Rejected { reason, .. }) => Err(reason),
    }
}
