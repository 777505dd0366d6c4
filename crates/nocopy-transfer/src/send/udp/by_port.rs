//! Datagrams over a port, each in its own frame; or, for comparison, copied into one.

use std::io;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::udp::{Method, Receiver, Sender, Socket};
use nocopy::{Buffer, Evidence, Frame, Port, Reason};
use nocopy_lab::Interface;

use super::payload::Filled;
use super::transport::{Account, SendResult, Transport};
use super::writer::DatagramWriter;
use super::{BATCH_BYTES, Error};
use crate::Failure;
use crate::arguments::LOOPBACK;
use crate::exchange::over_port::source_address;
use crate::send::{ONE_FRAME_MTU_BYTES, PATIENCE};

const TX_RING: u32 = 2048;

/// Entries of the rx ring: little is received.
const RX_RING: u32 = 64;

/// How long to wait for a port without room.
const NO_ROOM: Duration = Duration::from_micros(20);

#[derive(Debug)]
pub(super) struct ByPort {
    interface: String,
    to: SocketAddr,
    sender: Sender,
    receiver: Receiver,
    evidence: Evidence,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Frames(Vec<Buffer>),
    /// Memory of this program, copied into frames.
    Own {
        buffer: Vec<u8>,
        asked: bool,
    },
}

impl ByPort {
    /// For datagrams of up to that many bytes; copies them if requested, or if they are longer than a frame.
    pub(super) fn open(
        interface: &Interface,
        to: SocketAddr,
        copied: bool,
        datagram_bytes: usize,
    ) -> Result<Self, Failure> {
        let name = &interface.name;
        if name == LOOPBACK {
            return Err(Error::Loopback { interface: name.clone() }.into());
        }
        let local = source_address(to, name).map_err(|source| Error::NoWay {
            to,
            interface: name.clone(),
            source,
        })?;
        let port = Port::builder(name)
            .multi_buffer(interface.mtu_bytes > ONE_FRAME_MTU_BYTES)
            .ring_sizes(RX_RING, TX_RING)
            .frame_count(RX_RING, TX_RING);
        let (receiver, mut sender) = Socket::builder().port(port).method(Method::Xdp).bind(local)?.split();
        let evidence = sender.explain().evidence;
        let room_bytes = frames(&mut sender).next().map_or(0, |frame| frame.capacity());
        let memory = match copied || datagram_bytes > room_bytes {
            true => Memory::Own { buffer: vec![0; BATCH_BYTES], asked: copied },
            false => Memory::Frames(Vec::new()),
        };
        Ok(Self { interface: name.clone(), to, sender, receiver, evidence, memory })
    }

    /// Hands over queued datagrams, within a time in which any working port accepts some.
    fn flush(&mut self) -> Result<(), Error> {
        match self.sender.flush_timeout(PATIENCE) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::NoRoom { interface: self.interface.clone() }),
            Err(error) => Err(Error::Port(error)),
        }
    }

    fn frames(&mut self, count: usize) -> Vec<Buffer> {
        let Memory::Frames(home) = &mut self.memory else { return Vec::new() };
        let mut frames = std::mem::take(home);
        self.sender.reap();
        frames.extend(self::frames(&mut self.sender).take(count.saturating_sub(frames.len())));
        frames
    }

    fn send_in_frames(&mut self, writer: &mut DatagramWriter<'_>, count: usize) -> Result<SendResult, Error> {
        let datagram_bytes = writer.shape.datagram_bytes;
        let mut frames = self.frames(count);
        if frames.is_empty() {
            return Ok(SendResult::NoRoom);
        }
        let places = frames.iter_mut().take(count).filter_map(|frame| {
            frame.resize(datagram_bytes);
            frame.as_mut()
        });
        let carried = match writer.fill(places)? {
            Filled::Bytes(bytes) => {
                for (frame, length) in frames.iter_mut().zip(writer.shape.lengths(bytes)) {
                    frame.resize(length);
                    frame.as_mut().into_iter().for_each(|datagram| writer.seal(datagram));
                }
                for frame in frames.drain(..bytes.div_ceil(datagram_bytes)) {
                    let sent = self.sender.send(frame, self.to);
                    sent.map_err(|rejected| Error::Rejected(rejected.reason))?;
                }
                SendResult::Sent
            }
            Filled::End => SendResult::End,
            Filled::Nothing => SendResult::Nothing,
        };
        self.memory = Memory::Frames(frames);
        self.flush().map(|()| carried)
    }

    fn carry_copied(
        &mut self,
        writer: &mut DatagramWriter<'_>,
        count: usize,
        buffer: &mut [u8],
    ) -> Result<SendResult, Error> {
        let datagram_bytes = writer.shape.datagram_bytes;
        let bytes = match writer.fill(buffer[..count * datagram_bytes].chunks_mut(datagram_bytes))? {
            Filled::Bytes(bytes) => bytes,
            Filled::End => return Ok(SendResult::End),
            Filled::Nothing => return Ok(SendResult::Nothing),
        };
        for datagram in buffer[..bytes].chunks_mut(datagram_bytes) {
            writer.seal(datagram);
            self.send_copied(datagram)?;
        }
        self.flush().map(|()| SendResult::Sent)
    }

    fn send_copied(&mut self, datagram: &[u8]) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            match self.sender.send_copy(datagram, self.to) {
                Ok(()) => return Ok(()),
                Err(Reason::Full) if start.elapsed() < PATIENCE => {}
                Err(Reason::Full) => return Err(Error::NoRoom { interface: self.interface.clone() }),
                Err(reason) => return Err(Error::NotOverPort { to: self.to, reason }),
            }
            self.flush()?;
            self.sender.reap();
            sleep(NO_ROOM);
        }
    }
}

fn frames(sender: &mut Sender) -> impl Iterator<Item = Buffer> {
    std::iter::from_fn(|| Frame::try_from(sender.buffer()?).ok().map(Buffer::from))
}

impl Transport for ByPort {
    fn send(&mut self, writer: &mut DatagramWriter<'_>, count: usize) -> Result<SendResult, Error> {
        let Memory::Own { buffer, .. } = &mut self.memory else { return self.send_in_frames(writer, count) };
        let mut taken = std::mem::take(buffer);
        let carried = self.carry_copied(writer, count, &mut taken);
        if let Memory::Own { buffer, .. } = &mut self.memory {
            *buffer = taken;
        }
        carried
    }

    fn send_control(&mut self, datagram: &[u8]) -> Result<(), Error> {
        self.send_copied(datagram)?;
        self.flush()
    }

    fn receive(&mut self, patience: Duration, take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let batch = match patience.is_zero() {
            true => self.receiver.try_receive(),
            false => self.receiver.receive_timeout(patience),
        };
        for datagram in batch.map_err(Error::Port)? {
            // Unlike a connected socket, it receives everything sent to its address.
            let from = datagram.from();
            if (from.ip(), from.port()) == (self.to.ip(), self.to.port()) {
                take(&datagram);
            }
        }
        Ok(())
    }

    fn network_errors(&mut self) -> Vec<io::Error> {
        self.sender.errors().map(|told| told.error).collect()
    }

    fn drain(&mut self, patience: Duration) -> Result<(), Error> {
        self.sender.drain(patience).map(drop).map_err(Error::Port)
    }

    fn account(&mut self) -> Account {
        let how = match &self.memory {
            Memory::Frames(_) => "datagrams written in frames",
            Memory::Own { asked: true, .. } => "datagrams copied into frames",
            Memory::Own { asked: false, .. } => "datagrams longer than a frame, copied into several",
        };
        let sent = self.sender.stats().unwrap_or_default();
        let mut report =
            vec![format!("over a port on {}, chosen by the user: {how}; {}", self.interface, self.evidence)];
        report.extend(
            (&sent)
                .into_iter()
                .filter(|counter| counter.value > 0 && !counter.name.ends_with("_bytes"))
                .map(|counter| format!("{} {}: {}", counter.name, counter.value, counter.meaning)),
        );
        Account { report, refused: sent.dropped, ledger: self.sender.ledger() }
    }
}
