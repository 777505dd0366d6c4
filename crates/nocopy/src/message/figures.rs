//! Counters, evidence and explanations of an endpoint, and what it knows of its peers.

use nocopy_proto::message::{Peer, PeerStats};

use super::carrier::Carrier;
use super::endpoint::Sent;
use super::{NonblockingEndpoint, counters};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::method_explanation::Explanation;
use crate::stats::Stats;

impl NonblockingEndpoint {
    /// The address of a peer, and what is known of the path to it; `None` if it is not connected yet, or not
    /// any more.
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
    /// left.send_copy_to(b"hello", peer)?;
    /// left.flush()?;
    /// let stats = left.peer_stats(peer).expect("it is connected");
    /// assert_eq!(stats.address, right.local_addr());
    /// assert_eq!(stats.in_flight, 1); // one packet, of those that the window allows
    /// assert!(stats.in_flight <= stats.window_packets);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peer_stats(&self, peer: Peer) -> Option<PeerStats> {
        self.protocol.statistics(peer).ok().flatten()
    }

    /// All counters: `moved` and `bytes` count messages, `dropped` those that arrived and were not read
    /// before their connection was aborted.
    pub fn stats(&self) -> Stats {
        let sent = self.sent.counters();
        let streams = self.streams.as_ref().map(|streams| streams.counters()).unwrap_or_default();
        let stats = counters::stats(sent, self.protocol.counters(), self.carrier.counters());
        let posted = self.posted.as_ref().map(|posted| posted.counters()).unwrap_or_default();
        stats
            .with_counters(streams.counters())
            .with_counters(posted.counters())
            .with_counters(self.puts.counters.counters())
    }

    /// The evidence for bytes of messages that were sent and of datagrams that arrived.
    pub fn ledger(&self) -> Ledger {
        let Sent { messages, from_slices, short, owned, .. } = self.sent;
        let gathered = self.carrier.gathered_bytes();
        let mut sent = Ledger::default();
        sent.add(Evidence::Copied(Cause::Slice), messages, from_slices);
        sent.add(Evidence::Copied(Cause::BelowThreshold), 0, short);
        sent.add(Evidence::Copied(Cause::Gathered), 0, gathered);
        sent.add(self.carrier.evidence(), 0, owned.saturating_sub(gathered));
        sent += self.carrier.received();
        if let Some(streams) = &self.streams {
            sent += streams.ledger();
        }
        let gathered = self.posted.as_ref().map_or(0, |posted| posted.gathered_bytes());
        sent.count_as_gathered(gathered + self.puts.gathered_bytes + self.lender.joined_bytes());
        sent
    }

    /// How datagrams are carried, and what that was compared with.
    pub fn explain(&self) -> Explanation {
        let explanation = self.carrier.explain();
        match &self.streams {
            None => explanation,
            Some(streams) => explanation.prefixed_with(&streams.explain()),
        }
    }
}
