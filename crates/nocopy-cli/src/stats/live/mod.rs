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

use super::report::InterfaceReport;
use super::summary::ObservationSummary;
use super::watch::InterfaceMonitor;
use crate::Failure;
use crate::arguments::StatsArguments;
use nocopy_report::{Outcome, print};
use signals::{BlockedSignals, SignalAction};
use terminal::Terminal;
use view::{KeyCommand, TableView};

/// Runs until its end, a key or a signal. Afterwards, even after an error, one line summarises the counts.
pub(super) fn run_live_view(
    watch: &mut InterfaceMonitor,
    first: Vec<InterfaceReport>,
    arguments: &StatsArguments,
) -> Result<Outcome, Failure> {
    let signals = BlockedSignals::block()?;
    let mut summary = ObservationSummary::new(&first);
    let mut terminal = Terminal::open_standard().map_err(as_print_failure)?;
    let ended = draw_until_end(watch, first, arguments, &signals, &mut terminal, &mut summary);
    drop(terminal);
    print::print_text(&summary.summary_line())?;
    ended.map(|()| Outcome::Positive)
}

fn draw_until_end(
    watch: &mut InterfaceMonitor,
    mut reports: Vec<InterfaceReport>,
    arguments: &StatsArguments,
    signals: &BlockedSignals,
    terminal: &mut Terminal,
    summary: &mut ObservationSummary,
) -> Result<(), Failure> {
    let mut view = TableView::new(arguments.all, watch.has_named_interface(), terminal.keyboard().is_some());
    let mut refreshes = 0;
    while arguments.count.is_none_or(|count| refreshes < count) {
        let due = Instant::now() + arguments.interval;
        let is_over = loop {
            terminal.draw(&view.styled_lines(&reports)).map_err(as_print_failure)?;
            match wait_for_event(signals, terminal, due).map_err(as_print_failure)? {
                LiveEvent::Due => break false,
                LiveEvent::End => break true,
                LiveEvent::Draw => {}
                LiveEvent::Keys(keys) if keys.contains(&KeyCommand::Quit) => break true,
                LiveEvent::Keys(keys) => keys.into_iter().for_each(|key| view.apply_key(key)),
            }
        };
        reports = watch.refresh()?;
        summary.add_reports(&reports);
        if is_over {
            return Ok(());
        }
        refreshes += 1;
    }
    terminal.draw(&view.styled_lines(&reports)).map_err(as_print_failure)
}

#[derive(Debug)]
enum LiveEvent {
    Due,
    Draw,
    Keys(Vec<KeyCommand>),
    End,
}

fn wait_for_event(signals: &BlockedSignals, terminal: &mut Terminal, due: Instant) -> io::Result<LiveEvent> {
    loop {
        match signals.read_action() {
            Some(SignalAction::End) => return Ok(LiveEvent::End),
            Some(SignalAction::Suspend) => terminal.suspend()?,
            Some(SignalAction::Draw) => {
                terminal.enter()?; // a shell may have changed it meanwhile
                return Ok(LiveEvent::Draw);
            }
            None => {}
        }
        let timeout = due.saturating_duration_since(Instant::now());
        if timeout == Duration::ZERO {
            return Ok(LiveEvent::Due);
        }
        let mut polled = vec![PollFd::new(signals, PollFlags::IN)];
        polled.extend(terminal.keyboard().map(|keyboard| PollFd::from_borrowed_fd(keyboard, PollFlags::IN)));
        poll(&mut polled, Some(timeout))?;
        let keyboard_events = polled.get(1).map_or(PollFlags::empty(), PollFd::revents);
        if keyboard_events == PollFlags::IN {
            return Ok(LiveEvent::Keys(
                terminal.read_keys()?.into_iter().filter_map(KeyCommand::from_byte).collect(),
            ));
        } else if !keyboard_events.is_empty() {
            terminal.disable_keys();
        }
    }
}

fn as_print_failure(error: io::Error) -> Failure {
    nocopy_report::Failure::Print(error).into()
}
