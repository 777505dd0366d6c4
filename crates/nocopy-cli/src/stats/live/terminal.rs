//! The terminal of a live view: an alternate screen without a cursor, and keys without Enter.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use console::Style;
use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};

use nocopy_report::print::replace_control_characters;

/// Switches to the alternate screen and hides the cursor; [`LEAVE`] undoes both.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

const TO_TOP: &str = "\x1b[H";
const CLEAR_REST_OF_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StyledLine {
    pub(super) text: String,
    pub(super) emphasis: Emphasis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Emphasis {
    None,
    Header,
    /// A line that loses packets now.
    Alarm,
}

/// A terminal whose settings are restored on drop, and before a panic is printed.
#[derive(Debug)]
pub(super) struct Terminal {
    state: Arc<TerminalState>,
    has_keys: bool,
    has_colours: bool,
}

#[derive(Debug)]
struct TerminalState {
    output: File,
    keyboard: Option<Keyboard>,
    is_entered: AtomicBool,
}

#[derive(Debug)]
struct Keyboard {
    input: OwnedFd,
    before: Termios,
}

/// Whether the environment allows colours, by the rules of <https://no-color.org> and
/// <https://bixense.com/clicolors>, as in clap. (The crate `console` treats an empty `NO_COLOR` as set.)
fn are_colours_allowed(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let value = |name| variable(name).filter(|value| !value.is_empty());
    match (value("NO_COLOR"), value("CLICOLOR_FORCE"), value("CLICOLOR")) {
        (Some(_), ..) => false,
        (None, Some(force), _) if force != "0" => true,
        (.., colours) => colours.is_none_or(|colours| colours != "0"),
    }
}

impl Terminal {
    /// Standard output, with the keys of standard input if that is a terminal with this process in the
    /// foreground.
    pub(super) fn open_standard() -> io::Result<Self> {
        let input = io::stdin();
        // A process in the background that reads keys, or sets how they are read, is stopped.
        let is_background = tcgetpgrp(&input).is_ok_and(|group| group != getpgrp());
        let input = if is_background { None } else { Some(input.as_fd().try_clone_to_owned()?) };
        let has_colours = are_colours_allowed(|name| std::env::var_os(name));
        let terminal = Self::open(io::stdout().as_fd().try_clone_to_owned()?.into(), input, has_colours)?;
        terminal.restore_on_panic();
        Ok(terminal)
    }

    fn open(output: File, input: Option<OwnedFd>, has_colours: bool) -> io::Result<Self> {
        let keyboard = input.and_then(Keyboard::from_terminal);
        let state = Arc::new(TerminalState { output, keyboard, is_entered: AtomicBool::new(false) });
        let terminal = Self { has_keys: state.keyboard.is_some(), state, has_colours };
        terminal.enter()?;
        Ok(terminal)
    }

    /// A panic's message would disappear with the alternate screen.
    fn restore_on_panic(&self) {
        let (state, print) = (Arc::clone(&self.state), panic::take_hook());
        panic::set_hook(Box::new(move |why| {
            state.leave();
            print(why);
        }));
    }

    /// Sets the terminal up, also after another program has used it.
    pub(super) fn enter(&self) -> io::Result<()> {
        self.state.enter()
    }

    /// Gives the terminal back, and stops as Ctrl-Z stops any command. The signal that continues it asks to
    /// take the terminal again.
    pub(super) fn suspend(&self) -> io::Result<()> {
        self.state.leave();
        Ok(kill_process(getpid(), Signal::STOP)?)
    }

    /// Readable when a key is pressed; `None` if there are no keys.
    pub(super) fn keyboard(&self) -> Option<BorrowedFd<'_>> {
        let keyboard = self.state.keyboard.as_ref().filter(|_| self.has_keys);
        keyboard.map(|keyboard| keyboard.input.as_fd())
    }

    /// The typed bytes, once the keyboard is readable.
    pub(super) fn read_keys(&self) -> io::Result<Vec<u8>> {
        let Some(keyboard) = self.keyboard() else { return Ok(Vec::new()) };
        let mut typed = vec![0; 64];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(keyboard, &mut typed))?;
        typed.truncate(count);
        Ok(typed)
    }

    pub(super) fn disable_keys(&mut self) {
        self.has_keys = false;
    }

    /// Draws over the previous output: as many lines as there is room for, cut to the width.
    pub(super) fn draw(&self, lines: &[StyledLine]) -> io::Result<()> {
        let size = tcgetwinsize(&self.state.output)?;
        // A terminal without a known size reports 0.
        let room = |cells: u16, usual: usize| if cells == 0 { usual } else { usize::from(cells) };
        let frame = render_frame(lines, room(size.ws_row, 24), room(size.ws_col, 80), self.has_colours);
        (&self.state.output).write_all(frame.as_bytes())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.state.leave();
    }
}

impl TerminalState {
    fn enter(&self) -> io::Result<()> {
        let was_entered = self.is_entered.swap(true, Ordering::Relaxed);
        if let Some(keyboard) = &self.keyboard {
            keyboard.set_single_key_mode()?;
        }
        if was_entered { Ok(()) } else { (&self.output).write_all(ENTER.as_bytes()) }
    }

    fn leave(&self) {
        if !self.is_entered.swap(false, Ordering::Relaxed) {
            return;
        }
        // Fails only if the terminal was closed.
        let _ = (&self.output).write_all(LEAVE.as_bytes());
        if let Some(Keyboard { input, before, .. }) = &self.keyboard {
            let _ = tcsetattr(input, OptionalActions::Now, before);
        }
    }
}

impl Keyboard {
    /// `None` if it is not a terminal.
    fn from_terminal(input: OwnedFd) -> Option<Self> {
        let before = tcgetattr(&input).ok()?;
        Some(Self { input, before })
    }

    /// Without line buffering and echo; Ctrl-C and Ctrl-Z still are signals.
    fn set_single_key_mode(&self) -> io::Result<()> {
        let mut modes = self.before.clone();
        modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        Ok(tcsetattr(&self.input, OptionalActions::Now, &modes)?)
    }
}

/// The bytes that replace the shown lines by these.
fn render_frame(lines: &[StyledLine], rows: usize, columns: usize, has_colours: bool) -> String {
    let shown = lines.iter().take(rows).map(|StyledLine { text, emphasis }| {
        let text: String = replace_control_characters(text).chars().take(columns).collect();
        let style = match emphasis {
            Emphasis::None => Style::new(),
            Emphasis::Header => Style::new().bold(),
            Emphasis::Alarm => Style::new().red(),
        };
        let text = if has_colours { style.force_styling(true).apply_to(text).to_string() } else { text };
        text + CLEAR_REST_OF_LINE
    });
    // No newline after the last line: on the last row it would scroll.
    let shown: Vec<_> = shown.collect();
    format!("{TO_TOP}{}{CLEAR_REST}", shown.join("\n"))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    /// The two ends of a terminal: the user's, and the command's.
    fn open_pseudoterminal() -> (File, File) {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap().into_string().unwrap();
        (user.into(), File::options().read(true).write(true).open(name).unwrap())
    }

    fn open_live_terminal(command: &File) -> Terminal {
        Terminal::open(command.try_clone().unwrap(), Some(command.try_clone().unwrap().into()), false)
            .unwrap()
    }

    fn terminal_modes(command: &File) -> (LocalModes, u8) {
        let modes = tcgetattr(command).unwrap();
        (modes.local_modes, modes.special_codes[SpecialCodeIndex::VTIME])
    }

    /// Everything that was drawn, once the command has ended.
    fn read_drawn_text(mut user: File, command: File) -> String {
        drop(command);
        let mut text = Vec::new();
        let _ = user.read_to_end(&mut text); // ends with an error
        String::from_utf8(text).unwrap()
    }

    fn plain_line(text: &str) -> StyledLine {
        StyledLine { text: text.into(), emphasis: Emphasis::None }
    }

    #[test]
    fn drop_restores_the_terminal() {
        let (user, command) = open_pseudoterminal();
        let before = terminal_modes(&command);
        let terminal = open_live_terminal(&command);
        let during = terminal_modes(&command).0;
        assert!(!during.intersects(LocalModes::ICANON | LocalModes::ECHO), "{during:?}");
        assert!(during.contains(LocalModes::ISIG), "Ctrl-C stays a signal");
        drop(terminal);
        assert_eq!(terminal_modes(&command), before);
        assert_eq!(read_drawn_text(user, command), format!("{ENTER}{LEAVE}"));
    }

    #[test]
    fn a_panic_restores_the_terminal_before_its_message() {
        let (user, command) = open_pseudoterminal();
        let before = terminal_modes(&command);
        let terminal = open_live_terminal(&command);
        terminal.restore_on_panic();
        let panicked = catch_unwind(AssertUnwindSafe(|| panic!("as the test wants it")));
        assert!(panicked.is_err());
        assert_eq!(terminal_modes(&command), before, "the hook, and not only the drop");
        drop(terminal);
        let _ = panic::take_hook(); // which keeps the terminal open
        assert_eq!(read_drawn_text(user, command), format!("{ENTER}{LEAVE}"), "left once");
    }

    #[test]
    fn keys_are_read_without_enter() {
        let (mut user, command) = open_pseudoterminal();
        let terminal = open_live_terminal(&command);
        user.write_all(b"s").unwrap();
        assert_eq!(terminal.read_keys().unwrap(), b"s");
        user.write_all(b"r").unwrap();
        assert_eq!(terminal.read_keys().unwrap(), b"r");
    }

    #[test]
    fn input_that_is_no_terminal_has_no_keys() {
        let (_user, command) = open_pseudoterminal();
        let null: OwnedFd = File::open("/dev/null").unwrap().into();
        let terminal = Terminal::open(command, Some(null), false).unwrap();
        assert!(terminal.keyboard().is_none() && terminal.read_keys().unwrap().is_empty());
    }

    #[test]
    fn a_frame_fits_the_terminal_without_control_characters() {
        let lines = [plain_line("one"), plain_line("t\x1bwo"), plain_line("three")];
        assert_eq!(render_frame(&lines, 2, 3, false), "\x1b[Hone\x1b[K\nt\u{fffd}w\x1b[K\x1b[J");
        assert_eq!(render_frame(&lines, 0, 80, false), "\x1b[H\x1b[J");
    }

    #[test]
    fn colours_are_drawn_only_if_enabled() {
        let lines = [StyledLine { text: "eth0".into(), emphasis: Emphasis::Alarm }, plain_line("lo")];
        assert_eq!(render_frame(&lines, 9, 9, true), "\x1b[H\x1b[31meth0\x1b[0m\x1b[K\nlo\x1b[K\x1b[J");
        assert_eq!(render_frame(&lines, 9, 9, false), "\x1b[Heth0\x1b[K\nlo\x1b[K\x1b[J");
    }
}
