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
pub(super) struct FilterControls(HashMap<u64, FilterControl>);

#[derive(Debug, thiserror::Error)]
pub(super) enum InsertControlError {
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
pub(super) enum LoadFilterError {
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

impl FilterControls {
    pub(super) fn control_count(&self) -> usize {
        self.0.len()
    }

    /// Keeps the control of a handle; `control_count` is that of all processes.
    pub(super) fn insert_control(
        &mut self,
        handle: u64,
        control_count: usize,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), InsertControlError> {
        let Ok([socket]) = <[OwnedFd; 1]>::try_from(descriptors) else {
            return Err(InsertControlError::Descriptors);
        };
        if control_count >= CONTROLS_MAX {
            return Err(InsertControlError::TooMany);
        }
        // It is there when its message is, and not waited for.
        self.0.insert(handle, FilterControl::receive(&socket)?);
        Ok(())
    }

    /// Puts a filter in front of the packets of that handle, and of no other.
    pub(super) fn load_filter(&self, request: &FilterRequest) -> Result<(), LoadFilterError> {
        let control = self.0.get(&request.handle).ok_or(LoadFilterError::NoControl)?;
        Ok(control.set_filter(request.checked_program()?.as_ref())?)
    }

    /// Removes a filter whose owner is not known.
    pub(super) fn unload_filter(&self, handle: u64) {
        if let Some(control) = self.0.get(&handle) {
            let _ = control.set_filter(None);
        }
    }

    /// Drops the control of a closed handle: its program is detached with the last descriptor of its link.
    pub(super) fn remove_control(&mut self, handle: u64) {
        self.0.remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_controls_name_cause_and_action() {
        let mut controls = FilterControls::default();
        let descriptor = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert_eq!(
            controls.insert_control(1, 0, Vec::new()).unwrap_err().to_string(),
            "control of a handle: not received; the message does not have exactly one socket; load the library of the same version"
        );
        assert_eq!(
            controls.insert_control(1, CONTROLS_MAX, vec![descriptor()]).unwrap_err().to_string(),
            "control of a handle: not kept; 256 handles that take packets are open already; close some of them"
        );
        let request = FilterRequest { request: 1, handle: 1, instructions: None };
        assert_eq!(
            controls.load_filter(&request).unwrap_err().to_string(),
            "filter: cannot be loaded in front of this handle's packets; the handle was opened by another process, or too many handles are open; open it in the process that filters, or close others"
        );
    }
}
