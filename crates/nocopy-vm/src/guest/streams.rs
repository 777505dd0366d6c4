//! A stream whose bytes show their position, sent by this library's socket at the left end to an ordinary
//! socket at the right.

use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use nocopy::integration::PublishedMethod;
use nocopy::tcp::{Builder, Method, Published, Sender, Stream};
use nocopy::{Buffer, Ledger};
use nocopy_lab::Lab;
use serde_json::json;

use super::Guest;
use super::datagrams::{self, BufferOrigin};
use super::meter::{CopyCounts, CopyMeter, Direction};
use super::patience::ARRIVAL_MAX;
use crate::failure::Failure;

pub(crate) const BYTES: u64 = 1 << 20;

/// Bytes of a buffer: no divisor of the stream, and no multiple of a page.
const PIECE_BYTES: usize = 50_000;

pub(crate) type StreamSendCase = datagrams::SendCase<Method>;

/// The most pieces in flight: the send buffer has room for them, so that no call sends only a part.
const PIECES_MAX: usize = 2;
const SEND_BUFFER_BYTES: usize = 4 * PIECES_MAX * PIECE_BYTES;

/// Sends a stream across, checks that it arrives byte for byte, and that its memory comes back with the
/// evidence, and adds a row to the report. Returns what the sender's ledger says, and what the kernel copied.
pub(crate) fn measure_stream_copies(
    guest: &Guest,
    meter: &CopyMeter,
    case: &StreamSendCase,
) -> Result<(Ledger, CopyCounts), Failure> {
    let builder = Stream::builder().method(case.method).return_buffers(true).send_buffer(SEND_BUFFER_BYTES);
    send_and_measure(guest, meter, (&case.method.to_string(), case.name), builder, |sender| {
        send_pieces(sender, case)
    })
}

/// As [`measure_stream_copies`] with unchangeable data in its own region, sent by reference or by a copy.
pub(crate) fn measure_published_copies(
    guest: &Guest,
    meter: &CopyMeter,
    method: PublishedMethod,
) -> Result<(Ledger, CopyCounts), Failure> {
    let bytes = stream_bytes();
    let published = Published::written(bytes.len(), |memory| memory.copy_from_slice(&bytes))?;
    let builder = Stream::builder().published_method(method);
    send_and_measure(guest, meter, (method.name(), "published"), builder, |sender| {
        sender.send_published(&published, 0..BYTES)?;
        Ok(sender.finish()?)
    })
}

fn send_and_measure(
    guest: &Guest,
    meter: &CopyMeter,
    (method, name): (&str, &str),
    builder: Builder,
    send: impl FnOnce(&mut Sender) -> Result<(), Failure>,
) -> Result<(Ledger, CopyCounts), Failure> {
    let (mut socket, peer) = connect_streams(guest.lab(), builder)?;
    let reader = thread::spawn(move || read_to_end(peer));
    let copies = meter.measure_copies(|| {
        send(socket.sender())?;
        check_arrived(reader)
    })?;
    let (ledger, stats) = (socket.sender().ledger(), socket.sender().stats());
    assert_eq!((stats.get("no_buffers_bytes").unwrap(), stats.faults), (0, 0), "{stats}");
    guest.record_measurement(&json!({
        "method": method,
        "case": name,
        "stream_bytes": BYTES,
        "ledger": ledger.to_string(),
        "copies_per_byte": copies.copied_bytes(Direction::Sent) as f64 / BYTES as f64,
        "copied_by": copies.of_direction(Direction::Sent),
    }));
    assert_eq!(ledger.bytes(), BYTES, "{ledger}");
    Ok((ledger, copies))
}

fn connect_streams(lab: &Lab, builder: Builder) -> Result<(Stream, TcpStream), Failure> {
    let (left, right) = (lab.left(), lab.right());
    let listener = right.namespace().run(|| TcpListener::bind((right.ipv4(), 0)))?;
    let to = listener.local_addr()?;
    let socket = left.namespace().run(|| builder.connect(to))?;
    let (stream, _) = listener.accept()?;
    Ok((socket, stream))
}

fn read_to_end(mut stream: TcpStream) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(ARRIVAL_MAX))?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    Ok(all)
}

fn check_arrived(reader: JoinHandle<io::Result<Vec<u8>>>) -> Result<(), Failure> {
    let (arrived, sent) = (reader.join().expect("it only reads")?, stream_bytes());
    assert_eq!(arrived.len(), sent.len(), "bytes that arrived");
    let wrong = arrived.iter().zip(&sent).position(|(arrived, sent)| arrived != sent);
    assert_eq!(wrong, None, "the first byte that is not what was sent");
    Ok(())
}

fn send_pieces(sender: &mut Sender, case: &StreamSendCase) -> Result<(), Failure> {
    let mut back_bytes = 0;
    for (number, piece) in stream_bytes().chunks(PIECE_BYTES).enumerate() {
        let buffer = match case.memory {
            BufferOrigin::Foreign => Buffer::from(piece.to_vec()),
            BufferOrigin::Pool => {
                let mut buffer = sender.buffer().expect("more than the stream takes");
                buffer.fill(piece).expect("a piece fits a buffer");
                buffer.freeze()
            }
        };
        sender.send(buffer)?;
        sender.flush()?;
        if number % PIECES_MAX == PIECES_MAX - 1 {
            drain_sender(sender)?;
        }
    }
    sender.finish()?;
    drain_sender(sender)?;
    while let Some(done) = sender.completed() {
        assert_eq!(done.evidence, case.evidence, "{}, {}", case.method, case.name);
        back_bytes += done.item.len();
    }
    assert_eq!(back_bytes as u64, BYTES, "all of the memory is back");
    Ok(())
}

fn drain_sender(sender: &mut Sender) -> Result<(), Failure> {
    if sender.drain(ARRIVAL_MAX)? {
        return Ok(());
    }
    Err(Failure(format!("{} calls are not completed", sender.in_flight())))
}

fn stream_bytes() -> Vec<u8> {
    (0..BYTES as usize).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}
