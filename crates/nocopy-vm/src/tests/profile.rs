use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value, json};

use crate::guest::Guest;
use crate::guest::patience::ARRIVAL_MAX;
use crate::guest::running::RunningProcess;
use crate::guest::witness::{CallCounts, KprobeCounter};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "what `nocopy profile` counts by tracepoints of a process's calls, bytes, copies and packets is what kprobes count elsewhere \
             in the kernel, and what the process itself counts of its calls, within 1 % and \
             the events that each says it lost",
    on: &[Topology::Igb, Topology::VirtioTaps],
    kernels: &[Kernel::Newest],
    run,
};

const BYTES: usize = 16 << 20;
const READ_BYTES: usize = 10_000;
const WRITE_BYTES: usize = 30_000;

/// How long it lasts at most, should the test not end it.
const WINDOW_MAX: &str = "600s";

fn run(guest: &Guest) -> Result<(), Failure> {
    let (sender, receiver) = connect_streams(guest)?;
    let witness = KprobeCounter::of_this_process()?;
    let profile = RunningProfiler::start()?;
    let before = witness.totals()?;
    peek_nothing(&receiver)?;
    let reader = thread::spawn(move || receive_all(receiver));
    let writes = send_all(sender)?;
    let reads = 1 + reader.join().expect("it only reads")?;
    let after = witness.totals()?;
    let reported = profile.stop()?;
    // A program that is running on a processor when something else gets there that it should count is passed
    // over by the kernel. That happens where an emulated processor takes long; it is counted, on both sides.
    let lost = as_number(&reported["overhead"]["lost_events"]);
    guest.record_measurement(&json!({ "what": "events it says it lost", "profile": lost }));
    let [receives, sends] = ["receive", "send"].map(|kind| reported_calls(&reported, kind));
    let [received, sent] = [after.receives.since(before.receives), after.sends.since(before.sends)];
    let copied = after.copied.since(before.copied);
    let packets = after.packets.since(before.packets);
    let copied_bytes = as_number(&reported["copies"]["received"]["tcp_bytes"]);
    let packets_in = as_number(&reported["tcp"]["packets_in"]);
    let total = Some(BYTES as u64);
    let rows = [
        ComparedFigure {
            what: "receives",
            reported: receives[0],
            witness: received,
            size: None,
            process: Some(reads),
        },
        ComparedFigure {
            what: "bytes received",
            reported: receives[1],
            witness: received,
            size: Some(READ_BYTES),
            process: total,
        },
        ComparedFigure {
            what: "sends",
            reported: sends[0],
            witness: sent,
            size: None,
            process: Some(writes),
        },
        ComparedFigure {
            what: "bytes sent",
            reported: sends[1],
            witness: sent,
            size: Some(WRITE_BYTES),
            process: total,
        },
        ComparedFigure {
            what: "bytes copied",
            reported: copied_bytes,
            witness: copied,
            size: Some(READ_BYTES),
            process: total,
        },
        ComparedFigure { what: "packets", reported: packets_in, witness: packets, size: None, process: None },
    ];
    for row in &rows {
        guest.record_measurement(&row.to_json());
    }
    for row in &rows {
        row.check_agreement(lost);
    }
    Ok(())
}

/// One figure, as reported by every tool that has it.
struct ComparedFigure {
    what: &'static str,
    reported: u64,
    witness: CallCounts,
    /// The largest size of one call, if bytes are counted and not calls.
    size: Option<usize>,
    process: Option<u64>,
}

impl ComparedFigure {
    fn witnessed_amount(&self) -> u64 {
        if self.size.is_some() { self.witness.bytes } else { self.witness.calls }
    }

    fn to_json(&self) -> Value {
        json!({
            "what": self.what,
            "profile": self.reported,
            "kprobes": self.witnessed_amount(),
            "missed_by_kprobes": self.witness.missed,
            "process": self.process,
        })
    }

    /// Within 1 %, plus the losses that each reports: the profile may have less by its losses, and more by
    /// those of the witness.
    fn check_agreement(&self, lost: u64) {
        let (reported, size) = (self.reported, self.size.unwrap_or(1) as u64);
        let is_near = |known: u64, missed: u64| {
            let hundredth = known / 100;
            let fewest = known.saturating_sub(hundredth + lost * size);
            (fewest..=known + hundredth + missed * size).contains(&reported)
        };
        let what = format!("{}; {lost} lost", self.to_json());
        assert!(reported > 0 && is_near(self.witnessed_amount(), self.witness.missed), "{what}");
        assert!(self.process.is_none_or(|known| is_near(known, 0)), "{what}");
    }
}

/// Calls of that kind, and their bytes.
fn reported_calls(reported: &Value, kind: &str) -> [u64; 2] {
    let calls = reported["calls"].as_array().into_iter().flatten().find(|calls| calls["kind"] == kind);
    ["count", "bytes"].map(|field| calls.map_or(0, |calls| as_number(&calls[field])))
}

fn as_number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn connect_streams(guest: &Guest) -> Result<(TcpStream, TcpStream), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let listener = right.namespace().run(|| TcpListener::bind((right.ipv4(), 0)))?;
    let to = listener.local_addr()?;
    let sender = left.namespace().run(|| TcpStream::connect(to))?;
    let (receiver, _) = listener.accept()?;
    receiver.set_read_timeout(Some(ARRIVAL_MAX))?;
    Ok((sender, receiver))
}

/// One call, before anything is sent: the packets of a socket count from the first call on it, and the reader
/// might come to it late.
fn peek_nothing(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    let found = stream.peek(&mut [0]).map_err(|error| error.kind());
    assert_eq!(found, Err(ErrorKind::WouldBlock));
    stream.set_nonblocking(false)
}

fn send_all(mut stream: TcpStream) -> std::io::Result<u64> {
    let (mut sent, mut calls) = (0, 0);
    while sent < BYTES {
        sent += stream.write(&[7; WRITE_BYTES][..WRITE_BYTES.min(BYTES - sent)])?;
        calls += 1;
    }
    Ok(calls)
}

/// Reads to the end and returns the number of calls, with the one that finds it.
fn receive_all(mut stream: TcpStream) -> std::io::Result<u64> {
    let (mut received, mut calls, mut room) = (0, 0, [0; READ_BYTES]);
    loop {
        calls += 1;
        match stream.read(&mut room)? {
            0 => break,
            bytes => received += bytes,
        }
    }
    assert_eq!(received, BYTES);
    Ok(calls)
}

/// `nocopy profile` of this process, running.
struct RunningProfiler(RunningProcess);

impl RunningProfiler {
    /// Starts it, and waits until its window is open.
    fn start() -> Result<Self, Failure> {
        // Built beside this program.
        let program = std::env::current_exe()?.with_file_name("nocopy");
        let process = std::process::id().to_string();
        let mut child = Command::new(&program)
            .args(["profile", "--json", "--duration", WINDOW_MAX, "--pid", &process])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Failure(format!("{}: {error}: build the workspace", program.display())))?;
        let stderr = child.stderr.take().expect("it is piped");
        let profile = Self(RunningProcess(child));
        let mut output = String::new();
        for line in BufReader::new(stderr).lines() {
            let line = line?;
            if line.starts_with("nocopy: profiling") {
                return Ok(profile);
            }
            output += &line;
        }
        Err(Failure(format!("nocopy profile opened no window: {output}")))
    }

    /// Ends the window, and returns the report.
    fn stop(self) -> Result<Value, Failure> {
        let (_, output) = self.0.interrupt()?;
        Ok(serde_json::from_slice(&output)?)
    }
}
