//! nocopy's own methods: UDP over a port, with payloads in its frames, and with payloads that are copied into
//! them.

use crate::evidence;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nocopy::udp::{Message, Method, OpenError, Sender, Socket, UdpChecksum};
use nocopy::{BufferMut, Frame, Port, Reason};

use super::baseline::datagram_sender::PORT;
use super::datagram::DatagramSpec;
use super::stage::SitePair;
use super::window::WindowGauge;
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
pub(crate) struct PortSender {
    sender: Sender,
    to: SocketAddr,
    datagrams: DatagramSpec,
}

pub(crate) fn open_port_sender(
    stage: &SitePair,
    datagrams: DatagramSpec,
    checksum: UdpChecksum,
) -> Result<(PortSender, Evidence), OpenError> {
    let site = &stage.sender;
    let port = Port::builder(&site.interface)
        .multi_buffer(stage.fits_long_frames())
        .send_metadata(checksum == UdpChecksum::Offloaded)
        .ring_sizes(RX_RING, TX_RING)
        .frame_count(RX_RING, TX_RING);
    let builder = Socket::builder().port(port).method(Method::Xdp).checksum(checksum);
    let (_receiver, sender) = site.run(|| builder.bind((site.ipv4, 0)))?.split();
    let evidence = evidence::result_evidence(sender.explain().evidence);
    Ok((PortSender { sender, to: (stage.receiver.ipv4, PORT).into(), datagrams }, evidence))
}

impl PortSender {
    pub(crate) fn send_from_frames(mut self, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
        let mut home = self.fill_free_frames();
        let mut sequence = 0;
        while gauge.may_send() {
            let first = sequence;
            while sequence - first < BATCH && self.queue_datagram(&mut home, sequence)? {
                sequence += 1;
            }
            self.sender.flush()?;
            self.sender.reap();
            // After the free ones: a program that takes the last returned frame first sends from the cache.
            home.extend(take_free_frames(&mut self.sender));
            gauge.count_packets(sequence - first);
        }
        drop(home);
        self.sender.drain(PATIENCE).map(drop)
    }

    /// Sends datagrams in the program's memory, as the socket calls do, by copying them into frames.
    pub(crate) fn send_copied(mut self, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
        let Self { sender, to, datagrams } = &mut self;
        let mut source = vec![0; datagrams.count_in_source() * datagrams.bytes];
        source.chunks_exact_mut(datagrams.burst_bytes()).for_each(DatagramSpec::fill_pattern);
        let (mut place, mut sequence) = (0, 0);
        while gauge.may_send() {
            let first = sequence;
            while sequence - first < BATCH {
                let datagram = &mut source[place..place + datagrams.bytes];
                datagrams.number_datagrams(datagram, sequence);
                match sender.send_copy_to(datagram, *to) {
                    Ok(()) => {}
                    Err(Reason::Full) => break,
                    Err(reason) => return Err(reason.into()),
                }
                sequence += 1;
                place = (place + datagrams.bytes) % source.len();
            }
            sender.flush()?;
            gauge.count_packets(sequence - first);
        }
        sender.drain(PATIENCE).map(drop)
    }

    fn fill_free_frames(&mut self) -> VecDeque<BufferMut> {
        let mut home: VecDeque<_> = take_free_frames(&mut self.sender).collect();
        for frame in &mut home {
            frame.resize(frame.capacity());
            DatagramSpec::fill_pattern(frame);
        }
        home
    }

    /// Queues the next datagram, with the current contents of a frame. `false`: no frame is free.
    fn queue_datagram(&mut self, home: &mut VecDeque<BufferMut>, number: u64) -> io::Result<bool> {
        let Some(mut frame) = home.pop_front() else { return Ok(false) };
        let bytes = self.datagrams.bytes.min(frame.capacity());
        frame.resize(bytes);
        DatagramSpec::number_datagram(&mut frame, number);
        let message = match bytes < self.datagrams.bytes {
            true => self.chain_frames(frame, home),
            false => Some(frame.into()),
        };
        let Some(message) = message else { return Ok(false) };
        self.sender.send_to(message, self.to).map_err(|rejected| rejected.reason)?;
        Ok(true)
    }

    /// A datagram longer than a frame, beginning in this one.
    #[cold]
    fn chain_frames(&mut self, first: BufferMut, home: &mut VecDeque<BufferMut>) -> Option<Message> {
        let mut left = self.datagrams.bytes - first.len();
        let mut pieces = vec![first.freeze()];
        while left > 0 {
            let mut frame = home.pop_front()?;
            frame.resize(left.min(frame.capacity()));
            left -= frame.len();
            pieces.push(frame.freeze());
        }
        Some(Message::from_iter(pieces))
    }
}

fn take_free_frames(sender: &mut Sender) -> impl Iterator<Item = BufferMut> {
    std::iter::from_fn(|| Frame::try_from(sender.buffer()?.freeze()).ok().map(BufferMut::from))
}
