//! One refresh: totals, and rates if there was an earlier snapshot.

use std::collections::HashMap;

use nocopy::Counter;
use nocopy::integration::statistics::Snapshot;

/// A counter with its growth since the previous snapshot, and its rate.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) counter: Counter,
    pub(super) counted: Option<u64>,
    pub(super) per_second: Option<f64>,
}

#[derive(Debug)]
pub(super) enum Source {
    /// The kernel, for the interface.
    Link,
    /// The device, for one queue: the direction (`rx` or `tx`), and the queue's number.
    Queue(String, u32),
    /// The driver, under its own names.
    Driver,
    /// The kernel, for an AF_XDP socket.
    Socket(Socket),
}

#[derive(Debug)]
pub(super) struct Socket {
    pub(super) inode: u32,
    pub(super) queue: u32,
    pub(super) zero_copy: bool,
    pub(super) owner: Option<(u32, String)>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) source: Source,
    pub(super) rows: Vec<Row>,
}

#[derive(Debug)]
pub(super) struct Report {
    pub(super) interface: String,
    /// Time since the last snapshot.
    pub(super) seconds: Option<f64>,
    pub(super) groups: Vec<Group>,
    /// Whether the kernel reports AF_XDP sockets at all.
    pub(super) knows_sockets: bool,
}

/// The process of each socket, by inode. Found once, because it takes a walk through all of /proc.
pub(super) type Owners = HashMap<u32, Option<(u32, String)>>;

impl Report {
    pub(super) fn new(now: &Snapshot, before: Option<&Snapshot>, owners: &mut Owners) -> Self {
        let counted = before.map(|before| now.since(before));
        let counted = counted.as_ref();
        let seconds = before.map(|before| now.taken.saturating_duration_since(before.taken).as_secs_f64());
        let per_second = |count: u64, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        // The growth has the same structure as the totals, so they can be zipped.
        let group = |source, totals: Vec<Counter>, counted: Option<Vec<Counter>>| {
            let counted = |at: usize| Some(counted.as_ref()?[at].value);
            let row = |(at, counter)| {
                let counted = counted(at);
                let per_second = counted.zip(seconds).map(|(count, seconds)| per_second(count, seconds));
                Row { counter, counted, per_second }
            };
            Group { source, rows: totals.into_iter().enumerate().map(row).collect() }
        };
        let mut groups = vec![group(
            Source::Link,
            now.link.counters().collect(),
            counted.map(|counted| counted.link.counters().collect()),
        )];
        for (at, queue) in now.queues.iter().enumerate() {
            let source = Source::Queue((if queue.receives { "rx" } else { "tx" }).to_owned(), queue.number);
            let counted = counted.map(|counted| counted.queues[at].counters.clone());
            groups.push(group(source, queue.counters.clone(), counted));
        }
        for (at, socket) in now.sockets.iter().flatten().enumerate() {
            let counted = counted.and_then(|counted| counted.sockets.as_ref());
            let counted = counted.map(|sockets| sockets[at].counters().collect());
            let owner = owners.entry(socket.inode).or_insert_with(|| socket.process()).clone();
            let (inode, queue, zero_copy) = (socket.inode, socket.queue, socket.zero_copy);
            let source = Source::Socket(Socket { inode, queue, zero_copy, owner });
            groups.push(group(source, socket.counters().collect(), counted));
        }
        if !now.driver.is_empty() {
            let counted = counted.map(|counted| counted.driver.clone());
            groups.push(group(Source::Driver, now.driver.clone(), counted));
        }
        Self { interface: now.interface.clone(), seconds, groups, knows_sockets: now.sockets.is_some() }
    }
}
