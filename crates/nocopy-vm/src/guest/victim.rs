//! A program with a port, which tests kill.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nocopy_lab::End;
use nocopy_proto::MacAddress;
use rustix::process::getppid;

use super::flow::PacketFlow;
use super::running::RunningProcess;
use super::traffic;
use crate::arguments::VictimArguments;
use crate::failure::Failure;

/// How long it runs at most, should the test not end it.
const LIFE_MAX: Duration = Duration::from_secs(600);

/// Its output when its port is open.
const OPEN: &str = "open";

/// The program, running.
pub(crate) struct RunningVictim(RunningProcess);

impl RunningVictim {
    /// Starts it at an end. It opens the interface in zero-copy, then sends packets to `to`, numbered from
    /// `first`, and checks what it receives.
    pub(crate) fn start(at: &End, to: &End, first: u32) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let address = |end: &End| MacAddress(end.mac()).to_string();
        command.args(["victim", at.interface(), &address(at), &address(to), &first.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // It begins in the namespace of the thread that starts it.
        Ok(Self(RunningProcess(at.namespace().run(|| command.spawn())?)))
    }

    pub(crate) fn wait_until_open(&mut self) -> Result<(), Failure> {
        let mut line = String::new();
        BufReader::new(self.0.0.stdout.as_mut().expect("piped")).read_line(&mut line)?;
        if line.trim_end() == OPEN {
            return Ok(());
        }
        let status = self.0.0.wait()?;
        Err(Failure(format!("the program that was to be killed opened no port ({status})")))
    }

    pub(crate) fn kill(self) -> Result<(), Failure> {
        self.0.kill("the program")
    }
}

pub(crate) fn main(arguments: &VictimArguments) -> ExitCode {
    super::exit_code("nocopy-vm victim", run_victim(arguments))
}

fn run_victim(arguments: &VictimArguments) -> Result<(), Failure> {
    let mut port = traffic::small_port_builder(&arguments.interface).open()?;
    let mut out = PacketFlow::new(arguments.to.0, arguments.first);
    let mut back = PacketFlow::new(arguments.own.0, 0);
    println!("{OPEN}");
    let (test, end) = (getppid(), Instant::now() + LIFE_MAX);
    // The process must not outlive its test, however that ends.
    while getppid() == test && Instant::now() < end {
        out.send_batch(port.sender())?;
        back.receive_and_check(port.receiver())?;
    }
    Ok(())
}
