//! The wait until the output is on the disk, during which the sender's probes are still answered.

use std::mem;
use std::panic::resume_unwind;
use std::thread::{self, Scope, ScopedJoinHandle};

use nocopy_report::CommandEnd;

use super::sink::SharedOutput;
use crate::Failure;

#[derive(Debug, Default)]
pub(super) enum DiskSync<'scope> {
    #[default]
    Idle,
    Waiting(ScopedJoinHandle<'scope, Result<(), Failure>>),
    Done,
}

impl<'scope> DiskSync<'scope> {
    /// Whether it has all that was written; begins to wait for that. After a failure, or when interrupted, it
    /// does not wait. Errors: the bytes could not be written to the disk.
    pub(super) fn start_or_check_sync<'a: 'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        sink: Option<&'a SharedOutput>,
        ended: CommandEnd,
    ) -> Result<bool, Failure> {
        let Some(sink) = sink.filter(|_| !matches!(ended, CommandEnd::Failed | CommandEnd::Interrupted))
        else {
            return Ok(true);
        };
        *self = match mem::replace(self, Self::Done) {
            Self::Idle => match thread::Builder::new().spawn_scoped(scope, || sink.sync()) {
                Ok(syncing) => Self::Waiting(syncing),
                Err(_) => sink.sync().map(|()| Self::Done)?, // no thread could be started
            },
            Self::Waiting(syncing) if syncing.is_finished() => {
                syncing.join().unwrap_or_else(|panic| resume_unwind(panic))?;
                Self::Done
            }
            waiting => waiting,
        };
        Ok(matches!(self, Self::Done))
    }
}
