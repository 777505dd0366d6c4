//! The kernel as the generator: it sends one frame repeatedly.

use nocopy::integration::xdp::Generator;

use super::error::Error;
use super::queue::{NextSendAction, ScheduledSource, SendStep, Tally};
use super::source::PacketSource;
use super::template::{GeneratedPayload, PacketTemplate};
use super::transmitter::Transmitter;
use crate::Failure;
use crate::arguments::{PayloadArgument, SendArguments, UdpChecksumArgument};

/// The most frames per call: enough to hide its fixed cost, few enough to end in time.
const BURST: u32 = 16_384;

pub(super) const CAUSE: &str = "a template resent by the kernel: no program writes these frames";

/// Refuses options that need changes of each packet, or a port: conflicts that clap does not know.
pub(super) fn refuse_unsupported_options(arguments: &SendArguments) -> Result<(), Error> {
    let refused = [
        (arguments.frames.flows > 1, "--flows"),
        (arguments.frames.payload == Some(PayloadArgument::Sequence), "--payload sequence"),
        (arguments.frames.checksum == UdpChecksumArgument::Device, "--checksum device"),
        (arguments.frames.mode.is_some(), "--mode"),
        (arguments.frames.queue > 0, "--queue"),
    ];
    match refused.into_iter().find(|(asked, _)| *asked) {
        Some((_, option)) => Err(Error::NotByKernel { option }),
        None => Ok(()),
    }
}

/// Its default payload, equal in all packets.
pub(super) const PAYLOAD: GeneratedPayload = GeneratedPayload::Bytes(Vec::new());

#[derive(Debug)]
pub(super) struct KernelTransmitter {
    interface: String,
    generator: Generator,
    frame: Vec<u8>,
    queue: ScheduledSource<PacketTemplate>,
}

impl KernelTransmitter {
    pub(super) fn new(
        interface: &str,
        generator: Generator,
        mut queue: ScheduledSource<PacketTemplate>,
    ) -> Self {
        let mut frame = vec![0; queue.source.frame_bytes()];
        queue.source.write(&mut frame);
        Self { interface: interface.into(), generator, frame, queue }
    }

    pub(super) fn scheduled_source(&self) -> &ScheduledSource<PacketTemplate> {
        &self.queue
    }
}

impl Transmitter for KernelTransmitter {
    fn send_due_batch(&mut self, now_ns: u64) -> Result<SendStep, Failure> {
        let before = self.queue.schedule.tally;
        let (mut count, mut step) = (0, SendStep::Sent);
        while count < BURST {
            match self.queue.next_action(now_ns)? {
                NextSendAction::Send(bytes) => self.queue.record_sent(bytes, 1),
                NextSendAction::Skip => continue,
                NextSendAction::Stop(stop) => {
                    step = stop;
                    break;
                }
            }
            count += 1;
        }
        if count > 0
            && let Err(source) = self.generator.send(&self.frame, count)
        {
            self.queue.schedule.tally = before;
            return Err(Error::Generator { interface: self.interface.clone(), source }.into());
        }
        Ok(step)
    }

    fn tally(&self) -> Tally {
        self.queue.schedule.tally
    }
}
