//! Goodput by loss and window, compared with a committed table, so that no change of it goes unnoticed.

use std::fmt::Write;
use std::time::Duration;

use super::{HostSettings, LinkSettings, Sizes, Traffic, World};
use crate::message::{Event, Settings};

const LOSSES: [f64; 6] = [0.0, 0.001, 0.01, 0.03, 0.1, 0.3];
const WINDOWS: [usize; 4] = [16, 64, 256, 1_024];
/// How long to measure, from the connection on.
const MEASURED: Duration = Duration::from_millis(250);

/// Megabits of messages per second, and the share of repeated packets in percent.
fn measure(loss: f64, window_packets: usize) -> (f64, f64) {
    let host = HostSettings {
        endpoint: Settings { window_packets, max_message_bytes: 8_192, ..Settings::default() },
        memory_packets: 4 * window_packets,
        reading: None,
        says: None,
        is_general: Some(false),
        link: LinkSettings { loss, ..LinkSettings::gigabit() },
        streams: None,
    };
    let mut world = World::new(1);
    let (client, server) = (world.host(host.clone()), world.host(host));
    world.connect(client, server, Some(Traffic::of(u64::MAX, Sizes::Bytes(1_024))));
    let connected = |world: &World| matches!(world.events(client).first(), Some((_, Event::Connected(..))));
    assert!(world.run_until(Duration::from_secs(10), connected), "no connection");
    world.run(MEASURED);
    assert!(world.faults().is_empty(), "{:?}", world.faults());
    let counts = world.counts(client);
    let bits = world.counts(server).read_bytes as f64 * 8.0;
    (bits / MEASURED.as_secs_f64() / 1e6, counts.again as f64 * 100.0 / counts.packets as f64)
}

fn table() -> String {
    let mut table = String::from(
        "Goodput by loss and window: messages of 1 KiB, 1 Gbit/s, 50 us each way, lost in both directions alike.\n\
         Mbit/s of messages, and in brackets the share of packets that were sent again.\n\n   loss",
    );
    for window in WINDOWS {
        write!(table, "{:>18}", format!("{window} packets")).expect("memory takes it");
    }
    for loss in LOSSES {
        write!(table, "\n{:>5.1} %", loss * 100.0).expect("memory takes it");
        for window in WINDOWS {
            let (goodput, again) = measure(loss, window);
            write!(table, "{goodput:>9.1} ({again:>4.1} %)").expect("memory takes it");
        }
    }
    table + "\n"
}

/// If a change is intended, commit what the failure prints.
#[test]
fn goodput_is_as_committed() {
    let (now, committed) = (table(), include_str!("goodput.txt"));
    assert!(now == committed, "goodput has changed; if that is meant, goodput.txt should be:\n{now}");
}
