//! Packets in both directions while something breaks. Some may be lost; each that arrives has the bytes that
//! were sent, and arrives once.
//!
//! The order is not checked: when an interface recovers after its buffers ran out, the emulator lets a new
//! packet overtake those that waited for it.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nocopy::{Port, Receiver, Sender};
use nocopy_lab::Lab;
use serde::Serialize;

use super::patience::ARRIVAL_MAX;
use super::traffic;
use crate::failure::Failure;

const PACKET_BYTES: usize = 1000;
const BATCH: u32 = 16;

/// How long a round waits for packets, and after an error.
const PAUSE: Duration = Duration::from_millis(1);

/// The number of packets each way that shows that traffic flows.
const ENOUGH: usize = 200;

pub(crate) struct PacketFlow {
    to: [u8; 6],
    /// Number of the next packet sent.
    next: u32,
    arrived: HashSet<u32>,
}

impl PacketFlow {
    /// Packets for the interface of that address, numbered from `first`.
    pub(crate) fn new(to: [u8; 6], first: u32) -> Self {
        Self { to, next: first, arrived: HashSet::new() }
    }

    /// Sends a batch, or as much of it as there are frames for.
    pub(crate) fn send_batch(&mut self, sender: &mut Sender) -> io::Result<()> {
        for _ in 0..BATCH {
            let Some(mut frame) = sender.buffer() else { break };
            frame
                .fill(&traffic::stray_packet(self.to, self.next, PACKET_BYTES))
                .expect("a packet fits a frame");
            if sender.send(frame).is_err() {
                break; // the ring is full
            }
            self.next += 1;
        }
        sender.flush()
    }

    /// Receives packets for [`PAUSE`], and checks them.
    pub(crate) fn receive_and_check(&mut self, receiver: &mut Receiver) -> io::Result<()> {
        for packet in receiver.receive_timeout(PAUSE)? {
            let number = traffic::packet_number(&packet);
            assert!(
                *packet == *traffic::stray_packet(self.to, number, PACKET_BYTES),
                "packet {number} is not what was sent: {} B, {:02x?}",
                packet.len(),
                &packet[..packet.len().min(64)]
            );
            assert!(self.arrived.insert(number), "packet {number} came twice");
        }
        Ok(())
    }

    pub(crate) fn arrived_count(&self) -> usize {
        self.arrived.len()
    }

    pub(crate) fn has_reached(&self, first: u32) -> bool {
        self.arrived.iter().any(|number| *number >= first)
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct FlowCounters {
    sent: u32,
    arrived: usize,
    pub(crate) errors: BTreeSet<String>,
}

/// Shows, to another thread, whether packets arrive, and that the ports were polled.
#[derive(Default)]
pub(crate) struct TrafficProgress {
    arrived: [AtomicUsize; 2],
    /// How often both ports have sent and received.
    rounds: AtomicUsize,
}

impl TrafficProgress {
    /// Waits until traffic flows, both ways.
    pub(crate) fn wait_for_traffic(&self) -> Result<(), Failure> {
        let arrived = || [self.arrived[0].load(Relaxed), self.arrived[1].load(Relaxed)];
        let (before, give_up) = (arrived(), Instant::now() + ARRIVAL_MAX);
        while arrived().iter().zip(before).any(|(now, before)| now - before < ENOUGH) {
            if Instant::now() > give_up {
                let now = arrived();
                return Err(Failure(format!("traffic does not flow: arrived {before:?}, then only {now:?}")));
            }
            sleep(PAUSE);
        }
        Ok(())
    }

    /// Waits until both ports have sent and received once more, from now on: on a busy machine that takes as
    /// long as it takes.
    pub(crate) fn wait_for_round(&self) -> Result<(), Failure> {
        let (before, give_up) = (self.rounds.load(Relaxed), Instant::now() + ARRIVAL_MAX);
        // The first to end may have begun before.
        while self.rounds.load(Relaxed) - before < 2 {
            if Instant::now() > give_up {
                return Err(Failure(
                    "the ports neither send nor receive: a call of theirs does not return".into(),
                ));
            }
            sleep(PAUSE);
        }
        Ok(())
    }
}

/// Sends both ways between the ports of the left and the right end for as long as `fault` runs, on another
/// thread.
pub(crate) fn run_with_traffic(
    lab: &Lab,
    left: &mut Port,
    right: &mut Port,
    fault: impl FnOnce(&TrafficProgress) -> Result<(), Failure> + Send,
) -> Result<FlowCounters, Failure> {
    let gauge = TrafficProgress::default();
    let mut flows = [PacketFlow::new(lab.right().mac(), 0), PacketFlow::new(lab.left().mac(), 0)];
    let mut errors = BTreeSet::new();
    thread::scope(|scope| {
        let fault = scope.spawn(|| fault(&gauge));
        while !fault.is_finished() {
            let [right_wards, left_wards] = &mut flows;
            let done = [
                right_wards.send_batch(left.sender()),
                left_wards.send_batch(right.sender()),
                right_wards.receive_and_check(right.receiver()),
                left_wards.receive_and_check(left.receiver()),
            ];
            gauge
                .arrived
                .iter()
                .zip(&flows)
                .for_each(|(arrived, flow)| arrived.store(flow.arrived_count(), Relaxed));
            let refused: Vec<_> = done.into_iter().filter_map(Result::err).collect();
            if !refused.is_empty() {
                sleep(PAUSE);
            }
            errors.extend(refused.iter().map(io::Error::to_string));
            gauge.rounds.fetch_add(1, Relaxed);
        }
        fault.join().unwrap_or_else(|panic| resume_unwind(panic))
    })?;
    let sent = flows.iter().map(|flow| flow.next).sum();
    let arrived = flows.iter().map(PacketFlow::arrived_count).sum();
    Ok(FlowCounters { sent, arrived, errors })
}
