use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::guest::Guest;
use crate::guest::traffic::ARRIVAL_MAX;
use crate::guest::witness::Witness;
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "what `nocopy profile` counts by tracepoints of a process's calls, bytes, copies and packets is what kprobes count elsewhere \
             in the kernel, and what the process itself counts of its calls, within 1 % and \
             the events that it says it lost",
    on: &[Topology::Igb, Topology::VirtioTaps],
    kernel: Kernel::Newest,
    run,
};

const BYTES: usize = 16 << 20;
const READ_BYTES: usize = 10_000;
const WRITE_BYTES: usize = 30_000;

/// Should nobody end it.
const WINDOW_MAX: &str = "120s";

fn run(guest: &Guest) -> Result<(), Failure> {
    let (sender, receiver) = open(guest)?;
    let witness = Witness::of_this_process()?;
    let profile = Profile::start()?;
    let before = witness.seen()?;
    let reader = thread::spawn(move || receive(receiver));
    let writes = send(sender)?;
    let reads = reader.join().expect("it only reads")?;
    let after = witness.seen()?;
    let told = profile.end()?;
    let calls = |kind: &str, field: &str| {
        let calls = told["calls"].as_array().into_iter().flatten().find(|calls| calls["kind"] == kind);
        calls.and_then(|calls| calls[field].as_u64()).unwrap_or(0)
    };
    let rows = [
        ("receives", calls("receive", "count"), after.receives.calls - before.receives.calls, Some(reads)),
        (
            "bytes received",
            calls("receive", "bytes"),
            after.receives.bytes - before.receives.bytes,
            Some(BYTES as u64),
        ),
        ("sends", calls("send", "count"), after.sends.calls - before.sends.calls, Some(writes)),
        ("bytes sent", calls("send", "bytes"), after.sends.bytes - before.sends.bytes, Some(BYTES as u64)),
        (
            "bytes copied",
            number(&told["copies"]["received"]["tcp_bytes"]),
            after.copied.bytes - before.copied.bytes,
            Some(BYTES as u64),
        ),
        ("packets", number(&told["tcp"]["packets_in"]), after.packets - before.packets, None),
    ];
    // A program of the instrument that is running on a processor when another thread gets there is passed over by the kernel. That happens
    // where an emulated processor takes long; it is counted, and said.
    let lost = number(&told["own_cost"]["lost_events"]);
    guest.record(&json!({ "what": "events it says it lost", "profile": lost }));
    for (what, told, seen, known) in rows {
        guest.record(&json!({ "what": what, "profile": told, "kprobes": seen, "process": known }));
        let may_be_lost = lost * if what.starts_with("bytes") { WRITE_BYTES as u64 } else { 1 };
        for witness in [Some(seen), known].into_iter().flatten() {
            let is_near = told > 0 && told.abs_diff(witness).saturating_sub(may_be_lost) * 100 <= witness;
            assert!(is_near, "{what}: {told}, {seen} by kprobes, {known:?} by the process; {lost} lost");
        }
    }
    Ok(())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn open(guest: &Guest) -> Result<(TcpStream, TcpStream), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let listener = right.namespace().run(|| TcpListener::bind((right.ipv4(), 0)))?;
    let to = listener.local_addr()?;
    let sender = left.namespace().run(|| TcpStream::connect(to))?;
    let (receiver, _) = listener.accept()?;
    receiver.set_read_timeout(Some(ARRIVAL_MAX))?;
    Ok((sender, receiver))
}

/// Returns the number of calls.
fn send(mut stream: TcpStream) -> std::io::Result<u64> {
    let (mut sent, mut calls) = (0, 0);
    while sent < BYTES {
        sent += stream.write(&[7; WRITE_BYTES][..WRITE_BYTES.min(BYTES - sent)])?;
        calls += 1;
    }
    Ok(calls)
}

/// Reads to the end and returns the number of calls, with the one that finds it.
fn receive(mut stream: TcpStream) -> std::io::Result<u64> {
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

/// `nocopy profile` of this process, running; killed when dropped.
struct Profile(Child);

impl Profile {
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
        let profile = Self(child);
        let mut said = String::new();
        for line in BufReader::new(stderr).lines() {
            let line = line?;
            if line.starts_with("nocopy: profiling") {
                return Ok(profile);
            }
            said += &line;
        }
        Err(Failure(format!("nocopy profile opened no window: {said}")))
    }

    /// Ends the window, and returns what was found.
    fn end(mut self) -> Result<Value, Failure> {
        kill_process(Pid::from_child(&self.0), Signal::INT)?;
        let mut said = Vec::new();
        self.0.stdout.take().expect("it is piped").read_to_end(&mut said)?;
        self.0.wait()?;
        Ok(serde_json::from_slice(&said)?)
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
