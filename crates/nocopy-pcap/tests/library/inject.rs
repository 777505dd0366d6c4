//! A C program that sends, with the system's libpcap and with ours: frames and output are the same.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nocopy::{Mode, Port};
use nocopy_lab::patience::PATIENCE;
use nocopy_lab::{End, Lab};

use crate::common::{LibraryKind, ScratchDirectory, compile_program, our_library, preload_value};

/// Frames at a time, fewer than veth's own ring holds; as in `inject.c`.
const BURST: u32 = 200;
const BURSTS: u32 = 20;
const LAST: u32 = 15;
const LENGTHS: [usize; 3] = [60, 1514, 600];

fn start_program(
    end: &End,
    program: &Path,
    mode: &str,
    library: LibraryKind,
) -> (Child, ChildStdin, impl Iterator<Item = String> + use<>) {
    let mut command = Command::new(program);
    command.args([end.interface(), mode]).stdin(Stdio::piped()).stdout(Stdio::piped());
    if library != LibraryKind::System {
        command.env("LD_PRELOAD", preload_value(&our_library()));
    }
    if library == LibraryKind::Take {
        command.env("NOCOPY_TAKE", "1");
    }
    let mut child = end.namespace().run(|| command.spawn()).unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    (child, stdin, BufReader::new(stdout).lines().map(Result::unwrap))
}

/// Sends the numbers and lengths of frames that arrive at an end, until the channel is closed.
fn receive_frames(end: &End, arrived: &mpsc::Sender<(u32, usize)>, over: &mpsc::Receiver<()>) {
    let open = || Port::builder(end.interface()).mode(Mode::XdpCopyNative).open();
    let mut port = end.namespace().run(open).unwrap();
    arrived.send((0, 0)).unwrap(); // it may begin
    while over.try_recv() == Err(mpsc::TryRecvError::Empty) {
        for packet in port.receiver().receive_timeout(Duration::from_millis(20)).unwrap() {
            if packet[12..14] == [0x88, 0xb5] {
                assert!(
                    packet[18..].iter().all(|byte| *byte == 0),
                    "its own bytes, and not what came there later"
                );
                let number = u32::from_be_bytes(packet[14..18].try_into().unwrap());
                arrived.send((number, packet.len())).unwrap();
            }
        }
    }
}

fn expect_frames(arrived: &mpsc::Receiver<(u32, usize)>, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let sent = (number, LENGTHS[number as usize % 3]);
        assert_eq!(arrived.recv_timeout(PATIENCE), Ok(sent), "in order, and without a loss");
    }
}

/// Whether frames of a program leave in batches: then a thread of its library flushes them.
fn has_flusher_thread(child: &Child) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    // A thread may end meanwhile.
    let name = |task: io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).any(|name| name.trim_end() == "nocopy-flusher")
}

/// Packet sockets of every protocol, in the network namespace of a program.
fn receiving_socket_count(child: &Child) -> usize {
    let sockets = fs::read_to_string(format!("/proc/{}/net/packet", child.id())).unwrap();
    let protocol = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
    sockets.lines().filter_map(protocol).filter(|protocol| protocol == "0003").count()
}

/// Runs the program; every burst arrives while it does nothing but wait for the next.
fn check_bursts_arrive(lab: &Lab, program: &Path, mode: &str, library: LibraryKind) {
    let ((send, arrived), (end, over)) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(move || receive_frames(lab.right(), &send, &over));
        arrived.recv_timeout(PATIENCE).unwrap();
        let (mut child, mut stdin, mut output) = start_program(lab.left(), program, mode, library);
        assert_eq!(output.next().as_deref(), Some("ready"), "{mode} {library:?}");
        let sockets_expected = usize::from(library != LibraryKind::Take);
        assert_eq!(
            receiving_socket_count(&child),
            sockets_expected,
            "{mode} {library:?}: something hears in vain"
        );
        let (started, mut bursts, mut may_end) = (Instant::now(), 0, library != LibraryKind::Ours);
        while bursts < BURSTS || !may_end {
            stdin.write_all(b"\n").unwrap();
            expect_frames(&arrived, bursts * BURST..(bursts + 1) * BURST);
            bursts += 1;
            may_end |= has_flusher_thread(&child);
            assert!(started.elapsed() < PATIENCE, "{mode}: all frames went singly");
        }
        drop(stdin);
        expect_frames(&arrived, bursts * BURST..bursts * BURST + LAST);
        assert_eq!(output.next(), None, "{mode} {library:?}");
        assert!(child.wait().unwrap().success(), "{mode} {library:?}");
        drop(end);
    });
}

#[test]
fn all_frames_arrive_whichever_way_the_program_ends() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let scratch = ScratchDirectory::new("inject");
    let program = compile_program("inject", &scratch);
    for mode in ["close", "exit", "fork"] {
        for library in [LibraryKind::System, LibraryKind::Ours, LibraryKind::Take] {
            check_bursts_arrive(&lab, &program, mode, library);
        }
    }
}

#[test]
fn send_errors_match_the_systems_libpcap() {
    let Some(_) = nocopy_lab::lab_or_skip() else { return };
    let scratch = ScratchDirectory::new("inject-errors");
    let program = compile_program("inject", &scratch);
    let runs = [LibraryKind::System, LibraryKind::Ours, LibraryKind::Take].map(|library| {
        let lab = nocopy_lab::lab_or_skip().unwrap();
        let (mut child, mut stdin, mut output) = start_program(lab.left(), &program, "errors", library);
        let mut lines: Vec<_> = output.by_ref().take_while(|line| line != "set it down").collect();
        lab.left().set_down().unwrap();
        stdin.write_all(b"\n").unwrap();
        lines.extend(output);
        assert!(child.wait().unwrap().success(), "{lines:#?}");
        lines
    });
    assert!(runs[0].len() >= 15, "{:#?}", runs[0]);
    assert_eq!(runs[0], runs[1]);
    assert_eq!(runs[0], runs[2], "taking");
}
