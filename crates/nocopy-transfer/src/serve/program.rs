//! Requests answered by a program: the request is its input, its output the response.

use nocopy_proto::errno::ErrorCause;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::integration::poll;
use nocopy::message::MESSAGE_BYTES_MAX;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::Error;
use crate::exchange::PATIENCE;
use nocopy_report::Interrupt;
use nocopy_report::quantity::time_text;

/// How often to check whether it has ended, after it closed its output.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

const BUFFER_BYTES: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error("{program}: cannot be run{cause}; name a program that is there, with its path", cause = ErrorCause(.source))]
    Start { program: String, source: io::Error },
    #[error("{program}: its input and output failed{cause}; run it by hand to see what it does", cause = ErrorCause(.source))]
    Pipes { program: String, source: io::Error },
    #[error("{program}: failed; it ended with {status}; look at what it printed")]
    Failed { program: String, status: ExitStatus },
    #[error("{program}: killed; it took longer than {}; allow more time with --exec-timeout", time_text(timeout.as_secs_f64()))]
    TooLong { program: String, timeout: Duration },
    #[error("{program}: killed; it printed more than {} MiB; have it print less", MESSAGE_BYTES_MAX >> 20)]
    TooMuch { program: String },
    #[error("{program}: killed; the server was stopped; start it again")]
    Interrupted { program: String },
}

#[derive(Debug)]
pub(super) struct Program {
    name: String,
    arguments: Vec<String>,
    timeout: Duration,
}

impl Program {
    /// Parses words separated by blanks.
    pub(super) fn parse(words: &str, timeout: Duration) -> Result<Self, Error> {
        let mut words = words.split_whitespace().map(str::to_owned);
        let name = words.next().ok_or(Error::NoProgram)?;
        Ok(Self { name, arguments: words.collect(), timeout })
    }

    #[cfg(test)]
    pub(super) fn with_argument(name: &str, argument: &std::path::Path, timeout: Duration) -> Self {
        Self { name: name.into(), arguments: vec![argument.to_str().unwrap().into()], timeout }
    }

    /// Runs it once. Its child processes are killed when it ends, unless they have left its process group.
    pub(super) fn run(&self, request: &[u8], interrupt: &Interrupt) -> Result<Vec<u8>, RunError> {
        let mut command = Command::new(&self.name);
        // A process group of its own: child processes end with it, and Ctrl-C does not reach it.
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let child = command.spawn();
        let child = child.map_err(|source| RunError::Start { program: self.name.clone(), source })?;
        let mut running = RunningProgram { child };
        let answered = self.exchange_input_and_output(&mut running, request, interrupt);
        let status = running.kill_group();
        let response = answered?;
        let program = || self.name.clone();
        match status.map_err(|source| RunError::Pipes { program: program(), source })? {
            status if status.success() => Ok(response),
            status => Err(RunError::Failed { program: program(), status }),
        }
    }

    /// Passes input and reads output until the program closes its output. It must still be waited for
    /// afterwards, even after an error.
    fn exchange_input_and_output(
        &self,
        running: &mut RunningProgram,
        request: &[u8],
        interrupt: &Interrupt,
    ) -> Result<Vec<u8>, RunError> {
        let program = || self.name.clone();
        let start = Instant::now();
        let is_over = || {
            if start.elapsed() > self.timeout {
                Err(RunError::TooLong { program: program(), timeout: self.timeout })
            } else if interrupt.was_interrupted() {
                Err(RunError::Interrupted { program: program() })
            } else {
                Ok(())
            }
        };
        let talked = |source| RunError::Pipes { program: program(), source };
        let mut pipes = ChildPipes::from_child(&mut running.child, request).map_err(talked)?;
        while !pipes.transfer_bytes().map_err(talked)? {
            is_over()?;
            if pipes.response.len() > MESSAGE_BYTES_MAX as usize {
                return Err(RunError::TooMuch { program: program() });
            }
        }
        while !running.has_ended().map_err(talked)? {
            is_over()?;
            sleep(POLL_INTERVAL);
        }
        Ok(pipes.response)
    }
}

/// A running program, and its process group.
struct RunningProgram {
    child: Child,
}

impl RunningProgram {
    /// Whether the program has ended. It is not reaped, so that no other process can get its number.
    fn has_ended(&self) -> io::Result<bool> {
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.child)), peek)?.is_some())
    }

    /// Kills the program and the rest of the group. The status is the program's own if it had ended.
    fn kill_group(mut self) -> io::Result<ExitStatus> {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        // It may have left the group.
        let _ = self.child.kill();
        self.child.wait()
    }
}

/// Its input and output at once, because a program may print before it has read everything.
struct ChildPipes<'a> {
    input: Option<ChildStdin>,
    output: ChildStdout,
    request: &'a [u8],
    response: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'a> ChildPipes<'a> {
    fn from_child(child: &mut Child, request: &'a [u8]) -> io::Result<Self> {
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are pipes");
        };
        for pipe in [input.as_fd(), output.as_fd()] {
            fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
        }
        let input = Some(input).filter(|_| !request.is_empty());
        Ok(Self { input, output, request, response: Vec::new(), buffer: vec![0; BUFFER_BYTES] })
    }

    /// Moves bytes without waiting; returns true once the program has closed its output.
    fn transfer_bytes(&mut self) -> io::Result<bool> {
        self.wait_ready()?;
        if let Some(input) = &mut self.input {
            match input.write(self.request) {
                Ok(written) => self.request = &self.request[written..],
                // The program does not read the rest.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.request = &[],
                Err(error) => ignore_temporary_error(error)?,
            }
            if self.request.is_empty() {
                self.input = None;
            }
        }
        match self.output.read(&mut self.buffer) {
            Ok(0) => return Ok(true),
            Ok(read) => self.response.extend_from_slice(&self.buffer[..read]),
            Err(error) => ignore_temporary_error(error)?,
        }
        Ok(false)
    }

    fn wait_ready(&self) -> io::Result<()> {
        let output = PollFd::new(&self.output, PollFlags::IN);
        let input = self.input.as_ref().map(|input| PollFd::new(input, PollFlags::OUT));
        let mut both: Vec<_> = std::iter::once(output).chain(input).collect();
        poll(&mut both, Some(PATIENCE)).map(drop)
    }
}

/// Ignores errors that mean that no bytes can be moved now; returns others.
fn ignore_temporary_error(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_program(words: &str, request: &[u8], timeout: Duration) -> Result<Vec<u8>, RunError> {
        Program::parse(words, timeout).unwrap().run(request, &Interrupt::catch().unwrap())
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_output_of_a_program_is_its_answer() {
        let request: Vec<u8> = (0..3_000_000).map(|place| place as u8).collect();
        assert!(run_program("cat", &request, LONG).unwrap() == request);
        assert_eq!(run_program("wc -c", b"four", LONG).unwrap(), b"4\n");
        // It reads nothing, or ends before all input was written.
        assert_eq!(run_program("echo all done", &request, LONG).unwrap(), b"all done\n");
        assert_eq!(run_program("true", b"", LONG).unwrap(), b"");
        // No shell: the words are arguments.
        assert_eq!(run_program("echo $HOME ; false", b"", LONG).unwrap(), b"$HOME ; false\n");
    }

    /// Also if the program itself was successful.
    #[test]
    fn processes_started_by_a_program_end_with_it() {
        let script = std::env::temp_dir().join(format!("nocopy-serve-{}.sh", std::process::id()));
        std::fs::write(&script, "sleep 600 <&- >&- 2>&- &\necho $!\n").unwrap();
        // Not as words, because the directory's name may contain a blank.
        let left_behind = Program::with_argument("sh", &script, LONG).run(b"", &Interrupt::catch().unwrap());
        std::fs::remove_file(&script).unwrap();
        let left_behind = String::from_utf8(left_behind.unwrap()).unwrap();
        let stat = format!("/proc/{}/stat", left_behind.trim());
        let start = Instant::now();
        // The process has ended, or its new parent has not reaped it yet.
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(start.elapsed() < LONG, "{stat}");
            sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn a_program_outside_its_process_group_is_killed() {
        let child = Command::new("sleep").arg("600").spawn().unwrap(); // not in a group of its own
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(RunningProgram { child }.kill_group()));
        let status = ended.recv_timeout(LONG).expect("the program still runs").unwrap();
        assert!(!status.success());
    }

    #[test]
    fn failures_are_reported_within_the_timeout() {
        let start = Instant::now();
        for (words, timeout, expected) in [
            ("false", LONG, "false: failed; it ended with exit status: 1; look at what it printed"),
            (
                "/nonexistent/program",
                LONG,
                "/nonexistent/program: cannot be run (ENOENT); no such file or directory; name a program that is there, with its path",
            ),
            (
                "sleep 60",
                Duration::from_millis(50),
                "sleep: killed; it took longer than 50.0 ms; allow more time with --exec-timeout",
            ),
            ("yes", LONG, "yes: killed; it printed more than 16 MiB; have it print less"),
        ] {
            assert_eq!(run_program(words, b"x", timeout).unwrap_err().to_string(), expected);
        }
        assert!(start.elapsed() < LONG);
        assert!(Program::parse("  ", LONG).is_err());
        let interrupt = Interrupt::catch().unwrap();
        interrupt.request_end();
        let interrupted = Program::parse("sleep 60", LONG).unwrap().run(b"", &interrupt);
        assert_eq!(
            interrupted.unwrap_err().to_string(),
            "sleep: killed; the server was stopped; start it again"
        );
        // Pipes of a child do not fail.
        let talk = RunError::Pipes { program: "cat".into(), source: io::Error::from_raw_os_error(libc::EIO) };
        assert_eq!(
            talk.to_string(),
            "cat: its input and output failed (EIO); input/output error; run it by hand to see what it does"
        );
    }
}
