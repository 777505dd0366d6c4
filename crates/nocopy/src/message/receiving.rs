//! Receives messages and events, and waits for them.

use std::io;

use nocopy_proto::message::Next;

use super::arrivals::Lone;
use super::carrier::{Alone, Carrier};
use super::endpoint::{Patience, is_over};
use super::{Message, NonblockingEndpoint};

/// The most messages that are returned without work before packets that are being filled are sent.
const AT_HAND_MAX: u32 = 32;

impl NonblockingEndpoint {
    /// The next message if there is one, without waiting.
    ///
    /// # Errors
    /// The interface is down or was removed.
    #[inline]
    pub fn try_receive(&mut self) -> io::Result<Option<Message<'_>>> {
        self.receive_within(Patience::None)
    }

    /// Gives each message that is at hand to `each`, without waiting, and returns how many those are: where
    /// packets hold many short messages, this costs less than to receive them one by one. It ends after some
    /// messages, so that what is to be sent does not wait; no message is left because of that when it returns
    /// none. A message that shares its packet is copied if it is [taken](Message::take).
    ///
    /// ```
    /// # use nocopy::message::{Endpoint, Event};
    /// # use std::time::Duration;
    /// # let mut left = Endpoint::bind("127.0.0.1:0")?;
    /// # let mut right = Endpoint::bind("127.0.0.1:0")?;
    /// # let peer = left.start_connect(right.local_addr())?;
    /// # while !matches!(left.poll_event(), Some(Event::Connected(..))) {
    /// #     left.wait(Duration::from_millis(1))?;
    /// #     right.wait(Duration::from_millis(1))?;
    /// # }
    /// for number in 0..10_u8 {
    ///     left.send_copy_to(&[number; 64], peer)?;
    /// }
    /// left.flush()?;
    /// let mut numbers = Vec::new();
    /// while numbers.len() < 10 {
    ///     right.try_receive_each(|message| numbers.push(message.to_vec()[0]))?;
    /// }
    /// assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`try_receive`](Self::try_receive).
    #[inline]
    pub fn try_receive_each(&mut self, mut each: impl FnMut(Message<'_>)) -> io::Result<usize> {
        if self.at_hand >= AT_HAND_MAX || !self.has_message() {
            if let Some(lone) = self.look(self.aside.is_empty())? {
                each(self.read_lone(lone));
                return Ok(1);
            }
            if !self.has_message() && self.carrier.leave_none_out() {
                return Ok(self.receive_elsewhere()?.map(each).map_or(0, |()| 1));
            }
        }
        let mut messages = 0;
        while self.at_hand < AT_HAND_MAX {
            let whole = match self.aside.is_empty() && self.posted.is_none() {
                true => {
                    self.protocol.receive_whole(|peer, kind, bytes| each(Message::among(peer, kind, bytes)))
                }
                false => 0,
            };
            self.at_hand += whole as u32;
            messages += whole;
            if whole == 0 {
                let Some(message) = self.receive_found() else { break };
                each(message);
                messages += 1;
            }
        }
        Ok(messages)
    }

    #[inline]
    pub(super) fn receive_within(&mut self, patience: Patience) -> io::Result<Option<Message<'_>>> {
        if !self.aside.is_empty() || self.at_hand >= AT_HAND_MAX {
            self.find_message(patience)?;
            return Ok(self.receive_found());
        }
        if let Some(next) = self.protocol.peek() {
            return Ok(Some(self.read(next)));
        }
        // What is there already is taken without a look at what else could end a wait.
        if let Some(lone) = self.look(true)? {
            return Ok(Some(self.read_lone(lone)));
        }
        if let Some(next) = self.protocol.peek() {
            return Ok(Some(self.read(next)));
        }
        if patience == Patience::None {
            return if self.carrier.leave_none_out() { self.receive_elsewhere() } else { Ok(None) };
        }
        self.wait_for_message(patience, true)?;
        match self.lone.take() {
            Some(lone) => Ok(Some(self.read_lone(lone))),
            None => Ok(self.receive_found()),
        }
    }

    /// The message that was found, if any.
    pub(super) fn receive_found(&mut self) -> Option<Message<'_>> {
        if let Some(message) = self.aside.pop_front() {
            self.at_hand += 1;
            return Some(Message::owned(message));
        }
        let next = self.protocol.peek()?;
        Some(self.read(next))
    }

    /// The message that arrived alone in the last receiving call.
    #[inline]
    fn read_lone(&mut self, lone: Lone) -> Message<'_> {
        self.at_hand += 1;
        if let Some(posted) = self.posted.clone() {
            return self.read_lone_placed(lone, &posted);
        }
        match lone.place {
            Alone::In(_) => self.read_where_it_lies(lone),
            Alone::Across(..) => self.read_across(lone),
        }
    }

    /// The same for one in several packets: with the others in one function, all would be moved like the
    /// largest.
    #[inline(never)]
    fn read_across(&mut self, lone: Lone) -> Message<'_> {
        self.read_where_it_lies(lone)
    }

    #[inline(always)] // for each message that comes alone
    fn read_where_it_lies(&mut self, lone: Lone) -> Message<'_> {
        let (peer, kind) = (lone.peer, lone.kind);
        let Self { carrier, streams, lender, .. } = self;
        Message::lone(peer, kind, lone.bytes(carrier, streams), lender)
    }

    #[inline]
    pub(super) fn read(&mut self, next: Next) -> Message<'_> {
        self.at_hand += 1;
        if let Some(posted) = self.posted.clone() {
            return self.read_placed(next, &posted);
        }
        Message::here(self.protocol.receive_next(next), &self.lender)
    }

    /// Works until there is a message, if there is none or the last work was long ago.
    pub(super) fn find_message(&mut self, patience: Patience) -> io::Result<()> {
        match self.has_message() {
            true if self.at_hand < AT_HAND_MAX => Ok(()),
            true => self.look_and_keep(),
            false => {
                self.look_and_keep()?;
                if self.has_message() {
                    return Ok(());
                }
                if patience == Patience::None {
                    return if self.carrier.leave_none_out() { self.look_and_keep() } else { Ok(()) };
                }
                self.wait_for_message(patience, false).map(drop)
            }
        }
    }

    #[inline]
    pub(super) fn has_message(&mut self) -> bool {
        !self.aside.is_empty() || self.protocol.has_message()
    }

    /// Waits where a look has found nothing; returns whether an event ended it, which a message comes before.
    /// A message that comes alone may be left where it lies, if `reads_in_place`.
    pub(super) fn wait_for_message(&mut self, patience: Patience, reads_in_place: bool) -> io::Result<bool> {
        let patience = patience.until();
        loop {
            self.send_first();
            // What has happened by now, also by sending: a direction that was read to its end, room. No sleep
            // would be ended by it.
            let has_news = self.has_news();
            self.take_due(if has_news { Patience::None } else { patience }, reads_in_place)?;
            // If an event came as well, it ends the next wait, because the program gets only the message now.
            if self.lone.is_some() || self.has_message() {
                return Ok(false);
            }
            if self.take_news() {
                return Ok(true);
            }
            let is_over = matches!(patience, Patience::Until(deadline) if is_over(deadline));
            if is_over && !self.carrier.leave_none_out() {
                return Ok(false);
            }
        }
    }

    /// As [`look`](Self::look); keeps all messages.
    pub(super) fn look_and_keep(&mut self) -> io::Result<()> {
        self.look(false).map(drop)
    }

    /// Sends what is queued, and handles what has arrived, without waiting. A message that arrived alone is
    /// returned in place, if `reads_in_place`.
    #[inline(always)] // for each message that comes alone
    fn look(&mut self, reads_in_place: bool) -> io::Result<Option<Lone>> {
        self.send_first();
        let (now, lone) = self.look_at_all(reads_in_place)?;
        self.see_to_due(now);
        Ok(lone)
    }

    /// The next message, after a look that left something out.
    #[cold]
    fn receive_elsewhere(&mut self) -> io::Result<Option<Message<'_>>> {
        match self.look(self.aside.is_empty())? {
            Some(lone) => Ok(Some(self.read_lone(lone))),
            None => Ok(self.receive_found()),
        }
    }
}

#[cfg(test)]
mod tests {
    use nocopy_lab::patience::{PATIENCE, wait_until};
    use nocopy_proto::message::{Event, Kind, LostReason, framing};

    use std::time::Duration;

    use super::*;
    use crate::facts::evidence::{Cause, Evidence};
    use crate::message::{Endpoint, HEADER_BYTES};
    use crate::sys::udp_send::{Burst, CopiedBurst};

    /// A message that is alone in several packets is not copied unless the program takes it.
    #[test]
    fn a_message_is_read_where_its_packets_lie() {
        let bind = || {
            let silent = Endpoint::builder().keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE);
            silent.streams(false)
        };
        let (mut left, to_right, mut right) = super::super::tests::connected([bind(), bind()]);
        let copied = |right: &Endpoint| right.ledger().bytes_of(Evidence::Copied(Cause::BelowThreshold));
        let mut kept = Vec::new();
        for (round, bytes) in [2_000, 8_192, 2_900, 8_000].into_iter().enumerate() {
            for takes in [false, true] {
                let sent: Vec<u8> = (0..bytes).map(|at| (at + round) as u8).collect();
                left.send_copy_to(&sent, to_right).unwrap();
                left.flush().unwrap();
                wait_until("its packets", || right.carrier.arm().unwrap());
                let before = copied(&right);
                let message = right.try_receive().unwrap().expect("it has come");
                assert_eq!(
                    (message.len(), message.as_slice(), message.to_vec()),
                    (bytes, None, sent.clone())
                );
                assert_eq!(message.pieces().count(), bytes.div_ceil(1_436));
                match takes {
                    true => kept.push((message.take(), sent)),
                    false => drop(message),
                }
                let expected = if takes { bytes as u64 } else { 0 };
                assert_eq!(copied(&right) - before, expected, "{bytes} bytes, taken: {takes}");
                wait_until("its acknowledgement", || {
                    right.wait(Duration::ZERO).unwrap();
                    left.wait(Duration::ZERO).unwrap();
                    left.in_flight() == 0
                });
            }
        }
        assert!(kept.iter().all(|(message, sent)| message.to_vec() == *sent), "what is kept stays");
    }

    /// A message in longer packets than were agreed on is no message that could be taken, wherever its
    /// packets lie.
    #[test]
    fn packets_that_are_too_long_are_not_read() {
        let bind = || Endpoint::builder().streams(false);
        let (mut left, to_right, mut right) = super::super::tests::connected([bind(), bind()]);
        left.send_copy_to(b"a first message", to_right).unwrap();
        wait_until("its acknowledgement, without which no run goes at once", || {
            let _ = (left.wait(Duration::ZERO).unwrap(), right.try_receive().unwrap());
            left.in_flight() == 0
        });
        left.send_copy_to(&[1; 2_500], to_right).unwrap();
        let last = left.peers.take(to_right).expect("it waits").close(&mut left.carrier);
        left.made.push(last);
        let (now, mut sent) = (left.now(), Vec::new());
        let NonblockingEndpoint { protocol, made, .. } = &mut *left;
        let is_sent = protocol.send_run_at_once(now, to_right, made, |_, packets, headers| {
            let chunks = framing::chunks(Kind::Plain, 7_000, 0, 4_000 - HEADER_BYTES);
            for (chunk, header) in chunks.zip(headers).take(packets.len()) {
                sent.extend([&header[..], chunk.header(), &vec![7; chunk.range.len()]].concat());
            }
        });
        assert!(is_sent && sent.len() > 7_000);
        let mut burst = Burst::new();
        let mut burst = CopiedBurst::new(&mut burst);
        burst.begin_message(Some(&right.local_addr().into()));
        burst.push_piece(&sent);
        burst.set_segment_bytes(4_000);
        assert_eq!(burst.send(left.carrier.sockets().unwrap().socket(), 0).unwrap(), 1);
        wait_until("the packets", || right.carrier.arm().unwrap());
        assert!(right.try_receive().unwrap().map(Message::take).is_none());
        let is_lost = |event| matches!(event, Event::Lost(_, LostReason::Violation(_)));
        assert!(std::iter::from_fn(|| right.poll_event()).any(is_lost), "{}", right.stats());
    }

    /// Proves that an event ends a wait of its own where it came before a message that ended another one,
    /// however the message is read.
    #[test]
    fn a_message_that_ends_a_wait_leaves_events_to_the_next() {
        for reads_in_place in [false, true] {
            let bind = || {
                let silent = Endpoint::builder().keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE);
                silent.bind("127.0.0.1:0").unwrap()
            };
            let (mut left, mut right) = (bind(), bind());
            let to_right = left.start_connect(right.local_addr()).unwrap();
            wait_until("a connection", || {
                assert!(left.try_receive().unwrap().is_none());
                assert!(right.try_receive().unwrap().is_none());
                right.has_news()
            });
            left.send_copy_to(b"hello", to_right).unwrap();
            left.flush().unwrap();
            wait_until("the message", || right.carrier.arm().unwrap());
            let by_event = right.wait_for_message(Patience::None, reads_in_place).unwrap();
            assert!(!by_event && right.lone.is_some() == reads_in_place);
            let message = match right.lone.take() {
                Some(lone) => right.read_lone(lone).to_vec(),
                None => right.receive_found().unwrap().to_vec(),
            };
            assert_eq!(message, b"hello");
            assert!(right.wait(Duration::ZERO).unwrap(), "would wait over an event");
            assert!(matches!(right.poll_event(), Some(Event::Accepted(..))));
            assert!(!right.wait(Duration::ZERO).unwrap(), "it was taken");
        }
    }
}
