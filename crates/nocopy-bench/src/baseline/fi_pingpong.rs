//! `fi_pingpong` of libfabric, with its tcp provider: the usual basis of message passing over ordinary
//! networks.

use std::io;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::started;
use crate::series::Latency;
use crate::stage::{NetworkSite, SitePair};

pub(crate) const NAME: &str = "fi_pingpong";

pub(crate) const CAUSE: &str = "socket calls of libfabric's tcp provider: the kernel copies both ways";

/// Round trips of a run, without those of its warm-up.
const ITERATIONS: u32 = 1000;

/// The default port on which the server waits for its client.
const CONTROL_PORT: u16 = 47592;

/// The longest run, as an argument of timeout(1), which ends both sides even if the bench is killed.
const SECONDS_MAX: &str = "10";

pub(crate) fn is_installed() -> bool {
    let spec = Command::new(NAME).arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
    // With `-h` it ends with another code than 0; if a library is missing, with 127.
    spec.is_ok_and(|status| status.code().is_some_and(|code| code < 126))
}

/// Round trips of messages of one length; it reports only their mean time.
pub(crate) fn run_pingpong(stage: &SitePair, bytes: usize) -> io::Result<Latency> {
    let mut server = RunningPingpong(start_pingpong(&stage.receiver, bytes, None)?);
    server.wait_until_listening()?;
    let client = start_pingpong(&stage.sender, bytes, Some(stage.receiver.ipv4.to_string()))?;
    let output = client.wait_with_output()?;
    let mean_us = parse_round_trip_us(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| missing_time_error(&output))?;
    let answered = ITERATIONS.into();
    Ok(Latency { mean_us, p50_us: None, p99_us: None, p99_9_us: None, answered, lost: 0 })
}

fn missing_time_error(output: &Output) -> io::Error {
    let text = String::from_utf8_lossy(&output.stderr);
    io::Error::other(format!(
        "fi_pingpong printed no time, but '{}'",
        text.lines().next().unwrap_or_default()
    ))
}

fn start_pingpong(site: &NetworkSite, bytes: usize, server: Option<String>) -> io::Result<Child> {
    let mut command = Command::new("timeout");
    command.args([SECONDS_MAX, NAME, "-p", "tcp", "-e", "msg", "-I"]);
    command.args([ITERATIONS.to_string(), "-S".into(), bytes.to_string()]).args(server);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    site.run_pinned(|| command.spawn())
}

/// Twice the time of one transfer, which is a column of the last line.
fn parse_round_trip_us(text: &str) -> Option<f64> {
    let mut lines = text.lines();
    let column = lines.find_map(|line| line.split_whitespace().position(|word| word == "usec/xfer"))?;
    let one_way: f64 = lines.next_back()?.split_whitespace().nth(column)?.parse().ok()?;
    Some(2.0 * one_way).filter(|time| *time > 0.0)
}

/// Asked to end when dropped: timeout(1) passes it on.
struct RunningPingpong(Child);

impl RunningPingpong {
    fn wait_until_listening(&mut self) -> io::Result<()> {
        let process = self.0.id().to_string();
        let ended = || started::exit_status_text(&mut self.0);
        started::wait_until(NAME, ended, || Ok(started::is_listening(&process, CONTROL_PORT)))
    }
}

impl Drop for RunningPingpong {
    fn drop(&mut self) {
        // It may have ended, but was not waited for yet, so its number is not reused.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_time_is_twice_the_transfer_time() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64      1k      =1k      125k        0.02s     12.51       5.12       0.20\n";
        assert_eq!(parse_round_trip_us(text), Some(10.24));
        assert_eq!(parse_round_trip_us("fi_getinfo: -61\n"), None);
        assert_eq!(parse_round_trip_us("bytes usec/xfer\n"), None);
    }
}
