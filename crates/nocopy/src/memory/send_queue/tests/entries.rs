//! Entries alone: what is free, and in which order.

use super::*;

struct FreedRecorder(FreedPayloads<Buffer>);

impl FreedRecorder {
    fn new() -> Self {
        let cache = BufferCache::without_buffers(Pool::new(1, 4096).unwrap());
        Self(FreedPayloads { cache, completed: Some(VecDeque::new()) })
    }

    fn take_tickets(&mut self) -> Vec<(u64, Evidence)> {
        let all = self.0.completed.iter_mut().flat_map(|completed| completed.drain(..));
        all.map(|Completed { ticket, evidence, .. }| (ticket.0, evidence)).collect()
    }
}

fn numbered_buffer(number: u64) -> Buffer {
    number.to_ne_bytes().to_vec().into()
}

fn held_tickets(entries: &Entries<Buffer>) -> Vec<u64> {
    entries.unfinished().map(|buffer| u64::from_ne_bytes(buffer[..].try_into().unwrap())).collect()
}

#[test]
fn an_entry_is_free_when_its_last_call_ends() {
    let (mut entries, mut free) = (Entries::starting_at(0), FreedRecorder::new());
    assert_eq!([entries.push(numbered_buffer(0)), entries.push(numbered_buffer(1))], [Ticket(0), Ticket(1)]);
    entries.open_call(0..2);
    entries.open_call(1..2);
    entries.mark_handed_over(0, None, &mut free.0);
    entries.mark_handed_over(1, None, &mut free.0);
    entries.end_call(1..2, Some(Evidence::ZeroCopy), &mut free.0);
    assert!(free.take_tickets().is_empty());
    entries.end_call(0..2, Some(Evidence::Unknown), &mut free.0);
    assert_eq!(free.take_tickets(), [(0, Evidence::Unknown), (1, Evidence::Unknown)]);
    assert_eq!((entries.next_ticket(), entries.entries.len(), entries.open_calls), (2, 0, 0));
}

#[test]
fn a_long_read_entry_does_not_hold_other_slots() {
    let (mut entries, mut free) = (Entries::starting_at(0), FreedRecorder::new());
    let (slow, behind) = (3_u64, 10 * SPAN_MAX as u64);
    for number in 0..behind {
        let ticket = entries.push(numbered_buffer(number)).0;
        if number <= slow {
            entries.open_call(ticket..ticket + 1);
        }
        entries.mark_handed_over(ticket, None, &mut free.0);
        assert!(entries.entries.len() <= SPAN_MAX + 1, "{} places", entries.entries.len());
    }
    assert!(held_tickets(&entries).into_iter().eq(0..=slow));
    entries.end_call(1..3, None, &mut free.0);
    assert_eq!(held_tickets(&entries), [0, slow]);
    entries.end_call(0..1, None, &mut free.0);
    entries.end_call(slow..slow + 1, None, &mut free.0);
    let freed = free.take_tickets().into_iter().map(|(ticket, _)| ticket);
    assert!(freed.eq((slow + 1..behind).chain([1, 2, 0, slow])));
    assert_eq!((entries.next_ticket(), entries.entries.len(), entries.late.len()), (behind, 0, 0));
}

#[test]
fn a_call_without_bytes_does_not_change_the_evidence() {
    let (mut entries, mut free) = (Entries::starting_at(0), FreedRecorder::new());
    entries.push(numbered_buffer(0));
    entries.open_call(0..1);
    entries.mark_handed_over(0, Some(Evidence::ZeroCopy), &mut free.0);
    assert!(free.take_tickets().is_empty() && entries.is_read(0), "not to be taken away");
    entries.end_call(0..1, None, &mut free.0);
    assert_eq!(free.take_tickets(), [(0, Evidence::ZeroCopy)]);
}
