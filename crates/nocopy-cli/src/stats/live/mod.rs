//! The live view on a terminal, redrawn at each refresh and each key.
//!
//! ```text
//!   watch ─▶ report ─▶ line ─▶ view ─▶ terminal
//!                         └──▶ summary
//!   signals, terminal's keys ─▶ view
//! ```

mod signals;
mod terminal;
mod view;

use std::io;
use std::time::{Duration, Instant};

use nocopy::integration::poll;
use rustix::event::{PollFd, PollFlags};

use super::report::Report;
use super::summary::Summary;
use super::watch::Watch;
use crate::Failure;
use crate::arguments::StatsArguments;
use nocopy_report::{Outcome, print};
use signals::{SignalAction, Signals};
use terminal::Terminal;
use view::{Key, View};

/// Runs until its end, a key or a signal. Afterwards, even after an error, one line summarises the counts.
pub(super) fn run(
    watch: &mut Watch,
    first: Vec<Report>,
    arguments: &StatsArguments,
) -> Result<Outcome, Failure> {
    let signals = Signals::block()?;
    let mut summary = Summary::new(&first);
    let mut terminal = Terminal::standard().map_err(print_failure)?;
    let ended = draw_until_end(watch, first, arguments, &signals, &mut terminal, &mut summary);
    drop(terminal);
    print::text(&summary.line())?;
    ended.map(|()| Outcome::Positive)
}

fn draw_until_end(
    watch: &mut Watch,
    mut reports: Vec<Report>,
    arguments: &StatsArguments,
    signals: &Signals,
    terminal: &mut Terminal,
    summary: &mut Summary,
) -> Result<(), Failure> {
    let mut view = View::new(arguments.all, watch.is_named(), terminal.keyboard().is_some());
    let mut refreshes = 0;
    while arguments.count.is_none_or(|count| refreshes < count) {
        let due = Instant::now() + arguments.interval;
        let is_over = loop {
            terminal.draw(&view.lines(&reports)).map_err(print_failure)?;
            match wait(signals, terminal, due).map_err(print_failure)? {
                Event::Due => break false,
                Event::End => break true,
                Event::Draw => {}
                Event::Keys(keys) if keys.contains(&Key::Quit) => break true,
                Event::Keys(keys) => keys.into_iter().for_each(|key| view.apply_key(key)),
            }
        };
        reports = watch.refresh()?;
        summary.add(&reports);
        if is_over {
            return Ok(());
        }
        refreshes += 1;
    }
    terminal.draw(&view.lines(&reports)).map_err(print_failure)
}

#[derive(Debug)]
enum Event {
    Due,
    Draw,
    Keys(Vec<Key>),
    End,
}

fn wait(signals: &Signals, terminal: &mut Terminal, due: Instant) -> io::Result<Event> {
    loop {
        match signals.next() {
            Some(SignalAction::End) => return Ok(Event::End),
            Some(SignalAction::Suspend) => terminal.suspend()?,
            Some(SignalAction::Draw) => {
                terminal.enter()?; // a shell may have changed it meanwhile
                return Ok(Event::Draw);
            }
            None => {}
        }
        let timeout = due.saturating_duration_since(Instant::now());
        if timeout == Duration::ZERO {
            return Ok(Event::Due);
        }
        let mut polled = vec![PollFd::new(signals, PollFlags::IN)];
        polled.extend(terminal.keyboard().map(|keyboard| PollFd::from_borrowed_fd(keyboard, PollFlags::IN)));
        poll(&mut polled, Some(timeout))?;
        let keyboard_events = polled.get(1).map_or(PollFlags::empty(), PollFd::revents);
        if keyboard_events == PollFlags::IN {
            return Ok(Event::Keys(terminal.read_keys()?.into_iter().filter_map(Key::of).collect()));
        } else if !keyboard_events.is_empty() {
            terminal.disable_keys();
        }
    }
}

fn print_failure(error: io::Error) -> Failure {
    nocopy_report::Failure::Print(error).into()
}
