//! Threads that serve many clients must not wait for a disk: what they could not do without is left to other
//! threads.

use std::cell::Cell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockingPermission {
    Allowed,
    Forbidden,
    /// It was forbidden, and would have been necessary.
    Needed,
}

thread_local! {
    static WAITING: Cell<BlockingPermission> = const { Cell::new(BlockingPermission::Allowed) };
}

/// Does something that must not wait for a disk; `None`: it is not done, because it would have to.
pub(crate) fn run_without_blocking<T>(action: impl FnOnce() -> T) -> Option<T> {
    WAITING.set(BlockingPermission::Forbidden);
    let done = action();
    let is_done = WAITING.replace(BlockingPermission::Allowed) != BlockingPermission::Needed;
    is_done.then_some(done)
}

/// To be asked before something that may wait; if it may not, the whole action counts as not done.
pub(super) fn may_block() -> bool {
    let is_allowed = WAITING.get() == BlockingPermission::Allowed;
    if !is_allowed {
        WAITING.set(BlockingPermission::Needed);
    }
    is_allowed
}

/// Whether this thread must not wait; nothing is left undone by asking.
pub(super) fn is_blocking_forbidden() -> bool {
    WAITING.get() != BlockingPermission::Allowed
}
