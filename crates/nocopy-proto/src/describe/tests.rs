use super::*;
use crate::wire::{
    EtherType, IpAddresses, MacAddress, UdpChecksum, UdpFrame, captured, ethernet, icmp, icmpv6, ipv4, ipv6,
    tcp, vlan,
};
use proptest::collection::vec;
use proptest::prelude::*;

const V4: IpAddresses = IpAddresses::V4 {
    source: std::net::Ipv4Addr::new(10, 0, 0, 1),
    destination: std::net::Ipv4Addr::new(10, 0, 0, 2),
};

fn description_with_style(bytes: &[u8], packet_bytes: usize, style: DescriptionStyle) -> String {
    let mut line = String::new();
    CapturedBytes { bytes, packet_bytes }.describe(style, &mut line);
    line
}

fn description_of(bytes: &[u8]) -> String {
    description_with_style(bytes, bytes.len(), DescriptionStyle::default())
}

fn ethernet_frame(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER_BYTES];
    let (source, destination) = (MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2]));
    ethernet::Repr { source, destination, ether_type: EtherType(ether_type) }.emit(&mut bytes).unwrap();
    [bytes, payload.to_vec()].concat()
}

fn ipv4_frame(protocol: u8, fragmentation: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ipv4::HEADER_BYTES];
    let repr = ipv4::Repr {
        type_of_service: 0,
        identification: 77,
        fragmentation: ipv4::Fragmentation(fragmentation),
        time_to_live: 64,
        protocol: IpProtocol(protocol),
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        payload_bytes: payload.len() as u16,
    };
    repr.emit(&mut bytes).unwrap();
    ethernet_frame(0x0800, &[&bytes, payload].concat())
}

fn ipv6_frame(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ipv6::HEADER_BYTES];
    let repr = ipv6::Repr {
        traffic_class: 0,
        flow_label: ipv6::FlowLabel::default(),
        payload_bytes: payload.len() as u16,
        next_header: IpProtocol(next_header),
        hop_limit: 64,
        source: "fd00::1".parse().unwrap(),
        destination: "fd00::2".parse().unwrap(),
    };
    repr.emit(&mut bytes).unwrap();
    ethernet_frame(0x86dd, &[&bytes, payload].concat())
}

fn tcp_segment(flags: tcp::TcpFlags, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; tcp::HEADER_BYTES];
    let repr = tcp::Repr {
        source_port: 40000,
        destination_port: 80,
        sequence_number: u32::MAX,
        acknowledgement_number: 9,
        flags,
        window: 502,
        checksum: 0,
        urgent_pointer: 3,
    };
    repr.with_checksum(&V4, payload).emit(&mut bytes).unwrap();
    bytes[12] = (((tcp::HEADER_BYTES + options.len()) / 4) << 4) as u8;
    [&bytes, options, payload].concat()
}

#[test]
fn captured_packets_of_the_kernel_are_described() {
    assert_eq!(
        description_of(&captured::ARP_REQUEST),
        "ARP, Request who-has 10.0.0.2 tell 10.0.0.1, length 28"
    );
    assert_eq!(description_of(&captured::UDP_V4), "IP 10.0.0.1.4660 > 10.0.0.2.7: UDP, length 7");
    assert_eq!(description_of(&captured::UDP_V6), "IP6 fd00::1.4660 > fd00::2.7: UDP, length 7");
    assert_eq!(
        description_of(&captured::MLD_REPORT),
        "IP6 fe80::ff:fe00:1 > ff02::16: ICMP6, multicast listener report v2, 1 group record(s), length 28, \
         ip6 headers [HBH]"
    );
    assert_eq!(
        description_of(&captured::TCP_SYN),
        "IP 10.0.0.1.40000 > 10.0.0.2.7777: Flags [S], seq 1222519185, win 64240, options [mss 1460,sackOK,TS val \
         296623976 ecr 0,nop,wscale 10], length 0"
    );
    assert_eq!(
        description_of(&captured::PORT_UNREACHABLE),
        "IP 10.0.0.2 > 10.0.0.1: ICMP 10.0.0.2 udp port 7 unreachable, length 43"
    );
    assert_eq!(
        description_with_style(
            &captured::UDP_V6_SECOND_FRAGMENT_HEADERS,
            62 + 96,
            DescriptionStyle::default()
        ),
        "IP6 fd00::1 > fd00::2: UDP, fragment 2487271803 at 1448, 96 bytes, the last"
    );
}

#[test]
fn link_headers_and_names_are_optional() {
    assert_eq!(
        description_with_style(
            &captured::UDP_V4,
            49,
            DescriptionStyle::default().with_link_header(true).with_port_names(true)
        ),
        "02:00:00:00:00:01 > 02:00:00:00:00:02, ethertype IPv4 (0x0800), length 49: IP 10.0.0.1.4660 > \
         10.0.0.2.echo: UDP, length 7"
    );
    assert_eq!(
        description_with_style(
            &ethernet_frame(0x88b5, &[0; 46]),
            60,
            DescriptionStyle::default().with_link_header(true)
        ),
        "02:00:00:00:00:01 > 02:00:00:00:00:02, ethertype 0x88b5, length 60: ethertype 0x88b5, length 46"
    );
}

#[test]
fn single_and_stacked_vlan_tags_are_described() {
    let tag = |id: u16, ether_type: u16| {
        let mut bytes = vec![0; vlan::TAG_BYTES];
        let control = vlan::TagControl::new(id, 3, false).unwrap();
        vlan::Repr { control, ether_type: EtherType(ether_type) }.emit(&mut bytes).unwrap();
        bytes
    };
    let stacked = [&tag(100, 0x8100)[..], &tag(5, 0x0800), &captured::UDP_V4[14..]].concat();
    assert_eq!(
        description_of(&ethernet_frame(0x88a8, &stacked)),
        "service vlan 100, p 3, vlan 5, p 3, IP 10.0.0.1.4660 > 10.0.0.2.7: UDP, length 7"
    );
    assert_eq!(
        description_with_style(
            &ethernet_frame(0x8100, &tag(5, 0x0806)),
            18,
            DescriptionStyle::default().with_link_header(true)
        ),
        "02:00:00:00:00:01 > 02:00:00:00:00:02, ethertype 802.1Q (0x8100), length 18: vlan 5, p 3, ethertype ARP \
         (0x0806), ARP, [|arp]"
    );
    assert_eq!(description_of(&ethernet_frame(0x8100, &[0, 5])), "[|vlan]");
}

#[test]
fn priority_and_old_provider_tags_are_described() {
    let tagged = |types: &[(u16, u16)], inner: u16| {
        let mut bytes = Vec::new();
        for (control, announces) in types {
            bytes.extend(control.to_be_bytes());
            bytes.extend(announces.to_be_bytes());
        }
        description_of(&ethernet_frame(inner, &[&bytes, &captured::UDP_V4[14..]].concat()))
    };
    let udp = "IP 10.0.0.1.4660 > 10.0.0.2.7: UDP, length 7";
    assert_eq!(tagged(&[(0x6000, 0x0800)], 0x8100), format!("vlan 0, p 3, {udp}"));
    assert_eq!(tagged(&[(100, 0x8100), (5, 0x0800)], 0x9100), format!("vlan 100, p 0, vlan 5, p 0, {udp}"));
    assert_eq!(tagged(&[(100, 0x0800)], 0x9200), format!("vlan 100, p 0, {udp}"));
    let three = tagged(&[(1, 0x8100), (2, 0x8100), (3, 0x0800)], 0x8100);
    assert_eq!(three, format!("vlan 1, p 0, vlan 2, p 0, vlan 3, p 0, {udp}"));
}

#[test]
fn unsegmented_packets_have_the_length_of_the_frame() {
    let data = tcp_segment(tcp::TcpFlags::ACK, &[], &[0; 70_000]);
    let without_length = |mut bytes: Vec<u8>, at: usize| {
        bytes[at..at + 2].fill(0);
        bytes
    };
    let v4 = without_length(ipv4_frame(6, 0, &data), 16);
    let v6 = without_length(ipv6_frame(6, &data), 18);
    let numbers = "Flags [.], seq 4294967295:69999, ack 9, win 502, length 70000";
    assert_eq!(description_of(&v4), format!("IP 10.0.0.1.40000 > 10.0.0.2.80: {numbers}"));
    assert_eq!(description_of(&v6), format!("IP6 fd00::1.40000 > fd00::2.80: {numbers}"));
    assert_eq!(
        description_with_style(&v4[..60], v4.len(), DescriptionStyle::default()),
        description_of(&v4),
        "cut"
    );
    assert_eq!(
        description_with_style(&v6[..80], v6.len(), DescriptionStyle::default()),
        description_of(&v6),
        "cut"
    );

    let jumbo = |bytes: u32| {
        let option = [&[6, 0, 0xc2, 4][..], &bytes.to_be_bytes()].concat();
        without_length(ipv6_frame(0, &[&option, &data[..]].concat()), 18)
    };
    let whole = jumbo(70_028);
    let as_jumbo = format!("IP6 fd00::1.40000 > fd00::2.80: {numbers}, ip6 headers [HBH]");
    assert_eq!(description_of(&whole), as_jumbo);
    assert_eq!(
        description_with_style(&whole[..82], whole.len(), DescriptionStyle::default()),
        as_jumbo,
        "cut"
    );
    assert_eq!(
        description_with_style(&whole[..60], whole.len(), DescriptionStyle::default()),
        "IP6 fd00::1 > fd00::2: [|ip6 extension]"
    );
    assert!(
        description_of(&jumbo(80_028))
            .ends_with("length 80000, ip6 headers [HBH], truncated: 10000 bytes missing")
    );
    assert!(description_of(&jumbo(1000)).starts_with("IP6 [bad ip6: the IPv6 payload length is 0, and"));
}

#[test]
fn other_ethertypes_and_llc_are_described() {
    assert_eq!(description_of(&ethernet_frame(0x88b5, &[0; 46])), "ethertype 0x88b5, length 46");
    assert_eq!(description_of(&ethernet_frame(0x88cc, &[0; 46])), "LLDP, length 46");
    assert_eq!(
        description_of(&ethernet_frame(38, &[0x42; 46])),
        "802.3, LLC, dsap 0x42, ssap 0x42, control 0x42, length 38"
    );
    let spanning_tree = [&[0x42, 0x42, 3][..], &[0; 43]].concat();
    assert_eq!(description_of(&ethernet_frame(38, &spanning_tree)), "802.3, STP, length 38");
    assert_eq!(
        description_of(&ethernet_frame(38, &spanning_tree[..20])),
        "802.3, STP, length 38, truncated: 18 bytes missing"
    );
    let snap = [0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0];
    assert_eq!(description_of(&ethernet_frame(8, &snap)), "802.3, SNAP, oui 0x00000c, type 0x2000, length 8");
    assert_eq!(
        description_of(&ethernet_frame(8, &[0xaa])),
        "802.3, [|llc], length 8, truncated: 7 bytes missing"
    );
    assert_eq!(description_of(&[0; 13]), "[|ether]");
    assert_eq!(description_of(&[]), "[|ether]");
}

#[test]
fn arp_operations_are_described() {
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = captured::ARP_REQUEST;
        change(&mut bytes[14..]);
        description_of(&bytes)
    };
    assert_eq!(with(&|arp| arp[7] = 2), "ARP, Reply 10.0.0.1 is-at 02:00:00:00:00:01, length 28");
    assert_eq!(with(&|arp| arp[14..18].fill(0)), "ARP, Probe 10.0.0.2, length 28");
    assert_eq!(with(&|arp| arp[27] = 1), "ARP, Announcement 10.0.0.1, length 28");
    assert_eq!(with(&|arp| arp[7] = 9), "ARP, operation 9, length 28");
    assert!(with(&|arp| arp[1] = 6).starts_with("ARP, [bad arp: ARP names hardware type 6"));
}

#[test]
fn fragments_and_options_are_described() {
    let datagram = [&[0x12, 0x34, 0, 7, 0x0b, 0xc0, 0, 0][..], &[0; 1472]].concat();
    assert_eq!(
        description_of(&ipv4_frame(17, 0x2000, &datagram)),
        "IP 10.0.0.1.4660 > 10.0.0.2.7: UDP, length 3000, fragment 77 at 0, 1480 bytes, more follow"
    );
    assert_eq!(
        description_of(&ipv4_frame(17, 185, &[0; 100])),
        "IP 10.0.0.1 > 10.0.0.2: UDP, fragment 77 at 1480, 100 bytes, the last"
    );
    let mut optioned = ipv4_frame(17, 0, &[0x94, 4, 0, 0, 0x12, 0x34, 0, 7, 0, 8, 0, 0]);
    optioned[14] = 0x46;
    assert_eq!(description_of(&optioned), "IP 10.0.0.1.4660 > 10.0.0.2.7: UDP, length 0, ip options [RA]");
    optioned[34..38].copy_from_slice(&[1, 1, 99, 9]);
    assert_eq!(
        description_of(&optioned),
        "IP 10.0.0.1.4660 > 10.0.0.2.7: UDP, length 0, ip options [opt-99[|opt]]"
    );
    // Destination options, then UDP.
    let extended = [17, 0, 1, 4, 0, 0, 0, 0, 0x12, 0x34, 0, 7, 0, 8, 0, 0];
    assert_eq!(
        description_of(&ipv6_frame(60, &extended)),
        "IP6 fd00::1.4660 > fd00::2.7: UDP, length 0, ip6 headers [DSTOPT]"
    );
    assert_eq!(description_of(&ipv6_frame(60, &extended[..7])), "IP6 fd00::1 > fd00::2: [|ip6 extension]");
    assert_eq!(description_of(&ipv6_frame(59, &[])), "IP6 fd00::1 > fd00::2: no next header, length 0");
    assert_eq!(description_of(&ipv4_frame(47, 0, &[0; 4])), "IP 10.0.0.1 > 10.0.0.2: GRE, length 4");
    assert_eq!(
        description_of(&ipv4_frame(253, 0, &[0; 4])),
        "IP 10.0.0.1 > 10.0.0.2: ip-proto-253, length 4"
    );
}

#[test]
fn tcp_numbers_flags_and_options_are_described() {
    let data =
        tcp_segment(tcp::TcpFlags::PSH.with(tcp::TcpFlags::ACK).with(tcp::TcpFlags::URG), &[], b"hello");
    assert_eq!(
        description_of(&ipv4_frame(6, 0, &data)),
        "IP 10.0.0.1.40000 > 10.0.0.2.80: Flags [P.U], seq 4294967295:4, ack 9, win 502, urg 3, length 5"
    );
    let sack = [1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    assert_eq!(
        description_of(&ipv6_frame(6, &tcp_segment(tcp::TcpFlags::ACK, &sack, &[]))),
        "IP6 fd00::1.40000 > fd00::2.80: Flags [.], ack 9, win 502, options [nop,nop,sack 1 {1:2}], length 0"
    );
    let quiet = ipv4_frame(6, 0, &tcp_segment(tcp::TcpFlags::default(), &[], &[]));
    assert!(description_of(&quiet).contains("Flags [none], win 502, length 0"));
    let bad = ipv4_frame(6, 0, &tcp_segment(tcp::TcpFlags::SYN, &[2, 9, 1, 1], &[]));
    assert!(
        description_of(&bad).ends_with("seq 4294967295, win 502, options [[|opt]], length 0"),
        "{}",
        description_of(&bad)
    );
    let mut short = tcp_segment(tcp::TcpFlags::SYN, &[], &[]);
    short[12] = 0x40;
    assert!(
        description_of(&ipv4_frame(6, 0, &short)).contains("TCP, [bad tcp: the TCP header says 16 bytes")
    );
    short[12] = 0x60;
    assert!(
        description_of(&ipv4_frame(6, 0, &short))
            .ends_with("[bad tcp: the header says 24 bytes, the segment has 20]")
    );
}

#[test]
fn icmp_messages_and_quoted_packets_are_described() {
    let message = |number: u8, code: u8, rest: [u8; 4], payload: &[u8]| {
        let mut bytes = vec![0; icmp::HEADER_BYTES];
        let repr = icmp::Repr { message_type: icmp::MessageType(number), code, checksum: 0, rest };
        repr.with_checksum(payload).emit(&mut bytes).unwrap();
        description_of(&ipv4_frame(1, 0, &[&bytes, payload].concat()))
            ["IP 10.0.0.1 > 10.0.0.2: ICMP ".len()..]
            .to_owned()
    };
    let about = &captured::UDP_V4[14..];
    assert_eq!(message(8, 0, [0, 1, 0, 2], &[0; 56]), "echo request, id 1, seq 2, length 64");
    assert_eq!(message(0, 0, [0, 1, 0, 2], &[0; 56]), "echo reply, id 1, seq 2, length 64");
    assert_eq!(message(3, 0, [0; 4], about), "net 10.0.0.2 unreachable, length 43");
    assert_eq!(message(3, 1, [0; 4], about), "host 10.0.0.2 unreachable, length 43");
    assert_eq!(message(3, 2, [0; 4], about), "10.0.0.2 protocol UDP unreachable, length 43");
    assert_eq!(message(3, 3, [0; 4], &about[..28]), "10.0.0.2 udp port 7 unreachable, length 36");
    assert_eq!(message(3, 3, [0; 4], &about[..20]), "10.0.0.2 UDP port unreachable, length 28");
    assert_eq!(message(3, 3, [0; 4], &about[..19]), "unreachable, code 3, [|ip], length 27");
    assert_eq!(
        message(3, 4, [0, 0, 5, 0], about),
        "10.0.0.2 unreachable - need to frag (mtu 1280), length 43"
    );
    assert_eq!(message(5, 1, [10, 0, 0, 9], about), "redirect 10.0.0.2 to host 10.0.0.9, length 43");
    assert_eq!(message(11, 0, [0; 4], about), "time exceeded in-transit, length 43");
    assert_eq!(message(11, 1, [0; 4], about), "ip reassembly time exceeded, length 43");
    assert_eq!(message(42, 7, [0; 4], &[]), "type-42, code 7, length 8");
    assert_eq!(description_of(&ipv4_frame(1, 0, &[8, 0])), "IP 10.0.0.1 > 10.0.0.2: ICMP [|icmp]");
}

#[test]
fn icmpv6_messages_and_quoted_packets_are_described() {
    let message = |number: u8, code: u8, payload: &[u8]| {
        let bytes = [&[number, code, 0, 0], payload].concat();
        let repr = icmpv6::Repr::parse(&icmpv6::Message::parse(&bytes).unwrap());
        assert_eq!((repr.message_type.0, repr.code), (number, code));
        description_of(&ipv6_frame(58, &bytes))["IP6 fd00::1 > fd00::2: ICMP6, ".len()..].to_owned()
    };
    let about = |first: [u8; 4]| [&first, &captured::UDP_V6[14..]].concat();
    assert_eq!(message(128, 0, &[0, 1, 0, 2]), "echo request, id 1, seq 2, length 8");
    assert_eq!(
        message(1, 4, &about([0; 4])),
        "destination unreachable, unreachable port, fd00::2 udp port 7, length 63"
    );
    assert_eq!(
        message(1, 3, &about([0; 4])),
        "destination unreachable, unreachable address, fd00::2, length 63"
    );
    assert_eq!(message(2, 0, &about([0, 0, 5, 0])), "packet too big, mtu 1280, length 63");
    assert_eq!(message(3, 0, &about([0; 4])), "time exceeded in-transit, length 63");
    assert_eq!(message(4, 1, &about([0, 0, 0, 6])), "parameter problem, code 1, octet 6, length 63");
    let mut target = [0; 20];
    target[19] = 9;
    assert_eq!(message(135, 0, &target), "neighbor solicitation, who has ::9, length 24");
    assert_eq!(message(136, 0, &target), "neighbor advertisement, tgt is ::9, length 24");
    assert_eq!(message(136, 0, &target[..19]), "neighbor advertisement, [|icmp6], length 23");
    assert_eq!(message(133, 0, &[0; 4]), "router solicitation, length 8");
    assert_eq!(message(200, 3, &[0; 4]), "type-200, code 3, length 8");
}

#[test]
fn cut_packets_are_marked_as_cut() {
    let packet_bytes = captured::TCP_SYN.len();
    let cut = |bytes: usize| {
        description_with_style(&captured::TCP_SYN[..bytes], packet_bytes, DescriptionStyle::default())
    };
    assert_eq!(cut(20), "IP [|ip]");
    assert_eq!(cut(40), "IP 10.0.0.1 > 10.0.0.2: TCP, [|tcp]");
    assert!(cut(54).ends_with("win 64240, options [[|opt]], length 0"), "{}", cut(54));
    assert!(cut(58).ends_with("win 64240, options [mss 1460,[|opt]], length 0"), "{}", cut(58));
    assert!(cut(59).ends_with("win 64240, options [mss 1460,[|opt]], length 0"), "{}", cut(59));
    let datagram =
        |bytes: usize| description_with_style(&captured::UDP_V4[..bytes], 49, DescriptionStyle::default());
    assert_eq!(datagram(42), description_of(&captured::UDP_V4));
    assert_eq!(datagram(41), "IP 10.0.0.1 > 10.0.0.2: UDP, [|udp]");
}

#[test]
fn contradicting_lengths_are_reported() {
    let short = &captured::UDP_V4[..45];
    assert_eq!(
        description_of(short),
        "IP 10.0.0.1.4660 > 10.0.0.2.7: UDP, length 7, truncated: 4 bytes missing"
    );
    let mut long = captured::UDP_V4;
    long[39] = 200;
    assert_eq!(
        description_of(&long),
        "IP 10.0.0.1.4660 > 10.0.0.2.7: UDP, length 192 [bad udp: the packet has room for 15 bytes]"
    );
    long[39] = 3;
    assert!(
        description_of(&long).contains("UDP, [bad udp: the UDP length says 3 bytes"),
        "{}",
        description_of(&long)
    );
    let mut total = captured::UDP_V4;
    total[17] = 3;
    assert!(
        description_of(&total).starts_with("IP [bad ip: IPv4 total length says 3 bytes"),
        "{}",
        description_of(&total)
    );
    total[14] = 0x65;
    assert_eq!(description_of(&total), "IP [bad ip: the IP version is 6, not 4]");
}

#[test]
fn an_emitted_frame_is_described() {
    let template = UdpFrame {
        source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
        vlan: Some(vlan::TagControl::new(7, 0, false).unwrap()),
        addresses: V4,
        traffic_class: 0,
        hop_limit: 64,
        source_port: 53,
        destination_port: 60000,
        checksum: UdpChecksum::Computed,
    };
    let mut bytes = vec![0; template.header_bytes() + 1372];
    let (headers, payload) = bytes.split_at_mut(template.header_bytes());
    template.emit_headers(headers, payload).unwrap();
    assert_eq!(description_of(&bytes), "vlan 7, p 0, IP 10.0.0.1.53 > 10.0.0.2.60000: UDP, length 1372");
}

#[test]
fn cut_and_damaged_captured_frames_are_described() {
    let frames: [&[u8]; 7] = [
        &captured::ARP_REQUEST,
        &captured::UDP_V4,
        &captured::UDP_V6,
        &captured::MLD_REPORT,
        &captured::UDP_V6_SECOND_FRAGMENT_HEADERS,
        &captured::TCP_SYN,
        &captured::PORT_UNREACHABLE,
    ];
    for frame in frames {
        for end in 0..=frame.len() {
            assert_description_is_one_line(&frame[..end]);
        }
        for place in 0..frame.len() {
            for byte in [0, 1, 0x3a, 0x7f, 0xff] {
                let mut changed = frame.to_vec();
                changed[place] = byte;
                assert_description_is_one_line(&changed);
            }
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_give_one_line(bytes in vec(any::<u8>(), 0..200)) {
        assert_description_is_one_line(&bytes);
    }

    /// Random bytes seldom pass for a protocol, so they get their first bytes given.
    #[test]
    fn arbitrary_bytes_in_every_protocol_give_one_line(
        ether_type in prop::sample::select(vec![0x0800_u16, 0x0806, 0x86dd, 0x8100, 0x88a8, 0x0026]),
        protocol in prop::sample::select(vec![0_u8, 1, 2, 6, 17, 43, 44, 58, 59, 60, 200]),
        payload in vec(any::<u8>(), 0..120),
        snap in 0_usize..200,
        plain in any::<bool>(),
    ) {
        let frame = match ether_type {
            0x0800 if plain => ipv4_frame(protocol, 0, &payload),
            0x86dd if plain => ipv6_frame(protocol, &payload),
            ether_type => ethernet_frame(ether_type, &payload),
        };
        assert_description_is_one_line(&frame[..snap.min(frame.len())]);
    }
}
