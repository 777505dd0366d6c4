//! Passes a filter from the control of a capture to its reader.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::Filter;
use crate::report::FilterLocation;
use crate::timed_wait::{lock_within, try_lock};

/// How long another call that sets a filter may take.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

const BUSY: &str = "filter: not set; another call is setting one, or was left while it did; wait for it, or open the handle anew";

/// The latest filter, and where it runs.
#[derive(Debug, Default)]
pub(super) struct FilterSlot {
    current: Mutex<Option<PlacedFilter>>,
    changes: AtomicU32,
}

#[derive(Debug, Clone)]
pub(super) struct PlacedFilter {
    pub(super) filter: Filter,
    pub(super) place: FilterLocation,
}

/// The number of the last change that a reader has seen.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FilterVersion(u32);

impl FilterSlot {
    /// Sets a filter: `put` installs it, given the place of the previous one, and returns where it runs.
    /// Errors: those of `put`; the filter before stays, at the place that `put` left in place of its own.
    pub(super) fn set(
        &self,
        filter: Filter,
        put: impl FnOnce(&Filter, Option<&mut FilterLocation>) -> Result<FilterLocation, String>,
    ) -> Result<FilterLocation, String> {
        // Locked until the reader may see it: of two threads that set filters at once, one would otherwise
        // leave its filter in the kernel and the other one its own here.
        let mut current = lock_within(&self.current, LOCK_TIMEOUT).ok_or(BUSY)?;
        let placed = put(&filter, current.as_mut().map(|before| &mut before.place));
        if let Ok(place) = &placed {
            *current = Some(PlacedFilter { filter, place: place.clone() });
        }
        // Release: pairs with the acquire in `has_changed_since`.
        self.changes.fetch_add(1, Ordering::Release);
        placed
    }

    /// Whether the setting changed since the reader last looked.
    #[inline]
    pub(super) fn has_changed_since(&self, version: FilterVersion) -> bool {
        // Acquire: pairs with the release in `set`.
        self.changes.load(Ordering::Acquire) != version.0
    }

    /// The setting; `version` then records that the reader knows it. A reader does not wait: while a call
    /// sets a filter it looks again later.
    pub(super) fn read(&self, version: &mut FilterVersion) -> Option<PlacedFilter> {
        let current = try_lock(&self.current)?;
        *version = FilterVersion(self.changes.load(Ordering::Relaxed)); // written under the lock
        current.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::filter::reject_all_program;

    #[test]
    fn setting_a_filter_fails_if_its_lock_is_never_released() {
        let filter_slot = FilterSlot::default();
        std::mem::forget(filter_slot.current.lock());
        let filter = Filter { program: reject_all_program(), long: None };
        let set = filter_slot.set(filter, |_, _| Ok(FilterLocation::Socket));
        assert_eq!(set.err().as_deref(), Some(BUSY));
    }

    #[test]
    fn a_failed_change_publishes_the_new_place_of_the_old_filter() {
        let (filter_slot, mut version) = (FilterSlot::default(), FilterVersion::default());
        let filter = || Filter { program: reject_all_program(), long: None };
        filter_slot.set(filter(), |_, _| Ok(FilterLocation::Xdp)).unwrap();
        assert_eq!(filter_slot.read(&mut version).unwrap().place, FilterLocation::Xdp);
        let here = FilterLocation::UserSpace { why: "a test".into() };
        let moves = |_: &Filter, before: Option<&mut FilterLocation>| {
            *before.unwrap() = here.clone();
            Err("not set".to_owned())
        };
        assert_eq!(filter_slot.set(filter(), moves), Err("not set".to_owned()));
        assert!(filter_slot.has_changed_since(version));
        assert_eq!(filter_slot.read(&mut version).unwrap().place, here);
    }
}
