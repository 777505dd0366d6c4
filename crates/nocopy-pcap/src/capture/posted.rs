//! Passes a filter from the control of a capture to its reader.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::Filter;
use crate::patience::{lock_within, try_lock};
use crate::report::FilterPlace;

/// How long another call that sets a filter may take.
const PATIENCE: Duration = Duration::from_secs(1);

const BUSY: &str = "filter: not set; another call is setting one, or was left while it did; wait for it, or open the handle anew";

/// The latest filter, and where it runs.
#[derive(Debug, Default)]
pub(super) struct Posted {
    setting: Mutex<Option<Setting>>,
    changes: AtomicU32,
}

#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) filter: Filter,
    pub(super) place: FilterPlace,
}

/// The number of the last change that a reader has seen.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen(u32);

impl Posted {
    /// Sets a filter: `put` installs it, given the place of the previous one, and returns where it runs.
    /// Errors: those of `put`; the filter before stays, at the place that `put` left in place of its own.
    pub(super) fn set(
        &self,
        filter: Filter,
        put: impl FnOnce(&Filter, Option<&mut FilterPlace>) -> Result<FilterPlace, String>,
    ) -> Result<FilterPlace, String> {
        // Locked until the reader may see it: of two threads that set filters at once, one would otherwise
        // leave its filter in the kernel and the other one its own here.
        let mut setting = lock_within(&self.setting, PATIENCE).ok_or(BUSY)?;
        let placed = put(&filter, setting.as_mut().map(|before| &mut before.place));
        if let Ok(place) = &placed {
            *setting = Some(Setting { filter, place: place.clone() });
        }
        // Release: pairs with the acquire in `is_newer`.
        self.changes.fetch_add(1, Ordering::Release);
        placed
    }

    /// Whether the setting changed since the reader last looked.
    #[inline]
    pub(super) fn is_newer(&self, seen: Seen) -> bool {
        // Acquire: pairs with the release in `set`.
        self.changes.load(Ordering::Acquire) != seen.0
    }

    /// The setting; `seen` then records that the reader knows it. A reader does not wait: while a call sets a
    /// filter it looks again later.
    pub(super) fn look(&self, seen: &mut Seen) -> Option<Setting> {
        let setting = try_lock(&self.setting)?;
        *seen = Seen(self.changes.load(Ordering::Relaxed)); // written under the lock
        setting.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::filter::nothing;

    #[test]
    fn a_lock_that_is_never_released_is_an_error() {
        let posted = Posted::default();
        std::mem::forget(posted.setting.lock());
        let filter = Filter { program: nothing(), long: None };
        let set = posted.set(filter, |_, _| Ok(FilterPlace::Socket));
        assert_eq!(set.err().as_deref(), Some(BUSY));
    }

    #[test]
    fn readers_see_that_the_earlier_filter_moved() {
        let (posted, mut seen) = (Posted::default(), Seen::default());
        let filter = || Filter { program: nothing(), long: None };
        posted.set(filter(), |_, _| Ok(FilterPlace::Xdp)).unwrap();
        assert_eq!(posted.look(&mut seen).unwrap().place, FilterPlace::Xdp);
        let here = FilterPlace::UserSpace { why: "a test".into() };
        let moves = |_: &Filter, before: Option<&mut FilterPlace>| {
            *before.unwrap() = here.clone();
            Err("not set".to_owned())
        };
        assert_eq!(posted.set(filter(), moves), Err("not set".to_owned()));
        assert!(posted.is_newer(seen));
        assert_eq!(posted.look(&mut seen).unwrap().place, here);
    }
}
