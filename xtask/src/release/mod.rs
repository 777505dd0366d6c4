//! What users install, and the command that makes it all.

mod command;
pub(crate) mod crates;
mod files;

pub(crate) use command::{ReleaseArguments, run_command};
