//! Random histories of a queue against a model: memory is free when all of it was handed over and each call
//! that reads it is settled, and at no other time.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{
    Buffer, Completed, Completion, CompletionReport, Evidence, Extent, Position, Queue, SharedBytes, Ticket,
    connected_sockets, new_queue, open_call_for, whole_entry,
};
use crate::facts::evidence::Cause;

const COPIED: Evidence = Evidence::Copied(Cause::DeliveredLocally);

#[derive(Debug, Clone)]
enum QueueStep {
    Push,
    /// An ordinary call takes the rest of the next entry.
    Copy,
    /// A zero-copy call takes this many of the next entries, or a part of one.
    Call(u64),
    CallForPart,
    /// The ring takes the next entry, and refuses it later.
    CallByRing,
    /// The kernel's report of calls from one to another, counted from the oldest that is open; those that
    /// were never made are forged.
    Report {
        from: i8,
        count: u8,
        copied: bool,
    },
    /// Finished calls are settled, at most so many.
    Settle(u8),
    /// A finished call is forgotten: its memory is never free.
    Forget,
    /// A call for the next entry fails. Whether the next two numbers are reported, and whether the kernel
    /// holds no call then.
    Fail {
        reported: [bool; 2],
        is_quiet: bool,
    },
}

fn any_step() -> impl Strategy<Value = QueueStep> {
    prop_oneof![
        4 => Just(QueueStep::Push),
        2 => Just(QueueStep::Copy),
        3 => (1..4_u64).prop_map(QueueStep::Call),
        2 => Just(QueueStep::CallForPart),
        1 => Just(QueueStep::CallByRing),
        5 => (-3..6_i8, 1..5_u8, any::<bool>()).prop_map(|(from, count, copied)| QueueStep::Report { from, count, copied }),
        4 => (1..4_u8).prop_map(QueueStep::Settle),
        1 => Just(QueueStep::Forget),
        1 => (any::<[bool; 2]>(), any::<bool>()).prop_map(|(reported, is_quiet)| QueueStep::Fail { reported, is_quiet }),
    ]
}

struct ModelEntry {
    bytes: Arc<[u8; 100]>,
    is_handed_over: bool,
    calls: usize,
    evidence: Vec<Evidence>,
}

impl ModelEntry {
    fn is_free(&self) -> bool {
        self.is_handed_over && self.calls == 0
    }

    fn worst_evidence(&self) -> Evidence {
        let has = |evidence| self.evidence.contains(&evidence);
        match () {
            () if has(COPIED) => COPIED,
            () if self.evidence.is_empty() || has(Evidence::Unknown) => Evidence::Unknown,
            () => Evidence::ZeroCopy,
        }
    }
}

/// A queue, and what it should know.
struct QueueModel {
    queue: Queue,
    entries: Vec<ModelEntry>,
    /// The first that is not handed over.
    head: u64,
    open: BTreeMap<u64, Range<u64>>,
    next_number: u64,
    /// Entries of calls that are finished and not settled, in order; a call that failed has no evidence.
    finished: VecDeque<(Range<u64>, Evidence)>,
    forgotten: Vec<Completion<()>>,
    /// Entries that the queue gave back, with their evidence.
    freed: Vec<(u64, Evidence)>,
}

impl QueueModel {
    fn new() -> Self {
        let mut queue = new_queue(connected_sockets().0);
        queue.allow_zero_copy().expect("a new socket");
        Self {
            queue,
            entries: Vec::new(),
            head: 0,
            open: BTreeMap::new(),
            next_number: 0,
            finished: VecDeque::new(),
            forgotten: Vec::new(),
            freed: Vec::new(),
        }
    }

    fn apply_step(&mut self, step: &QueueStep) {
        let waiting = self.head..self.entries.len() as u64;
        match step {
            QueueStep::Push => {
                let bytes = Arc::new([7; 100]);
                let buffer = Buffer::from_owner(SharedBytes(Arc::clone(&bytes)));
                assert_eq!(self.queue.push(buffer), Ticket(self.entries.len() as u64));
                self.entries.push(ModelEntry {
                    bytes,
                    is_handed_over: false,
                    calls: 0,
                    evidence: Vec::new(),
                });
            }
            QueueStep::Report { from, count, copied } => {
                let oldest = self.open.keys().next().copied().unwrap_or(self.next_number);
                let first = oldest.wrapping_add_signed(i64::from(*from)) as u32;
                self.report_calls(first, first.wrapping_add(u32::from(*count) - 1), *copied);
            }
            QueueStep::Settle(count) => (0..*count).for_each(|_| self.settle_next_completion()),
            QueueStep::Forget => {
                self.forgotten.extend(self.queue.next_completion());
                let _never_settled = self.finished.pop_front();
            }
            _ if waiting.is_empty() => {}
            QueueStep::Copy => self.hand_over(self.head + 1, Some(COPIED)),
            QueueStep::Call(count) => {
                let reads = self.head..waiting.end.min(self.head + count);
                self.record_call(reads.clone());
                self.hand_over(reads.end, None);
            }
            QueueStep::CallForPart => self.record_call(self.head..self.head + 1),
            QueueStep::CallByRing => self.call_by_ring(),
            QueueStep::Fail { reported, is_quiet } => self.fail_with_uncertain_call(*reported, *is_quiet),
        }
        let freed = std::iter::from_fn(|| self.queue.completed());
        self.freed.extend(freed.map(|Completed { ticket, evidence, .. }| (ticket.0, evidence)));
    }

    /// All entries up to that one.
    fn hand_over(&mut self, end: u64, evidence: Option<Evidence>) {
        for ticket in self.head..end {
            let entry = &mut self.entries[ticket as usize];
            entry.is_handed_over = true;
            entry.evidence.extend(evidence);
        }
        self.head = end;
        self.queue.advance(Position::start_of(end), evidence);
    }

    /// As after a call that the kernel took.
    fn record_call(&mut self, reads: Range<u64>) {
        let (start, end) = (Position::start_of(reads.start), Position::start_of(reads.end));
        self.queue.entries.open_call(reads.clone());
        self.queue.numbered.calls.push(open_call_for(Extent { start, end, bytes: 100 }));
        reads.clone().for_each(|ticket| self.entries[ticket as usize].calls += 1);
        self.open.insert(self.next_number, reads);
        self.next_number += 1;
    }

    /// A call that the ring refuses holds its entry until it was sent in another way, and is settled.
    fn call_by_ring(&mut self) {
        let reads = self.head..self.head + 1;
        self.queue.entries.open_call(reads.clone());
        self.queue
            .finished
            .push_back((open_call_for(whole_entry(reads.start)), Err(ErrorKind::ConnectionRefused.into())));
        self.entries[reads.start as usize].calls += 1;
        self.hand_over(reads.end, None);
        self.finished.push_back((reads, COPIED));
    }

    fn report_calls(&mut self, first: u32, last: u32, copied: bool) {
        let evidence = if copied { COPIED } else { Evidence::ZeroCopy };
        let named = u64::from(last.wrapping_sub(first)) + 1;
        let mut known = 0;
        for low in (0..named as u32).map(|behind| first.wrapping_add(behind)) {
            let Some(reads) = self.open.remove(&u64::from(low)) else { continue };
            self.finished.push_back((reads, evidence));
            known += 1;
        }
        let report = CompletionReport { first, last, copied };
        assert_eq!(self.queue.finish_reported_calls(report), named - known, "never made, or finished");
    }

    fn settle_next_completion(&mut self) {
        let done = self.queue.next_completion();
        assert_eq!(done.is_some(), !self.finished.is_empty());
        if let (Some(done), Some((reads, evidence))) = (done, self.finished.pop_front()) {
            let copied = done.outcome.as_ref().map_or(true, |report| report.copied);
            assert_eq!(if copied { COPIED } else { Evidence::ZeroCopy }, evidence);
            self.queue.settle(done, Some(evidence));
            self.end_call(reads, Some(evidence));
        }
    }

    fn end_call(&mut self, reads: Range<u64>, evidence: Option<Evidence>) {
        for ticket in reads {
            let entry = &mut self.entries[ticket as usize];
            entry.calls -= 1;
            entry.evidence.extend(evidence);
        }
    }

    /// The four cases of a failed call, by the reports of the next two numbers; it is sent in another way
    /// meanwhile.
    fn fail_with_uncertain_call(&mut self, reported: [bool; 2], is_quiet: bool) {
        let failed = self.head;
        self.queue.fail_with_uncertain_call(whole_entry(failed));
        self.entries[failed as usize].calls += 1;
        self.hand_over(failed + 1, Some(Evidence::Unknown));
        assert!(self.queue.is_next_number_uncertain());
        self.check_counts();
        for (number, _) in (self.next_number..).zip(reported).filter(|(_, is_reported)| *is_reported) {
            let number = number as u32;
            let report = CompletionReport { first: number, last: number, copied: false };
            assert_eq!(self.queue.finish_reported_calls(report), 0);
        }
        self.queue.resolve_uncertain_call(is_quiet);
        if reported == [false, false] && !is_quiet {
            assert!(self.queue.is_next_number_uncertain(), "nothing is known");
            self.check_counts();
            // The kernel's memory for reports is free at last.
            self.queue.resolve_uncertain_call(true);
        }
        assert!(!self.queue.is_next_number_uncertain());
        if reported == [false, true] {
            // The failed call has the first number, and is open.
            self.open.insert(self.next_number, failed..failed + 1);
        } else {
            self.end_call(failed..failed + 1, None);
        }
        self.next_number += match reported {
            [false, false] => 0,
            [true, false] => 1,
            [_, true] => 2,
        };
    }

    fn check_counts(&self) {
        let unsettled =
            self.finished.len() + self.forgotten.len() + usize::from(self.queue.is_next_number_uncertain());
        assert_eq!(self.queue.in_flight(), self.open.len() + unsettled);
        let read = self.entries.iter().filter(|entry| entry.calls > 0).count();
        assert_eq!(self.queue.entries().in_kernel().count(), read);
    }

    fn check_entries(&self) {
        self.check_counts();
        for (ticket, entry) in (0..).zip(&self.entries) {
            let is_held = Arc::strong_count(&entry.bytes) > 1;
            assert_eq!(is_held, !entry.is_free(), "{ticket}");
            let given: Vec<_> = self.freed.iter().filter(|(freed, _)| *freed == ticket).collect();
            match entry.is_free() {
                true => assert_eq!(given, [&(ticket, entry.worst_evidence())]),
                false => assert!(given.is_empty(), "{ticket}"),
            }
        }
    }

    /// Dropped while the kernel reads something, all that it holds stays where it is.
    fn drop_and_check(self) {
        let Self { queue, entries, .. } = self;
        let is_read = entries.iter().any(|entry| entry.calls > 0);
        drop(queue);
        for entry in &entries {
            let stays = is_read && !entry.is_free();
            assert_eq!(Arc::strong_count(&entry.bytes) > 1, stays);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 10_000, ..ProptestConfig::default() })]
    #[test]
    fn memory_is_free_when_sent_and_no_call_is_open(steps in vec(any_step(), 1..80)) {
        let mut world = QueueModel::new();
        for step in &steps {
            world.apply_step(step);
            world.check_entries();
        }
        world.drop_and_check();
    }
}
