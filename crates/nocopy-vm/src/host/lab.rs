use std::fmt;
use std::path::Path;

use nocopy_lab::witness::Witness;

use super::tools::Tools;
use crate::arguments::RandomArguments;

/// What all machines of a run share.
pub(crate) struct Lab<'a> {
    pub(crate) cache: &'a Path,
    pub(crate) tools: &'a Tools,
    pub(crate) processors: &'a Processors,
    pub(crate) random: RandomArguments,
    pub(crate) witness: &'a Witness,
}

/// What runs a machine's processors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Processors {
    Hardware,
    /// Why they are emulated.
    Emulated(String),
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hardware => f.write_str("KVM"),
            Self::Emulated(why) => write!(f, "emulation ({why})"),
        }
    }
}
