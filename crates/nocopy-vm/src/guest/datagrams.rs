//! Numbered datagrams, sent by this library's socket at the left end to an ordinary socket at the right.

use std::io;
use std::net::UdpSocket;

use nocopy::udp::{Message, Method, Socket};
use nocopy::{Buffer, Evidence, Ledger};
use nocopy_lab::Lab;
use serde_json::json;

use super::Guest;
use super::meter::{CopyCounts, CopyMeter, Direction};
use super::patience::ARRIVAL_MAX;
use crate::failure::Failure;

pub(crate) const DATAGRAMS: u32 = 1000;
pub(crate) const DATAGRAM_BYTES: usize = 1400;
pub(crate) const BYTES: u64 = DATAGRAMS as u64 * DATAGRAM_BYTES as u64;

/// On their way at a time: as many as make the longest message that a kernel cuts, and fewer than an ordinary
/// socket's receive buffer holds.
const WINDOW: u32 = 46;

/// The methods that send from the program's memory.
pub(crate) const ZERO_COPY: [Method; 4] =
    [Method::ZeroCopy, Method::ZeroCopyGso, Method::UringZeroCopy, Method::UringZeroCopyGso];

#[derive(Debug, Clone, Copy)]
pub(crate) enum BufferOrigin {
    /// A buffer of the socket's pool, with a whole window in it.
    Pool,
    /// The program's own, a piece for each datagram.
    Foreign,
}

/// A method of sending, and the expected result.
pub(crate) struct SendCase<M = Method> {
    pub(crate) name: &'static str,
    pub(crate) method: M,
    pub(crate) memory: BufferOrigin,
    pub(crate) evidence: Evidence,
}

/// Sends datagrams across, checks that each arrives with its bytes, in order, and that its memory comes back
/// with the evidence, and adds a row to the report. Returns what the sender's ledger says, and what the
/// kernel copied.
pub(crate) fn measure_datagram_copies(
    guest: &Guest,
    meter: &CopyMeter,
    case: &SendCase,
) -> Result<(Ledger, CopyCounts), Failure> {
    let mut datagrams = DatagramSockets::open(guest.lab(), case.method)?;
    let copies = meter.measure_copies(|| datagrams.send_and_receive_all(case))?;
    let ledger = datagrams.ledger();
    guest.record_measurement(&json!({
        "method": case.method.to_string(),
        "case": case.name,
        "datagrams": DATAGRAMS,
        "datagram_bytes": DATAGRAM_BYTES,
        "overtaken": datagrams.overtaken,
        "ledger": ledger.to_string(),
        "copies_per_byte": copies.copied_bytes(Direction::Sent) as f64 / BYTES as f64,
        "copied_by": copies.of_direction(Direction::Sent),
    }));
    assert_eq!((ledger.datagrams(), ledger.bytes()), (DATAGRAMS.into(), BYTES), "{ledger}");
    Ok((ledger, copies))
}

struct DatagramSockets {
    sender: Socket,
    receiver: UdpSocket,
    /// Datagrams that arrived after one that was sent later.
    overtaken: usize,
}

impl DatagramSockets {
    fn open(lab: &Lab, method: Method) -> Result<Self, Failure> {
        let (left, right) = (lab.left(), lab.right());
        let receiver = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 0)))?;
        receiver.set_read_timeout(Some(ARRIVAL_MAX))?;
        let to = receiver.local_addr()?;
        let sender = left.namespace().run(|| {
            let builder = Socket::builder().method(method).return_buffers(true);
            let mut socket = builder.bind((left.ipv4(), 0))?;
            socket.connect(to)?;
            Ok::<_, Failure>(socket)
        })?;
        Ok(Self { sender, receiver, overtaken: 0 })
    }

    fn send_and_receive_all(&mut self, case: &SendCase) -> Result<(), Failure> {
        for window in datagram_windows() {
            self.send_window(&window, case.memory)?;
            self.expect_window(&window, case.method)?;
            let sender = self.sender.sender();
            if !sender.drain(ARRIVAL_MAX)? {
                return Err(Failure(format!("{} calls are not completed", sender.in_flight())));
            }
            let mut back_bytes = 0;
            while let Some(done) = sender.completed() {
                assert_eq!(done.evidence, case.evidence, "{}, {}", case.method, case.name);
                back_bytes += done.item.pieces().iter().map(|piece| piece.len()).sum::<usize>();
            }
            assert_eq!(back_bytes, window.len() * DATAGRAM_BYTES, "all of the memory is back");
        }
        Ok(())
    }

    fn send_window(&mut self, window: &[Vec<u8>], memory: BufferOrigin) -> Result<(), Failure> {
        let sender = self.sender.sender();
        match memory {
            BufferOrigin::Pool => {
                let mut buffer = sender.buffer().expect("all are back");
                buffer.fill(&window.concat()).expect("a window fits a buffer");
                sender.send(Message::segments(buffer, DATAGRAM_BYTES))?;
            }
            BufferOrigin::Foreign => {
                for datagram in window {
                    sender.send(Buffer::from(datagram.clone()))?;
                }
            }
        }
        Ok(sender.flush()?)
    }

    /// Receives a whole window. Datagrams that io_uring sends may overtake each other while the send buffer
    /// is full.
    fn expect_window(&mut self, window: &[Vec<u8>], method: Method) -> Result<(), Failure> {
        let arrived = window.iter().map(|_| receive_datagram(&self.receiver)).collect::<Result<Vec<_>, _>>();
        let mut arrived = arrived.map_err(|error| Failure(format!("{method}: not all arrived: {error}")))?;
        if matches!(method, Method::UringZeroCopy | Method::UringZeroCopyGso) {
            self.overtaken += arrived.windows(2).filter(|pair| pair[0] > pair[1]).count();
            arrived.sort_unstable();
        }
        let wrong = arrived.iter().zip(window).position(|(arrived, wanted)| arrived != wanted);
        assert_eq!(wrong, None, "{method}: in its window, the first that is not what was sent");
        Ok(())
    }

    fn ledger(&mut self) -> Ledger {
        let sender = self.sender.sender();
        let stats = sender.stats();
        assert_eq!((stats.dropped, stats.get("no_buffers").unwrap(), stats.faults), (0, 0, 0));
        sender.ledger()
    }
}

/// All datagrams, in portions that may be in flight at a time.
pub(crate) fn datagram_windows() -> impl Iterator<Item = Vec<Vec<u8>>> {
    let starts = (0..DATAGRAMS).step_by(WINDOW as usize);
    starts.map(|start| (start..DATAGRAMS.min(start + WINDOW)).map(numbered_datagram).collect())
}

fn numbered_datagram(number: u32) -> Vec<u8> {
    let pattern = (0..DATAGRAM_BYTES).map(|place| (number as usize * 31 + place * 7) as u8);
    let mut bytes: Vec<u8> = pattern.collect();
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

pub(crate) fn receive_datagram(socket: &UdpSocket) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; DATAGRAM_BYTES + 1];
    loop {
        match socket.recv(&mut bytes) {
            // Counted as sent by this thread with io_uring.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            length => {
                bytes.truncate(length?);
                return Ok(bytes);
            }
        }
    }
}
