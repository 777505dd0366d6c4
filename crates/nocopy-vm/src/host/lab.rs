use std::fmt;
use std::path::Path;

use nocopy_lab::witness::StallWitness;

use super::tools::HostTools;
use crate::arguments::RandomArguments;

/// What all machines of a run share.
pub(crate) struct LabContext<'a> {
    pub(crate) cache: &'a Path,
    pub(crate) tools: &'a HostTools,
    pub(crate) processors: &'a ProcessorKind,
    pub(crate) random: RandomArguments,
    pub(crate) witness: &'a StallWitness,
}

/// What runs a machine's processors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProcessorKind {
    Hardware,
    /// Why they are emulated.
    Emulated(String),
}

impl fmt::Display for ProcessorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hardware => f.write_str("KVM"),
            Self::Emulated(why) => write!(f, "emulation ({why})"),
        }
    }
}
