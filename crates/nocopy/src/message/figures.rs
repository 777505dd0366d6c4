//! What an endpoint knows of its peers and of itself.

use std::io;
use std::net::SocketAddr;

use nocopy_proto::message::{Peer, PeerStats};

use super::endpoint::Sent;
use super::{Endpoint, counters};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::explanation::Explanation;
use crate::stats::Stats;

impl Endpoint {
    /// The address of a peer, connected or not yet; `None` if the connection has ended.
    pub fn peer_address(&self, peer: Peer) -> Option<SocketAddr> {
        self.protocol.peer_address(peer).ok()
    }

    /// What is known of the path to a peer; `None` if it is not connected yet, or not any more.
    pub fn peer_stats(&self, peer: Peer) -> Option<PeerStats> {
        self.protocol.statistics(peer).ok().flatten()
    }

    /// Everything that was counted, sent and received: `moved` and `bytes` count messages, `dropped` those that came and were not read
    /// before their connection was ended by force.
    ///
    /// # Errors
    /// None today.
    pub fn stats(&self) -> io::Result<Stats> {
        Ok(counters::stats(self.sent.counters(), self.protocol.counters(), self.carrier.counters()))
    }

    /// Bytes of messages that were sent and of datagrams that came, by what is known of copies.
    pub fn ledger(&self) -> Ledger {
        let Sent { messages, from_slices, short, owned } = self.sent;
        let gathered = self.carrier.gathered_bytes();
        let mut sent = Ledger::default();
        sent.add(Evidence::Copied(Cause::Slice), messages, from_slices);
        sent.add(Evidence::Copied(Cause::BelowThreshold), 0, short);
        sent.add(Evidence::Copied(Cause::Gathered), 0, gathered);
        sent.add(self.carrier.evidence(), 0, owned.saturating_sub(gathered));
        sent += self.carrier.received();
        sent
    }

    /// How datagrams are carried, and what that was compared with.
    pub fn explain(&self) -> Explanation {
        self.carrier.explain()
    }
}
