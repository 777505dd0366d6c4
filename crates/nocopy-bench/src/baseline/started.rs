//! Programs that were started: waiting until they do something, and whether a port is open.

use std::fs;
use std::io;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::lines::PATIENCE;

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// `LISTEN`, as /proc/net/tcp has it.
const LISTENING: &str = "0A";

pub(super) fn exit_status_text(child: &mut Child) -> io::Result<Option<String>> {
    Ok(child.try_wait()?.map(|status| status.to_string()))
}

/// Waits until a program has done something; fails with the text of `ended` if it has ended.
pub(super) fn wait_until(
    program: &str,
    mut ended: impl FnMut() -> io::Result<Option<String>>,
    mut is_done: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let start = Instant::now();
    while !is_done()? {
        if let Some(how) = ended()? {
            return Err(io::Error::other(format!("{program} ended too early ({how})")));
        }
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other(format!("{program} did nothing for {} s", PATIENCE.as_secs())));
        }
        sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Whether a TCP socket listens at a port, in the network namespace of a process or thread: its name below
/// /proc.
pub(super) fn is_listening(process: &str, port: u16) -> bool {
    read_socket_tables(process, ["tcp", "tcp6"])
        .lines()
        .any(|line| socket_state_at_port(line, port) == Some(LISTENING))
}

/// Whether a UDP socket is bound to a port, in the network namespace of a process or thread.
pub(super) fn is_bound(process: &str, port: u16) -> bool {
    read_socket_tables(process, ["udp", "udp6"])
        .lines()
        .any(|line| socket_state_at_port(line, port).is_some())
}

/// What waits in a UDP socket, and what it had no room for since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UdpQueue {
    /// With the kernel's own memory for them.
    pub bytes: u64,
    pub drops: u64,
}

/// That of the socket at a port, in the network namespace of this thread.
pub(crate) fn udp_queue(port: u16) -> io::Result<UdpQueue> {
    let sockets = read_socket_tables("thread-self", ["udp", "udp6"]);
    let mut queues = sockets.lines().filter_map(|line| queue_of_socket_at_port(line, port));
    queues.next().ok_or_else(|| io::Error::other(format!("no UDP socket at port {port}")))
}

/// The fifth field has the bytes of both queues, in hexadecimal digits; the last one the drops.
fn queue_of_socket_at_port(line: &str, port: u16) -> Option<UdpQueue> {
    socket_state_at_port(line, port)?;
    let (_, bytes) = line.split_whitespace().nth(4)?.split_once(':')?;
    let drops = line.split_whitespace().last()?.parse().ok()?;
    Some(UdpQueue { bytes: u64::from_str_radix(bytes, 16).ok()?, drops })
}

fn read_socket_tables(process: &str, kinds: [&str; 2]) -> String {
    kinds.map(|kind| fs::read_to_string(format!("/proc/{process}/net/{kind}")).unwrap_or_default()).concat()
}

/// The state of a line's socket; `None` if the socket has another port. The second field is the local
/// address, in hexadecimal digits; the fourth is the state.
fn socket_state_at_port(line: &str, port: u16) -> Option<&str> {
    let mut fields = line.split_whitespace().skip(1);
    let (_, found) = fields.next()?.rsplit_once(':')?;
    fields.nth(1).filter(|_| u16::from_str_radix(found, 16) == Ok(port))
}

pub(super) fn datagrams_sent(process: &str) -> io::Result<u64> {
    network_counter(process, "Udp: ", "OutDatagrams")
}

/// A counter of the network namespace of a process, or of `thread-self`.
pub(crate) fn network_counter(process: &str, protocol: &str, name: &str) -> io::Result<u64> {
    let counters = fs::read_to_string(format!("/proc/{process}/net/snmp"))?;
    find_counter(&counters, protocol, name)
        .ok_or_else(|| io::Error::other(format!("/proc/net/snmp has no {protocol}{name}")))
}

/// A line of names is followed by one of numbers.
fn find_counter(counters: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = counters.lines().filter_map(|line| line.strip_prefix(protocol));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|found| found == name)?;
    numbers.split(' ').nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn waiting_stops_when_the_program_has_ended() {
        let mut polls = 0;
        let is_done = || {
            polls += 1;
            Ok(polls == 3)
        };
        wait_until("one", || Ok(None), is_done).unwrap();
        let error = wait_until("one", || Ok(Some("exit status: 1".into())), || Ok(false)).unwrap_err();
        assert_eq!(error.to_string(), "one ended too early (exit status: 1)");
    }

    #[test]
    fn open_ports_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening("self", port));
        assert!(is_bound("self", socket.local_addr().unwrap().port()));
        assert_eq!(socket_state_at_port("0: 0100007F:14B4 00000000:0000 0A 0", 5300), Some("0A"));
        assert_eq!(socket_state_at_port("0: 0100007F:14B4 00000000:0000 0A 0", 5301), None);
        assert_eq!(socket_state_at_port("  sl  local_address rem_address   st", 0), None);
    }

    #[test]
    fn queue_and_drops_of_a_socket_are_found() {
        let line = " 2: 0100007F:1BA0 00000000:0000 07 00000000:00001F40 00:00000000 00000000 0 0 77 2 f0 12";
        assert_eq!(queue_of_socket_at_port(line, 7072), Some(UdpQueue { bytes: 8000, drops: 12 }));
        assert_eq!(queue_of_socket_at_port(line, 7073), None);
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = receiver.local_addr().unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[0; 100], to).unwrap();
        let queue = udp_queue(to.port()).unwrap();
        assert!(queue.bytes >= 100 && queue.drops == 0, "{queue:?}");
    }

    #[test]
    fn a_counter_is_found_by_protocol_and_name() {
        let counters =
            "Ip: A B\nIp: 1 2\nUdp: InDatagrams NoPorts OutDatagrams\nUdp: 1 2 30\nUdpLite: X\nUdpLite: 9\n";
        assert_eq!(find_counter(counters, "Udp: ", "OutDatagrams"), Some(30));
        assert_eq!(find_counter("Udp: InDatagrams\nUdp: 1\n", "Udp: ", "OutDatagrams"), None);
        assert_eq!(find_counter("", "Udp: ", "OutDatagrams"), None);
    }
}
