//! Progress: a bar on a terminal, otherwise a line for each part that is done.

use std::fmt::Display;

use indicatif::{ProgressBar, ProgressStyle};

use crate::print;

#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Default for Progress {
    /// On standard error; indicatif itself stays silent when that is not a terminal.
    fn default() -> Self {
        let bar = ProgressBar::new(0);
        let template = "{bar:30} {percent:>3} % {elapsed} {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar }
    }
}

impl Progress {
    pub fn add_expected_steps(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    /// Hides the bar while `work` runs, for example while it prints.
    pub fn suspend<T>(&self, work: impl FnOnce() -> T) -> T {
        self.bar.suspend(work)
    }

    pub fn show_current_step(&self, what: String) {
        self.bar.set_message(what);
    }

    pub fn complete_step(&self) {
        self.bar.inc(1);
    }

    /// Prints that a part is done, if no bar shows it.
    pub fn report_part_done(&self, what: impl Display) {
        if self.bar.is_hidden() {
            print::print_status(what);
        }
    }

    /// Skips steps that will not be made, because the time is up.
    pub fn skip_steps(&self, steps: u64) {
        self.bar.inc(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
