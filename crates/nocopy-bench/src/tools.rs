//! Measuring tools of higher crates, passed in.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use nocopy_report::progress::Progress;
use nocopy_report::receive_analysis::ReceiveAnalysis;
use rustix::thread::CapabilitySet;

#[derive(Debug)]
pub struct Tools {
    /// Our library in front of libpcap, or why it was not found.
    pub libpcap: Result<PathBuf, String>,
    /// Our library in front of the C library, which joins datagrams, or why it was not found.
    pub sockets: Result<PathBuf, String>,
    /// Measures where the time of a TCP receiver goes, within about that time, and while it may continue.
    pub receive_analysis: Analyse,
    /// What that needs.
    pub receive_analysis_capabilities: CapabilitySet,
}

pub type Analyse =
    fn(Duration, &Progress, &dyn Fn() -> bool) -> Result<ReceiveAnalysis, Box<dyn Error + Send + Sync>>;
