//! Pins a thread to the processors of a queue's interrupt.

use std::io;

use nocopy_proto::errno::Why;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Port;
use crate::sys::interface::Interface;
use crate::sys::queues::interrupt_cpus;

impl Port {
    /// Pins the calling thread to the processors of the queue's interrupt, so that packets are still in the
    /// cache when the program reads them; returns the processors.
    ///
    /// ```
    /// let (port, _peer) = nocopy::Port::memory_pair()?;
    /// let error = port.pin().unwrap_err(); // no interrupt belongs to a memory port
    /// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: the queue has no interrupt (veth, tap), or neither the driver nor the interrupts' names show which.
    /// Other errors: the thread may not run on these processors. On an error its affinity does not change.
    pub fn pin(&self) -> io::Result<Vec<usize>> {
        let (interface, queue) = (&self.inner().interface, self.queue());
        let found = Interface::named(interface).ok().and_then(|looked_at| interrupt_cpus(&looked_at, queue));
        let Some(cpus) = found else {
            let words = format!(
                "{interface} queue {queue}: cannot pin this thread; the CPU of its interrupt is not known; choose one yourself ('taskset --cpu-list')"
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, words));
        };
        let mut set = CpuSet::new();
        cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        sched_setaffinity(None, &set).map_err(|errno| {
            let words = format!(
                "{interface} queue {queue}: cannot pin this thread{}; its interrupt runs on CPU {cpus:?}, where the thread may not run; move one of them",
                Why(&errno.into())
            );
            io::Error::new(io::Error::from(errno).kind(), words)
        })?;
        Ok(cpus.into_iter().collect())
    }
}
