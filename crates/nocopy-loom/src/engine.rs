//! A stand-in for the library's waits.

pub(crate) mod wait {
    use std::io;
    use std::time::{Duration, Instant};

    use crate::sys::poll::Wakeup;

    #[derive(Debug, Clone, Copy, Default)]
    pub(crate) struct Wait;

    #[derive(Debug, Default)]
    pub(crate) struct Coalescer(());

    /// As the library declares it, without what the endpoint does not have.
    pub(crate) trait Waiting {
        fn looks_per_clock(&self) -> u32;
        fn is_ready(&mut self) -> bool;
        fn arm(&mut self) -> io::Result<bool>;
        fn refresh(&mut self) -> io::Result<()>;
        fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup>;
        fn progress(&self) -> (u32, u32);
        fn coalescer(&mut self) -> &mut Coalescer;
    }

    /// Sleeps until the descriptor is readable.
    pub(crate) fn wait(waiting: &mut impl Waiting, _: Wait, until: Option<Instant>) -> io::Result<()> {
        assert!(until.is_none(), "no time passes in a model");
        waiting.wait_readable(Duration::MAX).map(drop)
    }
}
