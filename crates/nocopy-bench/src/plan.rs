//! Where, how often, and by which methods to measure.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use nocopy::udp::{Method, Socket};
use nocopy_lab::{Builder, Lab};

use crate::Failure;
use crate::pair::CabledPair;
use crate::stage::{LONG_MTU_BYTES, SitePair};

#[derive(Debug)]
pub(crate) struct BenchPlan {
    /// The methods to measure; if empty, all.
    pub methods: Vec<String>,
    /// The most rounds.
    pub rounds: u32,
    /// How long every method runs in a round, if not as the time allows.
    pub window: Option<Duration>,
    /// Take half the time.
    pub quick: bool,
    /// Two connected interfaces; `None`: a private lab.
    pub interfaces: Option<(String, String)>,
    /// Two ports that were taken for the bench.
    pub cable: Option<CabledPair>,
    /// Why methods of io_uring cannot be measured here, if they cannot: old kernels have none, and sandboxes
    /// refuse it.
    pub without_io_uring: Option<String>,
    /// The interpreter of the programs in Python, if it was named.
    pub python: Option<PathBuf>,
}

impl BenchPlan {
    /// Half of a time, if it is to be quick.
    pub(crate) fn halve_if_quick(&self, whole: Duration) -> Duration {
        if self.quick { whole / 2 } else { whole }
    }

    pub(crate) fn includes_method(&self, method: &str) -> bool {
        match self.methods.is_empty() {
            true => !(uses_io_uring(method) && self.without_io_uring.is_some()),
            false => self.methods.iter().any(|wanted| wanted == method),
        }
    }

    /// Whether it plays between two interfaces that the bench did not make.
    pub(crate) fn is_between_interfaces(&self) -> bool {
        self.interfaces.is_some()
    }

    /// A private stage made by `lab`, or that of the given interfaces.
    pub(crate) fn make_site_pair(&self, lab: Builder) -> Result<SitePair, Failure> {
        match &self.interfaces {
            Some((interface, peer)) => SitePair::between_interfaces(interface, peer),
            None => self.make_private_site_pair(lab),
        }
    }

    /// A stage whose namespaces nothing else uses.
    pub(crate) fn make_private_site_pair(&self, lab: Builder) -> Result<SitePair, Failure> {
        match &self.cable {
            Some(cable) => SitePair::over_cable(&cable.lab),
            None => SitePair::in_private_lab(lab),
        }
    }

    /// A stage for long frames; `None` if the given interfaces do not allow them.
    pub(crate) fn make_long_frame_site_pair(&self) -> Result<Option<SitePair>, Failure> {
        let stage = self.make_site_pair(Lab::builder().mtu(LONG_MTU_BYTES))?;
        Ok(Some(stage).filter(SitePair::fits_long_frames))
    }

    pub(crate) fn network_name(&self) -> String {
        match (&self.interfaces, &self.cable) {
            (Some((interface, peer)), _) => format!("{interface} to {peer}"),
            // Names of interfaces may contain hardware addresses.
            (None, Some(_)) => "two ports and a cable".into(),
            (None, None) => "private veth pair".into(),
        }
    }
}

pub(crate) fn uses_io_uring(method: &str) -> bool {
    method.starts_with("uring-")
}

/// Asks by opening a socket that sends by io_uring.
pub(crate) fn io_uring_refusal() -> Option<String> {
    let socket = Socket::builder().method(Method::UringZeroCopy).bind((Ipv4Addr::LOCALHOST, 0));
    socket.err().map(|error| error.to_string())
}
