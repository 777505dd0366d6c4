//! The counters of an endpoint.

use nocopy_proto::message::Counters as ProtocolCounters;

use crate::counter::{Counter, counters};
use crate::stats::Stats;

counters! {
    /// Counters of the carrier; the protocol has its own.
    pub(super) struct CarrierCounters {
        /// Datagrams that were handed to the kernel.
        datagrams_sent,
        /// Datagrams that were received.
        datagrams_received,
        /// Calls that handed datagrams over.
        calls,
        /// How often the kernel accepted no more: the rest waited for the next flush.
        kernel_full,
        /// Messages of several datagrams that were refused, and whose datagrams were then sent one by one
        /// (sockets).
        joined_refused,
        /// Datagrams that were sent in fragments because the path's MTU had become smaller.
        fragmented,
        /// Datagrams that were not sent because they were too long for the path: the set-up then tries
        /// shorter ones.
        too_long,
        /// Datagrams that were refused for another reason, and not sent; the protocol sends them again.
        datagrams_refused,
        /// Datagrams that were not sent because too many others wait in the socket for hosts that do not
        /// answer (ARP, neighbour discovery), and this one would have, too (sockets).
        unresolved_dropped,
        /// Answers of the protocol for which there was no memory.
        no_memory_to_send,
        /// Received datagrams that were dropped because there was no memory; the peer sends them again.
        no_memory_to_receive,
        /// Packets that were not sent again because the kernel still had the first transmission.
        still_away,
    }
}

counters! {
    pub(super) struct SentCounters {
        /// Messages that were accepted to be sent.
        messages_sent,
        /// Bytes of messages that were accepted to be sent.
        message_bytes_sent,
    }
}

/// Counters of lost messages.
const DROPPED: [&str; 1] = ["messages_discarded"];
/// Counters that a correct peer never raises.
const FAULTS: [&str; 3] = ["beyond_credit", "malformed", "impossible_acks"];

pub(super) fn stats(sent: SentCounters, protocol: ProtocolCounters, carrier: CarrierCounters) -> Stats {
    let moved = sent.messages_sent + protocol.messages_received;
    let bytes = sent.message_bytes_sent + protocol.message_bytes_received;
    let of_protocol =
        || protocol.named().map(|(name, meaning, value)| Counter { name: name.into(), meaning, value });
    let among = |names: &'static [&str]| of_protocol().filter(|counter| names.contains(&&*counter.name));
    let others = |counter: &Counter| ![&DROPPED[..], &FAULTS].concat().contains(&&*counter.name);
    let mut stats = Stats::with_moved(moved, bytes).with_dropped(among(&DROPPED)).with_faults(among(&FAULTS));
    stats.flushes = carrier.calls;
    stats
        .with_counters(sent.counters())
        .with_counters(of_protocol().filter(others))
        .with_counters(carrier.counters())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_one_name_and_the_sums_have_theirs() {
        let mut protocol = ProtocolCounters::default();
        (protocol.messages_received, protocol.messages_discarded, protocol.malformed) = (3, 2, 5);
        let sent = SentCounters { messages_sent: 4, message_bytes_sent: 40 };
        let stats = stats(sent, protocol, CarrierCounters { calls: 7, ..CarrierCounters::default() });
        assert_eq!((stats.moved, stats.bytes, stats.dropped, stats.faults, stats.flushes), (7, 40, 2, 5, 7));
        let mut names: Vec<_> = stats.into_iter().map(|counter| counter.name.clone()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), count), (count, 2 + protocol.named().count() + 12));
        let is_known = |name: &&str| stats.get(name).is_some();
        assert!(DROPPED.iter().chain(&FAULTS).all(is_known));
    }
}
