//! How far it is, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// On standard error; indicatif itself stays silent when that is not a terminal.
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(0);
        let template = "{bar:30} {percent:>3} % {elapsed} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar }
    }

    pub(crate) fn expect(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    pub(crate) fn start(&self, what: String) {
        self.bar.set_message(what);
    }

    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    /// Steps that will not be made, because the time is up.
    pub(crate) fn skip(&self, steps: u64) {
        self.bar.inc(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
