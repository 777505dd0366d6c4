//! A stand-in for the kernel: one descriptor, readable while a datagram waits or its timer is due.

pub(crate) mod poll {
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::time::Duration;

    use loom::sync::{Condvar, Mutex};

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Wakeup {
        Ready,
        TimedOut,
        Interrupted,
    }

    /// What makes the descriptor readable.
    #[derive(Debug, Default)]
    struct ReadinessCauses {
        /// Messages that came and were not taken.
        messages: usize,
        /// Events that came, the same.
        events: usize,
        is_timer_due: bool,
    }

    struct SimulatedKernel {
        causes: Mutex<ReadinessCauses>,
        changed: Condvar,
    }

    loom::lazy_static! {
        static ref KERNEL: SimulatedKernel =
            SimulatedKernel { causes: Mutex::new(ReadinessCauses::default()), changed: Condvar::new() };
    }

    impl ReadinessCauses {
        fn is_readable(&self) -> bool {
            self.messages + self.events > 0 || self.is_timer_due
        }
    }

    pub(crate) fn wait_readable(_: BorrowedFd<'_>, timeout: Duration) -> io::Result<Wakeup> {
        let mut causes = KERNEL.causes.lock().unwrap();
        while !timeout.is_zero() && !causes.is_readable() {
            causes = KERNEL.changed.wait(causes).unwrap();
        }
        Ok(if causes.is_readable() { Wakeup::Ready } else { Wakeup::TimedOut })
    }

    /// Messages and events come.
    pub(crate) fn simulate_arrival(messages: usize, events: usize) {
        let mut causes = KERNEL.causes.lock().unwrap();
        causes.messages += messages;
        causes.events += events;
        KERNEL.changed.notify_all();
    }

    /// Takes what came: messages and events.
    pub(crate) fn take_arrived() -> (usize, usize) {
        let mut causes = KERNEL.causes.lock().unwrap();
        (std::mem::take(&mut causes.messages), std::mem::take(&mut causes.events))
    }

    /// Whether anything waits to be taken.
    pub(crate) fn has_arrived() -> bool {
        let causes = KERNEL.causes.lock().unwrap();
        causes.messages + causes.events > 0
    }

    pub(crate) fn set_timer(is_due: bool) {
        KERNEL.causes.lock().unwrap().is_timer_due = is_due;
        KERNEL.changed.notify_all();
    }
}
