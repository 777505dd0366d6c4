//! The queue of sends: it holds each message from when it is queued until the kernel no longer reads it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::facts::evidence::Evidence;

/// The number of a send, counted from 0 for each sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// The most messages from the first to the last that the kernel reads, before the first is moved aside.
const SPAN_MAX: usize = 4096;

/// A message that is queued, or that the kernel still reads.
#[derive(Debug)]
pub(crate) struct Held<M, T> {
    /// `None` once it is free again but an earlier message is not.
    pub(crate) message: Option<M>,
    pub(crate) to: T,
    /// Calls without a completion.
    calls: u32,
    handed_over: bool,
    evidence: Option<Evidence>,
}

/// All messages, in the order of their tickets.
#[derive(Debug)]
pub(crate) struct Messages<M, T> {
    first: u64,
    held: VecDeque<Held<M, T>>,
    /// Messages before `first` that the kernel reads much longer than many after them, moved aside because their slots are needed.
    late: BTreeMap<u64, Held<M, T>>,
}

impl<M, T> Default for Messages<M, T> {
    fn default() -> Self {
        Self { first: 0, held: VecDeque::new(), late: BTreeMap::new() }
    }
}

impl<M, T> Messages<M, T> {
    /// No messages; the first one gets the ticket `first`.
    pub(super) fn beginning_at(first: u64) -> Self {
        Self { first, ..Self::default() }
    }

    #[inline(always)]
    pub(super) fn push(&mut self, message: M, to: T) -> Ticket {
        let ticket = Ticket(self.end());
        let held = Held { message: Some(message), to, calls: 0, handed_over: false, evidence: None };
        self.held.push_back(held);
        if self.held.len() > SPAN_MAX {
            self.put_aside();
        }
        ticket
    }

    /// Moves late messages aside, so that later ones need not be kept.
    #[cold]
    fn put_aside(&mut self) {
        if self.held.front().is_some_and(|first| first.handed_over)
            && let Some(first) = self.held.pop_front()
        {
            self.late.insert(self.first, first);
            self.first += 1;
            self.forget_front();
        }
    }

    /// The only message, if no call reads it.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<&Held<M, T>> {
        if self.held.len() == 1 { self.held.front().filter(|held| held.calls == 0) } else { None }
    }

    pub(crate) fn is_read(&self, ticket: u64) -> bool {
        self.get(ticket).calls > 0
    }

    /// Takes a value out of the first message, which was handed over completely and is not read by the kernel; the rest of the message is
    /// dropped.
    #[inline(always)]
    pub(super) fn pop<B>(&mut self, take: impl FnOnce(&mut M) -> B) -> Option<B> {
        let first = self.held.front_mut()?;
        assert!(first.calls == 0, "the kernel reads it");
        let taken = first.message.as_mut().map(take);
        self.held.pop_front();
        self.first += 1;
        taken
    }

    /// The ticket that the next message gets.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.first + self.held.len() as u64
    }

    #[inline]
    pub(crate) fn get(&self, ticket: u64) -> &Held<M, T> {
        match ticket.checked_sub(self.first) {
            Some(place) => &self.held[place as usize],
            None => &self.late[&ticket],
        }
    }

    /// The message itself, which may be removed and put back.
    pub(super) fn unread_mut(&mut self, ticket: u64) -> &mut Option<M> {
        let held = self.get_mut(ticket);
        assert!(held.calls == 0, "the kernel reads it");
        &mut held.message
    }

    fn get_mut(&mut self, ticket: u64) -> &mut Held<M, T> {
        match ticket.checked_sub(self.first) {
            Some(place) => &mut self.held[place as usize],
            None => self.late.get_mut(&ticket).expect("held until it is free"),
        }
    }

    /// Records a call that reads all or part of these messages.
    pub(super) fn called(&mut self, tickets: Range<u64>) {
        for ticket in tickets {
            self.get_mut(ticket).calls += 1;
        }
    }

    /// Notes that such a call is finished, with its evidence, if it sent anything. Free messages are given to `free`.
    pub(super) fn returned(
        &mut self,
        tickets: Range<u64>,
        evidence: Option<Evidence>,
        free: &mut impl FnMut(Ticket, M, Evidence),
    ) {
        for ticket in tickets {
            let held = self.get_mut(ticket);
            held.calls -= 1;
            if let Some(evidence) = evidence {
                held.learn(evidence);
            }
            self.release(ticket, free);
        }
    }

    /// Notes that the whole message was handed over; `evidence` is for the parts that no call reports.
    pub(super) fn handed_over(
        &mut self,
        ticket: u64,
        evidence: Option<Evidence>,
        free: &mut impl FnMut(Ticket, M, Evidence),
    ) {
        let held = self.get_mut(ticket);
        held.handed_over = true;
        if let Some(evidence) = evidence {
            held.learn(evidence);
        }
        self.release(ticket, free);
    }

    /// Records evidence for a part of it.
    pub(super) fn learn(&mut self, ticket: u64, evidence: Evidence) {
        self.get_mut(ticket).learn(evidence);
    }

    fn release(&mut self, ticket: u64, free: &mut impl FnMut(Ticket, M, Evidence)) {
        let held = self.get_mut(ticket);
        if held.calls > 0 || !held.handed_over {
            return;
        }
        let evidence = held.evidence.unwrap_or(Evidence::Unknown);
        if let Some(message) = held.message.take() {
            free(Ticket(ticket), message, evidence);
        }
        if ticket < self.first {
            self.late.remove(&ticket);
        }
        self.forget_front();
    }

    fn forget_front(&mut self) {
        while self.held.front().is_some_and(|held| held.message.is_none()) {
            self.held.pop_front();
            self.first += 1;
        }
    }

    /// Messages that are not free yet.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held<M, T>> {
        self.late.values().chain(&self.held).filter(|held| held.message.is_some())
    }

    /// Messages the kernel may still read.
    pub(crate) fn read(&self) -> impl Iterator<Item = &M> {
        self.iter().filter(|held| held.calls > 0).filter_map(|held| held.message.as_ref())
    }

    /// Returns the messages that the kernel may still read; the rest is dropped.
    pub(super) fn abandon(self) -> impl Iterator<Item = M> {
        let all = self.late.into_values().chain(self.held);
        all.filter(|held| held.calls > 0).filter_map(|held| held.message)
    }
}

impl<M, T> Held<M, T> {
    /// The evidence for a message is that of its worst part.
    fn learn(&mut self, evidence: Evidence) {
        self.evidence = Some(match (self.evidence, evidence) {
            (None, new) => new,
            (Some(Evidence::Copied(cause)), _) | (_, Evidence::Copied(cause)) => Evidence::Copied(cause),
            (Some(Evidence::Unknown), _) | (_, Evidence::Unknown) => Evidence::Unknown,
            (Some(Evidence::ZeroCopy), Evidence::ZeroCopy) => Evidence::ZeroCopy,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_free_with_its_last_call() {
        let mut messages = Messages::default();
        let free = std::cell::RefCell::new(Vec::new());
        let mut note = |ticket: Ticket, _: &str, evidence| free.borrow_mut().push((ticket.0, evidence));
        assert_eq!([messages.push("one", ()), messages.push("two", ())], [Ticket(0), Ticket(1)]);
        messages.called(0..2);
        messages.called(1..2);
        messages.handed_over(0, None, &mut note);
        messages.handed_over(1, None, &mut note);
        messages.returned(1..2, Some(Evidence::ZeroCopy), &mut note);
        assert!(free.borrow().is_empty());
        messages.returned(0..2, Some(Evidence::Unknown), &mut note);
        assert_eq!(*free.borrow(), [(0, Evidence::Unknown), (1, Evidence::Unknown)]);
        assert_eq!((messages.end(), messages.held.len()), (2, 0));
    }

    #[test]
    fn a_message_that_is_read_for_long_keeps_no_places_of_others() {
        let mut messages = Messages::default();
        let mut freed = Vec::new();
        let mut free = |ticket: Ticket, _: u64, _| freed.push(ticket.0);
        let (slow, behind) = (3_u64, 10 * SPAN_MAX as u64);
        for number in 0..behind {
            let ticket = messages.push(number, number).0;
            if number <= slow {
                messages.called(ticket..ticket + 1);
            }
            messages.handed_over(ticket, None, &mut free);
            assert!(messages.held.len() <= SPAN_MAX + 1, "{} places", messages.held.len());
        }
        assert!(messages.iter().map(|held| held.to).eq(0..=slow));
        messages.returned(1..3, None, &mut free);
        assert!(messages.iter().map(|held| held.to).eq([0, slow]));
        messages.returned(0..1, None, &mut free);
        messages.returned(slow..slow + 1, None, &mut free);
        assert!(freed.iter().copied().eq((slow + 1..behind).chain([1, 2, 0, slow])));
        assert_eq!((messages.end(), messages.held.len(), messages.late.len()), (behind, 0, 0));
    }

    #[test]
    fn a_call_that_sent_nothing_changes_no_evidence() {
        let mut messages = Messages::default();
        let mut freed = Vec::new();
        messages.push("one", ());
        messages.called(0..1);
        messages.handed_over(0, Some(Evidence::ZeroCopy), &mut |_, _: &str, _| panic!("a call reads it"));
        assert!(messages.is_read(0) && messages.only().is_none(), "not to be taken away");
        messages.returned(0..1, None, &mut |ticket, _, evidence| freed.push((ticket.0, evidence)));
        assert_eq!(freed, [(0, Evidence::ZeroCopy)]);
    }
}
