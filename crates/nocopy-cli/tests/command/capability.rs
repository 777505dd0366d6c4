//! What the command may still do while it runs, by the kernel's word: `/proc/PID/task/*/status`.

use nocopy_lab::patience::PATIENCE;
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// `CAP_NET_ADMIN`, `CAP_NET_RAW`, `CAP_IPC_LOCK`, `CAP_SYS_ADMIN`, `CAP_BPF`, by their numbers in
/// linux/capability.h.
const NETWORK: u64 = 1 << 12 | 1 << 13 | 1 << 14 | 1 << 21 | 1 << 39;

/// A running command, ended with the test.
struct RunningNocopy(Child);

impl Drop for RunningNocopy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Debug)]
struct ThreadStatus {
    name: String,
    /// Permitted or effective; there is nothing to inherit.
    capabilities: u64,
    no_new_privileges: bool,
}

impl RunningNocopy {
    fn start(arguments: &[&str], output: impl Into<Stdio>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
        Self(command.args(arguments).stdout(output).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Its threads now; those that end meanwhile are left out.
    fn thread_statuses(&self) -> Vec<ThreadStatus> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let statuses = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
        statuses.map(|status| ThreadStatus::parse(&status)).collect()
    }
}

impl ThreadStatus {
    fn parse(status: &str) -> Self {
        let word = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_else(|| panic!("no {key} in {status}")).trim().to_owned()
        };
        let set = |key| u64::from_str_radix(&word(key), 16).unwrap();
        Self {
            name: word("Name:"),
            capabilities: set("CapPrm:") | set("CapEff:") | set("CapInh:") | set("CapAmb:"),
            no_new_privileges: word("NoNewPrivs:") == "1",
        }
    }
}

fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    let give_up = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > give_up {
            return false;
        }
        sleep(Duration::from_millis(1));
    }
    true
}

/// Commands that only print drop all capabilities before: here their output blocks.
#[test]
fn printing_commands_have_no_capabilities() {
    for arguments in [&["man"][..], &["completions", "bash"], &["doctor"], &["doctor", "lo", "--json"]] {
        let (mut full, _reader) = UnixStream::pair().unwrap();
        full.set_nonblocking(true).unwrap();
        while full.write(&[0; 4096]).is_ok() {}
        full.set_nonblocking(false).unwrap();
        let running = RunningNocopy::start(arguments, OwnedFd::from(full));
        let mut threads = Vec::new();
        let powerless = wait_until(|| {
            threads = running.thread_statuses();
            threads.iter().all(|thread| thread.capabilities == 0 && thread.no_new_privileges)
        });
        assert!(powerless && !threads.is_empty(), "{arguments:?}: {threads:?}");
    }
}

#[test]
fn packet_threads_have_no_capabilities() {
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let running = RunningNocopy::start(&["bench", "capture", "--rounds", "1000"], Stdio::null());
    let mut threads = Vec::new();
    let narrowed = wait_until(|| {
        threads = running.thread_statuses();
        threads.iter().all(|thread| thread.capabilities & !NETWORK == 0 && thread.no_new_privileges)
    });
    assert!(narrowed && !threads.is_empty(), "{threads:?}");
    for role in ["sender", "receiver"] {
        let powerless = wait_until(|| {
            threads = running.thread_statuses();
            assert!(threads.iter().all(|thread| thread.capabilities & !NETWORK == 0), "{threads:?}");
            threads.iter().any(|thread| thread.name == role && thread.capabilities == 0)
        });
        assert!(powerless, "{role}: {threads:?}");
    }
}

/// `stats` keeps only the capability that shows the sockets of other processes.
#[test]
fn stats_keeps_only_capabilities_to_inspect() {
    const INSPECT: u64 = 1 << 2 | 1 << 19; // CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE
    let running = RunningNocopy::start(&["stats", "lo"], Stdio::null());
    let mut threads = Vec::new();
    let narrowed = wait_until(|| {
        threads = running.thread_statuses();
        threads.iter().all(|thread| thread.capabilities & !INSPECT == 0 && thread.no_new_privileges)
    });
    assert!(narrowed && !threads.is_empty(), "{threads:?}");
}

/// `profile` keeps only capabilities for observing, and the command that it starts keeps its own.
#[test]
fn profile_keeps_only_capabilities_to_inspect() {
    // CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYSLOG, CAP_PERFMON, CAP_BPF
    const INSPECT: u64 = 1 << 19 | 1 << 21 | 1 << 34 | 1 << 38 | 1 << 39;
    if nocopy_lab::lab_or_skip().is_none() {
        return;
    }
    let own = std::process::id().to_string();
    let running = RunningNocopy::start(&["profile", "--duration=10m", "--pid", &own], Stdio::null());
    let mut threads = Vec::new();
    let narrowed = wait_until(|| {
        threads = running.thread_statuses();
        threads.iter().all(|thread| thread.capabilities & !INSPECT == 0 && thread.no_new_privileges)
    });
    assert!(narrowed && !threads.is_empty(), "{threads:?}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    let output = command.args(["profile", "--", "cat", "/proc/self/status"]).output().unwrap();
    let status = String::from_utf8(output.stdout).unwrap();
    let own = fs::read_to_string("/proc/self/status").unwrap();
    for field in ["CapEff:", "NoNewPrivs:"] {
        let line = |text: &str| text.lines().find(|line| line.starts_with(field)).map(str::to_owned);
        assert_eq!(line(&status), line(&own), "{status}");
    }
}

/// `run` keeps only capabilities for loading filters and passing signals on, and the program keeps its own.
#[test]
fn run_keeps_only_capabilities_for_filters_and_signals() {
    const SERVE: u64 = 1 << 5 | 1 << 12 | 1 << 39; // CAP_KILL, CAP_NET_ADMIN, CAP_BPF
    let library = std::env::current_exe().unwrap().with_file_name("libnocopy_pcap.so");
    let output = std::env::temp_dir().join(format!("nocopy-capability-run-{}", std::process::id()));
    let words = [
        "run",
        "--library",
        library.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "cat /proc/self/status; exec sleep 60",
    ];
    let mut running = RunningNocopy::start(&words, fs::File::create(&output).unwrap());
    let mut threads = Vec::new();
    let narrowed = wait_until(|| {
        threads = running.thread_statuses();
        threads.iter().all(|thread| thread.capabilities & !SERVE == 0 && thread.no_new_privileges)
    });
    assert!(narrowed && !threads.is_empty(), "{threads:?}");
    let own = fs::read_to_string("/proc/self/status").unwrap();
    for field in ["CapEff:", "NoNewPrivs:"] {
        let line = |text: &str| text.lines().find(|line| line.starts_with(field)).map(str::to_owned);
        let is_same = wait_until(|| line(&fs::read_to_string(&output).unwrap()) == line(&own));
        assert!(is_same, "{field} {}", fs::read_to_string(&output).unwrap());
    }
    // Not by force: the program would stay.
    kill_process(Pid::from_child(&running.0), Signal::TERM).unwrap();
    assert!(wait_until(|| running.0.try_wait().unwrap().is_some()));
    fs::remove_file(&output).unwrap();
}

/// `send` drops all; with the kernel's generator it keeps only what older kernels require.
#[test]
fn send_has_no_capabilities() {
    const BPF: u64 = 1 << 39;
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let interface = lab.left().interface();
    // Without a receiver: it asks meanwhile, with its remaining capabilities.
    let to_host = format!("udp://{}:9", lab.right().ipv4());
    let to_host = ["send", &to_host, "--connect-timeout=10m"];
    for (arguments, kept) in [
        (["send", interface, "--rate=1kpps"].to_vec(), 0),
        (["send", interface, "--rate=1kpps", "--generator=kernel"].to_vec(), BPF),
        ([&to_host[..], &["--method=xdp-udp", "--interface", interface]].concat(), 0),
        ([&to_host[..], &["--method=uring-zerocopy"]].concat(), 0),
    ] {
        if arguments.contains(&"--method=uring-zerocopy") && !nocopy_lab::io_uring_or_skip() {
            return;
        }
        let running = lab.left().namespace().run(|| RunningNocopy::start(&arguments, Stdio::null()));
        let mut threads = Vec::new();
        let narrowed = wait_until(|| {
            threads = running.thread_statuses();
            threads.iter().all(|thread| thread.capabilities & !kept == 0 && thread.no_new_privileges)
        });
        assert!(narrowed && !threads.is_empty(), "{arguments:?}: {threads:?}");
    }
}

#[test]
fn serve_and_ping_have_no_capabilities() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (end, peer) = (lab.left(), lab.right().ipv4());
    let at = |scheme: &str| format!("{scheme}://{}:7000", end.ipv4());
    // It waits for an answer that does not arrive.
    let (asked, nobody) = (format!("xdp://{peer}:9"), ["--interface", end.interface(), "--timeout=10m"]);
    for arguments in [
        vec!["serve".to_owned(), at("message"), at("tcp"), format!("udp://{}:7001", end.ipv4())],
        vec!["serve".to_owned(), at("message"), format!("--interface={}", end.interface())],
        vec!["serve".to_owned(), at("xdp"), format!("--interface={}", end.interface())],
        [&["ping".to_owned(), asked][..], &nobody.map(str::to_owned)].concat(),
    ] {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let running = end.namespace().run(|| RunningNocopy::start(&words, Stdio::null()));
        let mut threads = Vec::new();
        let narrowed = wait_until(|| {
            threads = running.thread_statuses();
            threads.iter().all(|thread| thread.capabilities == 0 && thread.no_new_privileges)
        });
        assert!(narrowed && !threads.is_empty(), "{words:?}: {threads:?}");
    }
}
