//! The sending part of a handle: opened with the first packet, separate from its capture, so that one thread
//! sends while another waits.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use crate::capture::CaptureControl;
use crate::injection::{Injector, SingleSend};

#[derive(Default)]
pub(crate) struct LazyInjector {
    injector: OnceLock<Arc<Injector>>,
}

impl LazyInjector {
    /// Sends a packet, or returns how to send it alone.
    #[inline]
    pub(crate) fn inject(
        &self,
        interface: &str,
        control: &CaptureControl,
        packet: &[u8],
        nonblocking: bool,
    ) -> io::Result<Option<SingleSend>> {
        let injector = match self.injector.get() {
            Some(injector) => injector,
            None => self.open_injector(interface, control)?,
        };
        injector.inject(packet, nonblocking)
    }

    /// Counts a packet that was sent alone.
    pub(crate) fn count_single_send(&self) {
        if let Some(injector) = self.injector.get() {
            injector.count_single_send();
        }
    }

    #[cold]
    fn open_injector(&self, interface: &str, control: &CaptureControl) -> io::Result<&Arc<Injector>> {
        let injector = Injector::open(interface, Some(control.sending_socket()))?;
        // If two threads send their first packets at once, one injector is not used.
        Ok(self.injector.get_or_init(|| injector))
    }

    /// How many frames were sent, and how, as text; `None` if none were.
    pub(crate) fn summary(&self) -> Option<String> {
        self.injector.get().and_then(|injector| injector.summary())
    }

    /// How many frames were sent, and how, for the report.
    pub(crate) fn sent_totals(&self) -> (u64, Option<String>) {
        self.injector.get().map_or((0, None), |injector| (injector.sent_frames(), injector.summary()))
    }

    /// Sends waiting frames.
    pub(crate) fn flush_frames(&self) {
        if let Some(injector) = self.injector.get() {
            let _ = injector.close();
        }
    }

    /// Sends waiting frames, and ends. If this is a signal handler that interrupted sending, sending
    /// continues instead.
    pub(crate) fn close(self) {
        if let Some(injector) = self.injector.into_inner()
            && injector.close().is_break()
        {
            std::mem::forget(injector);
        }
    }

    /// Ends in the child of a fork. Frames that waited were sent before the fork, so this is an ordinary end.
    pub(crate) fn close_in_forked_child(self) {
        self.close();
    }
}

impl fmt::Debug for LazyInjector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LazyInjector").field("summary", &self.summary()).finish()
    }
}
