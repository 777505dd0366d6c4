//! Connections of SSH to this machine, as far as they can be known.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

/// `TCP_ESTABLISHED` in /proc/net/tcp.
const ESTABLISHED: &str = "01";

/// The local and the remote address of each connection: the one this command was started over, and those of
/// processes named `sshd…` in the calling thread's namespace. sudo(8) does not pass `SSH_CONNECTION` on, and
/// only root sees the sockets of others.
pub(crate) fn connections() -> Vec<(IpAddr, IpAddr)> {
    let started_over = std::env::var("SSH_CONNECTION").ok();
    let mut all: Vec<_> = started_over.as_deref().and_then(parse_connection).into_iter().collect();
    let sockets = server_sockets();
    for table in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let table = fs::read_to_string(table).unwrap_or_default();
        all.extend(table.lines().skip(1).filter_map(|line| parse_table_line(line, &sockets)));
    }
    all
}

/// `client port server port`, where addresses may name an interface behind `%`.
fn parse_connection(text: &str) -> Option<(IpAddr, IpAddr)> {
    let words: Vec<_> = text.split_whitespace().collect();
    let address = |word: &str| Some(word.split('%').next()?.parse::<IpAddr>().ok()?.to_canonical());
    Some((address(words.get(2)?)?, address(words.first()?)?))
}

/// The inodes of the sockets of SSH servers.
fn server_sockets() -> HashSet<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_server = |process: &PathBuf| {
        fs::read_to_string(process.join("comm")).is_ok_and(|name| name.starts_with("sshd"))
    };
    let descriptors = processes.filter(is_server).filter_map(|process| fs::read_dir(process.join("fd")).ok());
    let targets = descriptors.flatten().flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let inode =
        |target: PathBuf| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    targets.filter_map(inode).collect()
}

fn parse_table_line(line: &str, sockets: &HashSet<String>) -> Option<(IpAddr, IpAddr)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let is_wanted = words.get(3) == Some(&ESTABLISHED) && sockets.contains(*words.get(9)?);
    is_wanted.then_some((parse_table_address(words[1])?, parse_table_address(words[2])?))
}

/// An address as the kernel prints it: words of 32 bits in the processor's byte order, and a port.
fn parse_table_address(text: &str) -> Option<IpAddr> {
    let (address, _port) = text.split_once(':')?;
    let word = |index: usize| u32::from_str_radix(address.get(8 * index..8 * (index + 1))?, 16).ok();
    let bytes = |index| Some(word(index)?.to_ne_bytes());
    Some(match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(bytes(0)?)),
        _ => {
            let all = [bytes(0)?, bytes(1)?, bytes(2)?, bytes(3)?].concat();
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(all).ok()?)).to_canonical()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_server_and_client() {
        let parsed = |text| parse_connection(text).map(|(local, remote)| format!("{local} {remote}"));
        assert_eq!(parsed("10.0.0.2 50000 10.0.0.1 22").as_deref(), Some("10.0.0.1 10.0.0.2"));
        assert_eq!(parsed("fe80::2%eth0 50000 fe80::1%eth0 22").as_deref(), Some("fe80::1 fe80::2"));
        assert_eq!(parsed("nothing"), None);
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn established_connections_of_servers_are_found() {
        let sockets = HashSet::from(["77".to_owned()]);
        let line = |state: &str, inode: &str| {
            let start = "0: 0100007F:0016 0200007F:C350";
            parse_table_line(&format!("{start} {state} 0:0 00:0 0 0 0 {inode} 1"), &sockets)
        };
        let expected = (Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into());
        assert_eq!(line("01", "77"), Some(expected));
        assert_eq!((line("0A", "77"), line("01", "78")), (None, None));
        let mapped = parse_table_address("0000000000000000FFFF00000100007F:0016");
        assert_eq!(mapped, Some(Ipv4Addr::LOCALHOST.into()));
    }
}
