//! The filters that the reader runs itself until a new filter has taken effect.
//!
//! A filter applies from the next packet on. Claimed packets are compared with it one by one. The receivers
//! filter packets in the rings, and return those that do not match to the host: permanently if the filter
//! cannot run in the kernel, otherwise until the rings have been empty once.

use nocopy::port::{Queues, ToHostError};
use nocopy_proto::filter::{AncillaryData, Program};

use super::super::Filter;
use super::super::filter_slot::{FilterSlot, FilterVersion, PlacedFilter};
use crate::report::FilterLocation;

/// The filters of a capture's reader.
#[derive(Debug, Default)]
pub(super) struct ReaderFilters {
    version: FilterVersion,
    /// The filter for packets that were claimed before it was set.
    claimed: Option<Filter>,
    /// The filter for the receivers, from the next packets on.
    next: Option<(Program, FilterLifetime)>,
    /// How long the receivers keep their filter; `None`: they have none.
    running: Option<FilterLifetime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilterLifetime {
    /// Until another filter is set.
    Permanent,
    /// Until the rings are empty: packets that arrive later have passed the filter in the kernel.
    UntilEmpty,
}

impl ReaderFilters {
    /// Takes over a filter that was set since the last call.
    #[inline]
    pub(super) fn load_if_newer(&mut self, filter_slot: &FilterSlot) {
        if filter_slot.has_changed_since(self.version) {
            self.load_filter(filter_slot);
        }
    }

    #[cold]
    fn load_filter(&mut self, filter_slot: &FilterSlot) {
        let Some(PlacedFilter { filter, place }) = filter_slot.read(&mut self.version) else { return };
        let term =
            if place == FilterLocation::Xdp { FilterLifetime::UntilEmpty } else { FilterLifetime::Permanent };
        self.next = Some((filter.program.clone(), term));
        self.claimed = Some(filter);
    }

    /// Records that no claimed packet is left.
    pub(super) fn clear_claimed_filter(&mut self) {
        self.claimed = None;
    }

    /// Whether claimed packets may not match.
    #[inline]
    pub(super) fn filters_claimed_packets(&self) -> bool {
        self.claimed.is_some()
    }

    #[inline]
    pub(super) fn matches_claimed(&self, packet: &[u8]) -> bool {
        self.claimed
            .as_ref()
            .is_none_or(|filter| filter.program.run(&[packet], &AncillaryData::default()) != 0)
    }

    /// Whether the receivers run a filter.
    pub(super) fn receivers_run_filter(&self) -> bool {
        self.running.is_some()
    }

    /// Sets the filter of the receivers, or removes it when it is no longer needed.
    /// After an error no packet may be received without the filter; the next call tries again.
    pub(super) fn apply_to_receivers(&mut self, queues: &mut Queues) -> Result<(), ToHostError> {
        if let Some((program, term)) = &self.next {
            queues.filter_in_user_space(Some(program))?;
            self.running = Some(*term);
            self.next = None;
        }
        if self.running == Some(FilterLifetime::UntilEmpty) && queues.arrival_counts().1 == 0 {
            queues.filter_in_user_space(None)?;
            self.running = None;
        }
        Ok(())
    }
}
