//! Frames in batches, by an AF_XDP socket.

use std::io;
use std::time::Duration;

use nocopy::Port;
use nocopy::integration::PortTuning;
use nocopy::port::Sender;

use super::interface::Interface;

/// Frames per system call: more make it no cheaper, and would wait longer.
const BATCH: u32 = 32;

/// Frames in flight: as many as a card sends at 10 Gbit/s in a third of a millisecond.
const FRAMES: u32 = 512;

/// Longer frames are as fast by a packet socket (`docs/bench.md`).
const BYTES_MAX: usize = 1536;

pub(super) const CHECK_INTERVAL: Duration = Duration::from_micros(20);

/// How often to check whether a frame was returned or sent, with a sleep in between: 200 ms or more in all.
/// After that the interface is stuck, and a packet socket would return an error. Checks are counted, not
/// time, because the machine may stall.
pub(super) const CHECKS_MAX: u32 = 3000;

pub(super) struct XdpBatchSender {
    pub(super) sender: Sender,
    /// Frames since the last flush.
    pub(super) staged: u32,
    /// All frames that were queued.
    pub(super) frames: u64,
    pub(super) flushes: u64,
    /// The sender's count of dropped frames when it was last read.
    dropped: u64,
    lengths: std::ops::RangeInclusive<usize>,
    /// The program pauses, so the next frame must not wait for others.
    pub(super) flush_next: bool,
}

pub(super) enum QueueResult {
    Queued,
    /// Queued, and it is time to flush.
    Full,
    /// Only the packet socket can send it.
    Unfit,
}

impl XdpBatchSender {
    /// Opens a socket on the interface's first queue; the error is text for the user.
    pub(super) fn open(interface: &Interface) -> Result<Self, String> {
        let settings = Port::builder(&interface.name).frame_count(0, FRAMES).ring_sizes(FRAMES, FRAMES);
        let sender = settings
            .tuning(PortTuning { inherited: true, ..PortTuning::default() })
            .open_sender()
            .map_err(|error| error.to_string())?;
        let (lengths, dropped) = (batchable_lengths(interface), sender.dropped());
        Ok(Self { sender, staged: 0, frames: 0, flushes: 0, dropped, lengths, flush_next: false })
    }

    /// Adapts to the interface's MTU, which may have changed.
    pub(super) fn set_mtu(&mut self, interface: &Interface) {
        self.lengths = batchable_lengths(interface);
    }

    /// Queues a frame. Errors: there was no room for some time, or there is none and the program does not
    /// wait.
    #[inline]
    pub(super) fn queue_frame(&mut self, packet: &[u8], nonblocking: bool) -> io::Result<QueueResult> {
        if !self.lengths.contains(&packet.len()) {
            return Ok(QueueResult::Unfit);
        }
        let mut frame = match self.sender.buffer() {
            Some(frame) => frame,
            None => self.wait_for_free_frame(nonblocking)?,
        };
        if frame.fill(packet).is_err() || self.sender.send(frame).is_err() {
            return Ok(QueueResult::Unfit); // the interface's MTU was lower when this was opened
        }
        self.staged += 1;
        self.frames += 1;
        Ok(if self.staged >= BATCH || self.flush_next { QueueResult::Full } else { QueueResult::Queued })
    }

    #[cold]
    fn wait_for_free_frame(&mut self, nonblocking: bool) -> io::Result<nocopy::Frame> {
        for _ in 0..CHECKS_MAX {
            // What the kernel drops meanwhile is returned by the next flush.
            let flushed = self.sender.try_flush();
            if let Some(frame) = self.sender.buffer() {
                return Ok(frame);
            }
            flushed.map_err(|error| io::Error::from_raw_os_error(super::sender_errno(&error)))?;
            if nonblocking {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        Err(io::Error::from_raw_os_error(libc::ENOBUFS))
    }

    /// Makes the kernel accept queued frames, as many as it can, and returns how many frames the interface
    /// dropped since the last call.
    pub(super) fn flush(&mut self) -> io::Result<u64> {
        self.staged = 0;
        self.flushes += 1;
        self.flush_next = false;
        self.sender.try_flush()?;
        let dropped = self.sender.dropped();
        // No underflow: the sender's count only grows.
        Ok(dropped - std::mem::replace(&mut self.dropped, dropped))
    }

    /// Frames that the kernel has not accepted.
    pub(super) fn queued_frames(&mut self) -> u64 {
        self.sender.queued().into()
    }
}

fn batchable_lengths(interface: &Interface) -> std::ops::RangeInclusive<usize> {
    let lengths = interface.accepted_frame_lengths();
    *lengths.start()..=(*lengths.end()).min(BYTES_MAX)
}
