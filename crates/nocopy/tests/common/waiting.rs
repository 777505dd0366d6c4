//! Whether another thread waits, and what waits at a socket, read from the kernel instead of sleeping long
//! enough.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nocopy_lab::End;
use nocopy_lab::patience::wait_until;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Processor time after which a thread that never sleeps counts as spinning, in ticks of a hundredth of a
/// second.
const SPINNING_TICKS: u64 = 3;

/// A thread that is about to wait, as seen by others.
pub(crate) struct ObservedThread {
    stat: PathBuf,
    ticks_before: u64,
}

impl ObservedThread {
    /// The calling thread, whose next call is the wait.
    pub(crate) fn this_thread() -> Self {
        let task = fs::read_link("/proc/thread-self").unwrap();
        let stat = Path::new("/proc").join(task).join("stat");
        let ticks_before = processor_ticks(&stat_fields(&stat));
        Self { stat, ticks_before }
    }

    /// Returns when the thread was seen asleep, or has used so much processor time that it spins.
    pub(crate) fn wait_until_asleep_or_spinning(&self) {
        wait_until("waiting", || {
            let fields = stat_fields(&self.stat);
            fields[0] == "S" || processor_ticks(&fields) >= self.ticks_before + SPINNING_TICKS
        });
    }
}

/// The fields of a thread from its state on (proc_pid_stat(5)).
fn stat_fields(stat: &Path) -> Vec<String> {
    let text = fs::read_to_string(stat).expect("the thread lives");
    // Its name, in parentheses, may contain anything.
    let (_, fields) = text.rsplit_once(") ").expect("a name in parentheses");
    fields.split(' ').map(str::to_owned).collect()
}

/// Processor time in user space and in the kernel.
fn processor_ticks(fields: &[String]) -> u64 {
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// A UDP socket of this process with another owner: what waits at it can be seen without taking it.
pub(crate) struct InspectedSocket(OwnedFd);

impl InspectedSocket {
    /// The socket bound to an IPv4 or IPv6 address at one end. The port number stays in use while this
    /// exists.
    pub(crate) fn udp_socket(end: &End, address: SocketAddr) -> Self {
        let table = if address.is_ipv4() { "udp" } else { "udp6" };
        let table = end.namespace().run(|| fs::read_to_string(format!("/proc/thread-self/net/{table}")));
        let wanted = format!("{}:{:04X}", hexadecimal_address(address), address.port());
        let table = table.unwrap();
        let inode = table.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            (fields[1] == wanted).then(|| fields[9].to_owned())
        });
        let target =
            format!("socket:[{}]", inode.unwrap_or_else(|| panic!("no socket at {address}: {table}")));
        let descriptors = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let ours = descriptors
            .into_iter()
            .find(|path| fs::read_link(path).is_ok_and(|link| link.as_os_str() == target.as_str()));
        let number = ours.expect("a socket of this process").file_name().unwrap().to_str().unwrap().parse();
        let process =
            rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty());
        let flags = rustix::process::PidfdGetfdFlags::empty();
        Self(rustix::process::pidfd_getfd(process.unwrap(), number.unwrap(), flags).unwrap())
    }

    /// Whether its error queue has an error or a completion, or the next call would return an error.
    pub(crate) fn has_error(&self) -> bool {
        let mut watched = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::empty())];
        poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        watched[0].revents().contains(PollFlags::ERR)
    }
}

/// An address as the kernel's tables show it: words of four bytes in the machine's order.
fn hexadecimal_address(address: SocketAddr) -> String {
    let bytes = match address {
        SocketAddr::V4(address) => address.ip().octets().to_vec(),
        SocketAddr::V6(address) => address.ip().octets().to_vec(),
    };
    let words = bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
    words.map(|word| format!("{word:08X}")).collect()
}
