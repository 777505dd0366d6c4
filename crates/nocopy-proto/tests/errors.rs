//! Sentences of errors, each provoked by an input. Faults of received bytes are facts, as `nocopy sniff`
//! prints them.
#![allow(missing_docs)]

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nocopy_proto::filter::Program;
use nocopy_proto::message::{self, LostReason, crc, framing, wire as messages};
use nocopy_proto::pcapng::{self, InPlaceWriter};
use nocopy_proto::run;
use nocopy_proto::wire::{
    IpAddresses, MacAddress, UdpPacket, arp, ethernet, icmp, icmpv6, ipv4, ipv6, tcp, udp, vlan,
};

fn error_text<T>(tried: Result<T, impl Display>) -> String {
    tried.map_or_else(|error| error.to_string(), |_| "no error".to_owned())
}

fn assert_error_texts(all: &[(String, &str)]) {
    let wrong: Vec<_> = all.iter().filter(|(error_text, expected)| error_text != expected).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// These bytes, filled with zeros.
fn padded<const BYTES: usize>(first: &[u8]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..first.len()].copy_from_slice(first);
    bytes
}

const DESTINATION_OPTIONS: u8 = 60;

fn extension_error_text(packet: &[u8]) -> String {
    error_text(ipv6::Packet::parse(packet).unwrap().upper_layer())
}

fn option_error_text(option: [u8; 4]) -> String {
    let mut segment = padded::<24>(&[0; 20]);
    segment[12] = 0x60;
    segment[20..].copy_from_slice(&option);
    error_text(tcp::Segment::parse(&segment).unwrap().options().next().unwrap())
}

fn checksum_error_text(checksum: [u8; 2], address: impl Into<IpAddr> + Copy) -> String {
    let bytes = [[0; 2], [0; 2], [0, 8], checksum].concat();
    let addresses = IpAddresses::new(address.into(), address.into()).unwrap();
    error_text(udp::Datagram::parse(&bytes).unwrap().verify_checksum(&addresses))
}

#[test]
fn errors_of_headers_state_facts() {
    let mut udp_over_ipv4 = padded::<60>(&[0; 12]);
    udp_over_ipv4[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    udp_over_ipv4[17] = 46;
    assert_error_texts(&[
        (error_text(ethernet::Frame::parse(&[0; 13])), "the Ethernet header has 14 bytes, the frame has 13"),
        (
            error_text(ethernet::Frame::parse(&padded::<20>(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100]))),
            "the 802.3 length says 100 bytes, 6 follow the header",
        ),
        (error_text(vlan::Tag::parse(&[0, 0, 0])), "a VLAN tag has 4 bytes, 3 are left of the frame"),
        (
            error_text(vlan::Tag::parse(&padded::<10>(&[0, 0, 0, 100]))),
            "the 802.3 length in the VLAN tag says 100 bytes, 6 follow",
        ),
        (
            error_text(arp::Packet::parse(&[0; 27])),
            "ARP for IPv4 over Ethernet has 28 bytes, the packet has 27",
        ),
        (
            error_text(arp::Packet::parse(&padded::<28>(&[0, 1, 0x86, 0xdd]))),
            "ARP resolves addresses of IPv6; only IPv4 is supported",
        ),
        (
            error_text(arp::Packet::parse(&padded::<28>(&[0, 1, 8, 0, 8, 4]))),
            "ARP for IPv4 over Ethernet says addresses of 8 and 4 bytes, not of 6 and 4",
        ),
        (
            error_text(arp::Packet::parse(&padded::<28>(&[0, 6]))),
            "ARP names hardware type 6; only 1, Ethernet, is supported",
        ),
        (
            error_text(ipv4::Packet::parse(&[0x45; 19])),
            "the IPv4 header has at least 20 bytes, the packet has 19",
        ),
        (error_text(ipv4::Packet::parse(&[0x65; 20])), "the IP version is 6, not 4"),
        (error_text(ipv4::Packet::parse(&[0x44; 20])), "IPv4 header says 16 bytes, it has at least 20"),
        (error_text(ipv4::Packet::parse(&[0x46; 20])), "IPv4 header says 24 bytes, packet has 20"),
        (
            error_text(ipv4::Packet::parse(&padded::<20>(&[0x45, 0, 0, 19]))),
            "IPv4 total length says 19 bytes, the header alone has 20",
        ),
        (
            error_text(ipv4::Packet::parse(&padded::<20>(&[0x45, 0, 0, 21]))),
            "IPv4 total length says 21 bytes, packet has 20",
        ),
        (error_text(ipv6::Packet::parse(&[0x45; 40])), "the IP version is 4, not 6"),
        (error_text(ipv6::Packet::parse(&[0x60; 39])), "the IPv6 header has 40 bytes, the packet has 39"),
        (
            error_text(ipv6::Packet::parse(&padded::<50>(&[0x60, 0, 0, 0, 0, 100]))),
            "the IPv6 payload length says 100 bytes, 10 follow the header",
        ),
        (
            error_text(ipv6::Packet::parse(&padded::<50>(&[0x60]))),
            "the IPv6 payload length is 0, and the hop-by-hop options that follow have no jumbo payload length above 65535",
        ),
        (
            extension_error_text(&padded::<48>(&[0x60, 0, 0, 0, 0, 8, DESTINATION_OPTIONS])),
            "hop-by-hop options follow another extension header, they may only be the first",
        ),
        (
            extension_error_text(&padded::<44>(&[0x60, 0, 0, 0, 0, 4, DESTINATION_OPTIONS])),
            "the IPv6 destination options header needs 8 bytes, 4 are left of the packet",
        ),
        (error_text(icmp::Message::parse(&[8; 7])), "the ICMP header has 8 bytes, the message has 7"),
        (
            error_text(icmpv6::Message::parse(&[135; 3])),
            "the ICMPv6 message has 3 bytes, its type needs more",
        ),
        (
            error_text(tcp::Segment::parse(&[0; 19])),
            "the TCP header has at least 20 bytes, the segment has 19",
        ),
        (
            error_text(tcp::Segment::parse(&padded::<20>(&[0; 20]))),
            "the TCP header says 0 bytes, it has at least 20",
        ),
        (error_text(tcp::Segment::parse(&[0x60; 20])), "the TCP header says 24 bytes, the segment has 20"),
        (option_error_text([2, 5, 0, 0]), "TCP option 2 is cut"),
        (option_error_text([2, 3, 0, 0]), "TCP option 2: its length of 3 bytes is not valid for that option"),
        (error_text(udp::Datagram::parse(&[0; 7])), "the UDP header has 8 bytes, the datagram has 7"),
        (
            error_text(udp::Datagram::parse(&[0; 8])),
            "the UDP length is 0: this is part of an IPv6 jumbogram, which is not supported",
        ),
        (
            error_text(udp::Datagram::parse(&padded::<8>(&[0, 0, 0, 0, 0, 7]))),
            "the UDP length says 7 bytes, the header alone has 8",
        ),
        (
            error_text(udp::Datagram::parse(&padded::<8>(&[0, 0, 0, 0, 0, 9]))),
            "the UDP length says 9 bytes, the datagram has 8",
        ),
        (
            checksum_error_text([1, 2], Ipv4Addr::UNSPECIFIED),
            "the UDP checksum is 0x0102, the datagram sums to 0xffde",
        ),
        (
            checksum_error_text([0, 0], Ipv6Addr::UNSPECIFIED),
            "the datagram has no UDP checksum, which IPv6 demands",
        ),
        (error_text(UdpPacket::parse(&[0; 60])), "the frame holds neither IPv4 nor IPv6"),
        (error_text(UdpPacket::parse(&udp_over_ipv4)), "the IPv4 header's checksum is wrong"),
        (
            error_text("02:00:00".parse::<MacAddress>()),
            "\"02:00:00\": not a MAC address; one has six pairs of hex digits; write it like 02:00:00:00:00:01",
        ),
    ]);
    // With a correct checksum: 0x4500 + 46 = 0x452e, and ICMP below.
    udp_over_ipv4[23] = 1;
    udp_over_ipv4[24..26].copy_from_slice(&(!(0x4500_u16 + 46 + 1)).to_be_bytes());
    assert_eq!(error_text(UdpPacket::parse(&udp_over_ipv4)), "the packet is a fragment, or not UDP");
}

#[test]
fn errors_of_messages_state_facts() {
    let chunks = |payload: &[u8]| {
        framing::parse(payload).find_map(Result::err).map_or(String::new(), |error| error.to_string())
    };
    let sealed = |first: &[u8], bytes| {
        let mut datagram = first.to_vec();
        datagram.resize(bytes - crc::CRC_BYTES, 0);
        crc::seal(&mut datagram);
        error_text(messages::Datagram::parse(&datagram))
    };
    assert_error_texts(&[
        (error_text(messages::Datagram::parse(&[])), "the datagram has 0 bytes, its kind has at least 16"),
        (error_text(messages::Datagram::parse(&[0xff; 64])), "255 is not a kind of datagram"),
        (
            error_text(messages::Datagram::parse(&[9; 16])),
            "a datagram of kind 9 does not have the flags 0x09",
        ),
        (
            error_text(messages::Datagram::parse(&padded::<16>(&[9, 4]))),
            "the checksum is 0x00000000, the datagram sums to 0xc26c84fa",
        ),
        (sealed(&[9, 4], 17), "1 bytes follow the datagram's last field"),
        (sealed(&[9, 4, 1], 16), "a reserved field of a datagram of kind 9 is not 0"),
        (sealed(&[5, 4, 2, 1], 16), "a datagram of kind 5: version range 2 to 1 ends before it begins"),
        (sealed(&[4, 4, 2], 32), "a datagram of kind 4 has version 2, only version 1 is supported"),
        (
            sealed(&[6, 4, 1], 600),
            "the datagram has 600 bytes and states 0; these have to be the same, and 512 or more",
        ),
        (
            error_text(messages::Ranges::parse(&[0; 3])),
            "3 bytes follow the header of an Ack, which are not up to 64 ranges of 4 bytes",
        ),
        (
            error_text(messages::Ranges::parse(&[0; 4])),
            "range 0 of the Ack is empty or adjoins the one before",
        ),
        // It takes more connections than the settings allow, from several networks.
        (
            LostReason::Displaced.to_string(),
            "its place was given to another network; its own had the most connections; raise peers_max",
        ),
        (chunks(&[0xff]), "the payload ends in the header of a chunk"),
        (chunks(&[0, 0, 0, 9, 1]), "a chunk of 9 B has 1 B left in its packet"),
        (chunks(&[0xc0, 0, 0, 0]), "a chunk has an unknown kind"),
        (chunks(&[0x20, 0, 0, 0]), "a piece of a message has no bytes"),
        (
            error_text(message::parse_put_answer(&[])),
            "no answer came; the bytes may have been written or not, and can be put again",
        ),
    ]);
}

#[test]
fn invalid_messages_of_the_command_channel_are_named() {
    assert_error_texts(&[
        (
            error_text(run::LibraryMessage::parse(&[b' '; 1 << 20])),
            "datagram of 1048576 B: refused; none has more than 131072; send less in one message",
        ),
        (
            error_text(run::LibraryMessage::parse(b"{")),
            "datagram: not a message; EOF while parsing an object at line 1 column 1; use the library and the command of the same nocopy",
        ),
    ]);
}

#[test]
fn impossible_headers_and_blocks_are_not_written() {
    let tag = |vlan_id, priority| error_text(vlan::TagControl::new(vlan_id, priority, false));
    let udp = |bytes| udp::Repr::without_checksum(1, 2, bytes);
    let packet =
        pcapng::PacketHeader { time_ns: 0, original_bytes: 10, direction: pcapng::PacketDirection::In };
    assert_error_texts(&[
        (tag(4096, 0), "VLAN 4096: no such number; it has 12 bits; give one from 0 to 4095"),
        (tag(0, 8), "VLAN priority 8: no such number; it has 3 bits; give one from 0 to 7"),
        (
            error_text(udp(65_528)),
            "payload of 65528 bytes: too long; the header's 16-bit length allows 65527; send it in parts",
        ),
        (
            error_text(udp(1).unwrap().emit(&mut [0; 7])),
            "header of 8 bytes: cannot be written; the buffer has 7; give a larger one",
        ),
        (
            error_text(InPlaceWriter::new(&mut [0; 100], None, 100).add_packet(&packet, 0..10)),
            "packet: no block can be written around it; it lies too close to the one before it, or outside the memory; write it elsewhere",
        ),
    ]);
}

#[test]
fn unusable_filters_name_their_cause() {
    // Each instruction reads behind X, which takes some instructions of eBPF, and jumps to the end if there
    // is no such byte.
    let long = format!("4001\n{}6 0 0 1\n", "72 0 0 14\n".repeat(4000));
    let refused = Program::parse(&long).unwrap().to_xdp(false);
    assert_error_texts(&[
        (
            error_text(Program::parse("1\nret")),
            "instruction 0 is \"ret\"; it must be 'code jt jf k' in decimal; give the output of 'tcpdump -ddd EXPRESSION'",
        ),
        (
            error_text(Program::parse("2\n48 0 0 65535\n22 0 0 0").unwrap().to_xdp(false)),
            "instruction 0 reads up to byte 65536; an XDP program reads at most 65535; run the filter on a packet socket",
        ),
        (
            error_text(refused),
            "its 40008 instructions cannot be translated; jumps become too long for eBPF; shorten the filter",
        ),
    ]);
}
