//! `nocopy record` to a program that reads the packets as they come, through standard output or a named pipe.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use crate::process_state::{is_descriptor_ready, wait_until, wait_until_asleep_in_call};
use crate::running::{RunningNocopy, lossy_text, nocopy_command};
use crate::scratch::ScratchFile;
use nocopy_lab::{End, Lab, Missing};
use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;
use serde_json::Value;

const SECTION: u32 = 0x0a0d_0d0a;
const PACKET: u32 = 6;
const STATISTICS: u32 = 5;

/// A recording of an interface, whose summary is JSON.
fn start_recorder(end: &End, output: &str, arguments: &[&str]) -> RunningNocopy {
    let mut command =
        nocopy_command(&[&["record", end.interface(), "--json", "-o", output], arguments].concat());
    RunningNocopy(Some(end.namespace().run(|| command.spawn().unwrap())))
}

/// Sends datagrams with this content to port 9000 of the other end.
fn send_datagrams(lab: &Lab, contents: &[&str]) {
    let (left, right) = (lab.left(), lab.right());
    let socket = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
    for content in contents {
        socket.send_to(content.as_bytes(), (right.ipv4(), 9000)).unwrap();
    }
}

/// The next block of a pcapng stream: its type, and its body.
fn read_block(stream: &mut impl Read) -> Option<(u32, Vec<u8>)> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let mut head = [0; 8];
    match stream.read(&mut head[..1]).unwrap() {
        0 => return None,
        count => stream.read_exact(&mut head[count..]).unwrap(),
    }
    let mut rest = vec![0; word(&head[4..]) as usize - 8];
    stream.read_exact(&mut rest).unwrap();
    assert_eq!(rest.split_off(rest.len() - 4), head[4..], "the length is repeated at the end");
    Some((word(&head[..4]), rest))
}

/// Reads until a packet has these words.
fn read_until_packet_with(stream: &mut impl Read, words: &str) {
    loop {
        let (kind, body) = read_block(stream).expect("the recording goes on");
        if kind == PACKET && body.windows(words.len()).any(|found| found == words.as_bytes()) {
            return;
        }
    }
}

fn wait_for_summary_on_stderr(recording: RunningNocopy) -> (Value, Option<i32>) {
    let output = recording.wait_for_end();
    let said = lossy_text(&output.stderr);
    let parsed = said.lines().find_map(|line| serde_json::from_str(line).ok());
    (parsed.unwrap_or_else(|| panic!("{said}")), output.status.code())
}

fn create_fifo(name: &str) -> (ScratchFile, PathBuf) {
    let scratch = ScratchFile::new(name);
    mkfifoat(CWD, scratch.path(), Mode::RUSR | Mode::WUSR).unwrap();
    let path = PathBuf::from(scratch.path());
    (scratch, path)
}

/// A packet is in the pipe while the recording goes on, and nothing else is on standard output.
#[test]
fn packets_are_written_to_standard_output_without_delay() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    for arguments in [&[][..], &["--take"], &["udp port 9000"]] {
        let mut recording = start_recorder(lab.right(), "-", arguments);
        let mut stream = recording.take_output();
        assert_eq!(read_block(&mut stream).unwrap().0, SECTION, "{arguments:?}");
        for words in ["first packet", "second packet"] {
            send_datagrams(&lab, &[words]);
            read_until_packet_with(&mut stream, words);
        }
        recording.signal(Signal::INT);
        let mut last = 0;
        while let Some((kind, _)) = read_block(&mut stream) {
            last = kind;
        }
        assert_eq!(last, STATISTICS, "{arguments:?}: the counts are at the end");
        let (summary, code) = wait_for_summary_on_stderr(recording);
        assert_eq!((code, &summary["ended"]), (Some(0), &"interrupted".into()), "{summary}");
        assert_eq!(summary["files"][0]["path"], "standard output", "{summary}");
        assert!(summary["written"].as_u64().unwrap() >= 2, "{summary}");
    }
}

#[test]
fn payloads_are_on_standard_output_without_padding() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let arguments = ["--format", "payload", "udp port 9000"];
    let mut recording = start_recorder(lab.right(), "-", &arguments);
    let mut stream = recording.0.as_mut().unwrap().stdout.take().unwrap();
    // There is no header that could be waited for.
    wait_until("it records, and a payload is in the pipe", || {
        send_datagrams(&lab, &["odd"]);
        is_descriptor_ready(&stream, PollFlags::IN)
    });
    recording.signal(Signal::INT);
    let mut payloads = Vec::new();
    stream.read_to_end(&mut payloads).unwrap();
    assert!(!payloads.is_empty() && payloads.chunks(3).all(|payload| payload == b"odd"), "{payloads:?}");
    assert_eq!(wait_for_summary_on_stderr(recording).1, Some(0));
}

#[test]
fn another_program_reads_the_output_of_a_running_recording() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let mut recording = start_recorder(lab.right(), "-", &["udp port 9000"]);
    let stream = recording.0.as_mut().unwrap().stdout.take().unwrap();
    if Command::new("dumpcap").arg("--version").output().is_err() {
        return nocopy_lab::skip(&Missing::Device("tshark and dumpcap"));
    }
    let mut command = Command::new("tshark");
    // As Wireshark reads it live; of a file ("-r") it waits for more than a packet.
    command.args(["-n", "-l", "-T", "fields", "-e", "udp.payload", "-i", "-"]);
    let reader = command.stdin(Stdio::from(stream)).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let Ok(reader) = reader else { return nocopy_lab::skip(&Missing::Device("tshark and dumpcap")) };
    let mut reader = RunningNocopy(Some(reader));
    let (printing, printed) = channel();
    let lines = BufReader::new(reader.take_output()).lines();
    let printer = thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| printing.send(line)));
    for (words, digits) in [("abc", "616263"), ("xyz", "78797a")] {
        // What is sent before the recording begins is not in it.
        wait_until("a packet is printed", || {
            send_datagrams(&lab, &[words]);
            printed.try_iter().any(|line: String| line == digits)
        });
    }
    recording.signal(Signal::INT);
    assert_eq!(wait_for_summary_on_stderr(recording).1, Some(0));
    assert_eq!(reader.wait_for_end().status.code(), Some(0));
    printer.join().unwrap().unwrap();
}

/// Also while no packets come.
#[test]
fn a_recording_ends_with_its_reader() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    for sent in [&[][..], &["a packet"; 10]] {
        let mut recording = start_recorder(lab.right(), "-", &["udp port 9000"]);
        let mut stream = recording.take_output();
        assert_eq!(read_block(&mut stream).unwrap().0, SECTION);
        send_datagrams(&lab, sent);
        if !sent.is_empty() {
            read_until_packet_with(&mut stream, "a packet");
        }
        drop(stream);
        let (summary, code) = wait_for_summary_on_stderr(recording);
        assert_eq!((code, &summary["ended"]), (Some(0), &"by-receiver".into()), "{summary}");
        assert_eq!(summary["missing"], 0, "{summary}");
        assert_eq!(summary["received"], sent.len(), "{summary}");
    }
}

#[test]
fn a_stalled_reader_is_given_up_after_an_interrupt() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    // Payloads are copied: with many of them the memory for that is full, too, and they wait in the kernel's.
    for (format, more) in [("pcapng", 100), ("payload", 4000)] {
        let arguments = ["--buffer", "1MiB", "--format", format, "udp port 9000"];
        let mut recording = start_recorder(lab.right(), "-", &arguments);
        let stream = recording.take_output();
        let long = "x".repeat(1400);
        let pipe = File::options().write(true).open(format!("/proc/{}/fd/1", recording.id())).unwrap();
        wait_until("the pipe is full", || {
            send_datagrams(&lab, &[long.as_str(); 20]);
            !is_descriptor_ready(&pipe, PollFlags::OUT)
        });
        drop(pipe);
        (0..more / 100).for_each(|_| send_datagrams(&lab, &[long.as_str(); 100]));
        recording.signal(Signal::INT);
        let (summary, code) = wait_for_summary_on_stderr(recording);
        assert_eq!((code, &summary["ended"]), (Some(2), &"failed".into()), "{format}: {summary}");
        let not_written = summary["not_written"].as_u64().unwrap();
        assert!(not_written > 0 && summary["missing"] == 0, "{format}: {summary}");
        drop(stream);
    }
}

#[test]
fn a_named_pipe_is_recorded_to_once_a_reader_opens_it() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (_scratch, path) = create_fifo("record-fifo");
    let unread = start_recorder(lab.right(), path.to_str().unwrap(), &[]);
    wait_until_asleep_in_call(unread.id(), libc::SYS_clock_nanosleep);
    unread.signal(Signal::INT);
    let refused = unread.wait_for_end();
    let said = lossy_text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("no program had opened it to read"), "{said}");

    let recording = start_recorder(lab.right(), path.to_str().unwrap(), &[]);
    let mut stream = File::open(&path).unwrap();
    assert_eq!(read_block(&mut stream).unwrap().0, SECTION);
    send_datagrams(&lab, &["a packet"]);
    read_until_packet_with(&mut stream, "a packet");
    recording.signal(Signal::INT);
    while read_block(&mut stream).is_some() {}
    let (summary, code) = recording.wait_for_summary();
    assert_eq!((code, &summary["files"][0]["path"]), (0, &path.to_str().unwrap().into()), "{summary}");
}

#[test]
fn a_character_device_is_written_in_order() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (summary, code) = start_recorder(lab.right(), "/dev/null", &["--duration", "1ms"]).wait_for_summary();
    assert_eq!((code, &summary["write_method"]), (0, &"writev, in order".into()), "{summary}");
    let full = start_recorder(lab.right(), "/dev/full", &["--duration", "1ms"]).wait_for_end();
    let said = lossy_text(&full.stderr);
    assert!(full.status.code() == Some(2) && said.contains("/dev/full") && said.contains("ENOSPC"), "{said}");
}
