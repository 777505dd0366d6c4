//! A line that says how it goes, drawn anew while it goes, on a terminal only.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const INTERVAL: Duration = Duration::from_millis(500);

/// On standard error, so that it never mixes with what is printed; gone when dropped.
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
    /// Draws what `say` says of the time since it was last asked, if that is long enough ago and anybody sees it.
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
