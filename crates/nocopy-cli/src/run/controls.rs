//! Loads the XDP filters of captures for processes that may not load programs themselves.
//!
//! tcpdump sets its filter after it has given up its privileges. So the runner keeps a duplicate of the link
//! and the map of each capture that takes packets, and translates the process's classic BPF into an XDP
//! program. All that a process can do by this is to choose packets of its own capture.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use nocopy::integration::{FilterControl, FilterControlError};
use nocopy_proto::run::FilterRequest;

/// Of all processes together: each holds two descriptors.
const CONTROLS_MAX: usize = 256;

/// The filter controls of one process, by handle.
#[derive(Debug, Default)]
pub(super) struct Controls(HashMap<u64, FilterControl>);

#[derive(Debug, thiserror::Error)]
pub(super) enum NotKept {
    #[error(
        "control of a handle: not received; the message does not have exactly one socket; load the library of the same version"
    )]
    Descriptors,
    #[error(
        "control of a handle: not kept; {CONTROLS_MAX} handles that take packets are open already; close some of them"
    )]
    TooMany,
    #[error(transparent)]
    Control(#[from] FilterControlError),
}

/// Why a filter is not in front of a handle's packets.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotLoaded {
    #[error(
        "filter: cannot be loaded in front of this handle's packets; the handle was opened by another process, or too many handles are open; \
         open it in the process that filters, or close others"
    )]
    NoControl,
    #[error(transparent)]
    Invalid(#[from] nocopy_proto::filter::InvalidProgram),
    #[error(transparent)]
    Control(#[from] FilterControlError),
}

impl Controls {
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Keeps the control of a handle; `others` are those of all processes.
    pub(super) fn keep(&mut self, handle: u64, others: usize, came: Vec<OwnedFd>) -> Result<(), NotKept> {
        let Ok([socket]) = <[OwnedFd; 1]>::try_from(came) else { return Err(NotKept::Descriptors) };
        if others >= CONTROLS_MAX {
            return Err(NotKept::TooMany);
        }
        // It is there when its message is, and not waited for.
        self.0.insert(handle, FilterControl::receive(&socket)?);
        Ok(())
    }

    /// Puts a filter in front of the packets of that handle, and of no other.
    pub(super) fn load(&self, request: &FilterRequest) -> Result<(), NotLoaded> {
        let control = self.0.get(&request.handle).ok_or(NotLoaded::NoControl)?;
        Ok(control.set(request.program()?.as_ref())?)
    }

    /// Removes a filter whose owner is not known.
    pub(super) fn unload(&self, handle: u64) {
        if let Some(control) = self.0.get(&handle) {
            let _ = control.set(None);
        }
    }

    /// Drops the control of a closed handle: its program is detached with the last descriptor of its link.
    pub(super) fn forget(&mut self, handle: u64) {
        self.0.remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_that_are_not_kept_say_why() {
        let mut controls = Controls::default();
        let descriptor = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert_eq!(
            controls.keep(1, 0, Vec::new()).unwrap_err().to_string(),
            "control of a handle: not received; the message does not have exactly one socket; load the library of the same version"
        );
        assert_eq!(
            controls.keep(1, CONTROLS_MAX, vec![descriptor()]).unwrap_err().to_string(),
            "control of a handle: not kept; 256 handles that take packets are open already; close some of them"
        );
        let request = FilterRequest { request: 1, handle: 1, instructions: None };
        assert_eq!(
            controls.load(&request).unwrap_err().to_string(),
            "filter: cannot be loaded in front of this handle's packets; the handle was opened by another process, or too many handles are open; open it in the process that filters, or close others"
        );
    }
}
