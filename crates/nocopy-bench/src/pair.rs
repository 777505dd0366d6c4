//! `--pair`: two ports of this machine that are cabled to each other leave its network for the bench.
//!
//! ```text
//!   bench: checks, asks ──▶ guard, a process in a session of its own
//!     │                       │ notes how both ports are, moves them, reports where they are
//!     │◀──────────────────────│
//!   measures                  │ waits until its pipe is closed: the bench has ended, or was killed
//!     └──────────────────────▶│ puts both back
//! ```
//! Only the guard changes the ports, so there is no moment in which a killed bench leaves them half moved.

use std::io::{self, BufRead, IsTerminal, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use nix::sys::signal::SigSet;
use nocopy_lab::{BorrowedPair, Interface, Lab, Namespace, Obstacle, SavedInterface};
use nocopy_report::{Outcome, capability, print};
use rustix::process::setsid;
use serde::{Deserialize, Serialize};

use crate::baseline::packet_socket;
use crate::child::{self, ChildKind};
use crate::lines::ChildOutputLines;
use crate::stage::USUAL_MTU_BYTES;
use crate::{Failure, ssh};

/// Frames sent to find out whether two ports are the ends of one cable, each awaited for
/// [10 ms](packet_socket::PATIENCE).
const PROBE_FRAMES: usize = 100;

/// The EtherType for experiments (IEEE 802), and bytes by which the frame is known again.
const PROBE: &[u8; 50] = b"\x88\xb5nocopy bench --pair: is this one cable?\0\0\0\0\0\0\0\0\0";

/// No bridge and no switch that follows the standard forwards frames to this address (IEEE 802.1Q, table
/// 8-1), so they reach only the other end of a cable.
const TO_NEAREST_BRIDGE: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];

/// Two ports, each alone in a network namespace, until this is dropped.
#[derive(Debug)]
pub(crate) struct CabledPair {
    pub lab: Lab,
    guard: GuardProcess,
}

impl CabledPair {
    /// Takes the two ports, if nothing else uses them and the user agrees.
    pub(crate) fn take(interfaces: [&str; 2], is_confirmed: bool) -> Result<Self, Failure> {
        check_interfaces(interfaces)?;
        if !is_confirmed {
            confirm(interfaces)?;
            check_interfaces(interfaces)?; // as it is after the answer
        }
        let (guard, namespaces) = GuardProcess::start(interfaces)?;
        Ok(Self { lab: Lab::in_namespaces(namespaces)?, guard })
    }

    /// Waits until they are back.
    pub(crate) fn put_back(mut self) -> Result<(), Failure> {
        self.guard.end()
    }
}

fn check_interfaces(interfaces: [&str; 2]) -> Result<(), Failure> {
    let connections = ssh::connections();
    let mut found: Vec<Interface> = Vec::new();
    for name in interfaces {
        let saved =
            SavedInterface::save(name).map_err(nocopy_transfer::Failure::from_interface_lookup(name))?;
        if found.iter().any(|other| other.index == saved.interface().index) {
            return Err(refused(name, "both ends are the same port"));
        }
        check_obstacles(&saved)?;
        if connections.iter().any(|connection| saved.carries(*connection)) {
            return Err(refused(name, "an SSH connection uses it"));
        }
        if !saved.interface().carrier {
            return Err(Failure::NoCarrier { interface: name.into() });
        }
        found.push(saved.interface().clone());
    }
    match is_one_cable(&found[0], &found[1]) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let [interface, peer] = interfaces.map(str::to_owned);
            Err(Failure::NotCabled { interface, peer })
        }
        Err(error) => Err(Failure::step(
            "--pair",
            "send a frame from one port to the other",
            "run it as root or grant CAP_NET_RAW",
        )(error)),
    }
}

fn refused(interface: &str, because: &'static str) -> Failure {
    Failure::PairRefused { interface: interface.into(), because }
}

fn check_obstacles(saved: &SavedInterface) -> Result<(), Failure> {
    let Some(obstacle) = saved.obstacle()? else { return Ok(()) };
    let because = match obstacle {
        Obstacle::DefaultRoute => "it carries the default route",
        Obstacle::XdpProgram => "an XDP program is attached to it",
        Obstacle::OtherInterfaces => "it belongs to a bridge, a bond or a VLAN",
        Obstacle::QueueingDiscipline => "it has a queueing discipline or tc filters, which would be lost",
        Obstacle::HopObjects => "it has routes by nexthop objects, which would be lost",
        Obstacle::NftablesChain => "it has a chain of nftables, which may be lost",
    };
    Err(refused(&saved.interface().name, because))
}

/// Whether a frame sent by one arrives at the other without a bridge between them.
fn is_one_cable(from: &Interface, to: &Interface) -> io::Result<bool> {
    let (sender, receiver) =
        (packet_socket::open_sender(from.index)?, packet_socket::open_receiver(to.index)?);
    let frame = [&TO_NEAREST_BRIDGE[..], &from.mac, PROBE].concat();
    let mut buffer = [0; 128];
    for _ in 0..PROBE_FRAMES {
        rustix::net::send(&sender, &frame, rustix::net::SendFlags::empty())?;
        match rustix::net::recv(&receiver, &mut buffer[..], rustix::net::RecvFlags::empty()) {
            Ok((bytes, _)) if buffer[..bytes].starts_with(&frame) => return Ok(true),
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Asks at the terminal.
fn confirm([left, right]: [&str; 2]) -> Result<(), Failure> {
    let mut answer = String::new();
    if io::stdin().is_terminal() {
        print::print_status(format_args!(
            "{left} and {right} leave this machine's network for up to 3 minutes, and come back as they are. Go on? [y/N]"
        ));
        let _ = io::stdin().lock().read_line(&mut answer); // no answer is no
    }
    match matches!(answer.trim(), "y" | "Y" | "yes") {
        true => Ok(()),
        false => Err(Failure::PairUnconfirmed { interface: left.into(), peer: right.into() }),
    }
}

/// What the guard is to take.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GuardTask {
    interfaces: [String; 2],
}

/// The guard's descriptors of the two namespaces, once the ports are there.
#[derive(Debug, Serialize, Deserialize)]
struct PortsMoved {
    namespaces: [i32; 2],
}

/// The process that holds the ports, and puts them back when this is dropped or its process ends in any way.
#[derive(Debug)]
struct GuardProcess(Child);

impl GuardProcess {
    fn start(interfaces: [&str; 2]) -> Result<(Self, [Namespace; 2]), Failure> {
        let task = GuardTask { interfaces: interfaces.map(str::to_owned) };
        let failed = || Failure::step("--pair", "start the process that puts the ports back", "free memory");
        let mut command = ChildKind::GuardPair.command(&task).map_err(failed())?;
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed())?;
        let mut guard = Self(child);
        let output = guard.0.stdout.take().expect("piped, as said above");
        let Ok(line) = ChildOutputLines::new(output).next_line() else {
            return Err(guard.end().err().unwrap_or(Failure::PairNotTaken));
        };
        let moved: PortsMoved = serde_json::from_slice(&line).map_err(Failure::Task)?;
        let process = guard.0.id();
        let open = |descriptor| Namespace::open(&PathBuf::from(format!("/proc/{process}/fd/{descriptor}")));
        let [left, right] = moved.namespaces.map(open);
        Ok((guard, [left?, right?]))
    }

    /// Tells the guard to put the ports back, and waits for it.
    fn end(&mut self) -> Result<(), Failure> {
        drop(self.0.stdin.take());
        match self.0.wait() {
            Ok(status) if status.success() => Ok(()),
            // It has printed why.
            _ => Err(Failure::PairNotTaken),
        }
    }
}

impl Drop for GuardProcess {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// The main function of the guard.
pub(crate) fn guard_main(task: &GuardTask) -> Result<Outcome, Failure> {
    // Whatever asks the bench to end is not for this process: Ctrl-C, a closed terminal, a stopped service.
    let own = || -> io::Result<()> {
        SigSet::all().thread_block()?;
        setsid()?;
        Ok(())
    };
    own().map_err(Failure::step("--pair", "leave the session of the terminal", "start it again"))?;
    capability::drop_all_but(capability::NETWORK)?;
    let [left, right] = &task.interfaces;
    let pair = BorrowedPair::save(left, right)?;
    pair.saved().iter().try_for_each(check_obstacles)?; // as it is now
    let moved = pair.make_lab(USUAL_MTU_BYTES).map_err(Failure::from);
    let moved = moved.map(|_| PortsMoved {
        namespaces: pair.namespaces().each_ref().map(|namespace| namespace.as_fd().as_raw_fd()),
    });
    if let Ok(moved) = &moved
        && child::print_message(moved).is_ok()
    {
        let _ = io::stdin().read_to_end(&mut Vec::new()); // its end is that of the bench
    }
    pair.put_back()?;
    moved.map(|_| Outcome::Positive)
}
