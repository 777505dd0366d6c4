//! `nocopy send` and `nocopy recv`, independent of the protocol.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::process_state::retry_with_more_seconds;
use crate::running::{RunningNocopy, lossy_text, nocopy_command};
use serde_json::Value;

/// A receiver at a free port of an address, once it listens; and its later standard error, once it has ended.
pub(crate) fn start_receiver_with_errors(
    scheme: &str,
    address: &str,
    arguments: &[&str],
) -> (RunningNocopy, SocketAddr, JoinHandle<String>) {
    let mut receiver =
        RunningNocopy::start(&[&["recv", &format!("{scheme}://{address}:0")], arguments].concat());
    let mut errors = BufReader::new(receiver.0.as_mut().unwrap().stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    let at = line.trim().strip_prefix(&format!("nocopy: receiving at {scheme}://"));
    let at = at.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
    // Read on, so that it does not wait for that.
    let errors = thread::spawn(move || {
        let mut said = String::new();
        errors.read_to_string(&mut said).unwrap();
        said
    });
    (receiver, at, errors)
}

pub(crate) fn start_sender(scheme: &str, to: SocketAddr, arguments: &[&str]) -> RunningNocopy {
    let mut command = nocopy_command(&[&["send", &format!("{scheme}://{to}")], arguments].concat());
    RunningNocopy(Some(command.stdin(Stdio::piped()).spawn().unwrap()))
}

/// Proves that the summaries of both ends have the same values in these fields, and returns both with the
/// exit codes.
pub(crate) fn agreeing_summaries(
    fields: &[&str],
    sender: RunningNocopy,
    receiver: RunningNocopy,
) -> ((Value, i32), (Value, i32)) {
    let ((sent, sent_code), (received, received_code)) =
        (sender.wait_for_summary(), receiver.wait_for_summary());
    for field in fields {
        assert!(!sent[field].is_null(), "{field}: {sent}");
        assert_eq!(sent[field], received[field], "{field}: {sent}{received}");
    }
    assert_eq!(sent["verified"], received["verified"]);
    ((sent, sent_code), (received, received_code))
}

pub(crate) fn sum_of_evidence_bytes(summary: &Value) -> u64 {
    let evidence = &summary["evidence"];
    let copied: u64 = evidence["copied_bytes"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    copied + evidence["zero_copy_bytes"].as_u64().unwrap() + evidence["unknown_bytes"].as_u64().unwrap()
}

pub(crate) fn pseudo_random_bytes(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Proves that a sender with these options sends standard input as it comes, that a pause in it ends nothing,
/// and that its end is known. Returns the sender's summary.
pub(crate) fn check_input_is_sent_without_delay(scheme: &str, sending: &[&str]) -> Value {
    retry_with_more_seconds(|seconds| {
        let (idle, mut overslept) = (Duration::from_secs(seconds), Duration::ZERO);
        let receiving = ["--output", "-", "--idle", &format!("{seconds}s")];
        let (mut receiver, at, errors) = start_receiver_with_errors(scheme, "127.0.0.1", &receiving);
        let mut output = receiver.take_output();
        let mut sender = start_sender(scheme, at, sending);
        let mut input = sender.take_input();
        let mut piece = [0; 6];
        for words in [b"first,", b"second", b",third"] {
            if words == b"second" {
                // Longer than the sender may be silent: its probes show that it still runs.
                let (start, pause) = (Instant::now(), idle * 3 / 2);
                thread::sleep(pause);
                overslept = start.elapsed() - pause;
            }
            if let Err(error) = input.write_all(words).and_then(|()| output.read_exact(&mut piece)) {
                drop((input, output));
                receiver.wait_for_end();
                let said = errors.join().unwrap();
                // Only a sender that stood still that long may be given up.
                assert!(overslept > idle / 2 || said.contains("a timeout"), "{error}: {said}");
                return None;
            }
            assert_eq!(piece, *words);
        }
        drop(input);
        let (sent, code) = sender.wait_for_summary();
        assert_eq!((code, &sent["sent"]["bytes"]), (0, &18.into()), "{sent}");
        assert_eq!((output.read(&mut piece).unwrap(), receiver.wait_for_end().status.code()), (0, Some(0)));
        Some(sent)
    })
}

/// Proves that a receiver that cannot write any more ends a sender with these options in order.
pub(crate) fn check_closed_receiver_pipe_ends_sender(scheme: &str, sending: &[&str]) {
    let (mut receiver, at, _) = start_receiver_with_errors(scheme, "127.0.0.1", &["--output", "-"]);
    let mut output = receiver.take_output();
    let sender = start_sender(scheme, at, sending);
    output.read_exact(&mut [0; 10]).unwrap();
    drop(output);
    let (sent, code) = sender.wait_for_summary();
    assert_eq!((code, &sent["ended"], &sent["final"]), (0, &"by-receiver".into(), &true.into()), "{sent}");
    assert_eq!(receiver.wait_for_end().status.code(), Some(0), "the program behind the pipe has read enough");
}

/// Proves that each command is refused, with one line on standard error that has these words.
pub(crate) fn assert_refused_in_one_line(cases: &[(&[&str], &[&str])]) {
    for (arguments, words) in cases {
        let output = RunningNocopy::start(arguments).wait_for_end();
        let said = lossy_text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
    }
}

pub(crate) fn assert_refused(cases: &[&[&str]]) {
    for arguments in cases {
        assert_eq!(nocopy_command(arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
}
