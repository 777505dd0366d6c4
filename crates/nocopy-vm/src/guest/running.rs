//! A program that a test has started.

use std::io::Read;
use std::process::{Child, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::Failure;

/// A program, running; killed when dropped.
pub(crate) struct RunningProcess(pub(crate) Child);

impl RunningProcess {
    /// Kills it with SIGKILL, and waits until it has ended. Errors: it had ended before, which names it.
    pub(crate) fn kill(mut self, name: &str) -> Result<(), Failure> {
        if let Some(status) = self.0.try_wait()? {
            return Err(Failure(format!("{name} ended before it was killed ({status})")));
        }
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// Interrupts it, and returns how it ended and what it printed.
    pub(crate) fn interrupt(mut self) -> Result<(ExitStatus, Vec<u8>), Failure> {
        kill_process(Pid::from_child(&self.0), Signal::INT)?;
        let mut output = Vec::new();
        self.0.stdout.take().expect("it is piped").read_to_end(&mut output)?;
        Ok((self.0.wait()?, output))
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
