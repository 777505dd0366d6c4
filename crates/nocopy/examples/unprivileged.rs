//! Receives without privileges: `unprivileged INTERFACE [COUNT]`, started as root
//!
//! Only the part that grants the port has privileges; the part that receives packets from the network is
//! another process of an unprivileged user.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::{net::UnixStream, process::CommandExt};
use std::process::Command;

use nocopy::{Port, port::Grant};

const NOBODY: u32 = 65534;
const CLIENT: &str = "--client";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let interface = arguments.next().ok_or("usage: unprivileged INTERFACE [COUNT]")?;
    let count = arguments.next().unwrap_or_else(|| "10".to_owned());
    if interface == CLIENT {
        receive_packets(count.parse()?)
    } else {
        grant_port_to_child(&interface, &count)
    }
}

/// Runs with privileges.
fn grant_port_to_child(interface: &str, count: &str) -> Result<(), Box<dyn Error>> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut client = Command::new("/proc/self/exe");
    client.args([CLIENT, count]).uid(NOBODY).gid(NOBODY).stdin(OwnedFd::from(theirs));
    let mut client = client.spawn()?;
    Port::builder(interface).grant()?.send(&ours)?; // and closes its own copies
    let status = client.wait()?;
    if status.success() { Ok(()) } else { Err(format!("the client: {status}").into()) }
}

/// Runs without privileges.
fn receive_packets(mut left: usize) -> Result<(), Box<dyn Error>> {
    let opener = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let grant = Grant::receive(&opener)?;
    // 4 MiB: such users may lock only little memory ('ulimit -l').
    let settings = Port::builder(grant.interface()).ring_sizes(1024, 1024).frame_count(1024, 1024);
    let mut port = settings.open_granted(grant)?;
    println!("{}", port.explain());
    println!("receiving as user {}", rustix::process::getuid());
    while left > 0 {
        for packet in port.receiver().receive()?.take(left) {
            println!("{} B", packet.len());
            left -= 1;
        }
    }
    println!("{}", port.balance());
    Ok(())
}
