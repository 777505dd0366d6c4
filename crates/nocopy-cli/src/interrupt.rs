//! Ctrl-C: ends a capture in order, with its summary.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::TERM_SIGNALS;
use signal_hook::flag;

use crate::Failure;

/// Whether the user, or whoever stops services, has asked for the end. Waits of ports end early when a signal comes.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    came: Arc<AtomicBool>,
}

impl Interrupt {
    /// Catches the signals that ask for the end; one that comes again ends the process at once.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let came = Arc::new(AtomicBool::new(false));
        for &signal in TERM_SIGNALS {
            flag::register_conditional_default(signal, Arc::clone(&came)).map_err(Failure::Signals)?;
            flag::register(signal, Arc::clone(&came)).map_err(Failure::Signals)?;
        }
        Ok(Self { came })
    }

    /// Asks for the end as a signal does.
    pub(crate) fn ask(&self) {
        self.came.store(true, Ordering::Relaxed);
    }

    /// Relaxed: it says nothing about other memory.
    pub(crate) fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }
}
