//! A program of a user without privileges, with a port that is granted to it.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nocopy::port::{Grant, PortBuilder};
use nocopy::{Mode, Port};
use nocopy_lab::End;
use rustix::process::getppid;
use serde_json::json;

use super::patience::{ARRIVAL_MAX, wait_until};
use super::running::RunningProcess;
use super::{Guest, pins, traffic};
use crate::failure::Failure;

/// The user that has no privileges anywhere.
const NOBODY: u32 = 65534;

/// How long it runs at most, should the test not end it.
const LIFE_MAX: Duration = Duration::from_secs(600);

/// Packets of each size: several times the length of the rings.
const PACKETS: u32 = 1024;
/// Packets on their way at a time.
const WINDOW: u32 = 32;
const SIZES_BYTES: [usize; 3] = [64, 1000, 1514];

struct UnprivilegedClient {
    process: RunningProcess,
    stream: UnixStream,
}

impl UnprivilegedClient {
    fn start(at: &End) -> Result<Self, Failure> {
        let (stream, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("client").stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        command.uid(NOBODY).gid(NOBODY);
        // It begins in the namespace of the thread that starts it.
        let process = RunningProcess(at.namespace().run(|| command.spawn())?);
        Ok(Self { process, stream })
    }

    /// Reads its output once its port is open.
    fn read_line(&self) -> Result<String, Failure> {
        let mut line = String::new();
        BufReader::new(&self.stream).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn assert_no_capabilities(&self) -> Result<(), Failure> {
        for task in fs::read_dir(format!("/proc/{}/task", self.process.0.id()))? {
            let status = fs::read_to_string(task?.path().join("status"))?;
            for none in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
                assert!(status.contains(&format!("{none}\t{:016x}\n", 0)), "{status}");
            }
        }
        Ok(())
    }
}

/// The program itself: sends every packet back, byte for byte.
pub(crate) fn main() -> ExitCode {
    super::exit_code("nocopy-vm client", run_client())
}

fn run_client() -> Result<(), Failure> {
    let mut opener = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let grant = Grant::receive(&opener)?;
    let mut port = small_port_builder(grant.interface()).open_granted(grant)?;
    let refusals: Vec<_> = port.explain().refusals.iter().map(ToString::to_string).collect();
    writeln!(opener, "{}; {}", port.mode(), refusals.join("; "))?;
    let (test, end) = (getppid(), Instant::now() + LIFE_MAX);
    let (receiver, sender) = port.halves();
    // The process must not outlive its test, however that ends.
    while getppid() == test && Instant::now() < end {
        for packet in receiver.receive_timeout(Duration::from_millis(20))? {
            sender.send(packet.take())?;
        }
        sender.flush()?;
    }
    Ok(())
}

fn small_port_builder(interface: &str) -> PortBuilder {
    Port::builder(interface).ring_sizes(256, 256).frame_count(512, 256)
}

/// Grants a port at the left end, and checks that its client, in that mode, carries packets both ways, and
/// that nothing is left of it when it is killed.
pub(crate) fn check_granted_port(guest: &Guest, mode: Mode) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let client = UnprivilegedClient::start(left)?;
    let granted = left.namespace().run(|| small_port_builder(left.interface()).promiscuous(true).grant())?;
    granted.send(&client.stream)?;
    // Returned packets still have the left end's address.
    let mut port = right
        .namespace()
        .run(|| small_port_builder(right.interface()).mode(mode).promiscuous(true).open())?;
    let line = client.read_line()?;
    guest.record_measurement(&json!({ "client": line }));
    assert!(line.starts_with(&format!("{mode};")), "{mode} expected: {line}");
    client.assert_no_capabilities()?;
    for bytes in SIZES_BYTES {
        exchange_packets(&mut port, left, bytes)?;
    }
    traffic::assert_all_frames_accounted(&mut port)?;
    drop(client);
    wait_until("the XDP program of the killed client is gone", || Ok(left.xdp_program()?.is_none()))?;
    traffic::close_and_check_frames(port);
    pins::wait_until_nothing_pinned()
}

/// Sends packets to the end `at`, a window at a time, and checks that each comes back, in order and with its
/// bytes.
fn exchange_packets(port: &mut Port, at: &End, bytes: usize) -> Result<(), Failure> {
    for first in (0..PACKETS).step_by(WINDOW as usize) {
        let window: Vec<_> =
            (first..first + WINDOW).map(|number| traffic::numbered_packet(at, number, bytes)).collect();
        for packet in &window {
            let mut frame = port.sender().buffer().expect("more frames than a window");
            frame.fill(packet).expect("a packet fits a frame");
            port.sender().send(frame)?;
        }
        let (mut back, mut heard) = (0, Instant::now());
        while back < window.len() {
            // Again and again: a socket's send buffer (`SO_SNDBUF`) holds fewer long packets than a window.
            port.sender().flush()?;
            for packet in port.receiver().receive_timeout(Duration::from_millis(100))? {
                let number = first as usize + back;
                assert!(window.get(back).is_some_and(|sent| *packet == **sent), "{bytes} B: packet {number}");
                (back, heard) = (back + 1, Instant::now());
            }
            assert!(heard.elapsed() < ARRIVAL_MAX, "{bytes} B: {back} of {WINDOW} from {first} came back");
        }
        assert!(port.sender().drain(ARRIVAL_MAX)?, "frames stay with the kernel: {}", port.balance());
    }
    Ok(())
}
