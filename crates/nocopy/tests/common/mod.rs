//! Shared by the tests of ports on real traffic.
#![allow(dead_code, unused_imports, unused_macros)] // no test file uses all of it

pub(crate) mod calls;
pub(crate) mod errors;
#[cfg(feature = "tracing")]
pub(crate) mod events;
pub(crate) mod forks;
pub(crate) mod message;
pub(crate) mod methods;
#[cfg(feature = "tokio")]
pub(crate) mod polled;
pub(crate) mod raw_memory;
pub(crate) mod stream;
pub(crate) mod waiting;

use std::time::{Duration, Instant};

use nocopy::area::{AreaConfig, Balance};
use nocopy::port::{OpenError, PortBuilder, Queues};
use nocopy::{Area, Buffer, BufferMut, Pool, Port};
use nocopy_lab::End;
pub(crate) use nocopy_lab::patience::PATIENCE;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Makes a lab, or leaves the test with a skip that names what is missing.
macro_rules! lab {
    () => {
        match nocopy_lab::lab_or_skip() {
            Some(lab) => lab,
            None => return,
        }
    };
    ($builder:expr) => {
        match $builder.build_or_skip() {
            Some(lab) => lab,
            None => return,
        }
    };
}

pub(crate) fn open_port(end: &End) -> Port {
    open_port_with(end, |builder| builder).expect("opened")
}

pub(crate) fn open_port_with(
    end: &End,
    set: impl FnOnce(PortBuilder) -> PortBuilder + Send,
) -> Result<Port, OpenError> {
    end.namespace().run(|| set(Port::builder(end.interface())).open())
}

pub(crate) fn open_queues(end: &End, set: impl FnOnce(PortBuilder) -> PortBuilder + Send) -> Queues {
    end.namespace().run(|| set(Port::builder(end.interface())).open_queues(..)).expect("opened")
}

/// An Ethernet frame of `bytes` bytes with a number in it and a pattern that depends on the number.
pub(crate) fn numbered_packet(to: &End, number: u32, bytes: usize) -> Vec<u8> {
    let mut packet = vec![0; bytes];
    packet[..6].copy_from_slice(&to.mac());
    packet[6] = 2;
    packet[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
    packet[14..18].copy_from_slice(&number.to_be_bytes());
    for (i, byte) in packet[18..].iter_mut().enumerate() {
        *byte = (number as usize + i) as u8;
    }
    packet
}

/// A hundred packets of different lengths up to the MTU of 1500, other lengths in each round, numbered
/// from 1.
pub(crate) fn packets_of_many_lengths(to: &End, round: usize) -> Vec<Vec<u8>> {
    (0..100)
        .map(|i| numbered_packet(to, (round * 100 + i) as u32 + 1, 60 + (round * 37 + i * 101) % 1455))
        .collect()
}

pub(crate) fn send_packets(port: &mut Port, packets: &[Vec<u8>]) {
    for packet in packets {
        let mut frame = port.sender().buffer().expect("a free frame");
        frame.fill(packet).expect("fits");
        port.sender().send(frame).expect("sent");
    }
    port.sender().flush().expect("flushed");
}

/// Sends packets with numbers from `first` on through a queue of the other end.
pub(crate) fn send_numbered_on_queue(end: &End, queue: u32, to: &End, first: u32, count: u32) {
    let mut port = open_port_with(end, |builder| builder.queue(queue)).unwrap();
    let packets: Vec<_> = (first..first + count).map(|number| numbered_packet(to, number, 100)).collect();
    send_packets(&mut port, &packets);
    assert!(port.sender().drain(PATIENCE).unwrap());
}

pub(crate) fn receive_packets(port: &mut Port, count: usize) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    while received.len() < count {
        let batch = port.receiver().receive_timeout(PATIENCE).expect("received");
        let before = received.len();
        received.extend(batch.map(|packet| packet.to_vec()));
        assert!(received.len() > before, "only {} of {count} packets came", received.len());
    }
    received
}

/// That many packets received by any of several ports; more, if more arrive.
pub(crate) fn receive_from_any(ports: &mut [Port], count: usize) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    let give_up = Instant::now() + PATIENCE;
    loop {
        let is_all = received.len() >= count;
        for port in &mut *ports {
            let wait = Duration::from_millis(if is_all { 20 } else { 1 });
            received.extend(
                port.receiver().receive_timeout(wait).expect("received").map(|packet| packet.to_vec()),
            );
        }
        if is_all || Instant::now() > give_up {
            return received;
        }
    }
}

pub(crate) fn assert_all_frames_returned(port: &mut Port) {
    assert!(port.sender().drain(PATIENCE).expect("drained"), "frames stuck with the kernel");
    let balance = port.balance();
    assert!(balance.is_balanced() && balance.in_use == 0 && balance.lent_tx == 0, "{balance}");
    assert_eq!(port.receiver().stats().faults + port.sender().stats().faults, 0);
}

/// The kernel's count of requests for promiscuous mode (`IFLA_PROMISCUITY`); the flag shows only what
/// `ip link` set.
pub(crate) fn is_promiscuous(end: &End) -> bool {
    let show = ["-details", "-json", "link", "show", "dev", end.interface()];
    let shown = end.namespace().run(|| std::process::Command::new("ip").args(show).output().unwrap());
    let text = String::from_utf8(shown.stdout).unwrap();
    let (_, count) = text.split_once("\"promiscuity\":").unwrap_or_else(|| panic!("no count: {text}"));
    !count.starts_with("0,")
}

/// Where every frame of the ports' area is.
pub(crate) fn area_balance(queues: &mut Queues) -> Balance {
    queues.ports().iter().map(Port::balance).last().expect("at least one queue")
}

/// An area of frames of that length, with room for two ports of default size.
pub(crate) fn area_with_frames_of(frame_bytes: u32) -> Area {
    Area::new(AreaConfig { frame_count: 12_288, frame_bytes, ..AreaConfig::default() }).unwrap()
}

/// Drafts equal packets of `bytes` bytes for `to`, and queues them.
pub(crate) fn queue_equal_packets(port: &mut Port, to: &End, count: usize, bytes: usize) {
    let mut drafts = port.sender().drafts(count, bytes).unwrap();
    assert_eq!(drafts.remaining(), count);
    while let Some(mut draft) = drafts.next_draft() {
        draft.fill(0);
        draft[..6].copy_from_slice(&to.mac());
        draft[12..14].copy_from_slice(&[0x88, 0xb5]);
        draft.queue();
    }
}

/// Writes into every free buffer of the pool, and returns how many those were.
pub(crate) fn overwrite_free_buffers(pool: &Pool) -> usize {
    let all: Vec<BufferMut> = std::iter::from_fn(|| pool.take()).collect();
    let count = all.len();
    for mut buffer in all {
        buffer.resize(buffer.capacity());
        buffer[..].fill(0xee);
    }
    count
}

pub(crate) use lab;
