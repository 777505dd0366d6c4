//! nuttcp, which sends datagrams as fast as it can only if it has agreed upon that with a server of its own.
//!
//! The server runs beside it, on the loopback interface, and gets none of the datagrams: they go to whatever receives in the bench.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const NAME: &str = "nuttcp";

/// Where the two meet.
const CONTROL_PORT: u16 = 5000;

/// The program ends by itself after this time, if it is not killed before.
const SECONDS_MAX: u32 = 600;

/// How long the server, and the first datagrams, are waited for.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);

/// Datagrams after which it sends.
const FIRST: u64 = 256;

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

/// The server; killed when dropped.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
}

impl Server {
    /// Starts it in the network namespace of this thread, for one conversation.
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new(NAME);
        command
            .args(["-1", "--nofork", &format!("-P{CONTROL_PORT}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut server = Self { child: command.spawn()? };
        // The second field is the local address, in hexadecimal digits; the fourth says that it listens.
        let end = format!(":{CONTROL_PORT:04X}");
        let is_it = |line: &str| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&end)) && fields.nth(1) == Some("0A")
        };
        wait_until(&mut server.child, || {
            let sockets =
                ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/thread-self/net/{name}")));
            Ok(sockets.into_iter().flatten().any(|text| text.lines().any(is_it)))
        })?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until its first datagrams have left: nothing else sends any in the network namespace of this thread.
pub(super) fn wait_until_it_sends(child: &mut Child) -> io::Result<()> {
    let before = sent()?;
    wait_until(child, || Ok(sent()? >= before + FIRST))
}

fn wait_until(child: &mut Child, mut is_so: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let start = Instant::now();
    while !is_so()? {
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("{NAME} ended too early: {status}")));
        }
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other(format!("{NAME} did nothing for {} s", PATIENCE.as_secs())));
        }
        sleep(LOOK);
    }
    Ok(())
}

/// Datagrams that were sent in the network namespace of this thread.
fn sent() -> io::Result<u64> {
    let counters = fs::read_to_string("/proc/thread-self/net/snmp")?;
    out_datagrams(&counters).ok_or_else(|| io::Error::other("/proc/net/snmp has no line of UDP"))
}

/// A line of names is followed by one of numbers.
fn out_datagrams(counters: &str) -> Option<u64> {
    let mut lines = counters.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|name| name == "OutDatagrams")?;
    numbers.split(' ').nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_found_by_their_name() {
        let counters =
            "Ip: A B\nIp: 1 2\nUdp: InDatagrams NoPorts OutDatagrams\nUdp: 1 2 30\nUdpLite: X\nUdpLite: 9\n";
        assert_eq!(out_datagrams(counters), Some(30));
        assert_eq!(out_datagrams("Udp: InDatagrams\nUdp: 1\n"), None);
        assert_eq!(out_datagrams(""), None);
    }

    #[test]
    fn the_control_connection_stays_on_the_loopback_interface() {
        let command = command((Ipv4Addr::new(10, 0, 0, 2), 9), 1400);
        let arguments: Vec<_> = command.get_args().filter_map(|argument| argument.to_str()).collect();
        assert_eq!(arguments, ["-u", "-Ru", "-l1400", "-p9", "-T600", "-P5000", "127.0.0.1/10.0.0.2"]);
    }
}
