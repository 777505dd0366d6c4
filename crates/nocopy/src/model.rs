//! Models compared with the real code: one list of operations, shared by proptest and the fuzz targets.
//!
//! Every operation is a pair of a kind and an amount, so any bytes are a list of operations.

pub mod filter;

use std::collections::{HashMap, HashSet, VecDeque};

use crate::memory::area::{Area, AreaConfig, Faults, Frame, PoolDirection};
use crate::ring;
use crate::sys::xsk::Descriptor;

/// A stream of units, as `message::model::run` reads it.
///
/// # Panics
/// As there.
pub fn check_message_stream(schedule: &[u8]) {
    crate::message::model::run(schedule);
}

/// One step of a model, which defines its meaning.
pub type Operation = (u8, u16);

/// Reads a list of operations out of arbitrary bytes.
pub fn parse_operations(bytes: &[u8]) -> Vec<Operation> {
    bytes.chunks_exact(3).map(|chunk| (chunk[0], u16::from_le_bytes([chunk[1], chunk[2]]))).collect()
}

/// A ring compared with a queue: each entry comes out once, in order; staged entries are not visible; the
/// capacity holds.
///
/// # Panics
/// When ring and queue disagree.
pub fn check_ring(operations: &[Operation]) {
    let (mut producer, mut consumer) = ring::pair::<u64>(8);
    let (mut staged, mut visible) = (VecDeque::new(), VecDeque::new());
    let mut next = 0;
    for &(what, amount) in operations {
        let amount = u32::from(amount % 12);
        match what % 5 {
            0 => {
                let full = staged.len() + visible.len() == 8;
                assert_eq!(producer.push(next).is_err(), full);
                if !full {
                    staged.push_back(next);
                }
                next += 1;
            }
            1 => {
                producer.publish();
                visible.append(&mut staged);
            }
            2 => {
                let mut slots = producer.reserve(amount);
                assert_eq!(
                    slots.remaining() as usize,
                    (amount as usize).min(8 - staged.len() - visible.len())
                );
                while slots.push(next).is_ok() {
                    staged.push_back(next);
                    next += 1;
                }
                drop(slots);
                visible.append(&mut staged);
            }
            3 => {
                let mut peek = consumer.ready_entries(amount);
                assert_eq!(peek.len(), (amount as usize).min(visible.len()));
                assert_eq!(peek.entry_at(0), visible.front().copied().filter(|_| amount > 0));
                // Half of what was offered is read; the rest must be offered again.
                let read: Vec<u64> = peek.by_ref().take(amount.div_ceil(2) as usize).collect();
                drop(peek);
                assert!(
                    read.into_iter().eq(visible.drain(..(amount.div_ceil(2) as usize).min(visible.len())))
                );
            }
            _ => assert_eq!(consumer.available(u32::MAX) as usize, visible.len()),
        }
        assert_eq!(producer.staged_count() as usize, staged.len());
        assert_eq!(producer.bad_indices() + consumer.bad_indices(), 0);
    }
}

/// Frames of the model's receiving and sending pools, and of the pool of another port in the same area.
const FRAMES: u32 = 6;

/// The halves of a port with a kernel that reports any address, any length, any number of times. No frame
/// ever has two owners, every byte handed out lies in the area, and the frames add up.
///
/// # Panics
/// When one of these is violated.
pub fn check_port_halves(operations: &[Operation]) {
    let config = AreaConfig { frame_count: 3 * FRAMES, ..AreaConfig::default() };
    let area = Area::new(config).expect("a small area");
    let pool = |half| area.pool(half, FRAMES).expect("room for three pools");
    let (receive, mut send, other) =
        (pool(PoolDirection::Receive), pool(PoolDirection::Send), pool(PoolDirection::Send));
    let (mut fill, mut kernel_fill) = ring::pair::<u64>(8);
    let (mut kernel_rx, mut rx) = ring::pair::<Descriptor>(8);
    let (mut kernel_completion, mut completion) = ring::pair::<u64>(8);
    let (mut mine, mut faults): (Vec<Frame>, _) = (Vec::new(), Faults::default());
    let mut lent: Vec<u64> = Vec::new();
    let mut kept: HashMap<u32, (usize, usize)> = HashMap::new(); // by number: where its packet lies, and how long it is
    for &(what, amount) in operations {
        match what % 10 {
            0 => drop(receive.refill(&mut fill)),
            1 => {
                // A correct delivery, if there is a frame for it.
                if let Some(address) = kernel_fill.ready_entries(1).next() {
                    let _ =
                        kernel_rx.push(Descriptor { address: address + 256, len: amount.into(), options: 0 });
                    kernel_rx.publish();
                }
            }
            2 => {
                // A lie: any address around the area, any length.
                let address = u64::from(amount) * 193;
                let _ = kernel_rx.push(Descriptor { address, len: u32::from(what) * 11, options: 0 });
                kernel_rx.publish();
            }
            3 | 4 => {
                for descriptor in rx.ready_entries(u32::from(amount % 8)) {
                    if let Some(packet) = receive.claimer().claim(descriptor, &mut faults) {
                        receive.count_claimed(1);
                        if what % 10 == 3 {
                            mine.push(packet.take());
                        }
                    }
                }
            }
            5 => mine.extend(send.take_frame()),
            6 => {
                if let Some(mut frame) = mine.pop() {
                    if amount % 2 == 1 {
                        let _ = frame.append(usize::from(amount >> 5));
                        frame.trim_front(usize::from(amount % 512));
                        send.keep(&frame);
                        let before = kept.insert(frame.index(), (frame.as_ptr().addr(), frame.len()));
                        assert_eq!(before, None, "a frame that is on its way was somebody's");
                        let _ = frame.prepend(usize::from(amount % 64));
                    }
                    lent.push(send.lend(frame).expect("of this area").address);
                    send.count_lent(1);
                }
            }
            7 => {
                // Completions: true ones, repeated ones, invented ones.
                let invented = u64::from(amount) * 211;
                let index = usize::from(amount) % (lent.len() + 1);
                let address = lent.get(index).copied().unwrap_or(invented);
                let _ = kernel_completion.push(address);
                kernel_completion.publish();
                let mut back = Vec::new();
                send.reap(&mut completion, u32::MAX, &mut faults, &mut back);
                for frame in back {
                    let sent = kept.remove(&frame.index()).expect("only what was kept comes back, and once");
                    assert_eq!(sent, (frame.as_ptr().addr(), frame.len()), "not as it was sent");
                    mine.push(frame);
                }
            }
            8 => drop(mine.pop()),
            _ => {
                if let Some(frame) = mine.pop() {
                    receive.recycle(frame);
                }
            }
        }
        check_frame_ownership(&area, &mine, &[&receive, &send, &other]);
    }
    drop((receive, send, other));
    let balance = area.balance();
    assert!(balance.is_balanced(), "{balance}");
    drop(mine);
    let balance = area.balance();
    assert!(
        balance.is_balanced() && balance.in_use == 0 && balance.lent_rx + balance.lent_tx == 0,
        "{balance}"
    );
}

fn check_frame_ownership(area: &Area, mine: &[Frame], pools: &[&crate::memory::area::FramePool]) {
    let starts: HashSet<usize> = mine.iter().map(|frame| frame.as_ptr().addr() >> 11).collect();
    assert_eq!(starts.len(), mine.len(), "two frames in one place");
    let (base, bytes) = area.memory_range();
    for frame in mine {
        let start = frame.as_ptr().addr() - base.as_ptr().addr();
        assert!(start + frame.len() <= bytes && start % 2048 + frame.len() <= 2048, "bytes outside a frame");
    }
    let balance = {
        pools.iter().for_each(|pool| _ = pool.balance()); // each publishes its own account
        area.balance()
    };
    assert!(balance.is_balanced(), "{balance}");
    assert_eq!(balance.in_use, i64::try_from(mine.len()).expect("few"), "{balance}");
}
