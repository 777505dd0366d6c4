//! Forwards frames between two interfaces until interrupted, without a copy of its own: `bridge INTERFACE INTERFACE`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use nocopy::area::AreaConfig;
use nocopy::{Area, Port, Reason, Receiver, Rejected, Sender};

/// Forwards in one direction; returns packets forwarded and dropped.
fn forward(from: &mut Receiver, to: &mut Sender, stop: &AtomicBool) -> std::io::Result<(u64, u64)> {
    let (mut forwarded, mut dropped) = (0, 0);
    while !stop.load(Relaxed) {
        for packet in from.receive_timeout(Duration::from_millis(100))? {
            let mut sent = to.send(packet.take());
            if let Err(Rejected { item: frame, reason: Reason::Full }) = sent {
                to.flush()?;
                sent = to.send(frame);
            }
            // A frame that was refused again returns to its pool here.
            *(if sent.is_ok() { &mut forwarded } else { &mut dropped }) += 1;
        }
        to.flush()?;
    }
    Ok((forwarded, dropped))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [left, right] = &arguments[..] else { return Err("usage: bridge INTERFACE INTERFACE".into()) };
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop))?;

    let area = Area::new(AreaConfig { frame_count: 2 * (4096 + 2048), ..AreaConfig::default() })?;
    let open = |name: &String| Port::builder(name).area(&area).promiscuous(true).open();
    let (mut left_port, mut right_port) = (open(left)?, open(right)?);
    println!("{left} ({}) - {right} ({}): forwarding", left_port.mode(), right_port.mode());
    let ((left_in, left_out), (right_in, right_out)) = (left_port.halves(), right_port.halves());
    let run = |from, to| {
        let ended = forward(from, to, &stop);
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
