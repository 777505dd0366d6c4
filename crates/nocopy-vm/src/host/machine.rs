//! An emulated machine, from its start to its end.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::boot::Boot;
use super::kernel::KernelTree;
use super::tools::{Tools, path_with};
use super::wire;
use crate::arguments::RandomArguments;
use crate::event::{self, Ended, Event};
use crate::guest;
use crate::registry::Topology;

/// No longer than this may a machine say nothing: more than a boot takes, and than a test may.
const SILENCE_MAX: Duration = Duration::from_secs(180);
const SOAK_SILENCE_MAX: Duration = Duration::from_secs(1000);

/// How long a machine whose tests are done may take to go down.
const END_MAX: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);

/// Machines at a time: emulation keeps about one core busy each.
const MACHINES_MAX: usize = 2;

/// What the console said last, when a machine ended before its tests did.
const CONSOLE_LINES: usize = 40;

/// What became of a machine.
pub(crate) struct Outcome {
    pub(crate) boot: Boot,
    /// As the machine's `uname -r` says it; the expected one if it never got so far.
    pub(crate) version: String,
    pub(crate) boot_seconds: Option<f64>,
    pub(crate) seconds: f64,
    pub(crate) ended: Vec<Ended>,
    /// What is wrong with the machine itself.
    pub(crate) failure: Option<String>,
    /// What the kernel complained of before the first test and after the last.
    pub(crate) complaints: Vec<String>,
}

/// Runs every machine, [`MACHINES_MAX`] at a time; outcomes in the order of `boots`.
pub(crate) fn run_all(
    cache: &Path,
    tools: &Tools,
    boots: Vec<(KernelTree, Boot)>,
    random: RandomArguments,
) -> Vec<Outcome> {
    let waiting = Mutex::new(boots.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    let next = || waiting.lock().expect("no thread panics with it").next();
    thread::scope(|scope| {
        for _ in 0..MACHINES_MAX {
            scope.spawn(|| {
                while let Some((index, (kernel, boot))) = next() {
                    let outcome = run(cache, tools, &kernel, boot, random);
                    done.lock().expect("no thread panics with it").push((index, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("every thread is done");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

fn run(cache: &Path, tools: &Tools, kernel: &KernelTree, boot: Boot, random: RandomArguments) -> Outcome {
    let started = Instant::now();
    let mut outcome = Outcome {
        version: kernel.version.clone(),
        boot,
        boot_seconds: None,
        seconds: 0.0,
        ended: Vec::new(),
        failure: None,
        complaints: Vec::new(),
    };
    let follow = |outcome: &mut Outcome| {
        wire::inside(outcome.boot.topology, || follow(cache, tools, kernel, random, outcome))
    };
    let mut followed = follow(&mut outcome);
    // An emulated machine now and then stands still while it starts. Nothing of ours has run then.
    if let (Err(failure), None) = (&followed, outcome.boot_seconds) {
        say(&outcome, &format!("started once more, because it never came up: {failure}"));
        followed = follow(&mut outcome);
    }
    if let Err(failure) = followed {
        say(&outcome, &failure);
        outcome.failure = Some(failure);
    }
    outcome.seconds = started.elapsed().as_secs_f64();
    outcome
}

/// Starts the machine and reads along until it ends.
fn follow(
    cache: &Path,
    tools: &Tools,
    kernel: &KernelTree,
    random: RandomArguments,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let shared = tempfile::Builder::new().prefix("nocopy-vm-").tempdir();
    let shared = shared.map_err(|error| format!("no directory to share with the machine: {error}"))?;
    let console = shared.path().join("console");
    let mut machine = Machine::start(cache, tools, kernel, &outcome.boot, random, shared.path(), &console)
        .map_err(|error| format!("the machine did not start: {error}: is util-linux installed?"))?;
    let started = Instant::now();
    let (mut read_bytes, mut last_event, mut done) = (0, Instant::now(), false);
    loop {
        // First whether it has ended, then what it has said: nothing is said after the end.
        let status = machine.0.try_wait().map_err(|error| error.to_string())?;
        let said = fs::read_to_string(shared.path().join(event::FILE)).unwrap_or_default();
        // The last line may be half written.
        let complete = said.rfind('\n').map_or(0, |end| end + 1);
        for line in said[read_bytes..complete].lines() {
            let event = serde_json::from_str(line).map_err(|error| format!("'{line}': {error}"))?;
            done |= matches!(event, Event::Done { .. });
            take(event, outcome, started.elapsed());
            last_event = Instant::now();
        }
        read_bytes = complete;
        if let Some(status) = status {
            return if done {
                Ok(())
            } else {
                Err(format!("it ended early ({status}); its console said last:\n{}", last_lines(&console)))
            };
        }
        let silence_max = if done {
            END_MAX
        } else if random.soak {
            SOAK_SILENCE_MAX
        } else {
            SILENCE_MAX
        };
        if last_event.elapsed() > silence_max {
            let seconds = silence_max.as_secs();
            return Err(format!(
                "nothing heard for {seconds} s, killed; its console said last:\n{}",
                last_lines(&console)
            ));
        }
        sleep(POLL);
    }
}

fn take(event: Event, outcome: &mut Outcome, elapsed: Duration) {
    match event {
        Event::Booted { kernel, complaints } => {
            say(outcome, &format!("Linux {kernel} is up after {:.0} s", elapsed.as_secs_f64()));
            outcome.version = kernel;
            outcome.boot_seconds = Some(elapsed.as_secs_f64());
            outcome.complaints = complaints;
        }
        Event::Started { test } => say(outcome, &format!("{test} …")),
        Event::Ended(ended) => {
            let verdict = if ended.passed() { "ok" } else { "FAILED" };
            say(outcome, &format!("{} {verdict}, {:.1} s", ended.test, ended.seconds));
            outcome.ended.push(ended);
        }
        Event::Done { complaints } => outcome.complaints.extend(complaints),
    }
}

fn say(outcome: &Outcome, words: &str) {
    eprintln!("vm: {:<11} {:<7} {words}", outcome.boot.topology, outcome.boot.kernel);
}

fn last_lines(console: &Path) -> String {
    let text =
        fs::read(console).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n")
}

/// The process that everything of a machine lives under; dropped, all of it is gone.
struct Machine(Child);

impl Machine {
    fn start(
        cache: &Path,
        tools: &Tools,
        kernel: &KernelTree,
        boot: &Boot,
        random: RandomArguments,
        shared: &Path,
        console: &Path,
    ) -> std::io::Result<Self> {
        let console = File::create(console)?;
        // Three layers, so that no QEMU outlives its lab: setpriv kills unshare when this thread dies, by whatever cause;
        // unshare then kills the first process of a process namespace; and with that one the kernel kills all others.
        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
            "vng",
        ]);
        command
            .args(["--verbose", "--disable-kvm", "--memory", "1G", "--cpus", "2", "--run"])
            .arg(&kernel.image);
        command.arg(format!("--rwdir={}", shared.display()));
        command.arg(format!("--qemu-opts={} {}", devices(boot.topology), monitor(shared)));
        command.args(["--exec", &guest_command(boot, random, shared)?]);
        command.env("PATH", path_with(&tools.virtme)).env("HOME", cache).env("XDG_CACHE_HOME", cache);
        command.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console).process_group(0);
        command.spawn().map(Self)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait()
            && let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// What runs in the guest: this very file.
fn guest_command(boot: &Boot, random: RandomArguments, shared: &Path) -> std::io::Result<String> {
    let program = std::env::current_exe()?;
    let mut words = vec![program.display().to_string(), "guest".into()];
    words.extend([
        "--topology".into(),
        boot.topology.to_string(),
        "--shared".into(),
        shared.display().to_string(),
    ]);
    for test in &boot.tests {
        words.extend(["--only".into(), (*test).to_owned()]);
    }
    words.extend(random.words());
    Ok(words.join(" "))
}

/// QEMU's options for the two wired interfaces.
fn devices(topology: Topology) -> String {
    let card = |n: u32| match topology {
        Topology::Igb => format!(
            "-device pcie-root-port,id=port{n},chassis={},slot={} -device igb,id=card{n},netdev=h{n},bus=port{n}",
            n + 1,
            n + 1
        ),
        // Without the guest offloads virtio_net does XDP, and with the memory addressed by its driver it does zero-copy.
        Topology::Virtio | Topology::VirtioTaps => format!(
            "-device virtio-net-pci,id=card{n},netdev=h{n},iommu_platform=on,disable-legacy=on,\
             guest_tso4=off,guest_tso6=off,guest_ufo=off,guest_csum=off"
        ),
    };
    format!("{} {} {}", wire::netdevs(topology), card(0), card(1))
}

/// QEMU's options for a serial port in the guest with QEMU's own monitor at the other end, so that a test can pull a cable:
/// QEMU is both ends of a socket.
fn monitor(shared: &Path) -> String {
    let socket = shared.join("monitor");
    let (socket, name) = (socket.display(), guest::monitor::PORT);
    format!(
        "-chardev socket,id=monitor,path={socket},server=on,wait=off -mon chardev=monitor,mode=control \
         -chardev socket,id=line,path={socket} -device virtio-serial-pci,id=serial \
         -device virtserialport,bus=serial.0,chardev=line,name={name}"
    )
}
