//! A terminal for a test's standard streams, so many columns wide.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, OutputModes, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

const ROWS: u16 = 24;

/// How often it is asked whether the test has ended: a process that it left behind may keep the terminal
/// open.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Writes what is printed on a terminal into a file.
pub(super) struct PseudoTerminal {
    ended: Arc<AtomicBool>,
    reader: JoinHandle<io::Result<()>>,
}

impl PseudoTerminal {
    /// The terminal, and the end of it that is for the test.
    pub(super) fn open(columns: u16, output: File) -> io::Result<(Self, File)> {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&terminal)?;
        unlockpt(&terminal)?;
        let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size)?;
        let mut modes = tcgetattr(&terminal)?;
        modes.output_modes.remove(OutputModes::OPOST); // lines end as in a file
        tcsetattr(&terminal, OptionalActions::Now, &modes)?;
        let name = ptsname(&terminal, Vec::new())?;
        let of_test = rustix::fs::open(
            &name,
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY,
            rustix::fs::Mode::empty(),
        )?;
        let ended = Arc::new(AtomicBool::new(false));
        let reader = {
            let ended = Arc::clone(&ended);
            thread::spawn(move || copy_to_file(terminal.into(), output, &ended))
        };
        Ok((Self { ended, reader }, of_test.into()))
    }

    /// After the test: all that it printed is in the file.
    pub(super) fn close(self) -> io::Result<()> {
        self.ended.store(true, Ordering::Relaxed); // ordering: nothing else is handed over by it
        self.reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Copies until the last one who has the other end closes it (EIO), or until nothing is left after the test's
/// end.
fn copy_to_file(mut terminal: File, mut output: File, ended: &AtomicBool) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let has_ended = ended.load(Ordering::Relaxed);
        let mut polled = [PollFd::new(&terminal, PollFlags::IN)];
        if poll(&mut polled, Some(&LOOK))? == 0 {
            if has_ended {
                return Ok(());
            }
            continue;
        }
        match terminal.read(&mut bytes) {
            Ok(0) | Err(_) => return Ok(()),
            Ok(count) => output.write_all(&bytes[..count])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_program_sees_the_size_and_its_output_is_saved() {
        let mut output = tempfile::tempfile().unwrap();
        let (terminal, end) = PseudoTerminal::open(97, output.try_clone().unwrap()).unwrap();
        let mut command = Command::new("stty");
        command.arg("size").stdin(end.try_clone().unwrap()).stdout(end);
        assert!(command.status().unwrap().success());
        drop(command);
        terminal.close().unwrap();
        output.rewind().unwrap();
        assert_eq!(io::read_to_string(output).unwrap(), "24 97\n");
    }
}
