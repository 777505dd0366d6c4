//! Servers of the command while strangers do what they can: others are answered, and the servers' memory is
//! bounded. Attacks take long, so they are ignored by the usual run: `cargo xtask nightly trust`.

mod memory;
mod messages;
mod nfs;
mod slow_stream;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nocopy_lab::patience::wait_until;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

/// An address of a network of attackers.
fn attacker_address(number: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 99, 0, 1 + (number % 200) as u8))
}

/// An address of a network of its own.
fn victim_address(number: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 1 + (number % 90) as u8, 0, 1))
}

/// What strangers do, until the victims have ended.
#[derive(Default)]
struct RunningAttack {
    is_over: AtomicBool,
    done: AtomicU64,
}

impl RunningAttack {
    fn is_running(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed) // ordering: nothing else is handed over by it
    }

    /// Counts what it does.
    fn add_done(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed); // ordering: nothing else is handed over by it
    }

    fn done_count(&self) -> u64 {
        self.done.load(Ordering::Relaxed) // ordering: nothing else is handed over by it
    }
}

/// Ends the attack, also after a panic.
struct EndAttackGuard<'a>(&'a RunningAttack);

impl Drop for EndAttackGuard<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed); // ordering: nothing else is handed over by it
    }
}

/// Runs the victims while that many threads attack, once these have done `before`.
fn run_victims_during_attack(
    attackers: usize,
    before: u64,
    attack: impl Fn(usize, &RunningAttack) + Sync,
    victims: impl FnOnce(),
) {
    let attacking = RunningAttack::default();
    thread::scope(|scope| {
        let _end = EndAttackGuard(&attacking);
        for number in 0..attackers {
            let (attack, attacking) = (&attack, &attacking);
            scope.spawn(move || attack(number, attacking));
        }
        wait_until("the attack to be under way", || attacking.done_count() >= before);
        victims();
    });
}

/// A connection from an address of this host; an error if there is no room for one more.
fn connect_from_address(from: IpAddr, to: SocketAddr) -> rustix::io::Result<TcpStream> {
    let opened = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&opened, &SocketAddr::new(from, 0))?;
    connect(&opened, &to)?;
    Ok(opened.into())
}

/// Opens connections from the attackers' network, sends a beginning on each, and holds up to so many of them.
fn flood_connections<'a>(
    number: usize,
    attacking: &RunningAttack,
    to: SocketAddr,
    held_max: usize,
    begin: impl Fn(usize) -> &'a [u8],
) {
    let mut held = Vec::new();
    let mut done = 0;
    while attacking.is_running() {
        let Ok(mut stream) = connect_from_address(attacker_address(number + done), to) else {
            held.clear();
            continue;
        };
        let _ = stream.write_all(begin(done));
        held.push(stream);
        if held.len() == held_max {
            held.drain(..held_max / 2);
        }
        done += 1;
        attacking.add_done(1);
    }
}
