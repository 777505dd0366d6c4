//! Putting a thread where a queue's interrupt runs.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::Port;
use crate::sys::interface::Interface;
use crate::sys::queues::interrupt_cpus;

/// Why a thread could not be put where a queue's interrupt runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// Nobody says which interrupt is the queue's: it has none (veth, tap), or neither the driver nor the interrupts' names tell.
    #[error(
        "{interface} queue {queue}: nobody says which interrupt brings its packets; choose a CPU yourself \
         ('taskset --cpu-list')"
    )]
    NoInterrupt {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The thread may not run there.
    #[error(
        "{interface} queue {queue}: its interrupt runs on CPU {cpus:?}, where this thread may not run ({source}); move one of them"
    )]
    NotAllowed {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Where the interrupt runs.
        cpus: Vec<usize>,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Port {
    /// Puts the calling thread on the processors where the interrupt of the port's queue runs, so that packets are still in the
    /// cache when the program reads them; returns the processors.
    ///
    /// # Errors
    /// [`PinError`]; the thread stays where it was.
    pub fn pin(&self) -> Result<Vec<usize>, PinError> {
        let (interface, queue) = (self.inner().interface.clone(), self.queue());
        let found = Interface::named(&interface).ok().and_then(|looked_at| interrupt_cpus(&looked_at, queue));
        let Some(cpus) = found else { return Err(PinError::NoInterrupt { interface, queue }) };
        let mut set = CpuSet::new();
        cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        let cpus: Vec<usize> = cpus.into_iter().collect();
        match sched_setaffinity(None, &set) {
            Ok(()) => Ok(cpus),
            Err(errno) => Err(PinError::NotAllowed { interface, queue, cpus, source: errno.into() }),
        }
    }
}
