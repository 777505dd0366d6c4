//! How far it is, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Default for Progress {
    /// On standard error; indicatif itself stays silent when that is not a terminal.
    fn default() -> Self {
        let bar = ProgressBar::new(0);
        let template = "{bar:30} {percent:>3} % {elapsed} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar }
    }
}

impl Progress {
    pub fn expect(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    pub fn start(&self, what: String) {
        self.bar.set_message(what);
    }

    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Steps that will not be made, because the time is up.
    pub fn skip(&self, steps: u64) {
        self.bar.inc(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
