//! A refresh as one line of JSON; described in docs/stats.md.

use serde::{Serialize, Serializer};

use crate::stats::report::{CounterGroup, CounterRow, CounterSource, InterfaceReport};

/// Changes when a field is removed or changes its meaning.
const SCHEMA: &str = "nocopy.stats/1";

#[derive(Serialize)]
struct JsonRefresh<'a> {
    schema: &'static str,
    interface: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    link: CountersByName<'a>,
    queues: Vec<QueueObject<'a>>,
    driver: CountersByName<'a>,
    /// `None` if the kernel does not report them.
    sockets: Option<Vec<SocketObject<'a>>>,
}

#[derive(Serialize)]
struct QueueObject<'a> {
    direction: &'a str,
    queue: u32,
    counters: CountersByName<'a>,
}

#[derive(Serialize)]
struct SocketObject<'a> {
    inode: u32,
    queue: u32,
    zero_copy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'a str>,
    counters: CountersByName<'a>,
}

#[derive(Serialize)]
struct CounterValue {
    total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_second: Option<f64>,
}

/// An object with a member for each counter, in their order.
struct CountersByName<'a>(&'a [CounterRow]);

impl Serialize for CountersByName<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let count = |row: &CounterRow| CounterValue { total: row.counter.value, per_second: row.per_second };
        serializer.collect_map(self.0.iter().map(|row| (&row.counter.name, count(row))))
    }
}

pub(in crate::stats) fn json_line(report: &InterfaceReport) -> String {
    let mut refresh = JsonRefresh {
        schema: SCHEMA,
        interface: &report.interface,
        seconds: report.seconds,
        link: CountersByName(&[]),
        queues: Vec::new(),
        driver: CountersByName(&[]),
        sockets: report.knows_sockets.then(Vec::new),
    };
    for CounterGroup { source, rows } in &report.groups {
        let counters = CountersByName(rows);
        match source {
            CounterSource::Link => refresh.link = counters,
            CounterSource::Driver => refresh.driver = counters,
            CounterSource::Queue(direction, queue) => {
                refresh.queues.push(QueueObject { direction, queue: *queue, counters });
            }
            CounterSource::Socket(socket) => refresh.sockets.get_or_insert_default().push(SocketObject {
                inode: socket.inode,
                queue: socket.queue,
                zero_copy: socket.zero_copy,
                pid: socket.owner.as_ref().map(|(pid, _)| *pid),
                process: socket.owner.as_ref().map(|(_, name)| &**name),
                counters,
            }),
        }
    }
    let mut line = serde_json::to_string(&refresh).expect("numbers and strings are JSON");
    line.push('\n');
    line
}
