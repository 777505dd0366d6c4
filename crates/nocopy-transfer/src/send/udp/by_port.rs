//! Datagrams over a port, each in its own frame; or, for comparison, copied into one.

use std::io;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::udp::{Method, Receiver, Sender, Socket};
use nocopy::{BufferMut, Evidence, Frame, Port, Reason};
use nocopy_lab::Interface;
use nocopy_proto::errno::{ErrorCounts, is_interface_down, is_transient};

use super::payload::FillResult;
use super::transport::{SendResult, Transport, TransportReport, is_recoverable, refused_counts};
use super::writer::DatagramWriter;
use super::{BATCH_BYTES, Error};
use crate::Failure;
use crate::arguments::LOOPBACK;
use crate::exchange::over_port::source_address;
use crate::send::{ONE_FRAME_MTU_BYTES, PATIENCE};

const TX_RING: u32 = 2048;

/// Entries of the rx ring: little is received.
const RX_RING: u32 = 64;

/// The longest wait for a port that has worked: later its interface may be down, or have no carrier, for
/// long.
const POLL_TIMEOUT: Duration = Duration::from_millis(20);

/// How long to wait for a port without room.
const NO_ROOM: Duration = Duration::from_micros(20);

#[derive(Debug)]
pub(super) struct PortTransport {
    interface: String,
    to: SocketAddr,
    sender: Sender,
    receiver: Receiver,
    evidence: Evidence,
    memory: DatagramMemory,
    /// Whether the port has sent something, so that it worked.
    has_sent: bool,
    /// Datagrams that the port had no room for.
    no_room: ErrorCounts,
    /// Probes to the receiver that the kernel refused.
    probes_refused: ErrorCounts,
}

/// Why a copied datagram is lost.
enum UnsentReason {
    /// The sender has counted it.
    Refused(io::Error),
    /// The port has had no room for some time.
    NoRoom(io::Error),
}

#[derive(Debug)]
enum DatagramMemory {
    Frames(Vec<BufferMut>),
    /// Memory of this program, copied into frames.
    Own {
        buffer: Vec<u8>,
        asked: bool,
    },
}

impl PortTransport {
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
        let room_bytes = all_free_frames(&mut sender).next().map_or(0, |frame| frame.capacity());
        let memory = match copied || datagram_bytes > room_bytes {
            true => DatagramMemory::Own { buffer: vec![0; BATCH_BYTES], asked: copied },
            false => DatagramMemory::Frames(Vec::new()),
        };
        Ok(Self {
            interface: name.clone(),
            to,
            sender,
            receiver,
            evidence,
            memory,
            has_sent: false,
            no_room: ErrorCounts::default(),
            probes_refused: ErrorCounts::default(),
        })
    }

    /// Hands over queued datagrams. `Some`: not all of them; those given to a port whose interface is down or
    /// has no carrier wait there, and the port sends them when it can. At first, any working port accepts
    /// some within a time.
    fn flush(&mut self) -> Result<Option<io::Error>, Error> {
        match self.sender.flush_timeout(if self.has_sent { POLL_TIMEOUT } else { PATIENCE }) {
            Ok(true) => self.has_sent = true,
            Ok(false) if self.has_sent => return Ok(Some(io::Error::from_raw_os_error(libc::ENOBUFS))),
            Ok(false) => return Err(Error::NoRoom { interface: self.interface.clone() }),
            Err(error) if self.has_sent && is_transient(&error) => return Ok(Some(error)),
            Err(error) => return Err(Error::Port(error)),
        }
        Ok(None)
    }

    fn take_frames(&mut self, count: usize) -> Vec<BufferMut> {
        let DatagramMemory::Frames(home) = &mut self.memory else { return Vec::new() };
        let mut frames = std::mem::take(home);
        self.sender.reap();
        frames.extend(self::all_free_frames(&mut self.sender).take(count.saturating_sub(frames.len())));
        frames
    }

    fn send_in_frames(&mut self, writer: &mut DatagramWriter<'_>, count: usize) -> Result<SendResult, Error> {
        let datagram_bytes = writer.shape.datagram_bytes;
        let mut frames = self.take_frames(count);
        if frames.is_empty() {
            return Ok(SendResult::NoRoom);
        }
        let places = frames.iter_mut().take(count).map(|frame| {
            frame.resize(datagram_bytes);
            &mut frame[..]
        });
        let sent = match writer.fill(places)? {
            FillResult::Bytes(bytes) => {
                for (frame, length) in frames.iter_mut().zip(writer.shape.datagram_lengths(bytes)) {
                    frame.resize(length);
                    writer.complete_datagram(frame);
                }
                for frame in frames.drain(..bytes.div_ceil(datagram_bytes)) {
                    let sent = self.sender.send_to(frame, self.to);
                    sent.map_err(|rejected| Error::Rejected(rejected.reason))?;
                }
                SendResult::Sent
            }
            FillResult::End => SendResult::End,
            FillResult::Nothing => SendResult::Nothing,
        };
        self.memory = DatagramMemory::Frames(frames);
        self.flush().map(|_| sent)
    }

    fn send_all_copied(
        &mut self,
        writer: &mut DatagramWriter<'_>,
        count: usize,
        buffer: &mut [u8],
    ) -> Result<SendResult, Error> {
        let Some(frame) = self.sender.buffer() else {
            self.flush()?;
            return Ok(SendResult::NoRoom);
        };
        self.sender.recycle(frame);
        let datagram_bytes = writer.shape.datagram_bytes;
        let bytes = match writer.fill(buffer[..count * datagram_bytes].chunks_mut(datagram_bytes))? {
            FillResult::Bytes(bytes) => bytes,
            FillResult::End => return Ok(SendResult::End),
            FillResult::Nothing => return Ok(SendResult::Nothing),
        };
        for datagram in buffer[..bytes].chunks_mut(datagram_bytes) {
            writer.complete_datagram(datagram);
            if let Some(UnsentReason::NoRoom(error)) = self.send_copied(datagram)? {
                self.no_room.add(&error, 1);
            }
        }
        self.flush().map(|_| SendResult::Sent)
    }

    /// Copies a datagram into frames. `Some`: it is lost.
    fn send_copied(&mut self, datagram: &[u8]) -> Result<Option<UnsentReason>, Error> {
        let start = Instant::now();
        loop {
            match self.sender.send_copy_to(datagram, self.to) {
                Ok(()) => return Ok(None),
                Err(Reason::Full) => {}
                Err(Reason::System(error)) if self.has_sent && is_transient(&error) => {
                    return Ok(Some(UnsentReason::Refused(error)));
                }
                Err(reason) => return Err(Error::NotOverPort { to: self.to, reason }),
            }
            let unsent = self.flush()?;
            if unsent.as_ref().is_some_and(is_interface_down) || start.elapsed() >= PATIENCE {
                let no_room = || Error::NoRoom { interface: self.interface.clone() };
                return unsent.map(UnsentReason::NoRoom).map(Some).ok_or_else(no_room);
            }
            self.sender.reap();
            sleep(NO_ROOM);
        }
    }
}

fn all_free_frames(sender: &mut Sender) -> impl Iterator<Item = BufferMut> {
    std::iter::from_fn(|| Frame::try_from(sender.buffer()?.freeze()).ok().map(BufferMut::from))
}

impl Transport for PortTransport {
    fn send(&mut self, writer: &mut DatagramWriter<'_>, count: usize) -> Result<SendResult, Error> {
        let DatagramMemory::Own { buffer, .. } = &mut self.memory else {
            return self.send_in_frames(writer, count);
        };
        let mut taken = std::mem::take(buffer);
        let sent = self.send_all_copied(writer, count, &mut taken);
        if let DatagramMemory::Own { buffer, .. } = &mut self.memory {
            *buffer = taken;
        }
        sent
    }

    fn send_control(&mut self, datagram: &[u8]) -> Result<(), Error> {
        if let Some(UnsentReason::Refused(error)) = self.send_copied(datagram)? {
            self.probes_refused.add(&error, 1);
        }
        self.flush().map(drop)
    }

    fn receive(&mut self, patience: Duration, take: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let batch = match patience.is_zero() {
            true => self.receiver.try_receive(),
            false => self.receiver.receive_timeout(patience),
        };
        let batch = match batch {
            Ok(batch) => batch,
            // Nothing is received until the interface is up again.
            Err(error) if is_interface_down(&error) => {
                sleep(patience);
                return Ok(());
            }
            Err(error) => return Err(Error::Port(error)),
        };
        for datagram in batch {
            // Unlike a connected socket, it receives everything sent to its address.
            let from = datagram.source();
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
        match self.sender.drain(patience) {
            Err(error) if !is_recoverable(&self.sender, &error) => Err(Error::Port(error)),
            _ => Ok(()),
        }
    }

    fn report(&mut self) -> TransportReport {
        let memory = match &self.memory {
            DatagramMemory::Frames(_) => "datagrams written in frames",
            DatagramMemory::Own { asked: true, .. } => "datagrams copied into frames",
            DatagramMemory::Own { asked: false, .. } => "datagrams longer than a frame, copied into several",
        };
        let sent = self.sender.stats();
        let mut explanation = vec![format!(
            "over a port on {}, chosen by the user: {memory}; {}",
            self.interface, self.evidence
        )];
        explanation.extend(
            (&sent)
                .into_iter()
                .filter(|counter| counter.value > 0 && !counter.name.ends_with("_bytes"))
                .map(|counter| format!("{} {}: {}", counter.name, counter.value, counter.meaning)),
        );
        let mut refused = refused_counts(&sent, &self.probes_refused);
        let by_port = ["tx_dropped", "tx_invalid_descs", "still_queued"].into_iter();
        let by_port = by_port.filter_map(|name| Some((name.to_owned(), sent.get(name)?)));
        for (cause, count) in
            self.no_room.counts_by_name().into_iter().chain(by_port).filter(|(_, count)| *count > 0)
        {
            *refused.entry(cause).or_default() += count;
        }
        TransportReport { explanation, refused, ledger: self.sender.ledger() }
    }
}
