//! nocopy's own side: UDP over a port, with payloads that lie in its frames, and with payloads that are copied into them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nocopy::Frame;
use nocopy::port::Port;
use nocopy::udp::over_port::{OpenError, Rejected, RejectedReason, Sender, Settings, Socket};
use nocopy_proto::UdpChecksum;

use super::baseline::datagram_sender::PORT;
use super::datagram::Datagrams;
use super::result::Evidence;
use super::stage::Stage;
use super::window::Gauge;

/// Entries of the tx ring, with a frame for each: as many datagrams of 1,400 bytes are 2.8 MB.
const TX_RING: u32 = 2048;

/// Entries of the rx ring: little is received.
const RX_RING: u32 = 64;

/// Datagrams a flush.
const BATCH: u64 = 64;

/// How long to wait for the last frames.
const PATIENCE: Duration = Duration::from_millis(100);

/// A socket over a port on the sender's interface, and whom it sends to.
#[derive(Debug)]
pub(crate) struct Path {
    sender: Sender,
    to: SocketAddr,
    datagrams: Datagrams,
}

pub(crate) fn open(
    stage: &Stage,
    datagrams: Datagrams,
    checksum: UdpChecksum,
) -> Result<(Path, Evidence), OpenError> {
    let site = &stage.sender;
    let port = Port::builder(&site.interface)
        .multi_buffer(stage.is_long())
        .ring_sizes(RX_RING, TX_RING)
        .frame_count(RX_RING, TX_RING);
    let mut settings = Settings::default();
    settings.checksum = checksum;
    let socket = site.run(|| Socket::open(port, (site.ipv4, 0).into(), &settings))?;
    let evidence = Evidence::told(socket.evidence());
    let (_receiver, sender) = socket.split();
    Ok((Path { sender, to: (stage.receiver.ipv4, PORT).into(), datagrams }, evidence))
}

impl Path {
    /// Sends datagrams that lie in frames, which go round.
    pub(crate) fn send(mut self, gauge: &mut Gauge<'_>) -> io::Result<()> {
        let mut home = self.fill();
        let mut sequence = 0;
        while gauge.sending() {
            let first = sequence;
            while sequence - first < BATCH && self.queue(&mut home, sequence)? {
                sequence += 1;
            }
            self.sender.flush()?;
            self.sender.reap();
            // Behind those that are here: whoever takes them last in first out sends from a cache.
            home.extend(std::iter::from_fn(|| self.sender.frame()));
            gauge.count(sequence - first);
        }
        drop(home);
        self.sender.drain(PATIENCE).map(drop)
    }

    /// Sends datagrams that lie in the program's memory, as those of the socket calls do, by copying them into frames.
    pub(crate) fn send_copied(mut self, gauge: &mut Gauge<'_>) -> io::Result<()> {
        let Self { sender, to, datagrams } = &mut self;
        let mut source = vec![0; datagrams.in_source() * datagrams.bytes];
        source.chunks_exact_mut(datagrams.burst_bytes()).for_each(Datagrams::fill);
        let (mut place, mut sequence) = (0, 0);
        while gauge.sending() {
            let first = sequence;
            while sequence - first < BATCH {
                let datagram = &mut source[place..place + datagrams.bytes];
                datagrams.number(datagram, sequence);
                match sender.send_copied(*to, &[datagram]) {
                    Ok(()) => {}
                    Err(RejectedReason::Full) => break,
                    Err(reason) => return Err(io::Error::other(reason)),
                }
                sequence += 1;
                place = (place + datagrams.bytes) % source.len();
            }
            sender.flush()?;
            gauge.count(sequence - first);
        }
        sender.drain(PATIENCE).map(drop)
    }

    /// Every frame there is, empty; their memory is filled.
    fn fill(&mut self) -> VecDeque<Frame> {
        let mut home: VecDeque<_> = std::iter::from_fn(|| self.sender.frame()).collect();
        for frame in &mut home {
            let room = frame.tailroom_bytes();
            frame.append(room).into_iter().for_each(Datagrams::fill);
            frame.truncate(0);
        }
        home
    }

    /// Queues the next datagram, of what lies in the frames already. `false`: there is no room.
    fn queue(&mut self, home: &mut VecDeque<Frame>, number: u64) -> io::Result<bool> {
        let Some(mut frame) = home.pop_front() else { return Ok(false) };
        let bytes = self.datagrams.bytes.min(frame.tailroom_bytes());
        let Some(payload) = frame.append(bytes) else { return Ok(false) };
        Datagrams::number_one(payload, number);
        if bytes < self.datagrams.bytes {
            return self.queue_chain(frame, home);
        }
        let Err(Rejected { mut frame, reason }) = self.sender.send(frame, self.to) else { return Ok(true) };
        frame.truncate(0);
        home.push_front(frame);
        no_room(reason)
    }

    /// The same of one that is longer than a frame, and begins in this one.
    #[cold]
    fn queue_chain(&mut self, first: Frame, home: &mut VecDeque<Frame>) -> io::Result<bool> {
        let mut left = self.datagrams.bytes - first.len();
        let mut frames = vec![first];
        while left > 0 {
            let Some(mut frame) = home.pop_front() else { return Ok(false) };
            let bytes = left.min(frame.tailroom_bytes());
            left -= bytes;
            frame.append(bytes);
            frames.push(frame);
        }
        match self.sender.send_chain(frames.into_iter().collect(), self.to) {
            Ok(()) => Ok(true),
            // Its frames go home when it is dropped, and are taken again.
            Err(rejected) => no_room(rejected.reason),
        }
    }
}

fn no_room(reason: RejectedReason) -> io::Result<bool> {
    match reason {
        RejectedReason::Full => Ok(false),
        reason => Err(io::Error::other(reason)),
    }
}
