//! Passes a filter from the control of a capture to its reader.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::Filter;
use crate::report::FilterPlace;

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
        let mut setting = self.lock();
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
        let setting = match self.setting.try_lock() {
            Ok(setting) => setting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        *seen = Seen(self.changes.load(Ordering::Relaxed)); // written under the lock
        setting.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Setting>> {
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
