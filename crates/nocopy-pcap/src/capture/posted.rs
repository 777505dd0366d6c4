//! Passes a filter from the control of a capture to its reader.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::Filter;
use crate::report::FilterPlace;

/// How often to look whether the call that sets a filter is done, and how long to sleep in between: about a second in all.
const LOOKS: u32 = 1000;
const NAP: Duration = Duration::from_millis(1);

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
    /// Errors: those of `put`; the filter before stays.
    pub(super) fn set(
        &self,
        filter: Filter,
        put: impl FnOnce(&Filter, Option<&FilterPlace>) -> Result<FilterPlace, String>,
    ) -> Result<FilterPlace, String> {
        // Locked until the reader may see it: of two threads that set filters at once, one would otherwise leave its filter in the kernel
        // and the other one its own here.
        let mut setting = self.lock().ok_or(BUSY)?;
        let place = put(&filter, setting.as_ref().map(|before| &before.place))?;
        *setting = Some(Setting { filter, place: place.clone() });
        // Release: pairs with the acquire in `is_newer`.
        self.changes.fetch_add(1, Ordering::Release);
        Ok(place)
    }

    /// Whether the setting changed since the reader last looked.
    #[inline]
    pub(super) fn is_newer(&self, seen: Seen) -> bool {
        // Acquire: pairs with the release in `set`.
        self.changes.load(Ordering::Acquire) != seen.0
    }

    /// The setting; `seen` then records that the reader knows it. A reader does not wait: while a call sets a filter it looks again later.
    pub(super) fn look(&self, seen: &mut Seen) -> Option<Setting> {
        let setting = self.try_lock()?;
        *seen = Seen(self.changes.load(Ordering::Relaxed)); // written under the lock
        setting.clone()
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Option<Setting>>> {
        match self.setting.try_lock() {
            Ok(setting) => Some(setting),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// `None` if another call does not release it in time: it may have been left by siglongjmp(3).
    fn lock(&self) -> Option<MutexGuard<'_, Option<Setting>>> {
        (0..LOOKS).find_map(|look| {
            if look > 0 {
                std::thread::sleep(NAP);
            }
            self.try_lock()
        })
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
}
