//! A stand-in for the library's waits.

pub(crate) mod wait {
    use std::io;
    use std::time::{Duration, Instant};

    use crate::sys::poll::Wakeup;

    #[derive(Debug, Clone, Copy, Default)]
    pub(crate) struct Wait;

    #[derive(Debug, Default)]
    pub(crate) struct WakeupCoalescer(());

    /// As the library declares it, without what the endpoint does not have.
    pub(crate) trait WaitSource {
        fn polls_per_clock_read(&self) -> u32;
        fn is_ready(&mut self) -> bool;
        fn arm(&mut self) -> io::Result<bool>;
        fn refill_and_wake(&mut self) -> io::Result<()>;
        fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup>;
        fn read_count_and_room(&self) -> (u32, u32);
        fn coalescer(&mut self) -> &mut WakeupCoalescer;
    }

    /// Sleeps until the descriptor is readable.
    pub(crate) fn wait(waiting: &mut impl WaitSource, _: Wait, until: Option<Instant>) -> io::Result<()> {
        assert!(until.is_none(), "no time passes in a model");
        waiting.wait_readable(Duration::MAX).map(drop)
    }
}
