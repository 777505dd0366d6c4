//! What ends a bench with exit code 2. One line each: fact, cause, action.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Report(#[from] nocopy_report::Failure),
    #[error(transparent)]
    Lab(#[from] nocopy_lab::Error),
    #[error(transparent)]
    Xdp(#[from] nocopy::integration::xdp::Error),
    #[error(transparent)]
    Open(#[from] nocopy::port::OpenError),
    #[error(transparent)]
    Socket(#[from] nocopy::udp::OpenError),
    #[error(transparent)]
    MessageEndpoint(#[from] nocopy::message::OpenError),
    #[error(transparent)]
    Transfer(#[from] nocopy_transfer::Failure),
    #[error(
        "cannot use {interface} as both ends: a frame must go from one to the other: give --peer another interface"
    )]
    SameInterface { interface: String },
    #[error(
        "{interface} has no carrier: it is down or not connected: run 'ip link set {interface} up' and check the cable"
    )]
    NoCarrier { interface: String },
    #[error(
        "{interface} has an MTU of {mtu_bytes} bytes: frames of {frame_bytes} do not fit: raise it to 1500"
    )]
    SmallMtu { interface: String, mtu_bytes: u32, frame_bytes: usize },
    #[error(
        "nothing to measure: no method of the chosen workloads is among those given by --method: leave one out"
    )]
    NothingToMeasure,
    #[error(
        "{workload}: not between two interfaces of one namespace, where the kernel delivers by loopback: leave out --interface \
         and --peer"
    )]
    Loopback { workload: String },
    #[error(transparent)]
    ReceiveAnalysis(Box<dyn std::error::Error + Send + Sync>),
    #[error("interrupted by a signal: start it again for what is missing")]
    Interrupted,
    #[error("not a task: {0}: this command is for 'nocopy bench' alone")]
    Task(#[source] serde_json::Error),
    #[error("{method}: cannot {doing}: {source}: {action}")]
    Step { method: &'static str, doing: &'static str, source: io::Error, action: &'static str },
}

impl Failure {
    /// Whether a signal, such as SIGSTOP and SIGCONT, ended a call early: no error.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Failure::Step { source, .. } if source.kind() == io::ErrorKind::Interrupted)
    }

    /// For `map_err`: gives an errno its fact and action.
    pub fn step(
        method: &'static str,
        doing: &'static str,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::Step { method, doing, source, action }
    }
}
