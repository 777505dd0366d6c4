//! Sends packets from a source through a port, each when it is due.

use nocopy::{Port, Reason, Sender};
use nocopy_proto::errno::is_interface_down;
use nocopy_proto::wire::checksum::ChecksumField;

use super::error::Error;
use super::queue::{NextSendAction, ScheduledSource, SendStep, Tally};
use super::source::PacketSource;
use crate::Failure;

/// The most packets and bytes handed over at a time, so that they stay in the nearest caches.
const BATCH_MAX: usize = 64;
const BATCH_BYTES: usize = 64 << 10;

pub(super) trait Transmitter {
    /// Hands over due packets, up to a batch.
    fn send_due_batch(&mut self, now_ns: u64) -> Result<SendStep, Failure>;

    fn tally(&self) -> Tally;
}

#[derive(Debug)]
pub(super) struct PortTransmitter<S> {
    queue: ScheduledSource<S>,
    port: Port,
    /// The longest packet in one frame.
    draft_bytes_max: usize,
    batch: usize,
    /// The place of a checksum that the device completes.
    checksum: Option<ChecksumField>,
    /// For packets longer than a frame.
    long: Vec<u8>,
}

impl<S: PacketSource> PortTransmitter<S> {
    /// Packets of the source are at most `bytes_max` long, if that is known.
    pub(super) fn new(
        mut port: Port,
        queue: ScheduledSource<S>,
        bytes_max: usize,
        checksum: Option<ChecksumField>,
    ) -> Self {
        // No packet has that length: the refusal returns the limit.
        let draft_bytes_max = match port.sender().drafts(0, usize::MAX) {
            Err(Reason::TooLong { bytes_max: longest }) => longest.min(bytes_max),
            _ => bytes_max,
        };
        let batch = (BATCH_BYTES / draft_bytes_max).clamp(1, BATCH_MAX);
        Self { queue, port, draft_bytes_max, batch, checksum, long: Vec::new() }
    }

    pub(super) fn scheduled_source(&self) -> &ScheduledSource<S> {
        &self.queue
    }

    pub(super) fn source(&mut self) -> &mut S {
        &mut self.queue.source
    }

    pub(super) fn port(&mut self) -> &mut Port {
        &mut self.port
    }
}

impl<S: PacketSource> Transmitter for PortTransmitter<S> {
    fn send_due_batch(&mut self, now_ns: u64) -> Result<SendStep, Failure> {
        let step = self.queue_due_packets(now_ns);
        match self.port.sender().try_flush() {
            Ok(_) => step,
            // The interface is down: packets wait in the port until it is up, or the run is over.
            Err(error) if is_interface_down(&error) => match step {
                Ok(SendStep::NoRoom) => Ok(SendStep::Silence),
                step => step,
            },
            Err(error) => Err(Error::Port(error).into()),
        }
    }

    fn tally(&self) -> Tally {
        self.queue.schedule.tally
    }
}

impl<S: PacketSource> PortTransmitter<S> {
    fn queue_due_packets(&mut self, now_ns: u64) -> Result<SendStep, Failure> {
        let Self { queue, port, draft_bytes_max, batch, checksum, long, .. } = self;
        let sender = port.sender();
        let mut drafts = sender.drafts(*batch, *draft_bytes_max).map_err(Error::Rejected)?;
        if drafts.remaining() == 0 {
            return Ok(if queue.schedule.is_over(now_ns) { SendStep::Done } else { SendStep::NoRoom });
        }
        for _ in 0..*batch {
            let bytes = match queue.next_action(now_ns)? {
                NextSendAction::Stop(step) => return Ok(step),
                NextSendAction::Skip => continue,
                NextSendAction::Send(bytes) => bytes,
            };
            if bytes > *draft_bytes_max {
                drop(drafts);
                return send_multi_frame_packet(queue, sender, bytes, *draft_bytes_max, long);
            }
            let Some(mut draft) = drafts.next_draft() else { break };
            draft.truncate(bytes);
            queue.source.write(&mut draft);
            match checksum {
                None => draft.queue(),
                Some(place) => {
                    draft
                        .queue_checksummed(*place)
                        .map_err(Reason::ChecksumOutside)
                        .map_err(Error::Rejected)?;
                }
            }
            queue.record_sent(bytes, 1);
        }
        Ok(SendStep::Sent)
    }
}

fn send_multi_frame_packet<S: PacketSource>(
    queue: &mut ScheduledSource<S>,
    sender: &mut Sender,
    bytes: usize,
    frame_bytes_max: usize,
    long: &mut Vec<u8>,
) -> Result<SendStep, Failure> {
    long.resize(bytes, 0);
    queue.source.write(long);
    match sender.send_copy(long) {
        Ok(()) => queue.record_sent(bytes, bytes.div_ceil(frame_bytes_max)),
        Err(Reason::Full) => return Ok(SendStep::NoRoom),
        Err(Reason::TooLong { .. }) => {
            queue.schedule.tally.too_long += 1;
            queue.source.skip();
        }
        Err(reason) => return Err(Error::Rejected(reason).into()),
    }
    Ok(SendStep::Sent)
}
