//! `nocopy record` as users run it: the sent packets are in the files, other programs can read them, and
//! after any failure they are complete.

use nocopy_lab::patience::PATIENCE;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use crate::process_state::{self, run_while_stopped};
use crate::sandbox::{self, Refused};
use nocopy::Port;
use nocopy_lab::{End, Lab, Missing};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A directory that is removed with the test.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nocopy-record-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file_path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn list_files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct RunningRecorder(Option<Child>);

impl RunningRecorder {
    /// Returns when it captures: its file is made after that.
    fn start(end: &End, output: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
        command.args(["record", end.interface(), "--json", "-o"]).arg(output).args(arguments);
        Self::start_command(end, command, output)
    }

    fn start_command(end: &End, mut command: Command, output: &Path) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut recording = Self(Some(end.namespace().run(|| command.spawn().unwrap())));
        let directory = output.parent().unwrap();
        let before_ready = || fs::read_dir(directory).unwrap().count() == 0;
        wait_until("it records", || {
            let child = recording.0.as_mut().unwrap();
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            !before_ready()
        });
        recording
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.0.as_ref().unwrap()), signal).unwrap();
    }

    fn kill(mut self) {
        let mut child = self.0.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn wait_for_end(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    fn interrupt_for_summary(self) -> Value {
        self.signal(Signal::INT);
        let output = self.wait_for_end();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{message}{}", String::from_utf8_lossy(&output.stdout));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for RunningRecorder {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < give_up, "never: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// A packet with a number in it and a pattern that depends on the number; tagged, if the number is odd.
fn numbered_packet(to: &End, number: usize, bytes: usize) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..bytes).map(|at| (number * 31 + at) as u8).collect();
    packet[..6].copy_from_slice(&to.mac());
    packet[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    let tag: &[u8] = if number % 2 == 1 { &[0x81, 0x00, 0x00, 0x64] } else { &[] };
    let kind = [tag, &[0x88, 0xb5], &(number as u32).to_be_bytes()].concat();
    packet[12..12 + kind.len()].copy_from_slice(&kind);
    packet
}

fn open_port(end: &End) -> Port {
    end.namespace().run(|| Port::open(end.interface())).unwrap()
}

fn send_packets(port: &mut Port, packets: &[Vec<u8>]) {
    for batch in packets.chunks(512) {
        for packet in batch {
            let mut frame = port.sender().buffer().unwrap();
            frame.fill(packet).unwrap();
            port.sender().send(frame).unwrap();
        }
        port.sender().flush().unwrap();
        assert!(port.sender().drain(PATIENCE).unwrap());
    }
}

/// Packets of a pcapng file: original length and bytes. It is read as strictly as the format is.
fn read_packets(path: &Path) -> Vec<(usize, Vec<u8>)> {
    let file = fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut packets) = (0, Vec::new());
    while at < file.len() {
        let len = word(at + 4);
        assert!(len >= 12 && len % 4 == 0 && word(at + len - 4) == len, "{len} at {at}");
        if word(at) == 6 {
            packets.push((word(at + 24), file[at + 28..][..word(at + 20)].to_vec()));
        }
        at += len;
    }
    packets
}

/// Whether a pcapng file ends with a block.
fn ends_with_whole_block(file: &[u8]) -> bool {
    let word =
        |at: usize| file.get(at..at + 4).map(|word| u32::from_le_bytes(word.try_into().unwrap()) as usize);
    let mut at = 0;
    while at < file.len() {
        match word(at + 4) {
            Some(len) if len >= 12 => at += len,
            _ => return false,
        }
    }
    at == file.len()
}

fn bytes_of_uncut_packets(packets: Vec<(usize, Vec<u8>)>) -> Vec<Vec<u8>> {
    packets
        .into_iter()
        .map(|(original, bytes)| {
            assert_eq!(original, bytes.len());
            bytes
        })
        .collect()
}

/// Runs another program on a file, which must report no error, and returns its output.
fn read_with_program(program: &str, arguments: &[&str], path: &Path) -> Option<String> {
    let output = Command::new(program).args(arguments).arg(path).output();
    let Ok(output) = output else {
        nocopy_lab::skip(&Missing::Device("tshark, capinfos and tcpdump"));
        return None;
    };
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program}: {complaints}");
    for word in ["cut short", "damaged", "corrupt", "truncated", "malformed", "isn't", "bad "] {
        assert!(!complaints.contains(word), "{program}: {complaints}");
    }
    Some(String::from_utf8(output.stdout).unwrap())
}

/// How many packets each of the usual readers finds, which must be the same number.
fn count_packets_by_other_programs(path: &Path) -> Option<usize> {
    let tcpdump = read_with_program("tcpdump", &["-nn", "--count", "-r"], path)?;
    let capinfos = read_with_program("capinfos", &["-T", "-M", "-r", "-c"], path)?;
    let tshark = read_with_program("tshark", &["-n", "-T", "fields", "-e", "frame.len", "-r"], path)?;
    let by_tcpdump: usize = tcpdump.split_whitespace().next().unwrap().parse().unwrap();
    let by_capinfos: usize = capinfos.split_whitespace().last().unwrap().parse().unwrap();
    assert_eq!((by_tcpdump, by_capinfos), (tshark.lines().count(), tshark.lines().count()));
    Some(by_tcpdump)
}

/// Counts of a pcapng file's last interface statistics block: received, dropped.
fn last_interface_statistics(path: &Path) -> (u64, u64) {
    let file = fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let count = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let (mut at, mut counts) = (0, None);
    while at < file.len() {
        if word(at) == 5 {
            counts = Some((count(at + 24), count(at + 36)));
        }
        at += word(at + 4);
    }
    counts.expect("a block with counts")
}

/// Sends packets as fast as it can until it is dropped, or has sent 20 million.
struct PacketLoad {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PacketLoad {
    fn start(lab: &Lab, bytes: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (interface, packet, stopped) =
            (lab.left().interface(), numbered_packet(lab.right(), 0, bytes), stop.clone());
        let thread = lab.left().namespace().spawn(move || {
            let mut port = Port::open(interface).unwrap();
            let batch = vec![packet; 512];
            // Not by a number: on a busy machine, what records gets through it too late.
            let give_up = Instant::now() + 10 * PATIENCE;
            while !stopped.load(Ordering::Relaxed) && Instant::now() < give_up {
                send_packets(&mut port, &batch);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for PacketLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

#[test]
fn sent_packets_are_in_the_file_and_other_programs_read_it() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("whole");
    let path = directory.file_path("out.pcapng");
    let packets: Vec<_> =
        (0..3000).map(|number| numbered_packet(lab.right(), number, 60 + number * 7 % 1455)).collect();
    let recording = RunningRecorder::start(lab.right(), &path, &[]);
    send_packets(&mut open_port(lab.left()), &packets);
    let summary = recording.interrupt_for_summary();
    assert_eq!(bytes_of_uncut_packets(read_packets(&path)), packets);
    assert_eq!(
        (&summary["schema"], &summary["written"]),
        (&"nocopy.record/3".into(), &3000.into()),
        "{summary}"
    );
    for none in ["missing", "tp_drops", "not_written", "beyond_count", "malformed", "filter_lost"] {
        assert_eq!(summary[none], 0, "{none}: {summary}");
    }
    assert_eq!((&summary["received"], &summary["ended"]), (&3000.into(), &"interrupted".into()), "{summary}");
    assert!(summary["evidence"].as_str().unwrap().starts_with("copied (packet ring); "), "{summary}");
    assert_eq!(summary["files"][0]["bytes"], fs::metadata(&path).unwrap().len());
    if let Some(count) = count_packets_by_other_programs(&path) {
        assert_eq!(count, 3000);
        let about = read_with_program("capinfos", &[], &path).unwrap();
        for said in ["nanoseconds (9)", "Name = nc1", "Strict time order:   True", "application: nocopy"] {
            assert!(about.contains(said), "{said}: {about}");
        }
        let counted = read_with_program("tshark", &["-q", "-z", "io,stat,0", "-r"], &path).unwrap();
        assert!(counted.contains("3000"), "{counted}");
    }
}

/// Shell and kernel both report a closed terminal; the recording ends as with Ctrl-C.
#[test]
fn a_hangup_signal_ends_a_recording_with_its_summary() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("hangup");
    let path = directory.file_path("out.pcapng");
    let packets: Vec<_> = (0..100).map(|number| numbered_packet(lab.right(), number, 100)).collect();
    // The tests themselves may run under nohup(1), and children inherit ignored signals.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_nocopy"), "record"]);
    command.args([lab.right().interface(), "--json", "-o"]).arg(&path);
    let mut recording = RunningRecorder::start_command(lab.right(), command, &path);
    send_packets(&mut open_port(lab.left()), &packets);
    wait_until("it ends", || {
        recording.signal(Signal::HUP);
        recording.0.as_mut().unwrap().try_wait().unwrap().is_some()
    });
    let output = recording.wait_for_end();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["written"], &summary["missing"]), (&100.into(), &0.into()), "{summary}");
    assert_eq!(last_interface_statistics(&path).0, 100);
    assert_eq!(bytes_of_uncut_packets(read_packets(&path)), packets);
}

/// As under nohup(1).
#[test]
fn an_ignored_hangup_signal_ends_no_recording() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("nohup");
    let path = directory.file_path("out.pcapng");
    let mut command = Command::new("sh");
    command.args(["-c", r#"trap "" HUP; exec "$0" record "$@""#, env!("CARGO_BIN_EXE_nocopy")]);
    command.args([lab.right().interface(), "--json", "-o"]).arg(&path);
    let recording = RunningRecorder::start_command(lab.right(), command, &path);
    recording.signal(Signal::HUP);
    let packets: Vec<_> = (0..10).map(|number| numbered_packet(lab.right(), number, 100)).collect();
    send_packets(&mut open_port(lab.left()), &packets);
    recording.interrupt_for_summary();
    assert_eq!(bytes_of_uncut_packets(read_packets(&path)), packets);
}

#[test]
fn a_killed_recording_leaves_a_readable_file() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let _load = PacketLoad::start(&lab, 1400);
    for round in 0..8 {
        let directory = ScratchDirectory::new(&format!("killed-{round}"));
        kill_and_read(&lab, &directory, round);
    }
}

/// With writes through the page cache, a killed process stops half-way.
#[test]
fn a_killed_recording_on_tmpfs_leaves_a_readable_file() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let _load = PacketLoad::start(&lab, 1400);
    for round in 0..8 {
        let path = Path::new("/dev/shm").join(format!("nocopy-record-{round}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        kill_and_read(&lab, &ScratchDirectory(path), round);
    }
}

#[test]
fn a_killed_guard_process_does_not_end_the_recording() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let path = Path::new("/dev/shm").join(format!("nocopy-record-guard-{}", std::process::id()));
    fs::create_dir(&path).unwrap();
    let directory = ScratchDirectory(path);
    let path = directory.file_path("out.pcapng");
    let recording = RunningRecorder::start(lab.right(), &path, &[]);
    let packets: Vec<_> = (0..20).map(|number| numbered_packet(lab.right(), number, 500)).collect();
    let mut left = open_port(lab.left());
    send_packets(&mut left, &packets[..10]);
    let id = recording.0.as_ref().unwrap().id();
    let mut guard = None;
    wait_until("there is a guard, and it has read", || {
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        guard = children.split_whitespace().next().map(|guard| guard.parse().unwrap());
        guard.is_some() && fs::metadata(&path).unwrap().len() > 0
    });
    kill_process(Pid::from_raw(guard.unwrap()).unwrap(), Signal::KILL).unwrap();
    send_packets(&mut left, &packets[10..]);
    let summary = recording.interrupt_for_summary();
    assert_eq!(bytes_of_uncut_packets(read_packets(&path)), packets);
    assert!(
        summary["write_method"].as_str().unwrap().contains("after kill -9 (EPIPE); broken pipe"),
        "{summary}"
    );
}

fn kill_and_read(lab: &Lab, directory: &ScratchDirectory, round: u64) {
    {
        let path = directory.file_path("out.pcapng");
        let recording = RunningRecorder::start(lab.right(), &path, &["--buffer", "64MiB"]);
        wait_until("it writes", || fs::metadata(&path).unwrap().len() > (1 + round) << 20);
        sleep(Duration::from_micros(round * 777)); // not always right behind a write
        recording.kill();
        // Where a second process has to cut the file back, that takes a moment.
        wait_until("it is whole", || ends_with_whole_block(&fs::read(&path).unwrap()));
        let packets = read_packets(&path);
        assert!(packets.len() > 500, "{}", packets.len());
        if let Some(count) = count_packets_by_other_programs(&path) {
            assert_eq!(count, packets.len());
        }
    }
}

/// Runs a recording to its end under a script, as which it has to fail, and returns its message and summary.
fn run_failing_recording(end: &End, script: &str) -> (String, Value) {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).env("NOCOPY", env!("CARGO_BIN_EXE_nocopy"));
    let output = end.namespace().run(|| command.output().unwrap());
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
    (message, serde_json::from_slice(&output.stdout).unwrap())
}

fn assert_complete_file_with_loss(path: &Path, summary: &Value) {
    let packets = read_packets(path).len();
    assert_eq!(summary["written"], packets, "{summary}");
    assert!(packets > 100 && summary["not_written"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!(summary["missing"], 0, "{summary}");
    assert_eq!(summary["files"][0]["bytes"], fs::metadata(path).unwrap().len(), "{summary}");
    if let Some(count) = count_packets_by_other_programs(path) {
        assert_eq!(count, packets);
    }
}

#[test]
fn a_full_disk_leaves_a_complete_file_and_counted_loss() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("full");
    let small = directory.file_path("small");
    fs::create_dir(&small).unwrap();
    let _load = PacketLoad::start(&lab, 1400);
    let (small, kept) = (small.display(), directory.file_path("kept.pcapng"));
    let script = format!(
        "mount -t tmpfs -o size=5500k none '{small}' || exit 9
         \"$NOCOPY\" record nc1 --json --buffer 32MiB -o '{small}/out.pcapng'
         code=$?; cp '{small}/out.pcapng' '{}'; exit $code",
        kept.display()
    );
    let (message, summary) = run_failing_recording(lab.right(), &script);
    assert!(message.contains("(ENOSPC); no space left") && message.contains("--files"), "{message}");
    assert!(summary["not_written_cause"].as_str().unwrap().contains("No space left"), "{summary}");
    assert_complete_file_with_loss(&kept, &summary);
}

#[test]
fn the_file_size_limit_leaves_a_complete_file() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let _load = PacketLoad::start(&lab, 1400);
    for blocks in [6000, 6001] {
        let directory = ScratchDirectory::new(&format!("limit-{blocks}")); // with and without whole sectors
        let path = directory.file_path("out.pcapng");
        let script = format!(
            "ulimit -f {blocks}; exec \"$NOCOPY\" record nc1 --json --buffer 32MiB -o '{}'",
            path.display()
        );
        let (message, summary) = run_failing_recording(lab.right(), &script);
        assert_eq!(
            message.trim_end(),
            format!(
                "nocopy: {}: the recording ended early (EFBIG); file too large; raise 'ulimit -f', or use --rotate-size; the packets in the file are complete",
                path.display()
            )
        );
        assert_complete_file_with_loss(&path, &summary);
    }
}

#[test]
fn an_overflowing_ring_is_counted_and_reported() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    // Something else may resume it before everything was sent: then once more.
    assert!((0..5).any(|_| overflow_stopped_recorder(&lab)), "it never stood still");
}

/// False if the recording went on while packets were sent.
fn overflow_stopped_recorder(lab: &Lab) -> bool {
    let directory = ScratchDirectory::new("stopped");
    let path = directory.file_path("out.pcapng");
    let recording = RunningRecorder::start(lab.right(), &path, &["--buffer", "1MiB"]);
    let id = recording.0.as_ref().unwrap().id();
    let packets: Vec<_> = (0..3000).map(|number| numbered_packet(lab.right(), number, 1000)).collect();
    let mut left = open_port(lab.left());
    let stood_still = run_while_stopped(Pid::from_child(recording.0.as_ref().unwrap()), || {
        let before = process_state::context_switches_by_thread(id);
        send_packets(&mut left, &packets);
        process_state::context_switches_by_thread(id) == before
    });
    recording.signal(Signal::INT);
    let output = recording.wait_for_end();
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |field: &str| summary[field].as_u64().unwrap();
    assert_eq!((of("received"), of("missing"), of("not_written")), (3000, 0, 0), "{summary}");
    assert_eq!(of("written") + of("tp_drops"), 3000, "{summary}");
    assert_eq!(last_interface_statistics(&path), (3000, of("tp_drops")));
    let recorded = bytes_of_uncut_packets(read_packets(&path));
    assert_eq!(recorded.len() as u64, of("written"));
    if !stood_still {
        return false;
    }
    assert_eq!(output.status.code(), Some(1));
    assert!(of("tp_drops") > 1000 && of("tp_freeze_q_cnt") > 0, "{summary}");
    assert_eq!(summary["buffer_fill_max"], 1.0, "{summary}");
    assert_eq!(recorded, packets[..of("written") as usize], "the first that came");
    true
}

#[test]
fn without_io_uring_files_are_written_by_reported_calls() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("sandboxed");
    let path = directory.file_path("out.pcapng");
    let refused = [Refused::always(libc::SYS_io_uring_setup, libc::EPERM)];
    let command = sandbox::sandboxed_nocopy_command(
        &refused,
        &["record", "nc1", "--json", "-o", path.to_str().unwrap()],
    );
    let recording = RunningRecorder::start_command(lab.right(), command, &path);
    let packets: Vec<_> = (0..1000).map(|number| numbered_packet(lab.right(), number, 500)).collect();
    send_packets(&mut open_port(lab.left()), &packets);
    recording.signal(Signal::INT);
    let output = recording.wait_for_end();
    assert_eq!(output.status.code(), Some(0));
    let printed = String::from_utf8(output.stdout).unwrap();
    // If tests run one by one, the test runner has printed the name on the same line.
    let line = printed.lines().last().unwrap();
    let summary: Value = serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap();
    let method = summary["write_method"].as_str().unwrap();
    let refused = "; io_uring: refused (EPERM); operation not permitted";
    assert!(method.starts_with("pwritev") && method.ends_with(refused), "{method}");
    assert_eq!(bytes_of_uncut_packets(read_packets(&path)), packets);
}

#[test]
fn files_rotated_by_size_are_complete() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let packets: Vec<_> = (0..6000).map(|number| numbered_packet(lab.right(), number, 1000)).collect();
    let directory = ScratchDirectory::new("size");
    let path = directory.file_path("out.pcapng");
    let recording = RunningRecorder::start(lab.right(), &path, &["--rotate-size", "1MiB"]);
    send_packets(&mut open_port(lab.left()), &packets);
    let summary = recording.interrupt_for_summary();
    let files = directory.list_files();
    assert!(files.len() > 5, "{files:?}");
    assert_eq!(summary["files"].as_array().unwrap().len(), files.len());
    let mut recorded = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(
            name.starts_with(&format!("out-{:05}-20", number + 1)) && name.ends_with("Z.pcapng"),
            "{name}"
        );
        assert!(fs::metadata(file).unwrap().len() <= (1 << 20) + 4096, "{name}");
        recorded.extend(bytes_of_uncut_packets(read_packets(file)));
    }
    assert_eq!(recorded, packets);
    count_packets_by_other_programs(&files[2]);

    let directory = ScratchDirectory::new("kept");
    let path = directory.file_path("out.pcapng");
    let arguments = ["--rotate-size", "1MiB", "--files", "2"];
    let recording = RunningRecorder::start(lab.right(), &path, &arguments);
    send_packets(&mut open_port(lab.left()), &packets);
    let summary = recording.interrupt_for_summary();
    let kept: Vec<_> =
        directory.list_files().iter().flat_map(|file| bytes_of_uncut_packets(read_packets(file))).collect();
    assert_eq!(directory.list_files().len(), 2);
    assert!(packets.ends_with(&kept) && !kept.is_empty());
    let (listed, deleted) = (summary["files"].as_array().unwrap(), &summary["files_deleted"]);
    assert!(listed.len() == 2 && deleted["files"].as_u64().unwrap() > 3, "{summary}");
    let packets_of = |file: &Value| file["packets"].as_u64().unwrap();
    assert_eq!(listed.iter().map(packets_of).sum::<u64>() + packets_of(deleted), 6000, "{summary}");
}

/// Another program moves finished files away.
#[test]
fn a_file_removed_meanwhile_counts_as_deleted() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("taken-away");
    let arguments = ["--rotate-time", "20ms", "--files", "1"];
    let recording = RunningRecorder::start(lab.right(), &directory.file_path("out.pcapng"), &arguments);
    fs::remove_file(&directory.list_files()[0]).unwrap();
    let mut left = open_port(lab.left());
    let mut sent = 0;
    wait_until("the third file", || {
        send_packets(&mut left, &[numbered_packet(lab.right(), sent, 100)]);
        sent += 1;
        sleep(Duration::from_millis(10));
        directory.list_files().iter().any(|path| path.display().to_string().contains("out-00003-"))
    });
    let summary = recording.interrupt_for_summary();
    assert_eq!((&summary["written"], &summary["files_earlier"]["files"]), (&sent.into(), &0.into()));
    assert!(summary["files_deleted"]["files"].as_u64().unwrap() >= 2, "{summary}");
}

#[test]
fn a_failed_rotation_ends_a_recording_with_counted_loss() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("moved");
    let (before, after) = (directory.file_path("before"), directory.file_path("after"));
    fs::create_dir(&before).unwrap();
    let recording =
        RunningRecorder::start(lab.right(), &before.join("out.pcapng"), &["--rotate-time", "50ms"]);
    fs::rename(&before, &after).unwrap();
    let (mut left, mut sent) = (open_port(lab.left()), 0);
    let mut recording = recording;
    wait_until("it ends", || {
        send_packets(&mut left, &[numbered_packet(lab.right(), sent, 100)]);
        sent += 1;
        sleep(Duration::from_millis(10));
        recording.0.as_mut().unwrap().try_wait().unwrap().is_some()
    });
    let output = recording.wait_for_end();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
    assert!(message.contains("out-00002-") && message.contains("check the directory"), "{message}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |field: &str| summary[field].as_u64().unwrap();
    assert!(of("not_written") > 0, "{summary}");
    assert_eq!((of("written") + of("not_written"), of("missing")), (of("received"), 0), "{summary}");
    let file = fs::read_dir(&after).unwrap().next().unwrap().unwrap().path();
    assert_eq!(read_packets(&file).len() as u64, of("written"));
}

#[test]
fn files_rotate_by_time() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("time");
    let path = directory.file_path("out.pcapng");
    let recording = RunningRecorder::start(lab.right(), &path, &["--rotate-time", "50ms"]);
    let mut left = open_port(lab.left());
    let mut sent = Vec::new();
    wait_until("three files", || {
        let next = numbered_packet(lab.right(), sent.len(), 100);
        send_packets(&mut left, std::slice::from_ref(&next));
        sent.push(next);
        sleep(Duration::from_millis(10));
        directory.list_files().len() >= 3
    });
    recording.interrupt_for_summary();
    let recorded: Vec<_> =
        directory.list_files().iter().flat_map(|file| bytes_of_uncut_packets(read_packets(file))).collect();
    assert_eq!(recorded, sent);
}

#[test]
fn count_duration_and_snap_length_are_obeyed() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("count");
    let path = directory.file_path("out.pcapng");
    let packets: Vec<_> = (0..50).map(|number| numbered_packet(lab.right(), number, 500)).collect();
    let recording = RunningRecorder::start(lab.right(), &path, &["--count", "20", "--snap", "99"]);
    send_packets(&mut open_port(lab.left()), &packets);
    let output = recording.wait_for_end();
    assert_eq!(output.status.code(), Some(0));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&summary["written"], &summary["written_bytes"]),
        (&20.into(), &(20 * 99).into()),
        "{summary}"
    );
    assert_eq!((&summary["missing"], &summary["ended"]), (&0.into(), &"count".into()), "{summary}");
    let expected: Vec<_> = packets[..20].iter().map(|packet| (500, packet[..99].to_vec())).collect();
    assert_eq!(read_packets(&path), expected);
    let table = lab.right().namespace().run(|| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
        command.args(["record", "nc1", "--duration", "50ms", "--force", "-o"]).arg(&path).output().unwrap()
    });
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains(", time is up: "), "{table}");
    for said in ["received", "written", "packet ring, copied (packet ring)", "out.pcapng", "full at most"] {
        assert!(table.contains(said), "{said}: {table}");
    }
    assert_eq!(read_packets(&path), []);
    assert_eq!(count_packets_by_other_programs(&path).unwrap_or(0), 0, "a file without packets is one");
}

#[test]
fn received_gro_and_sent_gso_packets_are_complete() {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("tcp");
    let path = directory.file_path("out.pcapng");
    let recording = RunningRecorder::start(lab.right(), &path, &[]);
    let (left, right) = (lab.left(), lab.right());
    let listener = right.namespace().run(|| TcpListener::bind((right.ipv4(), 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let data: Vec<u8> = (0..4_000_000_u32).map(|at| (at / 7) as u8).collect();
    let sender = left.namespace().spawn({
        let data = data.clone();
        move || TcpStream::connect(address).unwrap().write_all(&data).unwrap()
    });
    let mut received = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
    sender.join().unwrap();
    assert!(received == data);
    let summary = recording.interrupt_for_summary();
    let packets = read_packets(&path);
    assert_eq!(summary["written"], packets.len());
    let longest = packets.iter().map(|(original, _)| *original).max().unwrap();
    assert!(longest > 3000, "no packet was joined: {longest}");
    let from = |mac: [u8; 6]| packets.iter().filter(move |(_, bytes)| bytes[6..12] == mac);
    assert!(from(right.mac()).count() > 0, "what the host sent");
    // Without loss, the segments carry exactly what was sent; after a stall some are retransmitted.
    let (mut carried, mut first) = (vec![None; data.len()], None);
    for (original, bytes) in from(left.mac()) {
        assert_eq!(*original, bytes.len());
        let header = 14 + 20 + usize::from(bytes[46] >> 4) * 4;
        let end = 14 + usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
        let number = u32::from_be_bytes(bytes[38..42].try_into().unwrap());
        let place = number.wrapping_sub(*first.get_or_insert(number.wrapping_add(1))) as usize; // behind the SYN
        for (place, byte) in (place..).zip(&bytes[header..end]) {
            carried[place] = Some(*byte);
        }
    }
    assert!(carried.iter().zip(&data).all(|(carried, sent)| *carried == Some(*sent)));
    if let Some(count) = count_packets_by_other_programs(&path) {
        assert_eq!(count, packets.len());
    }
}

#[test]
fn payloads_are_contiguous_and_gaps_are_counted() {
    use std::net::UdpSocket;
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (left, right) = (lab.left(), lab.right());
    let directory = ScratchDirectory::new("payload");
    let path = directory.file_path("out.bin");
    let arguments = ["--format", "payload", "--sequence", "2:4:be"];
    let recording = RunningRecorder::start(right, &path, &arguments);
    let _host = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 9001)).unwrap());
    let sender = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
    // Not UDP.
    send_packets(&mut open_port(left), &[numbered_packet(right, 0, 100), numbered_packet(right, 1, 100)]);
    let mut expected = Vec::new();
    let numbers = (u32::MAX - 999..=u32::MAX).chain(0..2000).flat_map(|number| match number {
        100..110 => vec![],    // missing
        200 => vec![201, 200], // late
        201 => vec![],
        300 => vec![300, 300], // twice
        other => vec![other],
    });
    for number in numbers {
        let mut payload = vec![number as u8; 900 + number as usize % 100];
        payload[2..6].copy_from_slice(&number.to_be_bytes());
        sender.send_to(&payload, (right.ipv4(), 9001)).unwrap();
        expected.extend(payload);
    }
    recording.signal(Signal::INT);
    let output = recording.wait_for_end();
    assert_eq!(output.status.code(), Some(1), "values are missing");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(fs::read(&path).unwrap() == expected, "{summary}");
    let gaps = serde_json::json!({
        "missing": 10, "gaps": 2, "duplicate": 1, "reordered": 1, "wraps": 1, "restarts": 0, "too_short": 0
    });
    assert_eq!(summary["sequence"], gaps, "{summary}");
    assert_eq!((&summary["no_payload"], &summary["missing"]), (&2.into(), &0.into()), "{summary}");
    assert_eq!((&summary["written"], &summary["written_bytes"]), (&2991.into(), &expected.len().into()));
    assert!(summary["evidence"].as_str().unwrap().contains("gathered into whole sectors"), "{summary}");
}

#[test]
fn empty_datagrams_are_counted() {
    use std::net::UdpSocket;
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (left, right) = (lab.left(), lab.right());
    let directory = ScratchDirectory::new("empty-payload");
    let path = directory.file_path("out.bin");
    let recording = RunningRecorder::start(right, &path, &["--format", "payload"]);
    let _host = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 9001)).unwrap());
    let sender = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
    for _ in 0..3 {
        sender.send_to(&[], (right.ipv4(), 9001)).unwrap();
    }
    let summary = recording.interrupt_for_summary();
    assert!(summary["no_payload"].as_u64().unwrap() >= 3, "{summary}");
    assert_eq!((&summary["written"], &summary["missing"]), (&0.into(), &0.into()), "{summary}");
}

#[test]
fn packets_without_an_ethernet_header_are_refused() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("tunnel");
    let made = lab.right().namespace().run(|| {
        let script = "ip tuntap add mode tun dev nctun && ip link set nctun up";
        Command::new("sh").args(["-c", script]).output().unwrap()
    });
    if !made.status.success() {
        return nocopy_lab::skip(&Missing::Device("/dev/net/tun"));
    }
    let output = lab.right().namespace().run(|| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
        command.current_dir(&directory.0).args(["record", "nctun", "-o", "out.pcapng"]).output().unwrap()
    });
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
    assert!(message.contains("nctun: cannot be used; its packets have no Ethernet header"), "{message}");
    assert_eq!(directory.list_files().len(), 0, "nothing was made");
}

#[test]
fn taken_packets_are_recorded_and_frames_are_balanced() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("take");
    let path = directory.file_path("out.pcapng");
    let packets: Vec<_> =
        (0..3000).map(|number| numbered_packet(lab.right(), number, 60 + number * 7 % 1455)).collect();
    let recording = RunningRecorder::start(lab.right(), &path, &["--take"]);
    send_packets(&mut open_port(lab.left()), &packets);
    let summary = recording.interrupt_for_summary();
    assert_eq!(bytes_of_uncut_packets(read_packets(&path)), packets);
    assert_eq!((&summary["received"], &summary["missing"]), (&3000.into(), &0.into()), "{summary}");
    let said = |field: &str| summary[field].as_str().unwrap().to_owned();
    assert!(said("mode").starts_with("xdp copy native, taken from the host"), "{summary}");
    assert!(said("evidence").starts_with("copied (xdp copy mode); gathered"), "{summary}");
    assert!(said("balance").contains("0 in use"), "{summary}");
    if let Some(count) = count_packets_by_other_programs(&path) {
        assert_eq!(count, 3000);
    }
}

#[test]
fn taken_packets_in_several_frames_are_complete() {
    let Some(lab) = Lab::builder().mtu(9000).build_or_skip() else { return };
    let directory = ScratchDirectory::new("take-jumbo");
    let path = directory.file_path("out.pcapng");
    let packets: Vec<_> =
        (0..200).map(|number| numbered_packet(lab.right(), number, 60 + number * 44)).collect();
    let recording = RunningRecorder::start(lab.right(), &path, &["--take"]);
    let mut left = lab.left().namespace().run(|| Port::builder("nc0").multi_buffer(true).open()).unwrap();
    for packet in &packets {
        left.sender().send_copy(packet).unwrap();
        left.sender().flush().unwrap();
        assert!(left.sender().drain(PATIENCE).unwrap());
    }
    let summary = recording.interrupt_for_summary();
    assert_eq!(bytes_of_uncut_packets(read_packets(&path)), packets);
    assert_eq!((&summary["received"], &summary["missing"]), (&200.into(), &0.into()), "{summary}");
    assert!(summary["evidence"].as_str().unwrap().ends_with("two of packets in several frames"), "{summary}");
}

/// In every mode, and the filter sees VLAN tags in their place.
#[test]
fn only_matching_packets_are_recorded() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let packets: Vec<_> = (0..100).map(|number| numbered_packet(lab.right(), number, 200)).collect();
    let tagged: Vec<_> = packets.iter().skip(1).step_by(2).cloned().collect();
    let bytecode = ScratchDirectory::new("bytecode");
    let program = bytecode.file_path("tagged");
    fs::write(&program, "4\n40 0 0 12\n21 0 1 33024\n6 0 0 262144\n6 0 0 0\n").unwrap(); // the EtherType is 0x8100
    for take in [&[][..], &["--take"]] {
        let directory = ScratchDirectory::new("filter");
        let path = directory.file_path("out.pcapng");
        let arguments = [&["--bytecode", program.to_str().unwrap()], take].concat();
        let recording = RunningRecorder::start(lab.right(), &path, &arguments);
        send_packets(&mut open_port(lab.left()), &packets);
        let summary = recording.interrupt_for_summary();
        assert_eq!(summary["received"], 50, "{summary}");
        assert_eq!(bytes_of_uncut_packets(read_packets(&path)), tagged);
    }
}

#[test]
fn errors_of_record_are_one_line() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("errors");
    let path = directory.file_path("out.pcapng");
    fs::write(&path, "precious").unwrap();
    let path = path.to_str().unwrap();
    for (arguments, words) in [
        (&["nc1", "-o", path][..], &["file exists", "--force"][..]),
        (&["nc1", "-o", "-", "--rotate-time", "1s"], &["--rotate-time", "one stream"]),
        (&["nc1", "-o", "/nonexistent/file"], &["/nonexistent/file", "directory"]),
        (&["nc-none", "-o", "new"], &["nc-none: no such interface"]),
        (&["nc1", "-o", "new", "--sequence", "0:8:be"], &["--format payload"]),
        (&["nc1", "-o", "new", "--files", "2"], &["--rotate-size"]),
    ] {
        let output = lab.right().namespace().run(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
            command.current_dir(&directory.0).arg("record").args(arguments).output().unwrap()
        });
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    assert_eq!(fs::read(path).unwrap(), b"precious");
    assert_eq!(directory.list_files().len(), 1, "nothing else was made");
}

#[test]
fn a_removed_interface_leaves_a_complete_file() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("gone");
    let path = directory.file_path("out.pcapng");
    let recording = RunningRecorder::start(lab.right(), &path, &[]);
    let packets: Vec<_> = (0..10).map(|number| numbered_packet(lab.right(), number, 100)).collect();
    send_packets(&mut open_port(lab.left()), &packets);
    lab.delete_pair().unwrap();
    let output = recording.wait_for_end();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
    assert_eq!(
        message.trim_end(),
        "nocopy: nc1: the recording ended early (ENXIO); no such device or address; the packets in the file are complete; look at 'ip link show nc1'"
    );
    assert_eq!(bytes_of_uncut_packets(read_packets(&path)), packets);
}

#[test]
fn a_recording_has_no_capabilities() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let directory = ScratchDirectory::new("capabilities");
    let recording = RunningRecorder::start(lab.right(), &directory.file_path("out.pcapng"), &[]);
    let status = format!("/proc/{}/status", recording.0.as_ref().unwrap().id());
    let status = fs::read_to_string(status).unwrap();
    for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "{status}");
    }
}
