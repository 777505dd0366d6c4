//! nocopy's own side: UDP sockets that own their buffers, used as a program would use them.

use crate::evidence;
use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use nocopy::udp::{Builder, Message, Method, OpenError, Receiver, Sender, Socket};
use nocopy::{Buffer, BufferMut, Ledger, Pool};

use super::baseline::datagram_receiver::RECEIVE_BUFFER_BYTES;
use super::baseline::datagram_sender::PORT;
use super::datagram::{BURSTS, DatagramSpec};
use super::frame;
use super::stage::{NetworkSite, SitePair};
use super::window::WindowGauge;
use nocopy_report::result::Evidence;

const BUFFER_BYTES: usize = 64 << 10;

/// Bursts queued before a flush: enough for 64 datagrams per call if those of a burst are fewer.
const BURSTS_A_FLUSH: usize = 4;

/// Datagrams between two checks of the gauge.
const DATAGRAMS_A_LOOK: usize = 64;

/// How long to wait for free buffers, and for the last datagrams.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long a receiver waits before it looks whether the trial is over.
const RECEIVE_PATIENCE: Duration = Duration::from_millis(10);

/// The evidence of a sender, which its thread stores when it closes the sender.
#[derive(Debug, Default)]
pub(crate) struct SharedLedger(Mutex<Ledger>);

impl SharedLedger {
    pub(crate) fn evidence(&self) -> Evidence {
        evidence::ledger_evidence(&self.0.lock().expect("nobody panicked with it"))
    }
}

pub(crate) fn open_sender(stage: &SitePair, method: Option<Method>) -> Result<Sender, OpenError> {
    let pool = Pool::new(BURSTS as u32, BUFFER_BYTES).map_err(OpenError::Memory)?;
    let builder = Socket::builder().send_pool(&pool);
    connect_sender(
        stage,
        match method {
            Some(method) => builder.method(method),
            None => builder,
        },
    )
}

/// The same, returning sent messages: for memory of the program.
pub(crate) fn open_returning_sender(stage: &SitePair, method: Method) -> Result<Sender, OpenError> {
    connect_sender(stage, Socket::builder().method(method).return_buffers(true))
}

fn connect_sender(stage: &SitePair, builder: Builder) -> Result<Sender, OpenError> {
    let mut socket = stage.sender.run(|| builder.bind((stage.sender.ipv4, 0)))?;
    let to = (stage.receiver.ipv4, PORT);
    socket.connect(to).map_err(|source| OpenError::Setting { setting: "the peer", source })?;
    let (_, sender) = socket.split();
    Ok(sender)
}

/// Sends bursts in reused buffers, whatever the socket does with them.
pub(crate) fn send_bursts(
    mut sender: Sender,
    datagrams: DatagramSpec,
    ledger: &SharedLedger,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    let flushes_a_look = (DATAGRAMS_A_LOOK / (BURSTS_A_FLUSH * datagrams.a_burst)).max(1);
    let mut home = fill_free_buffers(&mut sender, datagrams);
    let mut sequence = 0;
    while gauge.may_send() {
        let first = sequence;
        for _ in 0..flushes_a_look {
            let bursts = BURSTS_A_FLUSH.min(home.len());
            for buffer in home.drain(..bursts) {
                queue_burst(&mut sender, datagrams, buffer, sequence)?;
                sequence += datagrams.a_burst as u64;
            }
            sender.flush()?;
            // After the free ones: a program that takes the last returned buffer first sends from the cache.
            while let Some(buffer) = sender.buffer() {
                home.push_back(buffer);
            }
        }
        if home.is_empty() {
            sender.drain(PATIENCE)?;
        }
        gauge.count_packets(sequence - first);
    }
    drop(home);
    close_sender(sender, ledger)
}

/// Sends bursts of the program's own memory, cyclically.
pub(crate) fn send_program_memory(
    mut sender: Sender,
    datagrams: DatagramSpec,
    ledger: &SharedLedger,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    let mut burst = vec![0; datagrams.burst_bytes()];
    DatagramSpec::fill_pattern(&mut burst);
    let mut home: VecDeque<Vec<u8>> = (0..BURSTS).map(|_| burst.clone()).collect();
    let mut sequence = 0;
    while gauge.may_send() {
        let first = sequence;
        let bursts = BURSTS_A_FLUSH.min(home.len());
        for mut burst in home.drain(..bursts) {
            datagrams.number_datagrams(&mut burst, sequence);
            let message = Message::segments(Buffer::from_owner(burst), datagrams.bytes);
            sender.send(message).map_err(|rejected| rejected.reason)?;
            sequence += datagrams.a_burst as u64;
        }
        sender.flush()?;
        sender.reap();
        if home.is_empty() {
            sender.drain(PATIENCE)?;
        }
        home.extend(
            std::iter::from_fn(|| sender.completed()).flat_map(|completed| owned_buffers(completed.item)),
        );
        gauge.count_packets(sequence - first);
    }
    close_sender(sender, ledger)
}

fn owned_buffers(message: Message) -> impl Iterator<Item = Vec<u8>> {
    message.into_iter().map(|buffer| buffer.into_owner().expect("every message here is made of a Vec"))
}

pub(crate) fn send_singly(
    mut sender: Sender,
    datagrams: DatagramSpec,
    ledger: &SharedLedger,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    let mut home: Vec<_> = fill_free_buffers(&mut sender, datagrams).into_iter().map(Some).collect();
    let mut sequence = 0;
    while gauge.may_send() {
        let first = sequence;
        for place in &mut home {
            let Some(mut buffer) = place.take() else { continue };
            buffer.resize(datagrams.bytes);
            DatagramSpec::number_datagram(&mut buffer, sequence);
            sender.send(buffer).map_err(|rejected| rejected.reason)?;
            sender.flush()?;
            *place = sender.buffer();
            sequence += 1;
        }
        if sequence - first < BURSTS as u64 / 2 {
            sender.drain(PATIENCE)?;
        }
        home.iter_mut().filter(|place| place.is_none()).for_each(|place| *place = sender.buffer());
        gauge.count_packets(sequence - first);
    }
    drop(home);
    close_sender(sender, ledger)
}

fn close_sender(mut sender: Sender, ledger: &SharedLedger) -> io::Result<()> {
    let closed = sender.close(PATIENCE);
    *ledger.0.lock().expect("nobody panicked with it") = sender.ledger();
    closed.map(drop)
}

/// A receiving socket with default settings except the kernel's buffer.
pub(crate) fn open_receiver(site: &NetworkSite) -> Result<Receiver, OpenError> {
    let builder = Socket::builder().receive_buffer(RECEIVE_BUFFER_BYTES);
    let (receiver, _) = site.run(|| builder.bind((site.ipv4, PORT)))?.split();
    Ok(receiver)
}

pub(crate) fn receive_datagrams(mut receiver: Receiver, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
    while gauge.may_receive() {
        let batch = receiver.receive_timeout(RECEIVE_PATIENCE)?;
        let mut datagrams = 0;
        batch.for_each(|datagram| {
            frame::read_every_byte(&datagram);
            datagrams += 1;
        });
        gauge.count_packets(datagrams);
    }
    Ok(())
}

fn fill_free_buffers(sender: &mut Sender, datagrams: DatagramSpec) -> VecDeque<BufferMut> {
    let mut home: VecDeque<_> = std::iter::from_fn(|| sender.buffer()).collect();
    for buffer in &mut home {
        buffer.resize(datagrams.burst_bytes());
        DatagramSpec::fill_pattern(buffer);
    }
    home
}

#[inline]
fn queue_burst(
    sender: &mut Sender,
    datagrams: DatagramSpec,
    mut buffer: BufferMut,
    first: u64,
) -> io::Result<()> {
    buffer.resize(datagrams.burst_bytes());
    datagrams.number_datagrams(&mut buffer, first);
    let message = Message::segments(buffer, datagrams.bytes);
    sender.send(message).map_err(|rejected| rejected.reason)?;
    Ok(())
}
