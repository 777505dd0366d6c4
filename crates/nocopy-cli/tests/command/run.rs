//! `nocopy run` as its users meet it: programs as they are, and Debian's tcpdump with nocopy in place of its
//! libpcap.

use nocopy_lab::patience::PATIENCE;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::process_state;
use nocopy_lab::{End, Lab};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

/// The interval of polling for conditions without an event.
const LOOK: Duration = Duration::from_millis(10);

/// The library of this build: cargo puts it beside the test, as something that the test depends on.
fn built_pcap_library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libnocopy_pcap.so")
}

pub(crate) fn nocopy_run_command(options: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    command.arg("run").arg("--library").arg(built_pcap_library()).args(options).arg("--").args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A command that is watched, and killed if the test fails before it ends.
pub(crate) struct ObservedCommand {
    pub(crate) child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl ObservedCommand {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = read_lines_in_thread(child.stdout.take());
        let errors = read_lines_in_thread(child.stderr.take());
        Self { child, lines, errors }
    }

    pub(crate) fn start_in_namespace_of(end: &End, command: Command) -> Self {
        end.namespace().run(move || Self::start(command))
    }

    /// The next line of standard output with these words.
    fn expect_line(&self, words: &str) -> String {
        expect_line_with(&self.lines, words)
    }

    /// The next line of standard error with these words.
    pub(crate) fn expect_error_line(&self, words: &str) -> String {
        expect_line_with(&self.errors, words)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// The one process that it has started.
    fn started_process(&self) -> Pid {
        let id = self.child.id();
        let path = format!("/proc/{id}/task/{id}/children");
        let children =
            poll_until_some(|| Some(fs::read_to_string(&path).unwrap()).filter(|all| !all.is_empty()));
        Pid::from_raw(children.trim().parse().unwrap()).unwrap()
    }

    /// Its exit status, and its further output.
    pub(crate) fn wait_for_end(mut self) -> (ExitStatus, String, String) {
        let status = poll_until_some(|| self.child.try_wait().unwrap());
        let rest = |lines: &Receiver<String>| lines.iter().map(|line| line + "\n").collect::<String>();
        (status, rest(&self.lines), rest(&self.errors))
    }
}

impl Drop for ObservedCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines_in_thread(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    if let Some(stream) = stream {
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(stream.read_until(b'\n', &mut line), Ok(1..)) {
                let whole = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
                line.clear();
                if sender.send(whole).is_err() {
                    return;
                }
            }
        });
    }
    lines
}

fn expect_line_with(lines: &Receiver<String>, words: &str) -> String {
    let (give_up, mut others) = (Instant::now() + PATIENCE, Vec::new());
    loop {
        match lines.recv_timeout(give_up.saturating_duration_since(Instant::now())) {
            Ok(line) if line.contains(words) => return line,
            Ok(line) => others.push(line),
            Err(error) => panic!("{error}: no line with '{words}' in {others:#?}"),
        }
    }
}

fn poll_until_some<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < give_up, "it does not come");
        std::thread::sleep(LOOK);
    }
}

/// Ends within patience, or the test fails.
pub(crate) fn output_within_patience(mut command: Command) -> Output {
    let child = command.spawn().unwrap();
    let pid = Pid::from_child(&child);
    let (done, is_done) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let is_late = is_done.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout);
        if is_late {
            kill_process(pid, Signal::KILL).unwrap(); // not waited for yet, so it is still this process
        }
        is_late
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    assert!(!watch.join().unwrap(), "it does not end");
    output
}

struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nocopy-run-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file_path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn exit_codes_are_those_of_env_and_the_command() {
    let code = |command: Command| {
        let output = output_within_patience(command);
        (output.status.code(), lossy_text(&output.stderr))
    };
    assert_eq!(code(nocopy_run_command(&[], &["true"])), (Some(0), String::new()));
    assert_eq!(code(nocopy_run_command(&[], &["sh", "-c", "exit 7"])), (Some(7), String::new()));
    assert_eq!(code(nocopy_run_command(&[], &["sh", "-c", "kill -KILL $$"])).0, Some(128 + 9));
    let (missing, said) = code(nocopy_run_command(&[], &["nocopy-no-such-program"]));
    assert!(missing == Some(127) && said.contains("nocopy-no-such-program: not found"), "{missing:?} {said}");
    let (refused, said) =
        code(nocopy_run_command(&[], &[concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]));
    assert!(refused == Some(126) && said.contains("Cargo.toml: cannot be run"), "{refused:?} {said}");
    let mut without = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    without.args(["run", "--library", "/nowhere/libnocopy_pcap.so", "--", "true"]).stderr(Stdio::piped());
    let (failed, said) = code(without);
    assert!(failed == Some(125) && said.contains("--library"), "{failed:?} {said}");
    let (failed, said) =
        code(nocopy_run_command(&["--report=/nowhere/report"], &["sh", "-c", "echo started >&2"]));
    assert!(failed == Some(125) && said.contains("/nowhere/report") && !said.contains("started"), "{said}");
    assert_eq!(code(nocopy_run_command(&["--tea"], &["true"])).0, Some(2));
    assert_eq!(code(nocopy_run_command(&[], &[])).0, Some(2));
}

#[test]
fn a_programs_output_is_unchanged() {
    let plain = output_within_patience(nocopy_run_command(&[], &["echo", "to be kept"]));
    assert_eq!(
        (lossy_text(&plain.stdout), lossy_text(&plain.stderr)),
        ("to be kept\n".into(), String::new())
    );
    let reported = output_within_patience(nocopy_run_command(&["--report"], &["echo", "to be kept"]));
    assert_eq!(lossy_text(&reported.stdout), "to be kept\n");
    let said = lossy_text(&reported.stderr);
    assert!(
        said.starts_with("nocopy: echo to be kept ended with exit code 0; 0 capture handles\n"),
        "{said}"
    );
    assert!(
        said.contains("echo: no capture handle was reported; the program does not load libpcap"),
        "{said}"
    );
}

#[test]
fn a_report_overwrites_its_file_only_at_the_end() {
    let directory = ScratchDirectory::new("file");
    let path = directory.file_path("report.json");
    fs::write(&path, "x".repeat(10_000)).unwrap();
    let option = format!("--report={path}");
    let output = output_within_patience(nocopy_run_command(
        &["--json", "--force", &option],
        &["sh", "-c", &format!("wc -c < '{path}'; exit 3")],
    ));
    assert_eq!((output.status.code(), lossy_text(&output.stdout).trim()), (Some(3), "10000"));
    assert_eq!(lossy_text(&output.stderr), "");
    let report: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!((&report["schema"], &report["exit_code"]), (&"nocopy.run/2".into(), &3.into()));
    assert_eq!(report["handles"], Value::Array(Vec::new()));
}

/// `/dev/stderr` is a link to the program's own output.
#[test]
fn a_report_can_go_to_standard_error() {
    let directory = ScratchDirectory::new("stderr");
    let path = directory.file_path("log");
    let mut command = nocopy_run_command(&["--json", "--report=/dev/stderr"], &["true"]);
    let status = command.stderr(fs::File::create(&path).unwrap()).status().unwrap();
    let written = fs::read_to_string(&path).unwrap();
    assert_eq!(status.code(), Some(0), "{written}");
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap()["schema"], "nocopy.run/2");
}

#[test]
fn earlier_preloads_stay_and_take_sets_its_variable() {
    let environment = |options: &[&str], preloaded: &str| {
        let mut command = nocopy_run_command(options, &["env"]);
        command.env("LD_PRELOAD", preloaded).env("NOCOPY_TAKE", "1");
        lossy_text(&output_within_patience(command).stdout)
    };
    // Of a library that is not there the loader only warns.
    let plain = environment(&[], "libnocopy-test.so");
    let ours = nocopy_lab::preloadable_path(&built_pcap_library()).unwrap();
    assert!(plain.contains(&format!("LD_PRELOAD={}:libnocopy-test.so\n", ours.display())), "{plain}");
    assert!(plain.contains("NOCOPY_RUN_SOCKET=") && !plain.contains("NOCOPY_TAKE="), "{plain}");
    assert!(environment(&["--take"], "").contains("NOCOPY_TAKE=1\n"));
}

#[test]
fn a_report_has_no_control_characters() {
    for form in [&["--report"][..], &["--json"]] {
        let output = output_within_patience(nocopy_run_command(
            form,
            &["sh", "-c", "exit 0", "\x1b]0;title\x07\u{9b}2J"],
        ));
        let said = lossy_text(&output.stderr);
        assert!(said.contains("title") && !said.contains(['\x1b', '\u{9b}', '\x07']), "{said:?}");
    }
}

#[test]
fn a_set_user_id_program_is_reported_as_not_preloadable() {
    let directory = ScratchDirectory::new("setuid");
    let path = directory.file_path("set-user-id");
    // Another process copies the file: a child that another test starts could inherit this process's open
    // file, and executing would fail.
    assert!(Command::new("cp").args(["/bin/true", &path]).status().unwrap().success());
    let other = if rustix::process::geteuid().is_root() { Some(65_534) } else { None };
    if std::os::unix::fs::chown(&path, other, None).is_err() || other.is_none() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_CHOWN"));
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    let output = output_within_patience(nocopy_run_command(&["--json"], &[&path]));
    let said = lossy_text(&output.stderr);
    let (warning, report) = said.split_once('\n').unwrap();
    assert!(warning.starts_with("nocopy: warning: ") && warning.contains("set-user-ID"), "{said}");
    let report: Value = serde_json::from_str(report).unwrap();
    assert!(report["notes"][0].as_str().unwrap().contains("set-user-ID"), "{said}");
}

/// Signals that this process was started to ignore, as the children of nohup(1) are; no shell can trap these.
fn is_signal_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(mask, 16).unwrap() & 1 << (signal.as_raw() - 1) != 0
}

/// A shell that prints the signals it gets, and ends with 3 on SIGTERM.
const PRINT_SIGNALS: &str =
    "for s in HUP INT QUIT USR1 USR2; do trap \"echo $s\" $s; done; trap 'exit 3' TERM
    echo ready; while :; do sleep 0.05; done";

#[test]
fn signals_are_passed_on() {
    let signals = [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ];
    let running = ObservedCommand::start(nocopy_run_command(&[], &["sh", "-c", PRINT_SIGNALS]));
    running.expect_line("ready");
    for (name, signal) in signals.into_iter().filter(|(_, signal)| !is_signal_ignored(*signal)) {
        running.signal(signal);
        running.expect_line(name);
    }
    running.signal(Signal::TERM);
    let (status, ..) = running.wait_for_end();
    assert_eq!(status.code(), Some(3));
}

#[test]
fn a_signal_that_ends_the_command_gives_exit_code_128_plus_n() {
    let running =
        ObservedCommand::start(nocopy_run_command(&["--json"], &["sh", "-c", "echo ready; exec sleep 1000"]));
    running.expect_line("ready");
    running.signal(Signal::TERM);
    let (status, _, said) = running.wait_for_end();
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((status.code(), &report["signal"]), (Some(128 + 15), &15.into()));
}

/// Otherwise it would run on without getting signals.
#[test]
fn a_command_that_cannot_be_waited_for_is_killed() {
    // Beyond its limit of descriptors poll(2) takes none, as `nocopy run` finds when it looks again.
    let script = "trap '' USR1; echo $$; prlimit --pid $PPID --nofile=1:1; kill -USR1 $PPID; exec sleep 1000";
    let mut running = ObservedCommand::start(nocopy_run_command(&[], &["sh", "-c", script]));
    let command = running.lines.recv_timeout(PATIENCE).unwrap();
    let status = poll_until_some(|| running.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(125));
    running.expect_error_line("cannot be waited for");
    assert!(!fs::exists(format!("/proc/{command}")).unwrap());
}

#[test]
fn ignored_signals_stay_ignored() {
    let directory = ScratchDirectory::new("nohup");
    let command = nocopy_run_command(&[], &["sh", "-c", "echo ready; cat; exit 4"]);
    let mut words = vec!["trap '' HUP; exec \"$@\"".to_owned(), "sh".to_owned()];
    words.push(command.get_program().to_str().unwrap().to_owned());
    words.extend(command.get_args().map(|word| word.to_str().unwrap().to_owned()));
    let mut ignoring = Command::new("sh");
    ignoring.arg("-c").args(words).current_dir(&directory.0);
    ignoring.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = ObservedCommand::start(ignoring);
    running.expect_line("ready");
    running.signal(Signal::HUP);
    // If it had ended either of them, there would be no answer.
    running.child.stdin.take().unwrap().write_all(b"still there\n").unwrap();
    running.expect_line("still there");
    assert_eq!(running.wait_for_end().0.code(), Some(4));
}

/// Ctrl-C reaches the program, and `nocopy run` still reports how that ended.
#[test]
fn an_interrupt_key_reaches_the_command_once() {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let open = || fs::File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let plain = nocopy_run_command(&["--report"], &["sh", "-c", PRINT_SIGNALS]);
    let mut command = Command::new("setsid");
    command
        .args(["--ctty", "--wait", "env", "--default-signal"])
        .arg(plain.get_program())
        .args(plain.get_args());
    command.stdin(open()).stdout(open()).stderr(Stdio::piped());
    let mut running = ObservedCommand::start(command);
    let mut terminal = fs::File::from(controller);
    running.lines = read_lines_in_thread(Some(terminal.try_clone().unwrap()));
    running.expect_line("ready");
    terminal.write_all(b"\x03").unwrap();
    running.expect_line("INT");
    kill_process(running.started_process(), Signal::TERM).unwrap();
    let said = running.expect_error_line("ended with");
    assert!(said.contains("exit code 3"), "{said}");
    let status = poll_until_some(|| running.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(3));
}

/// Sends datagrams from `lab`'s left end to port 9000 of its right one until they are wanted no more.
pub(crate) fn send_until(lab: &Lab, is_done: impl FnMut() -> bool) {
    send_to_port_until(lab, 9000, is_done);
}

fn send_to_port_until(lab: &Lab, port: u16, mut is_done: impl FnMut() -> bool) {
    let socket = lab.left().namespace().run(|| UdpSocket::bind((lab.left().ipv4(), 0)).unwrap());
    poll_until_some(|| {
        socket.send_to(b"nocopy run", (lab.right().ipv4(), port)).unwrap();
        is_done().then_some(())
    });
}

#[test]
fn tcpdump_captures_by_nocopy_and_its_mode_is_reported() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let right = lab.right();
    let directory = ScratchDirectory::new("tcpdump");
    let report = directory.file_path("report.txt");
    let option = format!("--report={report}");
    let words = ["tcpdump", "-nn", "-l", "-c", "3", "-s", "96", "-i", right.interface(), "udp port 9000"];
    let mut running = ObservedCommand::start_in_namespace_of(right, nocopy_run_command(&[&option], &words));
    running.expect_error_line("listening on");
    send_until(&lab, || running.child.try_wait().unwrap().is_some());
    let (status, printed, _) = running.wait_for_end();
    assert_eq!(status.code(), Some(0));
    let packets: Vec<_> = printed.lines().collect();
    assert!(
        packets.len() == 3 && packets.iter().all(|line| line.contains(".9000: UDP, length 10")),
        "{printed}"
    );
    let report = fs::read_to_string(&report).unwrap();
    let lines: Vec<_> = report.lines().collect();
    assert!(lines[0].starts_with("nocopy: tcpdump -nn -l -c 3"), "{report}");
    assert!(lines[0].ends_with("ended with exit code 0; 1 capture handle"), "{report}");
    let cells: Vec<_> = lines[2].split_whitespace().collect();
    assert_eq!(cells[1..6], ["tcpdump", right.interface(), "nocopy", "passive", "socket"], "{report}");
    let received: u64 = cells[6].parse().unwrap();
    assert!(received >= 3 && lines.len() == 3, "{report}");
}

#[test]
fn a_program_that_closes_its_descriptors_is_in_the_report() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let right = lab.right();
    let capture = format!("tcpdump -nn -l -c 3 -i {} udp port 9000", right.interface());
    let closing = r#"number=${NOCOPY_RUN_SOCKET%%:*}; eval "exec $number>&-"; exec "#;
    let mut running = ObservedCommand::start_in_namespace_of(
        right,
        nocopy_run_command(&["--json"], &["sh", "-c", &(closing.to_owned() + &capture)]),
    );
    running.expect_error_line("listening on");
    send_until(&lab, || running.child.try_wait().unwrap().is_some());
    let (status, _, said) = running.wait_for_end();
    let report = parse_json_after_text(&said);
    let handle = &report["handles"][0];
    assert_eq!(
        (status.code(), &handle["program"], &handle["state"]),
        (Some(0), &"tcpdump".into(), &"closed".into())
    );
    assert!(handle["counts"]["received"].as_u64() >= Some(3), "{said}");
}

/// A program in Python that captures three packets: `daemon`, in a child of the process that opened the
/// capture and has ended, and closes it; else it ends without closing it.
const CAPTURE: &str = r#"
import ctypes, os, sys
pcap, text = ctypes.CDLL(None), ctypes.create_string_buffer(256)
pcap.pcap_open_live.restype = ctypes.c_void_p
handle = ctypes.c_void_p(pcap.pcap_open_live(sys.argv[1].encode(), 96, 1, 10, text))
opener, is_daemon = os.getpid(), sys.argv[2] == "daemon"
if is_daemon and os.fork(): pcap.exit(0)
try:
    while is_daemon: os.kill(opener, 0)
except ProcessLookupError: pass
print("captures", flush=True)
packets, header, data = 0, ctypes.c_void_p(), ctypes.c_void_p()
while packets < 3: packets += pcap.pcap_next_ex(handle, ctypes.byref(header), ctypes.byref(data))
if is_daemon: pcap.pcap_close(handle)
print("captured by", os.getpid(), flush=True)
"#;

#[test]
fn a_handle_that_a_daemon_closes_is_reported() {
    check_counts_of_python_capture("daemon");
}

#[test]
fn a_handle_that_is_open_at_exit_is_reported() {
    check_counts_of_python_capture("leaving");
}

fn check_counts_of_python_capture(kind: &str) {
    for options in [&["--json"][..], &["--json", "--take"]] {
        let Some(lab) = lab_without_gro() else { return };
        let right = lab.right();
        let words = ["sh", "-c", "python3 -c \"$@\"; read end", "sh", CAPTURE, right.interface(), kind];
        let mut command = nocopy_run_command(options, &words);
        command.stdin(Stdio::piped());
        let mut running = ObservedCommand::start_in_namespace_of(right, command);
        let input = running.child.stdin.take();
        running.expect_line("captures");
        let mut captured = None;
        send_until(&lab, || {
            captured = running.lines.try_iter().find(|line| line.starts_with("captured by "));
            captured.is_some()
        });
        drop(input);
        let (_, _, said) = running.wait_for_end();
        let report = parse_json_after_text(&said);
        let handles = report["handles"].as_array().unwrap();
        assert!(handles.len() == 1 && handles[0]["state"] == "closed", "{said}");
        assert!(handles[0]["counts"]["received"].as_u64() >= Some(3), "{said}");
        assert_eq!(captured.unwrap(), format!("captured by {}", handles[0]["process"]));
    }
}

#[test]
fn handles_of_the_systems_library_are_reported_with_a_reason() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let words = ["tcpdump", "-nn", "-l", "-c", "2", "-i", "any", "udp port 9000"];
    let mut running =
        ObservedCommand::start_in_namespace_of(lab.right(), nocopy_run_command(&["--json"], &words));
    running.expect_error_line("listening on any");
    send_until(&lab, || running.child.try_wait().unwrap().is_some());
    let (status, _, said) = running.wait_for_end();
    assert_eq!(status.code(), Some(0));
    let handle = &parse_json_after_text(&said)["handles"][0];
    assert_eq!((&handle["library"], &handle["state"]), (&"system".into(), &"closed".into()), "{said}");
    assert!(handle["cause"].as_str().unwrap().contains("any"), "{said}");
    assert!(handle["counts"]["received"].as_u64().unwrap() >= 2, "{said}");
    assert!(handle.get("mode").is_none(), "{said}");
}

/// The report, which follows tcpdump's output.
pub(crate) fn parse_json_after_text(said: &str) -> Value {
    let start = said.find("{\n").unwrap_or_else(|| panic!("no JSON: {said}"));
    serde_json::from_str(&said[start..]).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn reports_list_each_program_including_killed_ones() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let right = lab.right();
    let each = format!("tcpdump -nn -l -i {} udp port 9000", right.interface());
    // The second one is killed once both have printed a packet; then the first is ended.
    let script = format!(
        "{each} & first=$!; {each} & second=$!; read go; kill -KILL $second; wait $second; kill -TERM $first; wait $first"
    );
    let mut command = nocopy_run_command(&["--json"], &["sh", "-c", &script]);
    command.stdin(Stdio::piped());
    let mut running = ObservedCommand::start_in_namespace_of(right, command);
    // Each writes its line in pieces, so one line may contain both.
    let mut listening = 0;
    while listening < 2 {
        listening += running.expect_error_line("listening on").matches("listening on").count();
    }
    let mut go = running.child.stdin.take();
    let (mut lines, deadline) = (0, Instant::now() + PATIENCE);
    send_until(&lab, || {
        lines += running.lines.try_iter().count();
        assert!(Instant::now() < deadline, "{lines}");
        lines >= 4
    });
    writeln!(go.take().unwrap(), "go").unwrap();
    let (status, _, said) = running.wait_for_end();
    assert!(status.code().is_some(), "{said}");
    let report = parse_json_after_text(&said);
    let handles = report["handles"].as_array().unwrap();
    assert_eq!(handles.len(), 2, "{report}");
    assert_ne!(handles[0]["process"], handles[1]["process"], "{report}");
    let of_state = |state: &str| handles.iter().find(|handle| handle["state"] == state);
    assert!(of_state("closed").unwrap()["counts"]["received"].as_u64().unwrap() >= 1, "{report}");
    assert!(of_state("process-ended").unwrap().get("counts").is_none(), "{report}");
}

#[test]
fn a_program_survives_when_nocopy_run_is_killed() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let right = lab.right();
    let words = ["tcpdump", "-nn", "-l", "-i", right.interface(), "udp port 9000"];
    let running = ObservedCommand::start_in_namespace_of(right, nocopy_run_command(&[], &words));
    running.expect_error_line("listening on");
    let tcpdump = running.started_process();
    running.signal(Signal::KILL);
    send_until(&lab, || running.lines.try_recv().is_ok());
    // It closes its handle and does not wait: a signal to the runner could hide the last message.
    kill_process(tcpdump, Signal::TERM).unwrap();
    running.expect_error_line("packets dropped by kernel");
}

/// Taking captures are by XDP, which sees packets as they were sent only without GRO.
fn lab_without_gro() -> Option<Lab> {
    Lab::builder().gro_right(false).build_or_skip()
}

/// The XDP program of a capture is detached with its last descriptor, which the kernel closes a moment later.
fn wait_until_no_xdp_program(end: &End) {
    poll_until_some(|| end.xdp_program().unwrap().is_none().then_some(()));
}

/// Debian's tcpdump opens its capture as root, changes its user, and then sets its filter.
#[test]
fn a_filter_set_without_privileges_is_applied() {
    let Some(lab) = lab_without_gro() else { return };
    let right = lab.right();
    let bound = |port: u16| right.namespace().run(|| UdpSocket::bind((right.ipv4(), port)).unwrap());
    let (taken, left) = (bound(9000), bound(9001));
    let words = ["tcpdump", "-nn", "-l", "-c", "3", "-i", right.interface(), "udp port 9000"];
    let mut running =
        ObservedCommand::start_in_namespace_of(right, nocopy_run_command(&["--take", "--json"], &words));
    running.expect_error_line("listening on");
    assert!(right.xdp_program().unwrap().is_some());
    // What does not match is the host's.
    let sender = lab.left().namespace().run(|| UdpSocket::bind((lab.left().ipv4(), 0)).unwrap());
    sender.send_to(b"another one's", (right.ipv4(), 9001)).unwrap();
    left.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(process_state::uninterrupted(|| left.recv(&mut [0; 64])).unwrap(), 13);
    send_until(&lab, || running.child.try_wait().unwrap().is_some());
    let (status, printed, said) = running.wait_for_end();
    assert_eq!((status.code(), printed.lines().count()), (Some(0), 3), "{printed}{said}");
    let handle = &parse_json_after_text(&said)["handles"][0];
    assert_eq!((&handle["mode"], &handle["filter"]), (&"take".into(), &"xdp".into()), "{said}");
    assert!(handle["queues"][0].as_str().unwrap().starts_with("xdp copy"), "{said}");
    assert!(handle["counts"]["received"].as_u64().unwrap() >= 3, "{said}");
    wait_until_no_xdp_program(right);
    drop(taken);
}

/// The runner refuses requests of another network namespace than its own; the library then runs the filter.
#[test]
fn a_filter_the_runner_cannot_load_runs_in_user_space() {
    let Some(lab) = lab_without_gro() else { return };
    let right = lab.right();
    let mut inside = Command::new("sleep");
    inside.arg("1000");
    let inside = ObservedCommand::start_in_namespace_of(right, inside);
    let entered = inside.child.id().to_string();
    let tcpdump = ["tcpdump", "-nn", "-l", "-c", "3", "-i", right.interface(), "udp port 9000"];
    let words = [&["nsenter", "--net", "--target", &entered][..], &tcpdump].concat();
    let mut running = ObservedCommand::start(nocopy_run_command(&["--take", "--json"], &words));
    running.expect_error_line("listening on");
    send_until(&lab, || running.child.try_wait().unwrap().is_some());
    let (status, printed, said) = running.wait_for_end();
    assert_eq!((status.code(), printed.lines().count()), (Some(0), 3), "{printed}{said}");
    let handle = &parse_json_after_text(&said)["handles"][0];
    assert_eq!((&handle["mode"], &handle["filter"]), (&"take".into(), &"user-space".into()), "{said}");
    assert!(!handle["filter_cause"].as_str().unwrap().is_empty(), "{said}");
    wait_until_no_xdp_program(right);
}

#[test]
fn a_killed_capture_leaves_no_xdp_program() {
    let Some(lab) = lab_without_gro() else { return };
    let right = lab.right();
    let script = format!(
        "tcpdump -nn -l -i {} udp port 9000 & tcpdump=$!; read go; kill -KILL $tcpdump; wait $tcpdump; echo killed; read end",
        right.interface()
    );
    let mut command = nocopy_run_command(&["--take", "--json"], &["sh", "-c", &script]);
    command.stdin(Stdio::piped());
    let mut running = ObservedCommand::start_in_namespace_of(right, command);
    running.expect_error_line("listening on");
    assert!(right.xdp_program().unwrap().is_some());
    let mut words = running.child.stdin.take().unwrap();
    writeln!(words, "go").unwrap();
    running.expect_line("killed");
    wait_until_no_xdp_program(right);
    assert!(running.child.try_wait().unwrap().is_none());
    drop(words);
    let (_, _, said) = running.wait_for_end();
    assert_eq!(parse_json_after_text(&said)["handles"][0]["state"], "process-ended", "{said}");
}

#[test]
fn a_taking_capture_survives_its_runner_and_detaches_xdp() {
    let Some(lab) = lab_without_gro() else { return };
    let right = lab.right();
    let words = ["tcpdump", "-nn", "-l", "-i", right.interface(), "udp port 9000"];
    let running = ObservedCommand::start_in_namespace_of(right, nocopy_run_command(&["--take"], &words));
    running.expect_error_line("listening on");
    let tcpdump = running.started_process();
    running.signal(Signal::KILL);
    send_until(&lab, || running.lines.try_recv().is_ok());
    kill_process(tcpdump, Signal::TERM).unwrap();
    running.expect_error_line("packets dropped by kernel");
    wait_until_no_xdp_program(right);
}

#[test]
fn a_second_taking_program_captures_passively_with_a_report() {
    let Some(lab) = lab_without_gro() else { return };
    let right = lab.right();
    let first = ["tcpdump", "-nn", "-l", "-i", right.interface(), "udp port 9000"];
    let first = ObservedCommand::start_in_namespace_of(right, nocopy_run_command(&["--take"], &first));
    first.expect_error_line("listening on");
    let words = ["tcpdump", "-nn", "-l", "-c", "2", "-i", right.interface(), "udp port 9001"];
    let mut second =
        ObservedCommand::start_in_namespace_of(right, nocopy_run_command(&["--take", "--json"], &words));
    second.expect_error_line("listening on");
    send_to_port_until(&lab, 9001, || second.child.try_wait().unwrap().is_some());
    let (status, printed, said) = second.wait_for_end();
    assert_eq!((status.code(), printed.lines().count()), (Some(0), 2), "{printed}{said}");
    let handle = &parse_json_after_text(&said)["handles"][0];
    assert_eq!((&handle["library"], &handle["mode"]), (&"nocopy".into(), &"passive".into()), "{said}");
    assert!(handle["note"].as_str().unwrap().contains("not taken from the host"), "{said}");
    first.signal(Signal::TERM);
    assert_eq!(first.wait_for_end().0.code(), Some(0));
    wait_until_no_xdp_program(right);
}
