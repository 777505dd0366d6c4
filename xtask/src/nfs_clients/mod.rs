//! A part of the nightly suite `nfs`: calls of independent clients to `nocopy serve nfs`. It writes a table
//! of docs/nfs.md.

use crate::gate::Outcome;
use crate::step::{CommandStep, Failed, repository_root};
use crate::suite::built_program;
use crate::tables::write_table;

const DOCUMENT: &str = "docs/nfs.md";

/// A client of PyPI, written without regard to this server.
const NFS_RS: &str = "nfs-rs==0.8.7";

pub(crate) fn measure_and_write_table() -> Outcome {
    measure_clients().and_then(|table| write_table(DOCUMENT, "nightly nfs", &table)).into()
}

fn measure_clients() -> Result<String, Failed> {
    CommandStep::cargo("build nocopy", &["build", "--package", "nocopy-cli"]).run()?;
    let place = built_program("nfs-clients", "").display().to_string();
    let install = ["-m", "pip", "install", "--quiet", "--upgrade", "--target", &place, NFS_RS];
    CommandStep::new("install nfs-rs", "python3", &install).run()?;
    let question = ["-W", "-f", "${Version}", "libnfs-utils"];
    let version = CommandStep::new("version of libnfs", "dpkg-query", &question).captured_output()?;
    let script = repository_root().join("xtask/src/nfs_clients/calls.py").display().to_string();
    let nocopy = built_program("debug", "nocopy").display().to_string();
    let calls = CommandStep::new("calls of clients", "python3", &[&script, &nocopy, version.trim()]);
    calls.with_variable("PYTHONPATH", &place).captured_output()
}
