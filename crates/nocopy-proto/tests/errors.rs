//! Sentences of errors, each provoked by an input. Faults of received bytes are facts, as `nocopy sniff` prints them.
#![allow(missing_docs)]

use std::fmt::Display;

use nocopy_proto::filter::Program;
use nocopy_proto::message::{LostReason, framing, wire as messages};
use nocopy_proto::run;
use nocopy_proto::wire::{MacAddress, UdpPacket, arp, ethernet, icmp, icmpv6, ipv4, ipv6, tcp, udp, vlan};

fn said<T>(tried: Result<T, impl Display>) -> String {
    tried.map_or_else(|error| error.to_string(), |_| "no error".to_owned())
}

fn assert_sentences(all: &[(String, &str)]) {
    let wrong: Vec<_> = all.iter().filter(|(said, expected)| said != expected).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// These bytes, filled with zeros.
fn padded<const BYTES: usize>(first: &[u8]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..first.len()].copy_from_slice(first);
    bytes
}

#[test]
fn faults_of_headers_are_facts() {
    let mut udp_over_ipv4 = padded::<60>(&[0; 12]);
    udp_over_ipv4[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    udp_over_ipv4[17] = 46;
    assert_sentences(&[
        (said(ethernet::Frame::parse(&[0; 13])), "the Ethernet header has 14 bytes, the frame has 13"),
        (
            said(ethernet::Frame::parse(&padded::<20>(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100]))),
            "the 802.3 length says 100 bytes, 6 follow the header",
        ),
        (said(vlan::Tag::parse(&[0, 0, 0])), "a VLAN tag has 4 bytes, 3 are left of the frame"),
        (
            said(vlan::Tag::parse(&padded::<10>(&[0, 0, 0, 100]))),
            "the 802.3 length in the VLAN tag says 100 bytes, 6 follow",
        ),
        (said(arp::Packet::parse(&[0; 27])), "ARP for IPv4 over Ethernet has 28 bytes, the packet has 27"),
        (
            said(arp::Packet::parse(&padded::<28>(&[0, 1, 0x86, 0xdd]))),
            "ARP resolves addresses of IPv6; only IPv4 is supported",
        ),
        (
            said(arp::Packet::parse(&padded::<28>(&[0, 1, 8, 0, 8, 4]))),
            "ARP for IPv4 over Ethernet says addresses of 8 and 4 bytes, not of 6 and 4",
        ),
        (said(ipv4::Packet::parse(&[0x45; 19])), "the IPv4 header has at least 20 bytes, the packet has 19"),
        (said(ipv6::Packet::parse(&[0x60; 39])), "the IPv6 header has 40 bytes, the packet has 39"),
        (
            said(ipv6::Packet::parse(&padded::<50>(&[0x60, 0, 0, 0, 0, 100]))),
            "the IPv6 payload length says 100 bytes, 10 follow the header",
        ),
        (
            said(ipv6::Packet::parse(&padded::<50>(&[0x60]))),
            "the IPv6 payload length is 0 before hop-by-hop options: this is a jumbogram, which is not supported",
        ),
        (said(icmp::Message::parse(&[8; 7])), "the ICMP header has 8 bytes, the message has 7"),
        (said(icmpv6::Message::parse(&[135; 3])), "the ICMPv6 message has 3 bytes, its type needs more"),
        (said(tcp::Segment::parse(&[0; 19])), "the TCP header has at least 20 bytes, the segment has 19"),
        (said(udp::Datagram::parse(&[0; 7])), "the UDP header has 8 bytes, the datagram has 7"),
        (
            said(udp::Datagram::parse(&[0; 8])),
            "the UDP length is 0: this is part of an IPv6 jumbogram, which is not supported",
        ),
        (said(UdpPacket::parse(&[0; 60])), "the frame holds neither IPv4 nor IPv6"),
        (said(UdpPacket::parse(&udp_over_ipv4)), "the IPv4 header's checksum is wrong"),
        (
            said("02:00:00".parse::<MacAddress>()),
            "\"02:00:00\": not a MAC address; one has six pairs of hex digits; write it like 02:00:00:00:00:01",
        ),
    ]);
    // With a correct checksum: 0x4500 + 46 = 0x452e, and ICMP below.
    udp_over_ipv4[23] = 1;
    udp_over_ipv4[24..26].copy_from_slice(&(!(0x4500_u16 + 46 + 1)).to_be_bytes());
    assert_eq!(said(UdpPacket::parse(&udp_over_ipv4)), "the packet is a fragment, or not UDP");
}

#[test]
fn faults_of_messages_are_facts() {
    let chunks = |payload: &[u8]| {
        framing::parse(payload).find_map(Result::err).map_or(String::new(), |error| error.to_string())
    };
    assert_sentences(&[
        (said(messages::Datagram::parse(&[])), "the datagram has 0 bytes, its kind has at least 16"),
        (said(messages::Datagram::parse(&[0xff; 64])), "255 is no kind of datagram"),
        // Only bytes with a right checksum get that far.
        (
            messages::Malformed::Reserved { kind: 3 }.to_string(),
            "a reserved field of a datagram of kind 3 is not 0",
        ),
        // It takes more connections than the settings allow, from several networks.
        (
            LostReason::Displaced.to_string(),
            "its place was given to another network; its own had the most connections; raise peers_max",
        ),
        (chunks(&[0xff]), "the payload ends in the header of a chunk"),
    ]);
}

#[test]
fn what_the_library_and_the_command_do_not_understand_is_said() {
    assert_sentences(&[
        (
            said(run::Message::parse(&[b' '; 1 << 20])),
            "datagram of 1048576 B: refused; none has more than 131072; send less in one message",
        ),
        (
            said(run::Message::parse(b"{")),
            "datagram: not a message; EOF while parsing an object at line 1 column 1; use the library and the command of the same nocopy",
        ),
    ]);
}

#[test]
fn filters_too_long_for_xdp_are_said() {
    // Each instruction reads behind X, which takes some instructions of eBPF, and jumps to the end if there is no such byte.
    let long = format!("4001\n{}6 0 0 1\n", "72 0 0 14\n".repeat(4000));
    let refused = Program::parse(&long).unwrap().to_xdp(false);
    assert_eq!(
        said(refused),
        "its 40008 instructions cannot be translated; jumps become too long for eBPF; shorten the filter"
    );
}
