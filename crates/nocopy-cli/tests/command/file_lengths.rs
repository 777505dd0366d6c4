//! Files whose length the kernel does not report, or reports wrongly, as input and output of commands: what
//! arrives is what cat(1) reads.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Stdio;

use crate::process_state::{is_descriptor_ready, wait_until, wait_until_asleep_in_call};
use crate::running::{RunningNocopy, lossy_text, nocopy_command};
use crate::scratch::ScratchFile;
use crate::transfer::{
    assert_refused_in_one_line, pseudo_random_bytes, start_receiver_with_errors, start_sender,
};
use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;

/// Files whose content does not change: the first two are reported to be empty, the last to have a page.
const KERNEL_FILES: [&str; 3] = ["/proc/version", "/proc/filesystems", "/sys/class/net/lo/address"];

fn create_fifo(name: &str) -> ScratchFile {
    let scratch = ScratchFile::new(name);
    mkfifoat(CWD, scratch.path(), Mode::RUSR | Mode::WUSR).unwrap();
    scratch
}

#[test]
fn files_of_procfs_and_sysfs_arrive_complete() {
    for path in KERNEL_FILES {
        let content = fs::read(path).unwrap();
        assert_ne!(fs::metadata(path).unwrap().len(), content.len() as u64);
        for (scheme, options) in
            [("tcp", &[][..]), ("tcp", &["--verify"]), ("tcp", &["--method=plain"]), ("udp", &[])]
        {
            let stream = ScratchFile::new("of-the-kernel");
            let (receiver, at, _) =
                start_receiver_with_errors(scheme, "127.0.0.1", &["--json", "-o", stream.path()]);
            let (sent, code) =
                start_sender(scheme, at, &[&["--json", "--file", path], options].concat()).wait_for_summary();
            let (received, received_code) = receiver.wait_for_summary();
            assert_eq!((code, received_code), (0, 0), "{scheme} {path}: {sent}{received}");
            assert!(fs::read(stream.path()).unwrap() == content, "{scheme} {path} {options:?}");
        }
    }
}

/// Its length is known: it can be cut into streams, and sent by any method.
#[test]
fn an_empty_file_is_sent() {
    let source = ScratchFile::with_content("empty", "");
    for options in [&[][..], &["--streams=3"], &["--method=sendfile"]] {
        let stream = ScratchFile::new("of-nothing");
        let (receiver, at, _) =
            start_receiver_with_errors("tcp", "127.0.0.1", &["--json", "-o", stream.path()]);
        let (sent, code) = start_sender("tcp", at, &[&["--json", "--file", source.path()], options].concat())
            .wait_for_summary();
        assert_eq!((code, receiver.wait_for_summary().1), (0, 0), "{sent}");
        assert_eq!(fs::read(stream.path()).unwrap(), b"", "{options:?}");
    }
}

/// `cat` does not wait for a length either.
#[test]
fn pipes_are_sent_by_path_and_as_standard_input() {
    let fifo = create_fifo("sent-pipe");
    for (scheme, path) in [("tcp", fifo.path()), ("udp", fifo.path()), ("tcp", "/dev/stdin"), ("udp", "-")] {
        let (receiver, at, _) = start_receiver_with_errors(scheme, "127.0.0.1", &["-o", "-"]);
        let mut sender = start_sender(scheme, at, &["--file", path]);
        let mut input = sender.take_input();
        if path == fifo.path() {
            File::options().write(true).open(path).unwrap().write_all(b"of a pipe").unwrap();
        } else {
            input.write_all(b"of a pipe").unwrap();
        }
        drop(input);
        assert_eq!(sender.wait_for_end().status.code(), Some(0), "{path}");
        assert_eq!(lossy_text(&receiver.wait_for_end().stdout), "of a pipe", "{path}");
    }
}

#[test]
fn an_interrupt_ends_a_sender_that_waits_for_a_pipe_writer() {
    let fifo = create_fifo("no-writer");
    let opened = fs::canonicalize(fifo.path()).unwrap(); // as the kernel names it
    for scheme in ["tcp", "udp"] {
        let (receiver, at, _) = start_receiver_with_errors(scheme, "127.0.0.1", &["--json"]);
        let sender = start_sender(scheme, at, &["--json", "--file", fifo.path()]);
        // By then it catches signals, too.
        wait_until("it has opened the pipe", || {
            let links = fs::read_dir(format!("/proc/{}/fd", sender.id())).unwrap().flatten();
            links.filter_map(|one| fs::read_link(one.path()).ok()).any(|link| link == opened)
        });
        sender.signal(Signal::INT);
        let (sent, _) = sender.wait_for_summary();
        assert_eq!(sent["ended"], "interrupted", "{sent}");
        receiver.signal(Signal::INT);
        receiver.wait_for_end();
    }
}

#[test]
fn files_without_a_length_are_refused_if_it_is_needed() {
    assert_refused_in_one_line(&[
        (&["send", "tcp://127.0.0.1:9", "--file=/proc/version", "--streams=2"], &["--streams", "length"]),
        (&["send", "tcp://127.0.0.1:9", "--file=/dev/zero", "--streams=2"], &["--streams", "length"]),
        (&["send", "tcp://127.0.0.1:9", "--file=/proc/version", "--method=sendfile"], &["--file", "length"]),
        (&["send", "lo", "--payload=file:/dev/zero"], &["/dev/zero", "too long"]),
        (&["call", "message://127.0.0.1:9", "--file=/dev/zero"], &["longer than"]),
        (&["sniff", "lo", "--bytecode=/dev/zero"], &["/dev/zero", "no end"]),
        (&["report", "/dev/zero"], &["/dev/zero", "no end"]),
        (&["send", "lo", "--replay=/dev/zero"], &["/dev/zero", "no capture file"]),
    ]);
}

#[test]
fn an_endless_device_is_sent_up_to_a_count() {
    for scheme in ["tcp", "udp"] {
        let (receiver, at, _) = start_receiver_with_errors(scheme, "127.0.0.1", &["-o", "-"]);
        let sender =
            start_sender(scheme, at, &["--file=/dev/zero", "--count=3", "--size=1000", "--rate=10pps"]);
        assert_eq!(sender.wait_for_end().status.code(), Some(0));
        let received = receiver.wait_for_end().stdout;
        assert!(received.iter().all(|byte| *byte == 0) && received.len() > 2000, "{}", received.len());
    }
}

/// Handed over already, but not read by the receiver: pages that were sent by reference may become zeros.
#[test]
fn a_file_that_shrinks_while_it_is_sent_is_an_error() {
    const ALL_ON_THE_WAY: usize = 300_000;
    const TOO_MUCH_AT_ONCE: usize = 30_000_000;
    for (method, bytes) in [
        ("auto", ALL_ON_THE_WAY),
        ("plain", ALL_ON_THE_WAY),
        ("auto", TOO_MUCH_AT_ONCE),
        ("plain", TOO_MUCH_AT_ONCE),
        ("sendfile", TOO_MUCH_AT_ONCE),
    ] {
        let source = ScratchFile::with_content("shrinks-late", pseudo_random_bytes(bytes));
        // It waits for its reader, because a pipe has less room.
        let (mut receiver, at, _) =
            start_receiver_with_errors("tcp", "127.0.0.1", &["-o", "-", "--idle=10m"]);
        let mut output = receiver.take_output();
        let sender = start_sender("tcp", at, &["--json", "--file", source.path(), "--method", method]);
        output.read_exact(&mut [0; 10]).unwrap();
        File::options().write(true).open(source.path()).unwrap().set_len(1).unwrap();
        std::io::copy(&mut output, &mut std::io::sink()).unwrap();
        let failed = sender.wait_for_end();
        let said = lossy_text(&failed.stderr);
        assert!(
            failed.status.code() == Some(2) && said.contains("it became shorter while it was read"),
            "{said}"
        );
        receiver.wait_for_end();
    }
}

/// What was to be sent at the start arrives, and no more.
#[test]
fn a_file_that_grows_is_sent_up_to_its_length_at_the_start() {
    let content = pseudo_random_bytes(3_000_000);
    let source = ScratchFile::with_content("grows", &content);
    let (mut receiver, at, _) = start_receiver_with_errors("tcp", "127.0.0.1", &["-o", "-", "--idle=10m"]);
    let mut output = receiver.take_output();
    let sender = start_sender("tcp", at, &["--json", "--file", source.path(), "--rate=100Mbit/s"]);
    let mut received = vec![0; 10];
    output.read_exact(&mut received).unwrap();
    File::options().append(true).open(source.path()).unwrap().write_all(&[1; 100_000]).unwrap();
    output.read_to_end(&mut received).unwrap();
    assert!(received == content, "{} bytes", received.len());
    assert_eq!((sender.wait_for_summary().1, receiver.wait_for_end().status.code()), (0, Some(0)));
}

#[test]
fn a_named_pipe_is_written_once_a_reader_opens_it() {
    let fifo = create_fifo("received-pipe");
    for scheme in ["tcp", "udp"] {
        let unread = RunningNocopy::start(&["recv", &format!("{scheme}://127.0.0.1:0"), "-o", fifo.path()]);
        wait_until_asleep_in_call(unread.id(), libc::SYS_clock_nanosleep);
        unread.signal(Signal::INT);
        let refused = unread.wait_for_end();
        let said = lossy_text(&refused.stderr);
        assert!(
            refused.status.code() == Some(2) && said.contains("no program had opened it to read"),
            "{said}"
        );

        let path = fifo.path().to_owned();
        let reading = std::thread::spawn(move || fs::read(path).unwrap());
        let (receiver, at, _) =
            start_receiver_with_errors(scheme, "127.0.0.1", &["--json", "-o", fifo.path()]);
        let mut sender = start_sender(scheme, at, &["--stdin"]);
        sender.take_input().write_all(b"through a pipe").unwrap();
        assert_eq!(sender.wait_for_end().status.code(), Some(0));
        assert_eq!(reading.join().unwrap(), b"through a pipe");
        assert_eq!(
            receiver.wait_for_summary().1,
            0,
            "the summary is on standard output, which has nothing else"
        );
    }
}

/// Whatever it is called there.
#[test]
fn standard_output_has_only_received_data() {
    for (scheme, output) in
        [("tcp", "/dev/stdout"), ("udp", "/dev/stdout"), ("tcp", "-"), ("udp", "/proc/self/fd/1")]
    {
        let (receiver, at, errors) =
            start_receiver_with_errors(scheme, "127.0.0.1", &["--json", "-o", output]);
        let mut sender = start_sender(scheme, at, &["--stdin"]);
        sender.take_input().write_all(b"only data").unwrap();
        assert_eq!(sender.wait_for_end().status.code(), Some(0));
        assert_eq!(lossy_text(&receiver.wait_for_end().stdout), "only data", "{output}");
        assert!(errors.join().unwrap().contains("\"schema\""), "{output}");
    }
}

/// A receiver that is interrupted does not wait for a reader that does not read.
#[test]
fn an_interrupt_ends_a_receiver_with_a_stalled_reader() {
    let (receiver, at, _) = start_receiver_with_errors("udp", "127.0.0.1", &["--output", "-", "--raw"]);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let pipe = File::options().write(true).open(format!("/proc/{}/fd/1", receiver.id())).unwrap();
    wait_until("the pipe is full", || {
        (0..100).for_each(|_| _ = socket.send_to(&[7; 1400], at).unwrap());
        !is_descriptor_ready(&pipe, PollFlags::OUT)
    });
    drop(pipe);
    (0..300).for_each(|_| _ = socket.send_to(&[7; 1400], at).unwrap());
    receiver.signal(Signal::INT);
    let mut child = { receiver };
    wait_until("it ends", || child.has_ended());
}

#[test]
fn report_reads_standard_input_like_a_file() {
    let row = r#"{"schema":"nocopy.bench/1"}"#;
    let directory = tempfile::tempdir().unwrap();
    let malformed = directory.path().join("results.json");
    fs::write(&malformed, row).unwrap();
    // Both say the same of the same content.
    let mut of_stdin = nocopy_command(&["report", "-"]);
    let of_stdin = of_stdin.stdin(Stdio::from(File::open(&malformed).unwrap())).output().unwrap();
    let of_file = nocopy_command(&["report", malformed.to_str().unwrap()]).output().unwrap();
    let said = lossy_text(&of_stdin.stderr);
    assert!(said.contains("standard input: cannot be read as results"), "{said}");
    assert_eq!(said.replace("standard input", malformed.to_str().unwrap()), lossy_text(&of_file.stderr));
}

/// A program that reads the stream as it is, with the length that it was promised by none.
#[test]
fn a_raw_stream_of_a_procfs_file_is_its_content() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = start_sender("tcp", listener.local_addr().unwrap(), &["--raw", "--file=/proc/filesystems"]);
    let mut content = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut content).unwrap();
    assert_eq!(sender.wait_for_end().status.code(), Some(0));
    assert!(content == fs::read("/proc/filesystems").unwrap());
}
