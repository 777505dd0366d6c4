//! Datagrams over a port, each in a frame of its own; or, to compare with that, copied into one.

use std::io;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::udp::over_port::{Receiver, Rejected, RejectedReason, Sender, Settings, Socket};
use nocopy::{Evidence, Frame, Port};
use nocopy_lab::Interface;

use super::cargo::Cargo;
use super::carrier::{Account, Carried, Carrier};
use super::payload::Filled;
use super::{BATCH_BYTES, Error};
use crate::Failure;
use crate::arguments::LOOPBACK;
use crate::exchange::over_port::source_address;
use crate::send::{ONE_FRAME_MTU_BYTES, PATIENCE};

/// Entries of the tx ring, with a frame for each.
const TX_RING: u32 = 2048;

/// The same of the rx ring: little is received.
const RX_RING: u32 = 64;

/// How long to leave a port alone that has no room.
const NO_ROOM: Duration = Duration::from_micros(20);

/// A socket over a port.
#[derive(Debug)]
pub(super) struct ByPort {
    interface: String,
    to: SocketAddr,
    sender: Sender,
    receiver: Receiver,
    evidence: Evidence,
    memory: Memory,
}

/// Where datagrams are written.
#[derive(Debug)]
enum Memory {
    /// In frames: those that are here.
    Frames(Vec<Frame>),
    /// In memory of this program; they are copied into frames.
    Own { buffer: Vec<u8>, asked: bool },
}

impl ByPort {
    /// For datagrams of up to so many bytes; with a copy where that is asked for, and where they are longer than a frame.
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
        let socket = Socket::open(port, local, &Settings::default())?;
        let evidence = socket.evidence();
        let (receiver, mut sender) = socket.split();
        let room_bytes = sender.frame().map_or(0, |frame| frame.tailroom_bytes());
        let memory = match copied || datagram_bytes > room_bytes {
            true => Memory::Own { buffer: vec![0; BATCH_BYTES], asked: copied },
            false => Memory::Frames(Vec::new()),
        };
        Ok(Self { interface: name.clone(), to, sender, receiver, evidence, memory })
    }

    /// Does it again for as long as there is no room.
    fn with_room<T>(
        &mut self,
        mut given: T,
        mut act: impl FnMut(&mut Sender, SocketAddr, T) -> Result<(), (Option<T>, RejectedReason)>,
    ) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            match act(&mut self.sender, self.to, given) {
                Ok(()) => return Ok(()),
                Err((Some(back), RejectedReason::Full)) if start.elapsed() < PATIENCE => given = back,
                Err((_, RejectedReason::Full)) => {
                    return Err(Error::NoRoom { interface: self.interface.clone() });
                }
                Err((_, reason)) => return Err(Error::NotOverPort { to: self.to, reason }),
            }
            self.flush()?;
            self.sender.reap();
            sleep(NO_ROOM);
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.sender.flush().map_err(Error::Port)
    }

    /// Takes frames that are here, up to so many.
    fn frames(&mut self, count: usize) -> Vec<Frame> {
        let Memory::Frames(home) = &mut self.memory else { return Vec::new() };
        let mut frames = std::mem::take(home);
        self.sender.reap();
        frames.extend(std::iter::from_fn(|| self.sender.frame()).take(count.saturating_sub(frames.len())));
        frames
    }

    fn carry_in_frames(&mut self, cargo: &mut Cargo<'_>, count: usize) -> Result<Carried, Error> {
        let datagram_bytes = cargo.shape.datagram_bytes;
        let mut frames = self.frames(count);
        if frames.is_empty() {
            return Ok(Carried::NoRoom);
        }
        let places = frames.iter_mut().take(count).filter_map(|frame| frame.append(datagram_bytes));
        let carried = match cargo.fill(places)? {
            Filled::Bytes(bytes) => {
                for (frame, length) in frames.iter_mut().zip(cargo.shape.lengths(bytes)) {
                    frame.truncate(length);
                    cargo.seal(frame);
                }
                for frame in frames.drain(..bytes.div_ceil(datagram_bytes)) {
                    self.with_room(frame, |sender, to, frame| {
                        let sent = sender.send(frame, to);
                        sent.map_err(|Rejected { frame, reason }| (Some(frame), reason))
                    })?;
                }
                Carried::Sent
            }
            Filled::End => Carried::End,
            Filled::Nothing => Carried::Nothing,
        };
        frames.iter_mut().for_each(|frame| frame.truncate(0));
        self.memory = Memory::Frames(frames);
        self.flush().map(|()| carried)
    }

    fn carry_copied(
        &mut self,
        cargo: &mut Cargo<'_>,
        count: usize,
        buffer: &mut [u8],
    ) -> Result<Carried, Error> {
        let datagram_bytes = cargo.shape.datagram_bytes;
        let bytes = match cargo.fill(buffer[..count * datagram_bytes].chunks_mut(datagram_bytes))? {
            Filled::Bytes(bytes) => bytes,
            Filled::End => return Ok(Carried::End),
            Filled::Nothing => return Ok(Carried::Nothing),
        };
        for datagram in buffer[..bytes].chunks_mut(datagram_bytes) {
            cargo.seal(datagram);
            self.send_copied(datagram)?;
        }
        self.flush().map(|()| Carried::Sent)
    }

    fn send_copied(&mut self, datagram: &[u8]) -> Result<(), Error> {
        self.with_room((), |sender, to, ()| {
            sender.send_copied(to, &[datagram]).map_err(|reason| (Some(()), reason))
        })
    }
}

impl Carrier for ByPort {
    fn carry(&mut self, cargo: &mut Cargo<'_>, count: usize) -> Result<Carried, Error> {
        let Memory::Own { buffer, .. } = &mut self.memory else { return self.carry_in_frames(cargo, count) };
        let mut taken = std::mem::take(buffer);
        let carried = self.carry_copied(cargo, count, &mut taken);
        if let Memory::Own { buffer, .. } = &mut self.memory {
            *buffer = taken;
        }
        carried
    }

    fn say(&mut self, datagram: &[u8]) -> Result<(), Error> {
        self.send_copied(datagram)?;
        self.flush()
    }

    fn hear(&mut self, patience: Duration, take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let batch = match patience.is_zero() {
            true => self.receiver.try_receive(),
            false => self.receiver.receive_timeout(patience),
        };
        for datagram in batch.map_err(Error::Port)? {
            // Unlike a connected socket, it takes whatever comes to its address.
            let from = datagram.from();
            if (from.ip(), from.port()) == (self.to.ip(), self.to.port()) {
                take(&datagram);
            }
        }
        Ok(())
    }

    fn complaints(&mut self) -> Vec<io::Error> {
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
        let sent = self.sender.sent();
        let mut report =
            vec![format!("over a port on {}, chosen by the user: {how}; {}", self.interface, self.evidence)];
        report.extend(
            sent.counters()
                .filter(|counter| counter.value > 0 && !counter.name.ends_with("_bytes"))
                .map(|counter| format!("{} {}: {}", counter.name, counter.value, counter.meaning)),
        );
        Account { report, refused: 0, ledger: self.sender.ledger() }
    }
}
