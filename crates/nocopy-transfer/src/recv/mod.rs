//! `nocopy recv`: receives from a host, and reports what is missing.

mod output;
mod tcp;
mod udp;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::Failure;
use crate::arguments::RecvArguments;
use crate::endpoint::Scheme;
use nocopy_report::Interrupt;
use nocopy_report::{Outcome, print};

/// Default for how long a sender may be silent: it sends several times a second.
const IDLE: Duration = Duration::from_secs(10);

pub fn run(arguments: &RecvArguments) -> Result<Outcome, Failure> {
    let interrupt = Interrupt::catch()?;
    match arguments.address().scheme() {
        Scheme::Udp => udp::run(arguments, interrupt),
        Scheme::Tcp => tcp::run(arguments, interrupt),
        Scheme::Message | Scheme::Xdp => unreachable!("the command line knows the others only"),
    }
}

/// Prints the address and, unless senders were named, a warning that any host may be the sender.
fn print_address(arguments: &RecvArguments, address: SocketAddr) {
    let own = arguments.address();
    print::print_status(format_args!("nocopy: receiving at {}://{address}", own.scheme().name()));
    let others = other_local_addresses(&own.local_addrs().unwrap_or_default(), address);
    if !others.is_empty() {
        let others = others.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        print::print_status(format_args!(
            "nocopy: only there; {own} is {others}, too; leave the host out to receive at all addresses of this host"
        ));
    }
    if arguments.from.is_empty() {
        print::print_status("nocopy: data is accepted from any sender; use --from ADDRESS to restrict it");
    }
}

/// A name's other addresses of this host: a socket has one.
fn other_local_addresses(addresses: &[SocketAddr], bound: SocketAddr) -> Vec<IpAddr> {
    let others = addresses.iter().map(SocketAddr::ip).filter(|ip| *ip != bound.ip() && !ip.is_multicast());
    others.filter(|ip| UdpSocket::bind((*ip, 0)).is_ok()).collect()
}

/// The address without IPv4-mapping, which sockets of both families use.
fn canonical_address(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address, // with its scope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_local_addresses_of_a_name_are_listed() {
        let name = [[127, 0, 0, 2], [192, 0, 2, 1], [224, 0, 0, 1], [127, 0, 0, 1]].map(|ip| (ip, 9).into());
        assert_eq!(other_local_addresses(&name, name[0]), [name[3].ip()]);
        assert_eq!(other_local_addresses(&name[..2], name[0]), [] as [IpAddr; 0]);
    }
}
