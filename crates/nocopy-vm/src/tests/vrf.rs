use std::fs;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nocopy_lab::End;

use crate::guest::Guest;
use crate::guest::cards::modprobe;
use crate::guest::running::RunningProcess;
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "in a VRF, `ip vrf exec` makes the command's servers answer there, from each address that is asked, and its clients reach \
             others from there, by UDP, TCP and messages",
    on: &[Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const IN_VRF: &[&str] = &["ip", "vrf", "exec", "vrf0"];
/// Messages and TCP use this port, UDP the next one.
const AT: &str = ":9000";
const SECOND: [&str; 2] = ["10.88.0.1", "10.88.0.2"];
const IPV6: [&str; 2] = ["fd88::1", "fd88::2"];

fn run(guest: &Guest) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    modprobe(&["vrf"])?;
    let interface = left.interface();
    for line in
        ["link add vrf0 type vrf table 88", "link set vrf0 up", &format!("link set {interface} master vrf0")]
    {
        run_ip(left, line)?;
    }
    guest.lab().wait_for_carrier()?;
    for (end, index) in [(left, 0), (right, 1)] {
        let setting = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", end.interface());
        end.namespace().run(|| fs::write(setting, "0"))?;
        run_ip(end, &format!("address add {}/24 dev {}", SECOND[index], end.interface()))?;
        run_ip(end, &format!("address add {}/64 dev {} nodad", IPV6[index], end.interface()))?;
    }
    {
        let _server = start_server(left, IN_VRF)?;
        ping_all_addresses(right, &[], left, 0)?;
    }
    let _server = start_server(right, &[])?;
    ping_all_addresses(left, IN_VRF, right, 1)
}

fn run_ip(end: &End, line: &str) -> Result<(), Failure> {
    run_to_success(end, Command::new("ip").args(line.split(' ')))
}

/// Pings each address of an end in each way.
fn ping_all_addresses(from: &End, before: &[&str], to: &End, index: usize) -> Result<(), Failure> {
    for address in [to.ipv4().to_string(), SECOND[index].to_owned(), IPV6[index].to_owned()] {
        let host = match address.parse() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ => address,
        };
        for target in
            [format!("udp://{host}:9001"), format!("tcp://{host}:9000"), format!("message://{host}:9000")]
        {
            run_to_success(from, nocopy_command(before)?.args(["ping", &target, "--count", "3"]))?;
        }
    }
    Ok(())
}

/// The command, built beside this program, started by other words.
fn nocopy_command(before: &[&str]) -> Result<Command, Failure> {
    let program = std::env::current_exe()?.with_file_name("nocopy");
    let mut words = before.iter().map(PathBuf::from).chain([program]);
    let mut command = Command::new(words.next().expect("one is the program"));
    command.args(words);
    Ok(command)
}

fn run_to_success(end: &End, command: &mut Command) -> Result<(), Failure> {
    let output = end.namespace().run(|| command.output())?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let text = [output.stdout, output.stderr].concat();
            Err(Failure(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&text))))
        }
    }
}

/// Starts `nocopy serve` at all addresses of an end, and waits until it serves in the three ways.
fn start_server(end: &End, before: &[&str]) -> Result<RunningProcess, Failure> {
    let mut command = nocopy_command(before)?;
    command.args(["serve", AT]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = end.namespace().run(|| command.spawn())?;
    let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let server = RunningProcess(child);
    let mut printed_lines = Vec::new();
    for line in lines {
        printed_lines.push(line?);
        if printed_lines.iter().filter(|line| line.contains(":900")).count() == 3 {
            return Ok(server);
        }
    }
    Err(Failure(format!("{command:?}: {}", printed_lines.join("; "))))
}
