//! Events that a guest reports to the host: one JSON value a line, appended to a file in the shared
//! directory.

use serde::{Deserialize, Serialize};

/// The file in the shared directory.
pub(crate) const FILE: &str = "events";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum GuestEvent {
    Booted {
        /// The output of `uname -r`.
        kernel: String,
        /// The kernel's log of the boot.
        log: KernelLogLines,
    },
    Started {
        test: String,
    },
    Ended(TestResult),
    /// Every test has run and the driver is unloaded.
    Done {
        /// The kernel's log after the last test.
        log: KernelLogLines,
    },
}

/// Lines of the kernel's log that matter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelLogLines {
    /// The kernel found something wrong.
    pub(crate) complaints: Vec<String>,
    /// The kernel found that time passed in which it did not run: the host's doing.
    pub(crate) stalls: Vec<String>,
}

impl KernelLogLines {
    pub(crate) fn extend(&mut self, later: Self) {
        self.complaints.extend(later.complaints);
        self.stalls.extend(later.stalls);
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TestResult {
    pub(crate) test: String,
    pub(crate) seconds: f64,
    /// Why it failed; `None` when it passed.
    pub(crate) failure: Option<String>,
    /// The kernel's log of the test; a test with complaints has failed.
    pub(crate) log: KernelLogLines,
    /// The longest time that a processor of the machine prevented its witness from running.
    pub(crate) oversleep_ms: u64,
    /// The rows recorded by the test.
    pub(crate) measured: Vec<serde_json::Value>,
}

impl TestResult {
    pub(crate) fn passed(&self) -> bool {
        self.failure.is_none() && self.log.complaints.is_empty()
    }
}
