//! Forwards frames between two interfaces until interrupted, without a copy of its own:
//! `bridge INTERFACE INTERFACE`
//!
//! VLAN tags and checksums that hosts leave to the card are put in: veth is no card.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use nocopy::area::AreaConfig;
use nocopy::port::{NonblockingSender, OpenError};
use nocopy::{Area, Port, Reason, Receiver, Rejected, Sender};

/// Forwards in one direction; returns packets forwarded and dropped.
fn forward_packets(
    from: &mut Receiver,
    to: &mut Sender,
    is_jumbo: bool,
    stop: &AtomicBool,
) -> io::Result<(u64, u64)> {
    let (mut forwarded, mut dropped) = (0, 0);
    let mut count = |sent: bool| *(if sent { &mut forwarded } else { &mut dropped }) += 1;
    while !stop.load(Relaxed) {
        let mut batch = from.receive_timeout(Duration::from_millis(100))?;
        if is_jumbo {
            while let Some(packet) = batch.next_chain() {
                let sent = to.forward_chain(packet);
                count(flush_and_retry_send(to, sent, NonblockingSender::send_chain)?);
            }
        } else {
            for packet in batch {
                let sent = to.forward(packet);
                count(flush_and_retry_send(to, sent, NonblockingSender::send)?);
            }
        }
        to.flush()?;
    }
    Ok((forwarded, dropped))
}

/// Sends a packet that found no room, after those before it; returns whether it was sent. One that is refused
/// again returns to its pool here.
fn flush_and_retry_send<T>(
    to: &mut Sender,
    sent: Result<(), Rejected<T>>,
    send: fn(&mut NonblockingSender, T) -> Result<(), Rejected<T>>,
) -> io::Result<bool> {
    if let Err(Rejected { item, reason: Reason::Full }) = sent {
        to.flush()?;
        return Ok(send(to, item).is_ok());
    }
    Ok(sent.is_ok())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [left, right] = &arguments[..] else { return Err("usage: bridge INTERFACE INTERFACE".into()) };
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop))?;

    let area = Area::new(AreaConfig { frame_count: 2 * (4096 + 2048), ..AreaConfig::default() })?;
    let builder = |name| Port::builder(name).area(&area).promiscuous(true).receive_metadata(true);
    let open = |is_jumbo| {
        let open = |name| builder(name).multi_buffer(is_jumbo).open();
        Ok::<_, OpenError>((open(left)?, open(right)?, is_jumbo))
    };
    // In several frames only where the MTU needs it.
    let (mut left_port, mut right_port, is_jumbo) = match open(false) {
        Err(OpenError::Mtu { .. }) => open(true)?,
        opened => opened?,
    };
    println!("{left} ({}) - {right} ({}): forwarding", left_port.mode(), right_port.mode());
    let ((left_in, left_out), (right_in, right_out)) = (left_port.halves(), right_port.halves());
    let run = |from, to| {
        let ended = forward_packets(from, to, is_jumbo, &stop);
        stop.store(true, Relaxed); // one way broken is no bridge
        ended
    };
    let (there, back) = thread::scope(|scope| {
        let there = scope.spawn(|| run(left_in, right_out));
        let back = run(right_in, left_out);
        (there.join().expect("forwarding does not panic"), back)
    });
    for (way, ended) in [("left to right", there), ("right to left", back)] {
        ended.map(|(forwarded, dropped)| println!("{way}: {forwarded} packets, {dropped} dropped"))?;
    }
    left_port.sender().drain(Duration::from_secs(1))?;
    right_port.sender().drain(Duration::from_secs(1))?;
    println!("{}", (left_port.balance(), right_port.balance()).1);
    Ok(())
}
