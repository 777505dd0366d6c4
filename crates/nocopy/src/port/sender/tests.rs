//! An asynchronous sender whose kernel takes and completes frames only when the test says so.

#[path = "../../../tests/common/polled.rs"]
mod polled;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

use nocopy_lab::patience::PATIENCE;
use polled::{PolledFuture, is_pending, poll_and_drop};

use super::*;
use crate::engine::asynchronous::AsyncSender;
use crate::memory::area::{Area, AreaConfig, PoolDirection, no_metadata_for_mode};
use crate::port::backend::Backend;
use crate::ring;
use crate::sys::xsk::Statistics;

const FRAMES: usize = 8;
const MODE: Mode = Mode::XdpCopyNative;

/// The most polls before a future is dropped; fewer than there are frames, so that none of them ends.
const POLLS: usize = 4;

#[derive(Clone)]
struct SlowKernel {
    rings: Arc<Mutex<KernelRings>>,
    event: Arc<OwnedFd>,
}

struct KernelRings {
    tx: Consumer<Descriptor>,
    completion: Producer<u64>,
    /// How many frames the next kicks may take.
    room: u32,
    /// Taken, and not completed.
    taken: VecDeque<u64>,
    /// Of all frames taken.
    lengths: Vec<usize>,
    kicks: usize,
}

impl SlowKernel {
    fn rings(&self) -> MutexGuard<'_, KernelRings> {
        self.rings.lock().unwrap()
    }

    fn allow(&self, frames: usize) {
        self.rings().room += frames as u32;
    }

    fn complete(&self, frames: usize) {
        let KernelRings { completion, taken, .. } = &mut *self.rings();
        for address in taken.drain(..frames) {
            completion.push(address).unwrap();
        }
        completion.publish();
    }

    fn complete_all(&self) {
        let count = self.rings().taken.len();
        self.complete(count);
    }
}

impl AsFd for SlowKernel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Backend for SlowKernel {
    fn statistics(&self) -> io::Result<Statistics> {
        Ok(Statistics::default())
    }

    fn kick_tx(&self) -> io::Result<TxKick> {
        let KernelRings { tx, room, taken, lengths, kicks, .. } = &mut *self.rings();
        *kicks += 1;
        for frame in tx.ready_entries(*room) {
            *room -= 1;
            taken.push_back(frame.address);
            lengths.push(frame.len as usize);
        }
        Ok(TxKick::Again)
    }
}

fn open_sender() -> (Sender, SlowKernel) {
    let settings = PortBuilder { mtu_bytes: 1500, ..PortBuilder::new("slow") };
    let area = Area::new(AreaConfig { frame_count: FRAMES as u32, ..AreaConfig::default() }).unwrap();
    let mut pool = area.pool(PoolDirection::Send, FRAMES as u32).unwrap();
    pool.set_offers(no_metadata_for_mode(MODE).1);
    let (tx, kernel_tx) = ring::pair(FRAMES as u32);
    let (kernel_completion, completion) = ring::pair(2 * FRAMES as u32);
    let rings = KernelRings {
        tx: kernel_tx,
        completion: kernel_completion,
        room: 0,
        taken: VecDeque::new(),
        lengths: Vec::new(),
        kicks: 0,
    };
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let kernel = SlowKernel { rings: Arc::new(Mutex::new(rings)), event: Arc::new(event) };
    let shared = SharedPort::new(&settings, 0, MODE, 1, area, kernel.clone());
    (Sender(NonblockingSender::new(shared.into(), tx, completion, pool, &settings)), kernel)
}

/// A sender with a packet in each of its frames, which the kernel does not take yet.
fn open_full_sender() -> (AsyncSender<NonblockingSender>, SlowKernel) {
    let (mut sender, kernel) = open_sender();
    for bytes in packet_lengths() {
        sender.send_copy(&vec![7; bytes]).unwrap();
    }
    (sender.into_async().unwrap(), kernel)
}

/// The packets are told apart by their lengths.
fn packet_lengths() -> Vec<usize> {
    (60..).take(FRAMES).collect()
}

async fn within_patience<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

/// Lets the kernel finish, and checks that it got each packet once, in order, and that all frames are free.
async fn finish_and_check(sender: &mut AsyncSender<NonblockingSender>, kernel: &SlowKernel) {
    kernel.allow(FRAMES);
    within_patience(sender.flush()).await.unwrap();
    kernel.complete_all();
    within_patience(sender.drain()).await.unwrap();
    assert_eq!(kernel.rings().lengths, packet_lengths());
    assert_eq!((sender.stats().moved, sender.in_flight()), (FRAMES as u64, 0));
    let half: &mut NonblockingSender = sender;
    let free: Vec<Frame> = std::iter::from_fn(|| half.buffer()).collect();
    assert_eq!(free.len(), FRAMES);
}

#[tokio::test]
async fn a_dropped_wait_for_a_buffer_loses_no_frame() {
    for polls in 1..=POLLS {
        let (mut sender, kernel) = open_full_sender();
        assert!(is_pending(sender.buffer()));
        poll_and_drop(sender.buffer(), polls, || {}).await;
        kernel.allow(1);
        poll_and_drop(sender.buffer(), 1, || kernel.complete(1)).await; // dropped with a frame at hand
        let frame = within_patience(sender.buffer()).await.unwrap();
        assert!(is_pending(sender.buffer()), "one frame returned");
        drop(frame);
        finish_and_check(&mut sender, &kernel).await;
    }
}

#[tokio::test]
async fn a_dropped_wait_for_a_frame_of_the_program_loses_none() {
    for polls in 1..=POLLS {
        let (mut sender, _kernel) = open_sender();
        let mut held: Vec<Frame> = std::iter::from_fn(|| sender.buffer()).collect();
        let mut sender = sender.into_async().unwrap();
        poll_and_drop(sender.buffer(), polls, || {}).await; // a timer wakes it
        poll_and_drop(sender.buffer(), 1, || drop(held.pop())).await;
        held.push(within_patience(sender.buffer()).await.unwrap());
        assert!(is_pending(sender.buffer()), "one frame returned");
        assert_eq!(held.len(), FRAMES);
    }
}

#[tokio::test]
async fn a_dropped_flush_sends_every_packet_once() {
    for polls in 1..=POLLS {
        let (mut sender, kernel) = open_full_sender();
        assert!(is_pending(sender.flush()));
        poll_and_drop(sender.flush(), polls, || kernel.allow(1)).await;
        finish_and_check(&mut sender, &kernel).await;
    }
}

#[tokio::test]
async fn a_dropped_drain_sends_every_packet_once() {
    for polls in 1..=POLLS {
        let (mut sender, kernel) = open_full_sender();
        assert!(is_pending(sender.drain()));
        poll_and_drop(sender.drain(), polls, || kernel.allow(1)).await;
        kernel.allow(FRAMES);
        // All are handed over, and it waits for completions.
        poll_and_drop(sender.drain(), polls, || kernel.complete(1)).await;
        finish_and_check(&mut sender, &kernel).await;
    }
}

#[tokio::test]
async fn a_dropped_close_gives_up_what_was_not_taken() {
    for polls in 1..=POLLS {
        let (sender, kernel) = open_full_sender();
        let area = sender.area().clone();
        poll_and_drop(sender.close(), polls, || kernel.allow(1)).await;
        assert_eq!(kernel.rings().lengths, packet_lengths()[..polls]);
        let balance = area.balance();
        assert!(balance.is_balanced() && balance.in_use == 0, "{balance}");
    }
}

#[tokio::test]
async fn only_a_blocking_sender_waits_when_it_is_dropped() {
    let kicks_of_drop = |is_async: bool| {
        let (mut sender, kernel) = open_sender();
        sender.send_copy(&[7; 60]).unwrap();
        match is_async {
            true => drop(sender.into_async().unwrap()),
            false => drop(sender),
        }
        kernel.rings().kicks
    };
    assert_eq!(kicks_of_drop(true), 1);
    assert!(kicks_of_drop(false) > 1);
}

#[tokio::test]
async fn a_closed_asynchronous_sender_has_sent_everything() {
    let (sender, kernel) = open_full_sender();
    kernel.allow(FRAMES);
    let mut closed = PolledFuture::new(sender.close());
    assert!(closed.poll().is_none());
    kernel.complete_all();
    closed.wait_until_woken().await;
    closed.poll().expect("all frames are back").unwrap();
    assert_eq!(kernel.rings().lengths, packet_lengths());
}
