//! Sending over an AF_XDP port as one of the methods: frames of its area without a copy, other memory copied
//! into frames.

use std::io;
use std::time::Duration;

use smallvec::SmallVec;

use super::destinations::Destination;
use super::message::{Message, Outgoing};
use super::over_port;
use super::sender::{CallPlan, NonblockingSender, QueuedRun};
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::area::{Chain, Frame};
use crate::memory::pool::Buffer;
use crate::sys::poll::wait_writable;

const FRAMES_WAIT: Duration = Duration::from_millis(1);

impl NonblockingSender {
    /// Sends the run over the port; one system call for all.
    pub(super) fn send_over_port(&mut self, plan: CallPlan, run: &QueuedRun) -> io::Result<()> {
        while self.has_run_left(run) {
            let bytes = self.next_datagram().bytes;
            match self.send_next_over_port(run.destination) {
                Ok(()) => self.count_sent(1, bytes, None),
                Err(Reason::Full) => self.wait_for_port_room(plan.flags)?,
                // The other methods report why.
                Err(_) => return Err(io::ErrorKind::Unsupported.into()),
            }
        }
        self.port.as_mut().map_or(Ok(()), |port| port.flush().map(drop))
    }

    fn send_next_over_port(&mut self, destination: u32) -> Result<(), Reason> {
        let next = self.next_datagram();
        let to = self.destinations.get(destination);
        let Some(port) = &mut self.port else { return Ok(()) };
        if let Some(Outgoing { message, destination }) = self.queue.take_front(is_datagram_of_frames) {
            let is_chain = message.pieces().len() > 1;
            let Err(Rejected { item: message, reason }) = send_frames(port, message, to) else {
                self.queue.advance(next.end, None); // frames return to their pool by themselves
                return Ok(());
            };
            self.queue.restore_front(Outgoing { message, destination });
            if !is_chain || matches!(reason, Reason::Full) {
                return Err(reason);
            } // else they are copied into one
        }
        let pieces = self.queue.entries().pieces(next).collect::<SmallVec<[&[u8]; 4]>>();
        port.send_copied(to.to, to.added(), &pieces)?;
        drop(pieces);
        self.queue.advance(next.end, None);
        Ok(())
    }

    /// Copies bytes into a frame, if nothing is queued before them. If the port refuses them, they are sent
    /// by a call.
    pub(super) fn copy_over_port(
        &mut self,
        bytes: &[u8],
        destination: u32,
        flags: i32,
    ) -> Result<(), Reason> {
        let Some(port) = &mut self.port else { return Err(Reason::NotConnected) };
        let to = self.destinations.get(destination);
        match port.send_copied(to.to, to.added(), &[bytes]) {
            Ok(()) => {
                self.count_sent(1, bytes.len(), None);
                Ok(())
            }
            Err(Reason::Full) if !port.program_has_frames() => Err(Reason::Full),
            Err(Reason::System(error)) => Err(self.count_refused_copy(error)),
            Err(_) => match port.flush() {
                Ok(_) => self.copy_by_call(bytes, destination, flags),
                Err(error) => Err(self.count_refused_copy(error)),
            },
        }
    }

    #[cold]
    fn count_refused_copy(&mut self, error: io::Error) -> Reason {
        self.outcome.count_refused(&error);
        Reason::System(error)
    }

    /// Whether no datagram sent by the port is in flight. Errors: the interface was removed, with its frames.
    /// An interface that is down may come up again within `left`.
    pub(super) fn port_is_drained(&mut self, left: Duration) -> io::Result<bool> {
        match self.port.as_mut().map(|port| port.drain(left)) {
            None => Ok(true),
            Some(Err(error)) if error.kind() == io::ErrorKind::NetworkDown => Ok(false),
            Some(drained) => drained,
        }
    }

    /// For when all frames are in flight, the ring is full, or the kernel has no room for a datagram that the
    /// port cannot send.
    fn wait_for_port_room(&mut self, flags: i32) -> io::Result<()> {
        let Some(port) = &mut self.port else { return Ok(()) };
        if port.reap() > 0 {
            return Ok(());
        }
        if port.program_has_frames() {
            // The other methods need no frames.
            return Err(io::ErrorKind::Unsupported.into());
        }
        port.flush()?;
        if port.reap() > 0 {
            return Ok(());
        }
        if flags & libc::MSG_DONTWAIT != 0 {
            self.awaits_completions = port.in_flight() > 0;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // With nothing in flight, it waits for room in the kernel.
        if port.drain(FRAMES_WAIT)? {
            self.reap(); // or what is told of earlier datagrams would end the wait at once
            wait_writable(self.queue.socket(), FRAMES_WAIT)?;
        }
        Ok(())
    }
}

/// Whether it is a datagram whose memory is frames only.
fn is_datagram_of_frames(outgoing: &Outgoing) -> bool {
    let pieces = outgoing.message.pieces();
    !pieces.is_empty() && pieces.iter().all(Buffer::is_frame) && outgoing.message.datagrams == 1
}

/// Sends a message of frames; gives it back if the port refuses it.
#[expect(clippy::result_large_err, reason = "what is rejected comes back, and allocates nothing")]
fn send_frames(
    port: &mut over_port::Sender,
    message: Message,
    to: &Destination,
) -> Result<(), Rejected<Message>> {
    let mut frames = message.into_iter().map(|piece| Frame::try_from(piece).expect("looked at before"));
    match (frames.next(), frames.len()) {
        (Some(frame), 0) => port.send_to(frame, to.to, to.added()).map_err(|Rejected { item, reason }| {
            let item = Buffer::from(item).into();
            Rejected { item, reason }
        }),
        (first, _) => {
            let chain: Chain<Frame> = first.into_iter().chain(frames).collect();
            port.send_chain(chain, to.to, to.added()).map_err(|Rejected { item, reason }| {
                let item = item.into_iter().map(Buffer::from).collect();
                Rejected { item, reason }
            })
        }
    }
}
