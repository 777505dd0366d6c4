//! Calls that read packets: one at a time for each handle ([`super::claim`]).

use std::ptr::NonNull;

use super::claim::Footing;
use super::live::Reader;
use super::{Handle, Live};

/// The claim of a reading call. Returned when dropped, also by a panic.
struct Reading(NonNull<Handle>);

impl Drop for Reading {
    fn drop(&mut self) {
        // SAFETY: the handle is not freed while a call reads. This call no longer uses the reader: the closure that had it has returned.
        let ended = unsafe { self.0.as_ref().live().map(|live| live.end_reading()) };
        if ended.is_some_and(|ended| ended.is_break()) {
            // SAFETY: the handle was closed during this call, so this call has to free it; nothing else refers to it.
            unsafe { Handle::end(self.0) };
        }
    }
}

impl Handle {
    /// Runs `read` with the reader of an active handle. `None` if the handle is not active, or, with an error text set, if another call
    /// reads.
    ///
    /// # Safety
    /// The handle is open. It may be closed during the call: the caller must not use it afterwards.
    pub(crate) unsafe fn read<R>(
        handle: NonNull<Self>,
        read: impl FnOnce(&Live, &mut Reader) -> R,
    ) -> Option<R> {
        // SAFETY: by contract.
        let live = unsafe { handle.as_ref() }.live()?;
        let footing = Footing::new();
        let reader = live.begin_reading(&footing)?;
        let _reading = Reading(handle);
        Some(read(live, reader))
    }
}
