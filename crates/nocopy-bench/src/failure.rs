//! Errors that end a bench with exit code 2.

use nocopy_proto::errno::ErrorCause;
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
    #[error(transparent)]
    Profile(#[from] nocopy_profile::Failure),
    #[error(
        "{interface}: cannot be both ends; a frame goes from one interface to another; give --peer another interface"
    )]
    SameInterface { interface: String },
    #[error(
        "{interface}: no carrier; it is down or not connected; run 'ip link set {interface} up' and check the cable"
    )]
    NoCarrier { interface: String },
    #[error(
        "{interface}: frames of {frame_bytes} B do not fit; its MTU is {mtu_bytes} B; run 'ip link set {interface} mtu 1500'"
    )]
    SmallMtu { interface: String, mtu_bytes: u32, frame_bytes: usize },
    #[error(
        "--method: nothing to measure; none of the chosen workloads has one of these methods; leave out --method, or name other workloads"
    )]
    NothingToMeasure,
    #[error(
        "{workload}: cannot run between two interfaces of one network namespace; the kernel delivers there by loopback; leave out --interface and --peer"
    )]
    Loopback { workload: String },
    #[error(
        "{interface}: not taken for --pair; {because}; free it, or name two other ports that are cabled to each other"
    )]
    PairRefused { interface: String, because: &'static str },
    #[error(
        "{interface}, {peer}: not the two ends of one cable; no frame that {interface} sent arrived at {peer}, or a switch or bridge is between them; connect them directly"
    )]
    NotCabled { interface: String, peer: String },
    #[error(
        "{interface}, {peer}: not taken for --pair; this was not confirmed; answer 'y' at the terminal, or give --yes"
    )]
    PairUnconfirmed { interface: String, peer: String },
    #[error(
        "--pair: the process that takes the ports and puts them back failed; it printed the reason above; compare 'ip address' and 'ip route' with what they should be"
    )]
    PairNotTaken,
    #[error("bench: interrupted; a signal arrived; start it again for the results that are missing")]
    Interrupted,
    #[error("task: cannot be read; {0}; only 'nocopy bench' itself runs this command")]
    Task(#[source] serde_json::Error),
    #[error("{method}: cannot {doing}{cause}; {action}", cause = ErrorCause(.source))]
    Step { method: &'static str, doing: &'static str, source: io::Error, action: &'static str },
}

impl Failure {
    /// Whether a signal, such as SIGSTOP and SIGCONT, ended a call early: no error.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Failure::Step { source, .. } if source.kind() == io::ErrorKind::Interrupted)
    }

    /// For `map_err`: adds the failed step and advice to a kernel error.
    pub fn step(
        method: &'static str,
        doing: &'static str,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::Step { method, doing, source, action }
    }
}
