//! nuttcp: to send datagrams at full rate it needs a server of its own.
//!
//! The server runs beside it, on the loopback interface, and gets none of the datagrams: they go to whatever
//! receives in the bench.

use std::io;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use super::started;
use crate::child::ScopedChild;

const NAME: &str = "nuttcp";

const CONTROL_PORT: u16 = 5000;

/// The program ends by itself after this time, if it is not killed before.
const SECONDS_MAX: u32 = 600;

pub(super) fn is_installed() -> bool {
    Command::new(NAME).arg("-V").output().is_ok()
}

/// `-Ru`: without a limit of the rate.
pub(super) fn command((address, port): (Ipv4Addr, u16), bytes: usize) -> Command {
    let mut command = Command::new(NAME);
    command.args(["-u", "-Ru", &format!("-l{bytes}"), &format!("-p{port}"), &format!("-T{SECONDS_MAX}")]);
    command.arg(format!("-P{CONTROL_PORT}")).arg(format!("{}/{address}", Ipv4Addr::LOCALHOST));
    command
}

pub(super) fn start_server() -> io::Result<ScopedChild> {
    let mut command = Command::new(NAME);
    command.args(["-1", "--nofork", &format!("-P{CONTROL_PORT}")]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = ScopedChild(command.spawn()?);
    let ended = || started::exit_status_text(&mut server);
    started::wait_until(NAME, ended, || Ok(started::is_listening("thread-self", CONTROL_PORT)))?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_connection_stays_on_the_loopback_interface() {
        let command = command((Ipv4Addr::new(10, 0, 0, 2), 9), 1400);
        let arguments: Vec<_> = command.get_args().filter_map(|argument| argument.to_str()).collect();
        assert_eq!(arguments, ["-u", "-Ru", "-l1400", "-p9", "-T600", "-P5000", "127.0.0.1/10.0.0.2"]);
    }
}
