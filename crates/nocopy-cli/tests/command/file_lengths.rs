//! Files whose length the kernel does not report, or reports wrongly, as input and output of commands: what
//! arrives is what cat(1) reads.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use crate::process_state::{is_ready, wait_until, wait_until_asleep_in};
use crate::running::{Running, nocopy, text};
use crate::scratch::Scratch;
use crate::transfer::{assert_refused_in_one_line, noise, recv_with_errors, send};
use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;

/// Files whose content does not change: the first two are reported to be empty, the last to have a page.
const KERNEL_FILES: [&str; 3] = ["/proc/version", "/proc/filesystems", "/sys/class/net/lo/address"];

fn fifo(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
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
            let stream = Scratch::new("of-the-kernel");
            let (receiver, at, _) = recv_with_errors(scheme, "127.0.0.1", &["--json", "-o", stream.path()]);
            let (sent, code) = send(scheme, at, &[&["--json", "--file", path], options].concat()).summary();
            let (received, received_code) = receiver.summary();
            assert_eq!((code, received_code), (0, 0), "{scheme} {path}: {sent}{received}");
            assert!(fs::read(stream.path()).unwrap() == content, "{scheme} {path} {options:?}");
        }
    }
}

/// Its length is known: it can be cut into streams, and sent by any method.
#[test]
fn an_empty_file_is_sent() {
    let source = Scratch::of("empty", "");
    for options in [&[][..], &["--streams=3"], &["--method=sendfile"]] {
        let stream = Scratch::new("of-nothing");
        let (receiver, at, _) = recv_with_errors("tcp", "127.0.0.1", &["--json", "-o", stream.path()]);
        let (sent, code) =
            send("tcp", at, &[&["--json", "--file", source.path()], options].concat()).summary();
        assert_eq!((code, receiver.summary().1), (0, 0), "{sent}");
        assert_eq!(fs::read(stream.path()).unwrap(), b"", "{options:?}");
    }
}

/// `cat` does not wait for a length either.
#[test]
fn pipes_are_sent_by_every_path() {
    let fifo = fifo("sent-pipe");
    for (scheme, path) in [("tcp", fifo.path()), ("udp", fifo.path()), ("tcp", "/dev/stdin"), ("udp", "-")] {
        let (receiver, at, _) = recv_with_errors(scheme, "127.0.0.1", &["-o", "-"]);
        let mut sender = send(scheme, at, &["--file", path]);
        let mut input = sender.input();
        if path == fifo.path() {
            File::options().write(true).open(path).unwrap().write_all(b"of a pipe").unwrap();
        } else {
            input.write_all(b"of a pipe").unwrap();
        }
        drop(input);
        assert_eq!(sender.end().status.code(), Some(0), "{path}");
        assert_eq!(text(&receiver.end().stdout), "of a pipe", "{path}");
    }
}

#[test]
fn an_interrupt_ends_the_wait_for_a_writer() {
    let fifo = fifo("no-writer");
    for scheme in ["tcp", "udp"] {
        let (receiver, at, _) = recv_with_errors(scheme, "127.0.0.1", &["--json"]);
        let sender = send(scheme, at, &["--json", "--file", fifo.path()]);
        // By then it catches signals, too.
        wait_until("it has opened the pipe", || {
            let links = fs::read_dir(format!("/proc/{}/fd", sender.id())).unwrap().flatten();
            links.filter_map(|one| fs::read_link(one.path()).ok()).any(|link| link == Path::new(fifo.path()))
        });
        sender.signal(Signal::INT);
        let (sent, _) = sender.summary();
        assert_eq!(sent["ended"], "interrupted", "{sent}");
        receiver.signal(Signal::INT);
        receiver.end();
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
        let (receiver, at, _) = recv_with_errors(scheme, "127.0.0.1", &["-o", "-"]);
        let sender = send(scheme, at, &["--file=/dev/zero", "--count=3", "--size=1000", "--rate=10pps"]);
        assert_eq!(sender.end().status.code(), Some(0));
        let received = receiver.end().stdout;
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
        let source = Scratch::of("shrinks-late", noise(bytes));
        // It waits for its reader, because a pipe has less room.
        let (mut receiver, at, _) = recv_with_errors("tcp", "127.0.0.1", &["-o", "-", "--idle=10m"]);
        let mut output = receiver.output();
        let sender = send("tcp", at, &["--json", "--file", source.path(), "--method", method]);
        output.read_exact(&mut [0; 10]).unwrap();
        File::options().write(true).open(source.path()).unwrap().set_len(1).unwrap();
        std::io::copy(&mut output, &mut std::io::sink()).unwrap();
        let failed = sender.end();
        let said = text(&failed.stderr);
        assert!(
            failed.status.code() == Some(2) && said.contains("it became shorter while it was read"),
            "{said}"
        );
        receiver.end();
    }
}

/// What was to be sent at the start arrives, and no more.
#[test]
fn a_file_that_grows_is_sent_up_to_its_length_at_the_start() {
    let content = noise(3_000_000);
    let source = Scratch::of("grows", &content);
    let (mut receiver, at, _) = recv_with_errors("tcp", "127.0.0.1", &["-o", "-", "--idle=10m"]);
    let mut output = receiver.output();
    let sender = send("tcp", at, &["--json", "--file", source.path(), "--rate=100Mbit/s"]);
    let mut received = vec![0; 10];
    output.read_exact(&mut received).unwrap();
    File::options().append(true).open(source.path()).unwrap().write_all(&[1; 100_000]).unwrap();
    output.read_to_end(&mut received).unwrap();
    assert!(received == content, "{} bytes", received.len());
    assert_eq!((sender.summary().1, receiver.end().status.code()), (0, Some(0)));
}

#[test]
fn a_named_pipe_is_written_once_a_reader_opens_it() {
    let fifo = fifo("received-pipe");
    for scheme in ["tcp", "udp"] {
        let unread = Running::start(&["recv", &format!("{scheme}://127.0.0.1:0"), "-o", fifo.path()]);
        wait_until_asleep_in(unread.id(), libc::SYS_clock_nanosleep);
        unread.signal(Signal::INT);
        let refused = unread.end();
        let said = text(&refused.stderr);
        assert!(
            refused.status.code() == Some(2) && said.contains("no program had opened it to read"),
            "{said}"
        );

        let path = fifo.path().to_owned();
        let reading = std::thread::spawn(move || fs::read(path).unwrap());
        let (receiver, at, _) = recv_with_errors(scheme, "127.0.0.1", &["--json", "-o", fifo.path()]);
        let mut sender = send(scheme, at, &["--stdin"]);
        sender.input().write_all(b"through a pipe").unwrap();
        assert_eq!(sender.end().status.code(), Some(0));
        assert_eq!(reading.join().unwrap(), b"through a pipe");
        assert_eq!(receiver.summary().1, 0, "the summary is on standard output, which has nothing else");
    }
}

/// Whatever it is called there.
#[test]
fn standard_output_has_only_data() {
    for (scheme, output) in
        [("tcp", "/dev/stdout"), ("udp", "/dev/stdout"), ("tcp", "-"), ("udp", "/proc/self/fd/1")]
    {
        let (receiver, at, errors) = recv_with_errors(scheme, "127.0.0.1", &["--json", "-o", output]);
        let mut sender = send(scheme, at, &["--stdin"]);
        sender.input().write_all(b"only data").unwrap();
        assert_eq!(sender.end().status.code(), Some(0));
        assert_eq!(text(&receiver.end().stdout), "only data", "{output}");
        assert!(errors.join().unwrap().contains("\"schema\""), "{output}");
    }
}

/// A receiver that is interrupted does not wait for a reader that does not read.
#[test]
fn an_interrupt_ends_a_receiver_with_a_stalled_reader() {
    let (receiver, at, _) = recv_with_errors("udp", "127.0.0.1", &["--output", "-", "--raw"]);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let pipe = File::options().write(true).open(format!("/proc/{}/fd/1", receiver.id())).unwrap();
    wait_until("the pipe is full", || {
        (0..100).for_each(|_| _ = socket.send_to(&[7; 1400], at).unwrap());
        !is_ready(&pipe, PollFlags::OUT)
    });
    drop(pipe);
    (0..300).for_each(|_| _ = socket.send_to(&[7; 1400], at).unwrap());
    receiver.signal(Signal::INT);
    let mut child = { receiver };
    wait_until("it ends", || child.has_ended());
}

#[test]
fn results_and_pages_go_through_pipes() {
    let row = r#"{"schema":"nocopy.bench/1"}"#;
    let directory = tempfile::tempdir().unwrap();
    let malformed = directory.path().join("results.json");
    fs::write(&malformed, row).unwrap();
    // Both say the same of the same content.
    let mut of_stdin = nocopy(&["report", "-"]);
    let of_stdin = of_stdin.stdin(Stdio::from(File::open(&malformed).unwrap())).output().unwrap();
    let of_file = nocopy(&["report", malformed.to_str().unwrap()]).output().unwrap();
    let said = text(&of_stdin.stderr);
    assert!(said.contains("standard input: cannot be read as results"), "{said}");
    assert_eq!(said.replace("standard input", malformed.to_str().unwrap()), text(&of_file.stderr));
}

/// A program that reads the stream as it is, with the length that it was promised by none.
#[test]
fn a_raw_stream_of_a_procfs_file_is_its_content() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = send("tcp", listener.local_addr().unwrap(), &["--raw", "--file=/proc/filesystems"]);
    let mut content = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut content).unwrap();
    assert_eq!(sender.end().status.code(), Some(0));
    assert!(content == fs::read("/proc/filesystems").unwrap());
}
