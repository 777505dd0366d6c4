//! What a guest tells the host: one JSON value a line, appended to a file in the shared directory.

use serde::{Deserialize, Serialize};

/// The file in the shared directory.
pub(crate) const FILE: &str = "events";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The machine is up.
    Booted {
        /// As `uname -r` says it.
        kernel: String,
        /// What the kernel complained of while booting.
        complaints: Vec<String>,
    },
    Started {
        test: String,
    },
    Ended(Ended),
    /// Every test has run and the driver is unloaded.
    Done {
        /// What the kernel complained of after the last test.
        complaints: Vec<String>,
    },
}

/// How a test ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) test: String,
    pub(crate) seconds: f64,
    /// Why it failed; `None` when it passed.
    pub(crate) failure: Option<String>,
    /// What the kernel complained of meanwhile; a test with complaints has failed.
    pub(crate) complaints: Vec<String>,
    /// What the test recorded.
    pub(crate) measured: Vec<serde_json::Value>,
}

impl Ended {
    pub(crate) fn passed(&self) -> bool {
        self.failure.is_none() && self.complaints.is_empty()
    }
}
