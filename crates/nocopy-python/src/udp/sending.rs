//! Arrays as datagrams.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nocopy::udp::{DATAGRAM_BYTES_MAX, Message, Sender};
use nocopy::{Buffer, Reason, Rejected};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::exported::{Access, RowBuffers, contiguous, dimensions, rows};
use crate::memory::Memory;

/// The messages that an argument becomes: one of datagrams of one length, or one for each row.
pub(super) struct Outgoing {
    next: Option<Message>,
    others: std::vec::IntoIter<Message>,
}

impl From<Message> for Outgoing {
    fn from(message: Message) -> Self {
        Self { next: Some(message), others: Vec::new().into_iter() }
    }
}

impl From<Vec<Buffer>> for Outgoing {
    fn from(rows: Vec<Buffer>) -> Self {
        Self { next: None, others: rows.into_iter().map(Message::from).collect::<Vec<_>>().into_iter() }
    }
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
        return Ok(message(buffer.freeze(), segment).into());
    }
    if dimensions(object) < 2 {
        return Ok(match contiguous("data", object, Access::Read)?.into_buffers() {
            RowBuffers::Contiguous(buffer) => message(buffer, segment).into(),
            RowBuffers::Apart(buffers) => buffers.into(),
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
        _ if row_bytes == 0 => (0..count).map(|_| Buffer::from(Vec::new())).collect::<Vec<_>>().into(),
        RowBuffers::Contiguous(_) if count == 0 => Vec::new().into(),
        RowBuffers::Contiguous(buffer) => Message::segments(buffer, row_bytes).into(),
        RowBuffers::Apart(buffers) => buffers.into(),
    })
}

fn message(buffer: Buffer, segment: Option<usize>) -> Message {
    match segment {
        Some(bytes) => Message::segments(buffer, bytes),
        None => buffer.into(),
    }
}

impl Outgoing {
    /// Queues datagrams, and makes room for them where that is needed. Returns once all are queued, or after
    /// about `time`.
    ///
    /// # Errors
    /// A datagram was refused; those before it are queued.
    pub(super) fn queue(
        &mut self,
        sender: &mut Sender,
        to: Option<SocketAddr>,
        time: Duration,
    ) -> io::Result<Option<()>> {
        let mut is_flushed = false;
        while let Some(message) = self.next.take().or_else(|| self.others.next()) {
            let sent = match to {
                Some(to) => sender.send_to(message, to),
                None => sender.send(message),
            };
            match sent {
                Ok(_) => is_flushed = false,
                Err(Rejected { item, reason: Reason::Full }) => {
                    self.next = Some(item);
                    // What is queued first; then what the kernel still reads.
                    let has_room =
                        if is_flushed { sender.drain(time)? } else { sender.flush_timeout(time)? };
                    if !has_room {
                        return Ok(None);
                    }
                    is_flushed = true;
                }
                Err(Rejected { item, reason }) => {
                    self.next = Some(item);
                    return Err(reason.into());
                }
            }
        }
        Ok(Some(()))
    }

    /// Gives the memory of a message that was refused back to the object from which it was taken.
    pub(super) fn give_back(self, object: &Bound<'_, PyAny>) {
        let buffers = self.next.into_iter().flatten();
        if let Ok(memory) = object.cast::<Memory>()
            && let Some(buffer) = buffers.filter_map(|buffer| buffer.try_into_mut().ok()).next()
        {
            memory.get().put_back(buffer);
        }
    }
}
