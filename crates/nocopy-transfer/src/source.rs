//! The address that datagrams come from. An IPv6 address that was just added is *tentative*: for a second or
//! two no datagram may come from it (duplicate address detection, RFC 4862), and a socket that is connected
//! meanwhile keeps the source that it got instead.

use std::fs;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than the detection takes. An address without a carrier stays tentative.
const AWAITED_MAX: Duration = Duration::from_secs(4);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Flags of an address (`linux/if_addr.h`).
const DAD_FAILED: u32 = 0x08;
const TENTATIVE: u32 = 0x40;

/// Waits for a limited time for an address to send from, if there is none but a tentative one.
pub(crate) fn await_source_address(to: SocketAddr) {
    let start = Instant::now();
    while lacks_source(to) && is_any_address_tentative() && start.elapsed() < AWAITED_MAX {
        sleep(POLL_INTERVAL);
    }
}

/// Whether the kernel has no source for that destination, or only one that reaches less far: of the loopback
/// interface, or of the link.
fn lacks_source(to: SocketAddr) -> bool {
    let SocketAddr::V6(address) = to else { return false };
    if address.ip().is_loopback() || address.ip().is_unicast_link_local() || address.ip().is_multicast() {
        return false;
    }
    let connected = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    match connected {
        Ok(SocketAddr::V6(source)) => source.ip().is_loopback() || source.ip().is_unicast_link_local(),
        Ok(SocketAddr::V4(_)) => false,
        Err(error) => error.raw_os_error() == Some(libc::EADDRNOTAVAIL),
    }
}

fn is_any_address_tentative() -> bool {
    fs::read_to_string("/proc/net/if_inet6")
        .is_ok_and(|addresses| addresses.lines().any(is_address_tentative))
}

/// A line: address, interface, length of the prefix, scope, flags, name (net/ipv6/addrconf.c).
fn is_address_tentative(line: &str) -> bool {
    let flags = line.split_whitespace().nth(4).and_then(|flags| u32::from_str_radix(flags, 16).ok());
    flags.is_some_and(|flags| flags & (TENTATIVE | DAD_FAILED) == TENTATIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_flags_are_parsed() {
        let address = |flags| format!("fd770000000000000000000000000001 05 40 00 {flags}      nc0");
        let tentative = ["40", "c0", "80", "48", "00", ""].map(|flags| is_address_tentative(&address(flags)));
        assert_eq!(tentative, [true, true, false, false, false, false]);
    }

    #[test]
    fn local_destinations_never_lack_a_source_address() {
        for to in ["127.0.0.1:9", "192.0.2.1:9", "[::1]:9", "[ff02::1%1]:9"] {
            assert!(!lacks_source(to.parse().unwrap()), "{to}");
        }
    }
}
