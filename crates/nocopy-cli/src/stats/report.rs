//! One refresh: totals, and rates if there was an earlier snapshot.

use std::collections::HashMap;

use nocopy::Counter;
use nocopy::integration::statistics::Snapshot;

/// A counter with its growth since the previous snapshot, and its rate.
#[derive(Debug)]
pub(super) struct CounterRow {
    pub(super) counter: Counter,
    pub(super) increase: Option<u64>,
    pub(super) per_second: Option<f64>,
}

#[derive(Debug)]
pub(super) enum CounterSource {
    /// The kernel, for the interface.
    Link,
    /// The device, for one queue: the direction (`rx` or `tx`), and the queue's number.
    Queue(String, u32),
    /// The driver, under its own names.
    Driver,
    /// The kernel, for an AF_XDP socket.
    Socket(XdpSocket),
}

#[derive(Debug)]
pub(super) struct XdpSocket {
    pub(super) inode: u32,
    pub(super) queue: u32,
    pub(super) zero_copy: bool,
    pub(super) owner: Option<(u32, String)>,
}

#[derive(Debug)]
pub(super) struct CounterGroup {
    pub(super) source: CounterSource,
    pub(super) rows: Vec<CounterRow>,
}

#[derive(Debug)]
pub(super) struct InterfaceReport {
    pub(super) interface: String,
    /// Time since the last snapshot.
    pub(super) seconds: Option<f64>,
    pub(super) groups: Vec<CounterGroup>,
    /// Whether the kernel reports AF_XDP sockets at all.
    pub(super) knows_sockets: bool,
}

/// The process of each socket, by inode. Found once, because it takes a walk through all of /proc.
pub(super) type SocketOwners = HashMap<u32, Option<(u32, String)>>;

impl InterfaceReport {
    pub(super) fn new(now: &Snapshot, before: Option<&Snapshot>, owners: &mut SocketOwners) -> Self {
        let increase = before.map(|before| now.since(before));
        let increase = increase.as_ref();
        let seconds = before.map(|before| now.taken.saturating_duration_since(before.taken).as_secs_f64());
        let per_second = |count: u64, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        // The growth has the same structure as the totals, so they can be zipped.
        let group = |source, totals: Vec<Counter>, increase: Option<Vec<Counter>>| {
            let increase = |at: usize| Some(increase.as_ref()?[at].value);
            let row = |(at, counter)| {
                let increase = increase(at);
                let per_second = increase.zip(seconds).map(|(count, seconds)| per_second(count, seconds));
                CounterRow { counter, increase, per_second }
            };
            CounterGroup { source, rows: totals.into_iter().enumerate().map(row).collect() }
        };
        let mut groups = vec![group(
            CounterSource::Link,
            now.link.counters().collect(),
            increase.map(|increase| increase.link.counters().collect()),
        )];
        for (at, queue) in now.queues.iter().enumerate() {
            let source =
                CounterSource::Queue((if queue.receives { "rx" } else { "tx" }).to_owned(), queue.number);
            let increase = increase.map(|increase| increase.queues[at].counters.clone());
            groups.push(group(source, queue.counters.clone(), increase));
        }
        for (at, socket) in now.sockets.iter().flatten().enumerate() {
            let increase = increase.and_then(|increase| increase.sockets.as_ref());
            let increase = increase.map(|sockets| sockets[at].counters().collect());
            let owner = owners.entry(socket.inode).or_insert_with(|| socket.owning_process()).clone();
            let (inode, queue, zero_copy) = (socket.inode, socket.queue, socket.zero_copy);
            let source = CounterSource::Socket(XdpSocket { inode, queue, zero_copy, owner });
            groups.push(group(source, socket.counters().collect(), increase));
        }
        if !now.driver.is_empty() {
            let increase = increase.map(|increase| increase.driver.clone());
            groups.push(group(CounterSource::Driver, now.driver.clone(), increase));
        }
        Self { interface: now.interface.clone(), seconds, groups, knows_sockets: now.sockets.is_some() }
    }
}
