//! Counts the instructions that the library takes beyond those of a ring loop written by hand; a busy machine
//! does not change them.
//!
//! `cargo xtask instructions` runs this under callgrind with collection on only inside the functions named
//! `measured_*` (and off again inside the memory port's stand-in for the kernel), and prints instructions per
//! packet. Run by itself it checks that all loops do the same work.
//!
//! The loops by hand follow `xsk.h` of libxdp: batches of 64, indices published once a batch, prefetch of the
//! packet sixteen ahead, sizes of rings and frames known when the program runs. `trusting` believes the
//! kernel's addresses, as that header does. `checked` refuses an address outside the area, a packet that
//! leaves its frame and a frame that was not lent, as the library does.
#![allow(unsafe_code, missing_docs)]

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};

use nocopy::integration::PortTuning;
use nocopy::{Port, Receiver, Sender};

const BATCH: u32 = 64;
const RING: u32 = 1024;
const FRAME_BYTES: usize = 2048;
const OFFSET: usize = 256;
const PACKET_BYTES: usize = 64;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let which = arguments.next().unwrap_or_else(|| "all".into());
    let batches: u32 = arguments.next().map_or(100, |count| count.parse().expect("a number of batches"));
    let run_with = |name: &str, packet: [u8; PACKET_BYTES], work: &dyn Fn(u32) -> u64| {
        if which == name || which == "all" {
            let expected = sum_of_words(&packet).wrapping_mul(u64::from(batches * BATCH));
            assert_eq!(work(batches), expected, "{name} did not do the work");
            println!("{name}: {} packets", batches * BATCH);
        }
    };
    let run = |name: &str, work: &dyn Fn(u32) -> u64| run_with(name, test_packet(), work);
    run("receive-library", &receive_by_library);
    run("receive-trusting", &|batches| receive_by_hand::<false>(batches));
    run("receive-checked", &|batches| receive_by_hand::<true>(batches));
    run("send-library", &|batches| send_by_library(batches, measured_send));
    run("send-library-frames", &|batches| send_by_library(batches, measured_send_frames));
    run("send-trusting", &|batches| send_by_hand::<false>(batches));
    run("send-checked", &|batches| send_by_hand::<true>(batches));
    let forward = |name: &str, checksum, wireless, measured: fn(&mut Port)| {
        let work = |batches| forward_by_library(batches, checksum, wireless, measured);
        run_with(name, tcp_segment(FINISHED), &work);
    };
    forward("forward-library", FINISHED, false, measured_forward);
    forward("forward-looking", FINISHED, true, measured_forward);
    forward("forward-finishing", UNFINISHED, true, measured_forward);
    forward("forward-blindly", FINISHED, false, measured_forward_unchecked);
}

fn test_packet() -> [u8; PACKET_BYTES] {
    std::array::from_fn(|i| i as u8)
}

/// The sum of the pseudo-header of [`tcp_segment`], and the segment's checksum.
const UNFINISHED: u16 = 0x1427;
const FINISHED: u16 = 0x9bd8;

/// A TCP segment from 10.0.0.1 to 10.0.0.2 with this checksum.
fn tcp_segment(checksum: u16) -> [u8; PACKET_BYTES] {
    let mut packet = [0; PACKET_BYTES];
    packet[12..16].copy_from_slice(&[0x08, 0, 0x45, 0]);
    packet[16..18].copy_from_slice(&50_u16.to_be_bytes());
    packet[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
    packet[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet[46] = 0x50;
    packet[50..52].copy_from_slice(&checksum.to_be_bytes());
    packet
}

#[inline(always)]
fn sum_of_words(packet: &[u8]) -> u64 {
    packet
        .chunks_exact(8)
        .fold(0, |sum, word| sum.wrapping_add(u64::from_ne_bytes(word.try_into().expect("eight bytes"))))
}

fn receive_by_library(batches: u32) -> u64 {
    let (mut left, mut right) = Port::memory_pair().expect("a memory pair");
    let mut sum = 0_u64;
    for _ in 0..batches {
        send_filled_frames(left.sender());
        sum = sum.wrapping_add(measured_receive(right.receiver()));
    }
    sum
}

#[inline(never)]
fn measured_receive(receiver: &mut Receiver) -> u64 {
    let mut sum = 0_u64;
    for packet in receiver.try_receive().expect("a working port") {
        sum = sum.wrapping_add(sum_of_words(black_box(&packet[..])));
    }
    sum
}

fn send_by_library(batches: u32, measured: fn(&mut Sender)) -> u64 {
    let (mut left, mut right) = Port::memory_pair().expect("a memory pair");
    let mut sum = 0_u64;
    for _ in 0..batches {
        measured(left.sender());
        for packet in right.receiver().try_receive().expect("a working port") {
            sum = sum.wrapping_add(sum_of_words(&packet));
        }
    }
    sum
}

/// Packets written in place.
#[inline(never)]
fn measured_send(sender: &mut Sender) {
    let mut drafts = sender.drafts(BATCH as usize, PACKET_BYTES).expect("room");
    while let Some(mut draft) = drafts.next_draft() {
        draft.copy_from_slice(black_box(&test_packet()));
        draft.queue();
    }
    drop(drafts);
    sender.flush().expect("a working port");
}

/// As [`measured_send`], through owned frames.
#[inline(never)]
fn measured_send_frames(sender: &mut Sender) {
    send_filled_frames(sender);
}

#[inline(always)]
fn send_filled_frames(sender: &mut Sender) {
    for _ in 0..BATCH {
        let mut frame = sender.buffer().expect("a free frame");
        frame.append(PACKET_BYTES).expect("room").copy_from_slice(black_box(&test_packet()));
        sender.send(frame).expect("room in the ring");
    }
    sender.flush().expect("a working port");
}

/// Segments sent to a port that returns them.
fn forward_by_library(batches: u32, checksum: u16, wireless: bool, measured: fn(&mut Port)) -> u64 {
    let tuning = PortTuning { wireless, ..PortTuning::default() };
    let pair = Port::memory_builder().tuning(tuning).memory_pair();
    let (mut left, mut right) = pair.expect("a memory pair");
    let mut sum = 0_u64;
    for _ in 0..batches {
        for _ in 0..BATCH {
            left.sender().send_copy(&tcp_segment(checksum)).expect("room in the ring");
        }
        left.sender().flush().expect("a working port");
        measured(&mut right);
        right.sender().flush().expect("a working port"); // not counted: it copies, in the kernel's place
        for packet in left.receiver().try_receive().expect("a working port") {
            sum = sum.wrapping_add(sum_of_words(&packet));
        }
    }
    sum
}

#[inline(never)]
fn measured_forward(port: &mut Port) {
    let (receiver, sender) = port.halves();
    for packet in receiver.try_receive().expect("a working port") {
        sender.forward(packet).map_err(drop).expect("room in the ring");
    }
}

/// As [`measured_forward`], whatever the checksums are.
#[inline(never)]
fn measured_forward_unchecked(port: &mut Port) {
    let (receiver, sender) = port.halves();
    for packet in receiver.try_receive().expect("a working port") {
        sender.send(packet.take()).expect("room in the ring");
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct XdpDescriptor {
    address: u64,
    len: u32,
    options: u32,
}

/// A ring and one end's private view of it, as `struct xsk_ring_prod` and `xsk_ring_cons`.
struct HandWrittenRing<T> {
    mask: u32,
    producer: AtomicU32,
    consumer: AtomicU32,
    entries: Box<[T]>,
}

impl<T: Copy + Default> HandWrittenRing<T> {
    fn new() -> Self {
        let entries = vec![T::default(); RING as usize].into_boxed_slice();
        Self { mask: black_box(RING) - 1, producer: AtomicU32::new(0), consumer: AtomicU32::new(0), entries }
    }

    #[inline(always)]
    fn slot(&mut self, index: u32) -> &mut T {
        // SAFETY: masked by the size of the ring.
        unsafe { self.entries.get_unchecked_mut((index & self.mask) as usize) }
    }
}

/// Everything a hand-written program keeps.
struct HandWrittenPort {
    frames: u64,
    /// Log2 of the frame size.
    shift: u32,
    memory: Box<[u8]>,
    free: Vec<u64>,
    lent: Box<[bool]>,
    rx: HandWrittenRing<XdpDescriptor>,
    fill: HandWrittenRing<u64>,
    tx: HandWrittenRing<XdpDescriptor>,
    completion: HandWrittenRing<u64>,
    fill_head: u32,
    tx_head: u32,
}

impl HandWrittenPort {
    fn new() -> Self {
        let frames = RING as usize;
        Self {
            frames: frames as u64,
            shift: black_box(FRAME_BYTES).trailing_zeros(),
            memory: vec![0; frames * FRAME_BYTES].into_boxed_slice(),
            free: (0..frames as u64).rev().map(|frame| frame * FRAME_BYTES as u64).collect(),
            lent: vec![false; frames].into_boxed_slice(),
            rx: HandWrittenRing::new(),
            fill: HandWrittenRing::new(),
            tx: HandWrittenRing::new(),
            completion: HandWrittenRing::new(),
            fill_head: 0,
            tx_head: 0,
        }
    }

    #[inline(always)]
    fn frame_memory(&mut self, address: u64, len: usize) -> &mut [u8] {
        // SAFETY: the addresses are the program's own frames (trusting) or were checked.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().add(address as usize), len) }
    }

    /// Whether the kernel may return this descriptor, as checked by the library.
    #[inline(always)]
    fn take_back_if_valid(&mut self, descriptor: XdpDescriptor) -> bool {
        let frame = descriptor.address >> self.shift;
        if frame >= self.frames {
            return false;
        }
        // SAFETY: below the number of frames.
        let lent = unsafe { self.lent.get_unchecked_mut(frame as usize) };
        let inside =
            descriptor.address % FRAME_BYTES as u64 + u64::from(descriptor.len) <= FRAME_BYTES as u64;
        std::mem::replace(lent, false) && inside
    }

    #[inline(always)]
    fn mark_lent(&mut self, address: u64) {
        // SAFETY: a frame of the program's own.
        unsafe { *self.lent.get_unchecked_mut(address as usize >> self.shift) = true };
    }

    /// Gives free frames to the kernel to receive into.
    #[inline(always)]
    fn refill_fill_ring<const CHECKED: bool>(&mut self) {
        let room = self.fill.mask + 1 - (self.fill_head - self.fill.consumer.load(Ordering::Acquire));
        for _ in 0..room.min(self.free.len() as u32) {
            // SAFETY: no more than there are.
            let address = unsafe { self.free.pop().unwrap_unchecked() };
            if CHECKED {
                self.mark_lent(address);
            }
            *self.fill.slot(self.fill_head) = address;
            self.fill_head = self.fill_head.wrapping_add(1);
        }
        self.fill.producer.store(self.fill_head, Ordering::Release);
    }
}

fn receive_by_hand<const CHECKED: bool>(batches: u32) -> u64 {
    let mut program = HandWrittenPort::new();
    program.refill_fill_ring::<CHECKED>();
    let mut sum = 0_u64;
    for _ in 0..batches {
        simulate_kernel_receive(&mut program);
        sum = sum.wrapping_add(if CHECKED {
            measured_receive_checked(&mut program)
        } else {
            measured_receive_trusting(&mut program)
        });
    }
    sum
}

#[inline(never)]
fn measured_receive_trusting(program: &mut HandWrittenPort) -> u64 {
    receive_batch::<false>(program)
}

#[inline(never)]
fn measured_receive_checked(program: &mut HandWrittenPort) -> u64 {
    receive_batch::<true>(program)
}

#[inline(always)]
fn receive_batch<const CHECKED: bool>(program: &mut HandWrittenPort) -> u64 {
    let mut sum = 0_u64;
    let tail = program.rx.consumer.load(Ordering::Relaxed);
    let ready = program.rx.producer.load(Ordering::Acquire).wrapping_sub(tail).min(BATCH);
    for i in 0..ready {
        let descriptor = *program.rx.slot(tail.wrapping_add(i));
        if i + 16 < ready {
            let ahead = program.rx.slot(tail.wrapping_add(i + 16)).address;
            prefetch(program.memory.as_ptr().wrapping_add(ahead as usize));
        }
        if CHECKED && !program.take_back_if_valid(descriptor) {
            continue;
        }
        sum = sum.wrapping_add(sum_of_words(black_box(
            program.frame_memory(descriptor.address, descriptor.len as usize),
        )));
        let frame = descriptor.address >> program.shift << program.shift;
        // SAFETY: the capacity is one for each frame.
        unsafe {
            let len = program.free.len();
            *program.free.as_mut_ptr().add(len) = frame;
            program.free.set_len(len + 1);
        }
    }
    program.rx.consumer.store(tail.wrapping_add(ready), Ordering::Release);
    program.refill_fill_ring::<CHECKED>();
    sum
}

fn send_by_hand<const CHECKED: bool>(batches: u32) -> u64 {
    let mut program = HandWrittenPort::new();
    let mut sum = 0_u64;
    for _ in 0..batches {
        if CHECKED {
            measured_send_checked(&mut program);
        } else {
            measured_send_trusting(&mut program);
        }
        sum = sum.wrapping_add(simulate_kernel_send(&mut program));
    }
    sum
}

#[inline(never)]
fn measured_send_trusting(program: &mut HandWrittenPort) {
    send_batch::<false>(program);
}

#[inline(never)]
fn measured_send_checked(program: &mut HandWrittenPort) {
    send_batch::<true>(program);
}

#[inline(always)]
fn send_batch<const CHECKED: bool>(program: &mut HandWrittenPort) {
    let tail = program.completion.consumer.load(Ordering::Relaxed);
    let done = program.completion.producer.load(Ordering::Acquire).wrapping_sub(tail);
    for i in 0..done {
        let address = *program.completion.slot(tail.wrapping_add(i));
        if CHECKED && !program.take_back_if_valid(XdpDescriptor { address, len: 0, options: 0 }) {
            continue;
        }
        let frame = address >> program.shift << program.shift;
        // SAFETY: the capacity is one for each frame.
        unsafe {
            let len = program.free.len();
            *program.free.as_mut_ptr().add(len) = frame;
            program.free.set_len(len + 1);
        }
    }
    program.completion.consumer.store(tail.wrapping_add(done), Ordering::Release);
    for _ in 0..BATCH {
        let Some(frame) = program.free.pop() else { break };
        let address = frame + OFFSET as u64;
        if program.tx_head - program.tx.consumer.load(Ordering::Acquire) > program.tx.mask {
            break;
        }
        program.frame_memory(address, PACKET_BYTES).copy_from_slice(black_box(&test_packet()));
        if CHECKED {
            program.mark_lent(address);
        }
        *program.tx.slot(program.tx_head) = XdpDescriptor { address, len: PACKET_BYTES as u32, options: 0 };
        program.tx_head = program.tx_head.wrapping_add(1);
    }
    program.tx.producer.store(program.tx_head, Ordering::Release);
}

#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and faults on no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

fn simulate_kernel_receive(program: &mut HandWrittenPort) {
    for _ in 0..BATCH {
        let (tail, head) =
            (program.fill.consumer.load(Ordering::Relaxed), program.rx.producer.load(Ordering::Relaxed));
        let address = *program.fill.slot(tail) + OFFSET as u64;
        program.fill.consumer.store(tail.wrapping_add(1), Ordering::Release);
        program.frame_memory(address, PACKET_BYTES).copy_from_slice(&test_packet());
        *program.rx.slot(head) = XdpDescriptor { address, len: PACKET_BYTES as u32, options: 0 };
        program.rx.producer.store(head.wrapping_add(1), Ordering::Release);
    }
}

fn simulate_kernel_send(program: &mut HandWrittenPort) -> u64 {
    let mut sum = 0_u64;
    let (mut tail, head) =
        (program.tx.consumer.load(Ordering::Relaxed), program.tx.producer.load(Ordering::Relaxed));
    while tail != head {
        let descriptor = *program.tx.slot(tail);
        sum =
            sum.wrapping_add(sum_of_words(program.frame_memory(descriptor.address, descriptor.len as usize)));
        let done = program.completion.producer.load(Ordering::Relaxed);
        *program.completion.slot(done) = descriptor.address;
        program.completion.producer.store(done.wrapping_add(1), Ordering::Release);
        tail = tail.wrapping_add(1);
    }
    program.tx.consumer.store(tail, Ordering::Release);
    sum
}
