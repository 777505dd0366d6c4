//! One run of a program with one of the libraries.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use nocopy_lab::patience::wait_until;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::output::ProgramOutput;
use super::{EndCondition, LibraryKind, ProgramCase};
use crate::common::preload_value;

/// Killed when dropped.
pub(crate) struct RunningProgram {
    name: String,
    child: Child,
    directory: PathBuf,
}

pub(crate) fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

impl RunningProgram {
    /// Runs in its own directory, so that its files have the same names as with the other library.
    pub(crate) fn start(
        at: &nocopy_lab::End,
        directory: PathBuf,
        ours: PathBuf,
        library: LibraryKind,
        case: &ProgramCase,
    ) -> Self {
        let words = &case.words;
        let file = |name: &str| Stdio::from(File::create(directory.join(name)).unwrap());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&directory).env("TZ", "UTC").env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        command.env_remove("LD_PRELOAD").env_remove("NOCOPY_TAKE");
        if library != LibraryKind::System {
            command.env("LD_PRELOAD", preload_value(&ours));
        }
        if library == LibraryKind::Take {
            command.env("NOCOPY_TAKE", "1");
        }
        if let Some(user) = case.user {
            command.uid(user).gid(user);
        }
        let child = at.namespace().run(|| command.spawn()).unwrap();
        Self { name: format!("{} with {library:?}", case.name), child, directory }
    }

    /// Waits until it has said these words, or has ended: then the comparison finds out.
    pub(crate) fn wait_for_output(&self, words: &str) {
        let files = ["stdout", "stderr"].map(|name| self.directory.join(name));
        wait_until(&format!("{} says '{words}': {}", self.name, self.directory.display()), || {
            files.iter().any(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(words)))
                || self.has_exited()
        });
    }

    pub(crate) fn send_signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn read_output(&self) -> ProgramOutput {
        ProgramOutput::read_directory(&self.name, &self.directory)
    }

    pub(crate) fn wait_for_last_frames(&self, count: usize) {
        let (name, directory) = (&self.name, self.directory.display());
        wait_until(&format!("{name} shows {count} of the last frames: {directory}"), || {
            self.read_output().last_frame_count() >= count || self.has_exited()
        });
    }

    /// Does not reap it: it can still be signalled and waited for.
    fn has_exited(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), options).unwrap().is_some()
    }

    /// Tells it to end unless it ends by itself, and waits for the end.
    pub(crate) fn end_and_read_output(mut self, end: EndCondition) -> ProgramOutput {
        let signal = match end {
            EndCondition::Shown(_) => Some(Signal::TERM),
            EndCondition::Interrupted(_) => Some(Signal::INT),
            EndCondition::Itself | EndCondition::Enough => None,
        };
        if let Some(signal) = signal {
            self.send_signal(signal);
        }
        let status = self.wait_for_exit();
        let mut output = self.read_output();
        (output.code, output.signal) = (status.code(), status.signal());
        if end == EndCondition::Enough {
            output.remove_received_count();
        }
        output
    }

    fn wait_for_exit(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until(&format!("{} ends: {}", self.name, self.directory.display()), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
