//! Errors that end a transfer with exit code 2. One line each: fact, cause, action.

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
    Statistics(#[from] nocopy::integration::statistics::SnapshotError),
    #[error(transparent)]
    MessageEndpoint(#[from] nocopy::message::OpenError),
    /// An error of a command that is not listed here.
    #[error(transparent)]
    Command(Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "{interface}: no such interface; this network namespace has none of that name; 'ip link' lists them"
    )]
    NoInterface { interface: String },
}

/// An error that only one command has.
pub(crate) trait CommandError: std::error::Error + Send + Sync + 'static {}

impl<E: CommandError> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Command(Box::new(error))
    }
}

impl Failure {
    /// For `map_err`: a failed lookup of an interface.
    pub fn from_interface_lookup(interface: &str) -> impl FnOnce(nocopy_lab::Error) -> Failure {
        move |error| match error.is_missing_interface() {
            true => Failure::NoInterface { interface: interface.into() },
            false => error.into(),
        }
    }
}
