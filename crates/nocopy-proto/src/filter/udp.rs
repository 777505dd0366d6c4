//! The filter of a UDP socket: its datagrams, and nothing else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::assembler::{Assembler, Label};
use super::instruction::code;
use super::run::{ETHERNET_BYTES, TYPE_OFFSET};
use super::{Instruction, Program};
use crate::wire::{EtherType, IpProtocol, ipv4, ipv6};

const IF_EQUAL: u16 = 0x15;
const IF_ANY_BIT: u16 = 0x45;

/// Version 4, and a header of five words.
const IPV4_WITHOUT_OPTIONS: u32 = 0x45;

/// "More fragments", and the offset (RFC 791 section 3.1).
const IPV4_FRAGMENT: u32 = 0x3fff;

impl Program {
    /// Matches UDP datagrams for a port at one of some addresses, whole and without anything unusual: no VLAN
    /// tag, no fragment, no IPv4 options, no IPv6 extension headers. Of the frame it loads at constant
    /// offsets only, so it runs in every place.
    ///
    /// # Panics
    /// With more than 200 addresses, which would exceed the kernel's longest program.
    pub fn udp_to(addresses: &[IpAddr], port: u16) -> Self {
        assert!(addresses.len() <= 200, "{} addresses are too many for one filter", addresses.len());
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for address in addresses {
            match address {
                IpAddr::V4(address) => v4.push(*address),
                IpAddr::V6(address) => v6.push(*address),
            }
        }
        let mut filter = FilterBuilder::new();
        filter.match_ipv4(&v4, port);
        filter.match_ipv6(&v6, port);
        Self::new(filter.finish()).expect("forward jumps, and less than the kernel's limit")
    }
}

struct FilterBuilder {
    program: Assembler,
    accept: Label,
    reject: Label,
}

impl FilterBuilder {
    fn new() -> Self {
        let mut program = Assembler::default();
        let (accept, reject) = (program.label(), program.label());
        Self { program, accept, reject }
    }

    fn match_ipv4(&mut self, addresses: &[Ipv4Addr], port: u16) {
        if addresses.is_empty() {
            return;
        }
        let other = self.program.label();
        let ip = ETHERNET_BYTES;
        self.require_equal(code::LOAD_HALF, TYPE_OFFSET, EtherType::IPV4.0.into(), other);
        self.require_equal(code::LOAD_BYTE, ip, IPV4_WITHOUT_OPTIONS, self.reject);
        self.require_equal(code::LOAD_BYTE, ip + 9, IpProtocol::UDP.0.into(), self.reject);
        self.program.push(code::LOAD_HALF, ip + 6);
        self.jump_if(IF_ANY_BIT, IPV4_FRAGMENT, self.reject);
        self.require_equal(code::LOAD_HALF, ip + ipv4::HEADER_BYTES as u32 + 2, port.into(), self.reject);
        self.program.push(code::LOAD_WORD, ip + 16);
        for address in addresses {
            self.jump_if(IF_EQUAL, address.to_bits(), self.accept);
        }
        self.program.jump(self.reject);
        self.program.bind(other);
    }

    fn match_ipv6(&mut self, addresses: &[Ipv6Addr], port: u16) {
        if addresses.is_empty() {
            return;
        }
        let ip = ETHERNET_BYTES;
        self.require_equal(code::LOAD_HALF, TYPE_OFFSET, EtherType::IPV6.0.into(), self.reject);
        self.require_equal(code::LOAD_BYTE, ip + 6, IpProtocol::UDP.0.into(), self.reject);
        self.require_equal(code::LOAD_HALF, ip + ipv6::HEADER_BYTES as u32 + 2, port.into(), self.reject);
        for address in addresses {
            let next = self.program.label();
            for (word, offset) in address.octets().as_chunks::<4>().0.iter().zip((ip + 24..).step_by(4)) {
                self.require_equal(code::LOAD_WORD, offset, u32::from_be_bytes(*word), next);
            }
            self.program.jump(self.accept);
            self.program.bind(next);
        }
    }

    /// Continues if the loaded value equals `value`.
    fn require_equal(&mut self, load: u16, offset: u32, value: u32, otherwise: Label) {
        self.program.push(load, offset);
        let on = self.program.label();
        self.program.branch(Instruction::non_branching(IF_EQUAL, value), on, otherwise);
        self.program.bind(on);
    }

    /// Jumps to `to` if the loaded value passes the test.
    fn jump_if(&mut self, test: u16, value: u32, to: Label) {
        let on = self.program.label();
        self.program.branch(Instruction::non_branching(test, value), to, on);
        self.program.bind(on);
    }

    fn finish(mut self) -> Vec<Instruction> {
        self.program.bind(self.reject);
        self.program.push(code::RETURN_CONSTANT, 0);
        self.program.bind(self.accept);
        self.program.push(code::RETURN_CONSTANT, u32::MAX);
        self.program.finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::AncillaryData;
    use super::*;
    use crate::wire::vlan::TagControl;
    use crate::{IpAddresses, MacAddress, UdpChecksum, UdpFrame};

    fn udp_frame(to: IpAddr, port: u16, vlan: Option<TagControl>, payload: &[u8]) -> Vec<u8> {
        let from = if to.is_ipv4() { "10.0.0.9".parse().unwrap() } else { "fd00::9".parse().unwrap() };
        let headers = UdpFrame {
            source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
            vlan,
            addresses: IpAddresses::new(from, to).unwrap(),
            traffic_class: 0,
            hop_limit: 64,
            source_port: 4660,
            destination_port: port,
            checksum: UdpChecksum::Computed,
        };
        let mut frame = vec![0; headers.header_bytes()];
        headers.emit_headers(&mut frame, payload).unwrap();
        frame.extend_from_slice(payload);
        frame
    }

    fn matches_frame(program: &Program, frame: &[u8]) -> bool {
        program.run(&[frame], &AncillaryData::default()) != 0
    }

    fn any_address() -> impl Strategy<Value = IpAddr> {
        // Few, so that they meet.
        prop_oneof![
            (0..6_u8).prop_map(|last| IpAddr::from([10, 0, 0, last])),
            (0..6_u16).prop_map(|last| IpAddr::from([0xfd00, last % 2, 0, 0, 0, 0, 0, last])),
            Just(IpAddr::from([239, 1, 2, 3])),
            Just(IpAddr::from([0xff05, 0, 0, 0, 0, 0, 0, 7])),
        ]
    }

    proptest! {
        #[test]
        fn a_udp_filter_matches_only_its_datagrams(
            mine in vec(any_address(), 0..8), to in any_address(), port in 7..10_u16, tagged: bool, payload in vec(any::<u8>(), 0..40),
        ) {
            let program = Program::udp_to(&mine, 8);
            let vlan = tagged.then(|| TagControl::new(5, 0, false).unwrap());
            let expected = mine.contains(&to) && port == 8 && !tagged;
            prop_assert_eq!(matches_frame(&program, &udp_frame(to, port, vlan, &payload)), expected);
        }

        #[test]
        fn a_udp_filter_leaves_unusual_packets_to_the_host(fragment in 1..0x4000_u16, other in any::<u8>(), cut in 0..42_usize) {
            let to = IpAddr::from([10, 0, 0, 1]);
            let program = Program::udp_to(&[to], 8);
            let whole = udp_frame(to, 8, None, b"payload");
            prop_assert!(matches_frame(&program, &whole));
            let mut changed = whole.clone();
            changed[20..22].copy_from_slice(&fragment.to_be_bytes());
            prop_assert!(!matches_frame(&program, &changed), "a fragment");
            let mut changed = whole.clone();
            changed[23] = other;
            prop_assert_eq!(matches_frame(&program, &changed), other == 17);
            let mut changed = whole.clone();
            changed[14] = 0x46;
            prop_assert!(!matches_frame(&program, &changed), "options");
            prop_assert!(cut >= 38 || !matches_frame(&program, &whole[..cut]), "cut to {}", cut);
        }
    }

    #[test]
    fn the_longest_udp_filter_fits_the_kernels_limit() {
        let many: Vec<IpAddr> =
            (0..200_u16).map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])).collect();
        let program = Program::udp_to(&many, 8);
        for (place, to) in many.iter().enumerate().step_by(199) {
            assert!(matches_frame(&program, &udp_frame(*to, 8, None, b"")), "address {place}");
        }
    }
}
