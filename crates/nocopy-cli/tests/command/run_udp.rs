//! `nocopy run --batch-udp`: programs that send datagrams, as they are.

use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use nocopy_lab::Lab;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use serde_json::Value;

use crate::scratch::ScratchFile;

/// Room for all that the programs here send.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;

/// The library of this build: cargo puts it beside the test, as something that the test depends on.
fn built_sockets_library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libnocopy_sockets.so")
}

fn nocopy_run_command(options: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    command
        .args(["run", "--batch-udp", "--library"])
        .arg(built_sockets_library())
        .args(options)
        .arg("--")
        .args(words);
    // Without measuring, whose result varies on a busy machine.
    command.env("NOCOPY_BATCH_TUNING", "always");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Python's loop of `sendto`, numbered, to an address.
const LOOP: &str = "
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to = (sys.argv[1], int(sys.argv[2]))
for number in range(int(sys.argv[3])):
    assert sender.sendto(number.to_bytes(8, 'little') + bytes(1392), to) == 1400
print('sent')
sys.exit(3)
";

#[test]
fn datagrams_of_python_arrive_in_bursts_and_are_reported() {
    let Some(lab) = Lab::builder().build_or_skip() else { return };
    let right = lab.right();
    let receiver = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 0)).unwrap());
    set_socket_recv_buffer_size_force(&receiver, RECEIVE_BUFFER_BYTES).unwrap();
    let port = receiver.local_addr().unwrap().port().to_string();
    let report = ScratchFile::new("run-udp.json");
    let option = format!("--report={}", report.path());
    let address = right.ipv4().to_string();
    let words = ["python3", "-c", LOOP, &address, &port, "3000"];
    let output: Output =
        lab.left().namespace().run(|| nocopy_run_command(&["--json", &option], &words).output().unwrap());
    assert_eq!(lossy_text(&output.stdout), "sent\n", "{}", lossy_text(&output.stderr));
    assert_eq!(output.status.code(), Some(3));
    let mut buffer = [0; 2048];
    receiver.set_read_timeout(Some(nocopy_lab::patience::PATIENCE)).unwrap();
    for number in 0..3000_u64 {
        assert_eq!(receiver.recv(&mut buffer).unwrap(), 1400);
        assert_eq!(u64::from_le_bytes(*buffer.first_chunk().unwrap()), number);
    }
    let json: Value = serde_json::from_slice(&fs::read(report.path()).unwrap()).unwrap();
    assert_eq!((&json["schema"], &json["exit_code"]), (&"nocopy.run/2".into(), &3.into()));
    let socket = &json["sockets"][0];
    assert_eq!(socket["peer"], format!("{address}:{port}"), "{json:#}");
    let sum = |counts: &Value| counts.as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>();
    let batched = socket["batched"].as_u64().unwrap();
    assert_eq!(batched + sum(&socket["sent_unbatched"]), 3000, "every datagram is counted: {json:#}");
    assert!(batched > 1500 && sum(&socket["flushed"]) == socket["bursts"], "{json:#}");
    assert!(json.get("handles").is_none() && socket["lost"] == 0, "{json:#}");
}

#[test]
fn a_report_names_why_a_socket_is_not_batched() {
    let Some(lab) = Lab::builder().build_or_skip() else { return };
    let program = "
import socket
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, 47, 10**9) # SO_MAX_PACING_RATE
for _ in range(100): sender.sendto(bytes(100), ('10.77.0.2', 9000))
";
    let right = lab.right();
    let _receiver = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 9000)).unwrap());
    let output = lab
        .left()
        .namespace()
        .run(|| nocopy_run_command(&["--report"], &["python3", "-c", program]).output().unwrap());
    let said = lossy_text(&output.stderr);
    assert!(said.contains("1 UDP socket\n"), "{said}");
    assert!(said.contains("batching stopped: it is paced (SO_MAX_PACING_RATE)"), "{said}");
    assert!(said.contains("batching is stopped on the socket "), "{said}");
}

#[test]
fn a_program_without_datagrams_is_reported() {
    let output = nocopy_run_command(&["--report"], &["true"]).output().unwrap();
    assert!(output.status.success());
    let said = lossy_text(&output.stderr);
    assert!(said.contains("0 UDP sockets") && said.contains("no UDP socket was reported"), "{said}");
    let output = nocopy_run_command(&["--take"], &["true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "of packets none can be taken here");
}
