//! The headers of generated packets, from the command line.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nocopy_proto::{IpAddresses, MacAddress, UdpChecksum, UdpFrame};

use super::error::Error;
use crate::arguments::{SendArguments, UdpChecksumArgument};

/// Reserved for benchmarks between devices: RFC 2544, RFC 5180.
const IPV4: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
const IPV6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2)];

/// An address that no host has, so that packets sent by mistake burden no host. Locally administered,
/// unicast.
pub(super) const UNUSED_MAC: MacAddress = MacAddress([0x02, 0x6e, 0x63, 0x0f, 0xff, 0xff]);

const HOP_LIMIT: u8 = 64;

pub(super) fn udp_headers(arguments: &SendArguments, own_mac: [u8; 6]) -> Result<UdpFrame, Error> {
    let addresses = choose_addresses(arguments)?;
    let checksum = match (arguments.frames.checksum, addresses) {
        (UdpChecksumArgument::None, IpAddresses::V6 { .. }) => return Err(Error::NoChecksumOnIpv6),
        (UdpChecksumArgument::None, IpAddresses::V4 { .. }) => UdpChecksum::Omitted,
        (UdpChecksumArgument::Computed, _) => UdpChecksum::Computed,
        (UdpChecksumArgument::Device, _) => UdpChecksum::Offloaded,
    };
    Ok(UdpFrame {
        source_mac: arguments.frames.source_mac.unwrap_or(MacAddress(own_mac)),
        destination_mac: arguments.frames.destination_mac.unwrap_or(UNUSED_MAC),
        vlan: arguments.frames.vlan,
        addresses,
        traffic_class: 0,
        hop_limit: HOP_LIMIT,
        source_port: arguments.frames.source_port,
        destination_port: arguments.frames.destination_port,
        checksum,
    })
}

/// Both addresses, of the requested family or that of a given one.
fn choose_addresses(arguments: &SendArguments) -> Result<IpAddresses, Error> {
    let (source, destination) = (arguments.frames.source, arguments.frames.destination);
    let given = [source, destination].into_iter().flatten();
    if let Some(address) = given.clone().find(|address| arguments.ipv4 && address.is_ipv6()) {
        return Err(Error::Family { address, family: "IPv4" });
    }
    if let Some(address) = given.clone().find(|address| arguments.ipv6 && address.is_ipv4()) {
        return Err(Error::Family { address, family: "IPv6" });
    }
    let ipv6 = arguments.ipv6 || given.clone().any(|address| address.is_ipv6());
    let [from, to] = if ipv6 { IPV6.map(IpAddr::V6) } else { IPV4.map(IpAddr::V4) };
    let (source_address, destination) = (source.unwrap_or(from), destination.unwrap_or(to));
    IpAddresses::new(source_address, destination).ok_or(Error::Families { source_address, destination })
}
