//! What this process may do.

use super::Gate;
use crate::sys::capability;

pub(super) fn capabilities() -> impl Iterator<Item = Gate> {
    capability::PORT.iter().map(|(wanted, name)| {
        let held = capability::holds(*wanted);
        Gate::of(name, held, if held { "held" } else { "this process lacks it" })
            .or_fix(format!("run as root, or {}", capability::GRANT))
    })
}
