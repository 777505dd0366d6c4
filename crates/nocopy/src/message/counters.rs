//! What an endpoint counts.

use crate::counter::counters;

counters! {
    /// What the way between an endpoint and the network counted; the protocol has counters of its own
    /// ([`ProtocolCounters`](super::ProtocolCounters)).
    pub struct CarrierCounters {
        /// Datagrams that were handed to the kernel.
        datagrams_sent,
        /// Datagrams that came.
        datagrams_received,
        /// Calls that handed datagrams over (sockets).
        calls,
        /// How often the kernel took no more: the rest waited for the next flush.
        kernel_full,
        /// Messages of several datagrams that were refused, whose datagrams then went one by one (sockets).
        joined_refused,
        /// Datagrams that the way took no more as a whole, and that were cut into fragments.
        fragmented,
        /// Datagrams that were too long for the way, and not sent: the set-up then tries shorter ones.
        too_long,
        /// Datagrams that were refused for another reason, and not sent; the protocol sends them again.
        refused,
        /// Answers of the protocol for which there was no memory.
        no_memory_to_send,
        /// Datagrams that came and for which there was no memory; they are sent again.
        no_memory_to_receive,
        /// Packets that were to be sent again while the kernel still had them, and were left alone.
        still_away,
    }
}
