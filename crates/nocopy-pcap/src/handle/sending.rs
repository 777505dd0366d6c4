//! What a handle sends: opened with the first packet, apart from what it captures, so that one thread sends while another waits.

use std::io;
use std::sync::{Mutex, PoisonError};

use crate::capture::Control;
use crate::injection::Injector;

/// The sending half of a handle.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    injector: Mutex<Option<Injector>>,
}

impl Sending {
    /// Sends a packet; the number of its bytes.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn inject(&self, interface: &str, control: &Control, packet: &[u8]) -> io::Result<usize> {
        let mut injector = self.injector.lock().unwrap_or_else(PoisonError::into_inner);
        let injector = match &mut *injector {
            Some(injector) => injector,
            none => none.insert(Injector::open(interface, control.sending_socket())?),
        };
        injector.inject(packet)
    }

    /// Sends what waits, and ends.
    pub(crate) fn close(self) {
        if let Some(mut injector) = self.injector.into_inner().unwrap_or_else(PoisonError::into_inner) {
            // The program has its answer for each packet: nobody is left to be told.
            let _ = injector.flush();
        }
    }

    /// Ends in the child of a fork: what waits is the parent's to send.
    pub(crate) fn leave(self) {
        if let Some(injector) = self.injector.into_inner().unwrap_or_else(PoisonError::into_inner) {
            injector.leave();
        }
    }
}
