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
use super::datagrams::{self, Memory};
use super::meter::{Copies, Direction, Meter};
use super::patience::ARRIVAL_MAX;
use crate::failure::Failure;

pub(crate) const BYTES: u64 = 1 << 20;

/// Bytes of a buffer: no divisor of the stream, and no multiple of a page.
const PIECE_BYTES: usize = 50_000;

pub(crate) type Case = datagrams::Case<Method>;

/// The most pieces in flight: the send buffer has room for them, so that no call sends only a part.
const PIECES_MAX: usize = 2;
const SEND_BUFFER_BYTES: usize = 4 * PIECES_MAX * PIECE_BYTES;

/// Sends a stream across, checks that it arrives byte for byte, and that its memory comes back with the
/// evidence, and adds a row to the report. Returns what the sender's ledger says, and what the kernel copied.
pub(crate) fn measure(guest: &Guest, meter: &Meter, case: &Case) -> Result<(Ledger, Copies), Failure> {
    let builder = Stream::builder().method(case.method).return_buffers(true).send_buffer(SEND_BUFFER_BYTES);
    cross(guest, meter, (&case.method.to_string(), case.name), builder, |sender| send(sender, case))
}

/// As [`measure`] with unchangeable data in its own region, sent by reference or by a copy.
pub(crate) fn measure_published(
    guest: &Guest,
    meter: &Meter,
    method: PublishedMethod,
) -> Result<(Ledger, Copies), Failure> {
    let bytes = stream();
    let published = Published::written(bytes.len(), |memory| memory.copy_from_slice(&bytes))?;
    let builder = Stream::builder().published_method(method);
    cross(guest, meter, (method.name(), "published"), builder, |sender| {
        sender.send_published(&published, 0..BYTES)?;
        Ok(sender.finish()?)
    })
}

fn cross(
    guest: &Guest,
    meter: &Meter,
    (method, name): (&str, &str),
    builder: Builder,
    send: impl FnOnce(&mut Sender) -> Result<(), Failure>,
) -> Result<(Ledger, Copies), Failure> {
    let (mut socket, peer) = open(guest.lab(), builder)?;
    let reader = thread::spawn(move || read(peer));
    let copies = meter.copies(|| {
        send(socket.sender())?;
        arrives(reader)
    })?;
    let (ledger, stats) = (socket.sender().ledger(), socket.sender().stats()?);
    assert_eq!((stats["no_buffers_bytes"], stats.faults), (0, 0), "{stats}");
    guest.record(&json!({
        "method": method,
        "case": name,
        "stream_bytes": BYTES,
        "ledger": ledger.to_string(),
        "copies_per_byte": copies.bytes(Direction::Sent) as f64 / BYTES as f64,
        "copied_by": copies.of(Direction::Sent),
    }));
    assert_eq!(ledger.bytes(), BYTES, "{ledger}");
    Ok((ledger, copies))
}

fn open(lab: &Lab, builder: Builder) -> Result<(Stream, TcpStream), Failure> {
    let (left, right) = (lab.left(), lab.right());
    let listener = right.namespace().run(|| TcpListener::bind((right.ipv4(), 0)))?;
    let to = listener.local_addr()?;
    let socket = left.namespace().run(|| builder.connect(to))?;
    let (stream, _) = listener.accept()?;
    Ok((socket, stream))
}

fn read(mut stream: TcpStream) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(ARRIVAL_MAX))?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    Ok(all)
}

fn arrives(reader: JoinHandle<io::Result<Vec<u8>>>) -> Result<(), Failure> {
    let (arrived, sent) = (reader.join().expect("it only reads")?, stream());
    assert_eq!(arrived.len(), sent.len(), "bytes that arrived");
    let wrong = arrived.iter().zip(&sent).position(|(arrived, sent)| arrived != sent);
    assert_eq!(wrong, None, "the first byte that is not what was sent");
    Ok(())
}

fn send(sender: &mut Sender, case: &Case) -> Result<(), Failure> {
    let mut back_bytes = 0;
    for (number, piece) in stream().chunks(PIECE_BYTES).enumerate() {
        let buffer = match case.memory {
            Memory::Foreign => Buffer::from(piece.to_vec()),
            Memory::Pool => {
                let mut buffer = sender.buffer().expect("more than the stream takes");
                buffer.fill(piece).expect("a piece fits a buffer");
                buffer
            }
        };
        sender.send(buffer)?;
        sender.flush()?;
        if number % PIECES_MAX == PIECES_MAX - 1 {
            drained(sender)?;
        }
    }
    sender.finish()?;
    drained(sender)?;
    while let Some(done) = sender.completed() {
        assert_eq!(done.evidence, case.evidence, "{}, {}", case.method, case.name);
        back_bytes += done.item.len();
    }
    assert_eq!(back_bytes as u64, BYTES, "all of the memory is back");
    Ok(())
}

fn drained(sender: &mut Sender) -> Result<(), Failure> {
    if sender.drain(ARRIVAL_MAX)? {
        return Ok(());
    }
    Err(Failure(format!("{} calls are not completed", sender.in_flight())))
}

fn stream() -> Vec<u8> {
    (0..BYTES as usize).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}
