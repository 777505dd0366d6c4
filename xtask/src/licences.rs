//! The nightly suite `licences`.

use crate::gate::Outcome;
use crate::step::{CommandStep, install_subcommand};

/// Licences, bans and sources of all dependencies. Not `advisories`: their database is fetched from a host
/// that a build machine need not reach.
pub(crate) fn check_licences() -> Outcome {
    let check = || {
        install_subcommand("deny")?;
        CommandStep::cargo("licences, bans, sources", &["deny", "check", "bans", "licenses", "sources"]).run()
    };
    check().into()
}
