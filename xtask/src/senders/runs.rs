//! The runs of a program's datagrams, computed from the files that `watch.c` writes.

use std::collections::BTreeMap;

use serde::Serialize;

/// The longest time between two datagrams of a run, from the end of a call to the beginning of the next.
const GAP_NS: u64 = 50_000;

/// Lengths at which the classes of runs begin. 8 is where `nocopy run --batch-udp` begins to join, 64 what a
/// burst holds.
pub(super) const CLASSES: [usize; 6] = [1, 2, 4, 8, 16, 64];

/// The layout of `watch.c`.
const HEAD_BYTES: usize = 64;
const EVENT_BYTES: usize = 48;
const CALLS: [&str; 6] = ["send", "sendto", "sendmsg", "sendmmsg", "write", "writev"];
const CONTROL: u16 = 1;
const OWN_BURSTS: u16 = 2;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct DatagramEvent {
    start_ns: u64,
    end_ns: u64,
    destination: u64,
    waits: (u32, u32),
    descriptor: u32,
    thread: u32,
    bytes: u32,
    call: u16,
    flags: u16,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct SendRecord {
    /// The name of the thread that sent first.
    pub(super) process: String,
    /// All sent datagrams, including those after the record was full.
    pub(super) datagrams: u64,
    pub(super) noted: usize,
    /// The most frequent size.
    pub(super) bytes: u32,
    pub(super) sizes: usize,
    pub(super) sockets: usize,
    /// Datagrams by the call that sent them.
    pub(super) calls: BTreeMap<&'static str, usize>,
    pub(super) with_control_data: usize,
    pub(super) own_bursts: usize,
    /// Runs by class of length; a class is named by its least length.
    pub(super) runs: BTreeMap<usize, usize>,
    /// Datagrams in runs, by the same classes.
    pub(super) datagrams_in_runs: BTreeMap<usize, usize>,
    pub(super) longest_run: usize,
    /// Runs by the cause of their end.
    pub(super) ended: BTreeMap<&'static str, usize>,
    /// Times between the calls of a run.
    pub(super) gap_median_ns: u64,
}

impl SendRecord {
    /// Reads a file; `None` if it is incomplete.
    pub(super) fn parse(file: &[u8]) -> Option<Self> {
        let (head, events) = file.split_at_checked(HEAD_BYTES)?;
        let count = u64::from_ne_bytes(*head.first_chunk()?);
        let name = head.get(8..)?.split(|&byte| byte == 0).next()?;
        let (events, _) = events.as_chunks::<EVENT_BYTES>();
        let noted = events.iter().take(usize::try_from(count).ok()?).map(parse_event);
        let mut noted: Vec<DatagramEvent> = noted.filter(|datagram| datagram.end_ns > 0).collect();
        // Threads write their records when they end. The order of one call's datagrams is kept.
        noted.sort_by_key(|datagram| datagram.start_ns);
        let process = String::from_utf8_lossy(name).into_owned();
        Some(Self { process, datagrams: count, ..Self::from_events(&noted) })
    }

    fn from_events(noted: &[DatagramEvent]) -> Self {
        let mut sent = Self { noted: noted.len(), ..Self::default() };
        let (mut sizes, mut sockets) = (BTreeMap::<u32, usize>::new(), BTreeMap::<u32, ()>::new());
        let (mut length, mut gaps) = (0, Vec::new());
        for (at, datagram) in noted.iter().enumerate() {
            *sizes.entry(datagram.bytes).or_default() += 1;
            sockets.insert(datagram.descriptor, ());
            let call = CALLS.get(usize::from(datagram.call).wrapping_sub(1)).unwrap_or(&"unknown");
            *sent.calls.entry(call).or_default() += 1;
            sent.with_control_data += usize::from(datagram.flags & CONTROL != 0);
            sent.own_bursts += usize::from(datagram.flags & OWN_BURSTS != 0);
            length += 1;
            match noted.get(at + 1).map(|next| datagram.gap_until(next)) {
                Some(Ok(gap_ns)) => gaps.push(gap_ns),
                Some(Err(why)) => sent.add_run(std::mem::take(&mut length), why),
                None => sent.add_run(length, "end"),
            }
        }
        gaps.sort_unstable();
        sent.gap_median_ns = gaps.get(gaps.len() / 2).copied().unwrap_or(0);
        sent.bytes = sizes.iter().max_by_key(|(_, count)| **count).map_or(0, |(bytes, _)| *bytes);
        (sent.sizes, sent.sockets) = (sizes.len(), sockets.len());
        sent
    }

    fn add_run(&mut self, length: usize, why: &'static str) {
        let class = CLASSES.into_iter().rfind(|least| length >= *least).unwrap_or(1);
        *self.runs.entry(class).or_default() += 1;
        *self.datagrams_in_runs.entry(class).or_default() += length;
        *self.ended.entry(why).or_default() += 1;
        self.longest_run = self.longest_run.max(length);
    }

    /// The share of the datagrams in runs of at least this length, one of [`CLASSES`].
    pub(super) fn share_in_runs_of(&self, least: usize) -> f64 {
        let long: usize = self.datagrams_in_runs.range(least..).map(|(_, count)| count).sum();
        long as f64 / self.noted.max(1) as f64
    }

    /// The most frequent cause of a run's end.
    pub(super) fn mostly_ended_by(&self) -> &'static str {
        self.ended.iter().max_by_key(|(_, count)| **count).map_or("", |(why, _)| why)
    }
}

impl DatagramEvent {
    /// The time until the next datagram of the same run; otherwise the cause of the run's end.
    fn gap_until(&self, next: &Self) -> Result<u64, &'static str> {
        let gap_ns = next.start_ns.saturating_sub(self.end_ns);
        // Datagrams of one call begin at the same time.
        let is_one_call = next.start_ns == self.start_ns && next.thread == self.thread;
        if next.descriptor != self.descriptor {
            Err("another socket")
        } else if next.destination != self.destination {
            Err("another destination")
        } else if next.bytes != self.bytes {
            Err("another size")
        } else if !is_one_call && next.thread == self.thread && next.waits.0 != self.waits.1 {
            Err("a wait")
        } else if gap_ns >= GAP_NS {
            Err("a gap")
        } else {
            Ok(gap_ns)
        }
    }
}

fn parse_event(event: &[u8; EVENT_BYTES]) -> DatagramEvent {
    let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| event[at + byte]));
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| event[at + byte]));
    let half = |at: usize| u16::from_ne_bytes([event[at], event[at + 1]]);
    DatagramEvent {
        start_ns: long(0),
        end_ns: long(8),
        destination: long(16),
        waits: (word(24), word(28)),
        descriptor: word(32),
        thread: word(36),
        bytes: word(40),
        call: half(44),
        flags: half(46),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equal datagrams of one socket in quick succession.
    fn datagrams_in_quick_succession(count: u64) -> Vec<DatagramEvent> {
        let one = |at| DatagramEvent {
            start_ns: 1000 * at,
            end_ns: 1000 * at + 800,
            bytes: 1400,
            call: 2,
            ..DatagramEvent::default()
        };
        (1..=count).map(one).collect()
    }

    fn longest_run_and_cause(datagrams: &[DatagramEvent]) -> (usize, &'static str) {
        let sent = SendRecord::from_events(datagrams);
        let ended = sent.ended.keys().copied().find(|why| *why != "end");
        (sent.longest_run, ended.unwrap_or("end"))
    }

    #[test]
    fn quick_equal_datagrams_are_one_run() {
        let sent = SendRecord::from_events(&datagrams_in_quick_succession(100));
        assert_eq!((sent.longest_run, sent.gap_median_ns, sent.bytes), (100, 200, 1400));
        assert_eq!(
            (sent.share_in_runs_of(64), sent.share_in_runs_of(8), sent.calls["sendto"]),
            (1.0, 1.0, 100)
        );
        assert_eq!(SendRecord::from_events(&[]).share_in_runs_of(1), 0.0);
    }

    #[test]
    fn a_datagram_that_differs_ends_a_run() {
        let change = |by: fn(&mut DatagramEvent)| {
            let mut all = datagrams_in_quick_succession(10);
            by(&mut all[4]);
            longest_run_and_cause(&all)
        };
        assert_eq!(change(|datagram| datagram.bytes = 1).1, "another size");
        assert_eq!(change(|datagram| datagram.descriptor = 1).1, "another socket");
        assert_eq!(change(|datagram| datagram.destination = 1).1, "another destination");
        assert_eq!(change(|datagram| datagram.waits = (1, 0)), (6, "a wait"));
        let mut late = datagrams_in_quick_succession(10);
        late.iter_mut().skip(7).for_each(|datagram| {
            (datagram.start_ns, datagram.end_ns) = (datagram.start_ns + GAP_NS, datagram.end_ns + GAP_NS)
        });
        assert_eq!(longest_run_and_cause(&late), (7, "a gap"));
    }

    #[test]
    fn datagrams_of_one_call_are_one_run_also_if_it_waited() {
        let mut all = datagrams_in_quick_succession(3);
        for datagram in &mut all {
            (datagram.start_ns, datagram.end_ns, datagram.waits) = (1000, 90_000, (3, 4));
        }
        assert_eq!(longest_run_and_cause(&all), (3, "end"));
    }

    #[test]
    fn incomplete_files_are_refused() {
        assert!(SendRecord::parse(&[0; HEAD_BYTES - 1]).is_none());
        let mut file = vec![0; HEAD_BYTES + 2 * EVENT_BYTES];
        file[0] = 2;
        file[8..12].copy_from_slice(b"name");
        file[HEAD_BYTES + 8] = 1;
        let sent = SendRecord::parse(&file).unwrap();
        assert_eq!((sent.process.as_str(), sent.datagrams, sent.noted), ("name", 2, 1));
    }
}
