//! tcpdump(1) as the compiler of filter expressions, for programs that cannot load libpcap: a statically
//! linked program cannot load any library, and tcpdump brings its own libpcap.

use std::io;
use std::process::{Command, Stdio};

/// tcpdump's exit status for an expression that it refuses. (127 is the loader's, if libpcap is missing.)
const REFUSED: i32 = 1;

/// Why tcpdump printed no program.
#[derive(Debug)]
pub(crate) enum TcpdumpFailure {
    /// It is not installed, or does not start; with the reason.
    NotUsable(String),
    /// It refuses the expression; with its reason.
    Expression(String),
}

/// Compiles an expression for Ethernet frames; returns what `tcpdump -ddd` prints.
pub(crate) fn compile(expression: &str) -> Result<String, TcpdumpFailure> {
    // With a link type it opens no interface, so it needs no privileges. It cuts matching packets to
    // the same length as libpcap is asked to, by default.
    let output = Command::new("tcpdump")
        .args(["-ddd", "-y", "EN10MB", "--", expression])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| TcpdumpFailure::NotUsable(start_failure(&error)))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    let reason = messages.lines().last().unwrap_or("it does not say why").trim_start_matches("tcpdump: ");
    Err(match output.status.code() {
        Some(REFUSED) => TcpdumpFailure::Expression(reason.to_owned()),
        _ => TcpdumpFailure::NotUsable(format!("tcpdump: {reason}")),
    })
}

fn start_failure(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "tcpdump: not installed".into(),
        _ => format!("tcpdump: {error}"),
    }
}
