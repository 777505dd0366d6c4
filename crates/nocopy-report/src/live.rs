//! A line of progress that is redrawn, on a terminal only.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const INTERVAL: Duration = Duration::from_millis(500);

/// A line on standard error, so that it never mixes with results; removed when dropped.
#[derive(Debug)]
pub struct LiveLine {
    bar: ProgressBar,
    drawn: Instant,
}

impl Default for LiveLine {
    fn default() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{elapsed} {msg}") {
            bar.set_style(style);
        }
        Self { bar, drawn: Instant::now() }
    }
}

impl LiveLine {
    /// Redraws the line with the text that `say` returns for the time since the last redraw, if a redraw is
    /// due and there is a terminal.
    pub fn update(&mut self, now: Instant, say: impl FnOnce(Duration) -> String) {
        let since = now.saturating_duration_since(self.drawn);
        if since < INTERVAL || self.bar.is_hidden() {
            return;
        }
        self.drawn = now;
        self.bar.set_message(say(since));
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
