//! The command in a sandbox that refuses some system calls, as those of containers do.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

pub(crate) use nocopy_lab::refused::Refused;

const REFUSED: &str = "NOCOPY_REFUSED";
const ARGUMENTS: &str = "NOCOPY_SANDBOXED";

/// `nocopy` in a sandbox; its standard output begins with a line of the test runner.
pub(crate) fn sandboxed_nocopy_command(refused: &[Refused], arguments: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args([
        "--exact",
        "sandbox::runs_nocopy_with_refused_calls_for_other_tests",
        "--ignored",
        "--nocapture",
    ]);
    let refused: Vec<_> = refused.iter().map(Refused::to_string).collect();
    command.env(REFUSED, refused.join(",")).env(ARGUMENTS, arguments.join("\n"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
#[ignore = "the sandbox that another test starts"]
fn runs_nocopy_with_refused_calls_for_other_tests() {
    let [refused, arguments] =
        [REFUSED, ARGUMENTS].map(|name| std::env::var(name).expect("started by another test"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    command.args(arguments.lines());
    refused.split(',').map(|text| Refused::parse(text).expect(text)).for_each(Refused::install_filter);
    panic!("{}", command.exec());
}
