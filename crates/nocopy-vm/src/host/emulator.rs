//! The process of a machine: how QEMU is started, and its arguments.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use super::boot::MachinePlan;
use super::kernel::KernelTree;
use super::lab::{LabContext, ProcessorKind};
use super::tools::{MachineStarter, path_variable_with};
use super::wire;
use crate::arguments::RandomArguments;
use crate::guest;
use crate::topology::Topology;

/// The file in the shared directory that has the console's output.
pub(super) const CONSOLE: &str = "console";

/// The parent of all processes of a machine; dropping it ends them all.
pub(super) struct RunningMachine(pub(super) Child);

impl RunningMachine {
    pub(super) fn start(
        lab: &LabContext<'_>,
        kernel: &KernelTree,
        boot: &MachinePlan,
        tests: &[&'static str],
        shared: &Path,
    ) -> std::io::Result<Self> {
        let console = File::create(shared.join(CONSOLE))?;
        // Three layers, so that no QEMU outlives its lab: setpriv kills unshare when this thread dies, by
        // whatever cause; unshare then kills the first process of a process namespace; and with that one the
        // kernel kills all others.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]);
        match &lab.tools.starter {
            MachineStarter::Virtme(programs) => {
                let guest = guest_arguments(boot, tests, lab.random, shared);
                command
                    .args(virtme_command(lab, kernel, boot, shared))
                    .args(["--exec", &guest_command(&guest)?]);
                command.env("PATH", path_variable_with(programs));
                command.env("HOME", lab.cache).env("XDG_CACHE_HOME", lab.cache);
            }
            MachineStarter::Arm64(image) => {
                let guest = guest_arguments(boot, tests, lab.random, Path::new(guest::init::SHARED));
                command.args(image.emulator_command(kernel, &guest, shared));
            }
        }
        command.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console).process_group(0);
        command.spawn().map(Self)
    }
}

impl Drop for RunningMachine {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait()
            && let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// How virtme-ng starts QEMU, with all but the command that runs in the machine.
fn virtme_command(
    lab: &LabContext<'_>,
    kernel: &KernelTree,
    boot: &MachinePlan,
    shared: &Path,
) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["vng".into()];
    if *lab.processors != ProcessorKind::Hardware {
        words.push("--disable-kvm".into());
    }
    // Interfaces keep the names of their drivers: otherwise udev could rename one during a test.
    words.extend(["--append", "net.ifnames=0"].map(OsString::from));
    words.extend(["--verbose", "--memory", "1G", "--cpus", "2", "--run"].map(OsString::from));
    words.push(kernel.image.clone().into());
    words.push(format!("--rwdir={}", shared.display()).into());
    words.push(format!("--qemu-opts={} {}", device_options(boot.topology), monitor_options(shared)).into());
    words
}

/// The command that the guest runs: this program.
fn guest_command(words: &[String]) -> std::io::Result<String> {
    Ok(format!("{} {}", std::env::current_exe()?.display(), words.join(" ")))
}

fn guest_arguments(
    boot: &MachinePlan,
    tests: &[&'static str],
    random: RandomArguments,
    shared: &Path,
) -> Vec<String> {
    let mut words = vec!["guest".into()];
    words.extend([
        "--topology".into(),
        boot.topology.to_string(),
        "--shared".into(),
        shared.display().to_string(),
    ]);
    for test in tests {
        words.extend(["--only".into(), (*test).to_owned()]);
    }
    words.extend(random.to_command_line());
    words
}

/// QEMU's options for the two wired interfaces.
fn device_options(topology: Topology) -> String {
    let card = |n: u32| match topology {
        Topology::Igb => format!(
            "-device pcie-root-port,id=port{n},chassis={},slot={} -device igb,id=card{n},netdev=h{n},bus=port{n}",
            n + 1,
            n + 1
        ),
        // Without the guest offloads virtio_net does XDP, and with the memory addressed by its driver it does
        // zero-copy.
        Topology::Virtio | Topology::VirtioTaps => format!(
            "-device virtio-net-pci,id=card{n},netdev=h{n},iommu_platform=on,disable-legacy=on,\
             guest_tso4=off,guest_tso6=off,guest_ufo=off,guest_csum=off"
        ),
        Topology::Veth => String::new(),
    };
    format!("{} {} {}", wire::netdev_options(topology), card(0), card(1))
}

/// QEMU's options for a serial port in the guest with QEMU's own monitor at the other end, so that a test can
/// pull a cable: QEMU is both ends of a socket.
fn monitor_options(shared: &Path) -> String {
    let socket = shared.join("monitor");
    let (socket, name) = (socket.display(), guest::monitor::PORT);
    format!(
        "-chardev socket,id=monitor,path={socket},server=on,wait=off -mon chardev=monitor,mode=control \
         -chardev socket,id=line,path={socket} -device virtio-serial-pci,id=serial \
         -device virtserialport,bus=serial.0,chardev=line,name={name}"
    )
}
