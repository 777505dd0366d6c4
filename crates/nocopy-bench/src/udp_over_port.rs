//! nocopy's own methods: UDP over a port, with payloads in its frames, and with payloads that are copied into
//! them.

use crate::evidence;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nocopy::udp::{Message, Method, OpenError, Sender, Socket, UdpChecksum};
use nocopy::{Buffer, Frame, Port, Reason};

use super::baseline::datagram_sender::PORT;
use super::datagram::Datagrams;
use super::stage::Stage;
use super::window::Gauge;
use nocopy_report::result::Evidence;

/// Entries of the tx ring, with a frame for each: as many datagrams of 1,400 bytes are 2.8 MB.
const TX_RING: u32 = 2048;

/// Entries of the rx ring: little is received.
const RX_RING: u32 = 64;

const BATCH: u64 = 64;

/// How long to wait for the last frames.
const PATIENCE: Duration = Duration::from_millis(100);

/// A socket over a port on the sender's interface, and its destination.
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
        .send_metadata(checksum == UdpChecksum::Offloaded)
        .ring_sizes(RX_RING, TX_RING)
        .frame_count(RX_RING, TX_RING);
    let builder = Socket::builder().port(port).method(Method::Xdp).checksum(checksum);
    let (_receiver, sender) = site.run(|| builder.bind((site.ipv4, 0).into()))?.split();
    let evidence = evidence::reported(sender.explain().evidence);
    Ok((Path { sender, to: (stage.receiver.ipv4, PORT).into(), datagrams }, evidence))
}

impl Path {
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
            // After the free ones: a program that takes the last returned frame first sends from the cache.
            home.extend(frames(&mut self.sender));
            gauge.count(sequence - first);
        }
        drop(home);
        self.sender.drain(PATIENCE).map(drop)
    }

    /// Sends datagrams in the program's memory, as the socket calls do, by copying them into frames.
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
                match sender.send_copy(datagram, *to) {
                    Ok(()) => {}
                    Err(Reason::Full) => break,
                    Err(reason) => return Err(reason.into()),
                }
                sequence += 1;
                place = (place + datagrams.bytes) % source.len();
            }
            sender.flush()?;
            gauge.count(sequence - first);
        }
        sender.drain(PATIENCE).map(drop)
    }

    fn fill(&mut self) -> VecDeque<Buffer> {
        let mut home: VecDeque<_> = frames(&mut self.sender).collect();
        for frame in &mut home {
            frame.resize(frame.capacity());
            frame.as_mut().into_iter().for_each(Datagrams::fill);
        }
        home
    }

    /// Queues the next datagram, with the current contents of a frame. `false`: no frame is free.
    fn queue(&mut self, home: &mut VecDeque<Buffer>, number: u64) -> io::Result<bool> {
        let Some(mut frame) = home.pop_front() else { return Ok(false) };
        let bytes = self.datagrams.bytes.min(frame.capacity());
        frame.resize(bytes);
        frame.as_mut().into_iter().for_each(|payload| Datagrams::number_one(payload, number));
        let message = match bytes < self.datagrams.bytes {
            true => self.chain(frame, home),
            false => Some(frame.into()),
        };
        let Some(message) = message else { return Ok(false) };
        self.sender.send(message, self.to).map_err(|rejected| rejected.reason)?;
        Ok(true)
    }

    /// A datagram longer than a frame, beginning in this one.
    #[cold]
    fn chain(&mut self, first: Buffer, home: &mut VecDeque<Buffer>) -> Option<Message> {
        let mut left = self.datagrams.bytes - first.len();
        let mut pieces = vec![first];
        while left > 0 {
            let mut frame = home.pop_front()?;
            frame.resize(left.min(frame.capacity()));
            left -= frame.len();
            pieces.push(frame);
        }
        Some(Message::from_iter(pieces))
    }
}

fn frames(sender: &mut Sender) -> impl Iterator<Item = Buffer> {
    std::iter::from_fn(|| Frame::try_from(sender.buffer()?).ok().map(Buffer::from))
}
