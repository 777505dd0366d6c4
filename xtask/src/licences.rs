//! The nightly suite `licences`.

use crate::gate::Outcome;
use crate::step::Step;

/// Licences, bans and sources of all dependencies. Not `advisories`: their database is fetched from a host that a build machine
/// need not reach.
pub(crate) fn outcome() -> Outcome {
    let check = || {
        if !Step::cargo("cargo deny there", &["deny", "--version"]).succeeds_quietly() {
            Step::cargo("install cargo-deny", &["install", "cargo-deny", "--locked"]).run()?;
        }
        Step::cargo("licences, bans, sources", &["deny", "check", "bans", "licenses", "sources"]).run()
    };
    check().into()
}
