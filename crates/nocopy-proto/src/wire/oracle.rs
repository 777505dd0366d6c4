//! Properties that hold for any bytes, for the property tests here and the fuzz targets in `fuzz/`.
//!
//! Not part of the interface. A violation is a panic, which both report with the input that caused it.

use std::fmt::Debug;
use std::hint::black_box;

use super::udp::ChecksumStatus;
use super::{
    EtherType, IpAddresses, IpProtocol, UdpChecksum, UdpFrame, UdpPacket, arp, ethernet, icmp, icmpv6, ipv4,
    ipv6, tcp, udp, vlan,
};

/// Reads `bytes` as every format, follows nested formats, and calls every accessor.
///
/// # Panics
/// When a view shows bytes that it was not given, or disagrees with itself.
pub fn walk_views(bytes: &[u8]) {
    walk_frame(bytes);
    let _ = vlan::Tag::parse(bytes).map(|tag| {
        assert_within(bytes, tag.payload());
        black_box_value((tag.control().vlan_id(), tag.control().priority(), tag.control().drop_eligible()));
        walk_network(tag.ether_type(), tag.payload());
    });
    for ether_type in [EtherType::ARP, EtherType::IPV4, EtherType::IPV6] {
        walk_network(ether_type, bytes);
    }
    let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    walk_datagram(&IpAddresses::V4 { source, destination }, bytes);
    walk_segment(&IpAddresses::V4 { source, destination }, bytes);
    walk_icmp(bytes);
    let (source, destination) = (1.into(), 2.into());
    walk_datagram(&IpAddresses::V6 { source, destination }, bytes);
    walk_segment(&IpAddresses::V6 { source, destination }, bytes);
    walk_icmpv6(&IpAddresses::V6 { source, destination }, bytes);
    walk_cut(bytes);
}

/// For cut packets: where the view of the whole is refused, the view of the part has the same values.
fn walk_cut(bytes: &[u8]) {
    if let Ok(frame) = ethernet::Frame::parse_cut(bytes) {
        assert_within(bytes, frame.payload());
        let whole =
            frame.ether_type().declared_bytes().is_none_or(|declared| declared == frame.payload().len());
        assert_eq!(ethernet::Frame::parse(bytes).is_ok(), whole);
    }
    if let Ok(tag) = vlan::Tag::parse_cut(bytes) {
        assert_within(bytes, tag.payload());
        let whole = tag.ether_type().declared_bytes().is_none_or(|declared| declared == tag.payload().len());
        assert_eq!(vlan::Tag::parse(bytes).is_ok(), whole);
    }
    if let Ok(packet) = ipv4::Packet::parse_cut(bytes) {
        assert_within(bytes, packet.payload());
        let present_bytes = packet.header_bytes() + packet.payload().len();
        let declared_bytes = packet.total_bytes().map_or(bytes.len(), usize::from);
        assert!(present_bytes <= declared_bytes);
        assert_eq!(ipv4::Packet::parse(bytes).is_ok(), present_bytes == declared_bytes);
    }
    if let Ok(packet) = ipv6::Packet::parse_cut(bytes) {
        assert_within(bytes, packet.payload());
        let present_bytes = packet.payload().len();
        let declared_bytes = packet.payload_bytes().map_or(present_bytes, |bytes| bytes as usize);
        assert!(present_bytes <= declared_bytes);
        assert_eq!(ipv6::Packet::parse(bytes).is_ok(), present_bytes == declared_bytes);
    }
    if let Ok(datagram) = udp::Datagram::parse_cut(bytes) {
        assert_within(bytes, datagram.payload());
        let present_bytes = udp::HEADER_BYTES + datagram.payload().len();
        assert!(present_bytes <= usize::from(datagram.length_bytes()));
        let whole = present_bytes == usize::from(datagram.length_bytes());
        assert_eq!(udp::Datagram::parse(bytes).is_ok(), whole);
    }
    if let Ok(segment) = tcp::Segment::parse_cut(bytes) {
        assert_within(bytes, segment.option_bytes());
        let present_bytes = tcp::HEADER_BYTES + segment.option_bytes().len();
        assert!(present_bytes <= segment.header_bytes());
        assert_eq!(tcp::Segment::parse(bytes).is_ok(), present_bytes == segment.header_bytes());
        assert!(segment.payload().is_empty() || present_bytes == segment.header_bytes());
    }
}

fn walk_frame(bytes: &[u8]) {
    let Ok(frame) = ethernet::Frame::parse(bytes) else { return };
    assert_within(bytes, frame.payload());
    black_box_value((
        frame.destination().to_string(),
        frame.source().is_multicast(),
        frame.ether_type().to_string(),
    ));
    walk_udp_packet(bytes, &frame);
    let Ok(stack) = vlan::TagStack::parse(&frame) else { return };
    assert_within(frame.payload(), stack.payload());
    assert!(!stack.ether_type().is_vlan());
    let mut announced = frame.ether_type();
    for (protocol, tag) in stack.tags() {
        assert!(protocol == announced && protocol.is_vlan());
        announced = tag.ether_type;
    }
    assert_eq!(announced, stack.ether_type());
    assert!(stack.tags().len() * vlan::TAG_BYTES + stack.payload().len() <= frame.payload().len());
    walk_network(stack.ether_type(), stack.payload());
}

/// The combined view has the same values as the separate views.
fn walk_udp_packet(bytes: &[u8], frame: &ethernet::Frame<'_>) {
    let Ok(packet) = UdpPacket::parse(bytes) else { return };
    let (at, payload_bytes) = packet.payload_range();
    assert_eq!(bytes.get(at..at + payload_bytes), Some(packet.datagram().payload()));
    assert_within(frame.payload(), packet.datagram().payload());
    let addresses = match frame.ether_type() {
        EtherType::IPV4 => ipv4::Packet::parse(frame.payload()).expect("it was read").addresses(),
        _ => ipv6::Packet::parse(frame.payload()).expect("it was read").addresses(),
    };
    assert_eq!(packet.addresses(), &addresses);
    walk_datagram(&addresses, &bytes[at - udp::HEADER_BYTES..at + payload_bytes]);
    black_box_value((packet.verify_checksum().is_ok(), packet.checksum_is_unfinished()));
}

fn walk_network(ether_type: EtherType, bytes: &[u8]) {
    match ether_type {
        EtherType::ARP => walk_arp(bytes),
        EtherType::IPV4 => walk_ipv4(bytes),
        EtherType::IPV6 => walk_ipv6(bytes),
        _ => {}
    }
}

fn walk_arp(bytes: &[u8]) {
    let Ok(packet) = arp::Packet::parse(bytes) else { return };
    black_box_value((packet.operation().to_string(), packet.sender_mac(), packet.sender_ip()));
    black_box_value((packet.target_mac(), packet.target_ip()));
}

fn walk_ipv4(bytes: &[u8]) {
    let Ok(packet) = ipv4::Packet::parse(bytes) else { return };
    assert_within(bytes, packet.options());
    assert_within(bytes, packet.payload());
    assert_eq!(packet.header_bytes(), ipv4::HEADER_BYTES + packet.options().len());
    let total_bytes = packet.total_bytes().map_or(bytes.len(), usize::from);
    assert_eq!(total_bytes, packet.header_bytes() + packet.payload().len());
    black_box_value((
        packet.type_of_service(),
        packet.identification(),
        packet.time_to_live(),
        packet.protocol().to_string(),
    ));
    black_box_value((packet.checksum(), packet.checksum_is_valid(), packet.fragmentation().dont_fragment()));
    assert_eq!(packet.addresses().source(), packet.source());
    assert_eq!(packet.addresses().destination(), packet.destination());
    if packet.fragmentation().is_fragment() {
        return;
    }
    match packet.protocol() {
        IpProtocol::UDP => walk_datagram(&packet.addresses(), packet.payload()),
        IpProtocol::TCP => walk_segment(&packet.addresses(), packet.payload()),
        IpProtocol::ICMP => walk_icmp(packet.payload()),
        _ => {}
    }
}

fn walk_ipv6(bytes: &[u8]) {
    let Ok(packet) = ipv6::Packet::parse(bytes) else { return };
    assert_within(bytes, packet.payload());
    let payload_bytes =
        packet.payload_bytes().map_or(bytes.len() - ipv6::HEADER_BYTES, |bytes| bytes as usize);
    assert_eq!(payload_bytes, packet.payload().len());
    assert!(ipv6::FlowLabel::new(packet.flow_label().get()).is_some());
    black_box_value((packet.traffic_class(), packet.next_header().to_string(), packet.hop_limit()));
    assert_eq!(packet.addresses().source(), packet.source());
    assert_eq!(packet.addresses().destination(), packet.destination());

    let Ok(upper) = packet.upper_layer() else { return };
    let (mut announced, mut walked_bytes) = (packet.next_header(), 0);
    for extension in upper.extensions() {
        assert_eq!(extension.protocol(), announced);
        assert_within(packet.payload(), extension.bytes());
        assert_eq!(extension.fragmentation().is_some(), announced == IpProtocol::IPV6_FRAGMENT);
        announced = extension.next_header();
        walked_bytes += extension.bytes().len();
    }
    assert_eq!(announced, upper.protocol());
    assert_eq!(walked_bytes + upper.payload().len(), packet.payload().len());
    assert!(upper.extensions().len() <= ipv6::EXTENSIONS_MAX);
    if upper.fragmentation().is_some() {
        return;
    }
    match upper.protocol() {
        IpProtocol::UDP => walk_datagram(&packet.addresses(), upper.payload()),
        IpProtocol::TCP => walk_segment(&packet.addresses(), upper.payload()),
        IpProtocol::ICMPV6 => walk_icmpv6(&packet.addresses(), upper.payload()),
        _ => {}
    }
}

fn walk_segment(addresses: &IpAddresses, bytes: &[u8]) {
    let Ok(segment) = tcp::Segment::parse(bytes) else { return };
    assert_within(bytes, segment.option_bytes());
    assert_within(bytes, segment.payload());
    assert_eq!(segment.header_bytes() + segment.payload().len(), bytes.len());
    assert_eq!(segment.header_bytes(), tcp::HEADER_BYTES + segment.option_bytes().len());
    // Every option has at least a byte, so the loop ends.
    let mut options = 0;
    for option in segment.options() {
        options += 1;
        match option {
            Ok(tcp::TcpOption::Other { data, .. }) => assert_within(segment.option_bytes(), data),
            Ok(tcp::TcpOption::Sack(blocks)) => assert!(blocks.iter().len() <= 4),
            other => black_box_value(other),
        }
    }
    assert!(options <= segment.option_bytes().len());
    black_box_value((
        segment.window(),
        segment.urgent_pointer(),
        segment.flags(),
        segment.acknowledgement_number(),
    ));
    if segment.option_bytes().is_empty() {
        let sent = tcp::Repr::parse(&segment).with_checksum(addresses, segment.payload());
        assert!(segment.checksum_is_valid(addresses) || sent.checksum != segment.checksum());
    }
}

fn walk_icmp(bytes: &[u8]) {
    let Ok(message) = icmp::Message::parse(bytes) else { return };
    assert_within(bytes, message.payload());
    assert_eq!(message.payload().len() + icmp::HEADER_BYTES, bytes.len());
    black_box_value((message.body(), message.code(), message.message_type().is_error()));
    let sent = icmp::Repr::parse(&message).with_checksum(message.payload());
    assert!(message.checksum_is_valid() || sent.checksum != message.checksum());
}

fn walk_icmpv6(addresses: &IpAddresses, bytes: &[u8]) {
    let Ok(message) = icmpv6::Message::parse(bytes) else { return };
    assert_within(bytes, message.payload());
    assert_eq!(message.payload().len() + icmpv6::HEADER_BYTES, bytes.len());
    if let Ok(icmpv6::Body::Error { packet, .. }) = message.body() {
        assert_within(message.payload(), packet);
    }
    let sent = icmpv6::Repr::parse(&message).with_checksum(addresses, message.payload());
    assert!(message.checksum_is_valid(addresses) || sent.checksum != message.checksum());
}

fn walk_datagram(addresses: &IpAddresses, bytes: &[u8]) {
    let Ok(datagram) = udp::Datagram::parse(bytes) else { return };
    assert_within(bytes, datagram.payload());
    assert_eq!(usize::from(datagram.length_bytes()), udp::HEADER_BYTES + datagram.payload().len());
    let (source, destination) = (datagram.source_port(), datagram.destination_port());
    let verified = datagram.verify_checksum(addresses);
    let sent = udp::Repr::with_checksum(source, destination, addresses, datagram.payload());
    let sent = sent.expect("a payload that was received can be sent");
    assert_eq!(verified == Ok(ChecksumStatus::Verified), sent.checksum == datagram.checksum());
}

/// Reads `bytes` as every format, writes the result, and compares.
///
/// Formats whose repr holds everything must come out byte for byte; IPv4 must if it has no options and a
/// valid checksum.
///
/// # Panics
/// The written bytes differ from the read ones.
pub fn check_round_trips(bytes: &[u8]) {
    if let Ok(frame) = ethernet::Frame::parse(bytes) {
        let repr = ethernet::Repr::parse(&frame);
        let written = emitted_packet(ethernet::HEADER_BYTES, frame.payload(), |buffer| repr.emit(buffer));
        assert!(bytes.starts_with(&written));
        check_rebuilt_udp_frame(&frame);
    }
    if let Ok(tag) = vlan::Tag::parse(bytes) {
        let repr = vlan::Repr::parse(&tag);
        assert!(
            bytes.starts_with(&emitted_packet(vlan::TAG_BYTES, tag.payload(), |buffer| repr.emit(buffer)))
        );
    }
    if let Ok(packet) = arp::Packet::parse(bytes) {
        let repr = arp::Repr::parse(&packet);
        assert!(bytes.starts_with(&emitted_packet(arp::HEADER_BYTES, &[], |buffer| repr.emit(buffer))));
    }
    if let Ok(packet) = ipv4::Packet::parse(bytes) {
        check_ipv4_round_trip(bytes, &packet);
    }
    if let Ok(packet) = ipv6::Packet::parse(bytes) {
        let repr = ipv6::Repr::parse(&packet);
        assert!(
            bytes.starts_with(
                &emitted_packet(ipv6::HEADER_BYTES, packet.payload(), |buffer| repr.emit(buffer))
            )
        );
    }
    if let Ok(datagram) = udp::Datagram::parse(bytes) {
        let repr = udp::Repr::parse(&datagram);
        assert!(
            bytes.starts_with(
                &emitted_packet(udp::HEADER_BYTES, datagram.payload(), |buffer| repr.emit(buffer))
            )
        );
    }
    check_upper_round_trips(bytes);
}

fn check_upper_round_trips(bytes: &[u8]) {
    if let Ok(segment) = tcp::Segment::parse(bytes) {
        let repr = tcp::Repr::parse(&segment);
        let written = emitted_packet(tcp::HEADER_BYTES, segment.payload(), |buffer| repr.emit(buffer));
        let again = tcp::Segment::parse(&written).expect("what was written can be read");
        assert_eq!((tcp::Repr::parse(&again), again.payload()), (repr, segment.payload()));
        assert!(!segment.option_bytes().is_empty() || written == bytes);
    }
    if let Ok(message) = icmp::Message::parse(bytes) {
        let repr = icmp::Repr::parse(&message);
        assert_eq!(bytes, emitted_packet(icmp::HEADER_BYTES, message.payload(), |buffer| repr.emit(buffer)));
    }
    if let Ok(message) = icmpv6::Message::parse(bytes) {
        let repr = icmpv6::Repr::parse(&message);
        assert_eq!(
            bytes,
            emitted_packet(icmpv6::HEADER_BYTES, message.payload(), |buffer| repr.emit(buffer))
        );
    }
}

fn check_ipv4_round_trip(bytes: &[u8], packet: &ipv4::Packet<'_>) {
    let repr = ipv4::Repr::parse(packet);
    let written = emitted_packet(ipv4::HEADER_BYTES, packet.payload(), |buffer| repr.emit(buffer));
    let again = ipv4::Packet::parse(&written).expect("what was written can be read");
    assert!(again.checksum_is_valid());
    assert_eq!(ipv4::Repr::parse(&again), repr);
    assert_eq!(again.payload(), packet.payload());
    // A checksum field of ffff is valid where 0 is computed, so equal sums need not be equal bytes.
    let has_length = packet.total_bytes().is_some();
    if packet.options().is_empty() && has_length && packet.checksum_is_valid() && packet.checksum() != 0xffff
    {
        assert!(bytes.starts_with(&written));
    }
}

/// Takes whatever passes for addresses, ports and payload of a UDP frame, also under another protocol number,
/// writes a frame with them and checks the outcome.
fn check_rebuilt_udp_frame(frame: &ethernet::Frame<'_>) {
    let Ok(stack) = vlan::TagStack::parse(frame) else { return };
    let (addresses, traffic_class, hop_limit, transport) = match stack.ether_type() {
        EtherType::IPV4 => {
            let Ok(packet) = ipv4::Packet::parse(stack.payload()) else { return };
            (packet.addresses(), packet.type_of_service(), packet.time_to_live(), packet.payload())
        }
        EtherType::IPV6 => {
            let Ok(packet) = ipv6::Packet::parse(stack.payload()) else { return };
            (packet.addresses(), packet.traffic_class(), packet.hop_limit(), packet.payload())
        }
        _ => return,
    };
    let Ok(datagram) = udp::Datagram::parse(transport) else { return };
    let is_v4 = matches!(addresses, IpAddresses::V4 { .. });
    let omitted = is_v4 && datagram.checksum().is_none();
    let template = UdpFrame {
        source_mac: frame.source(),
        destination_mac: frame.destination(),
        vlan: stack.tags().next().map(|(_, tag)| tag.control),
        addresses,
        traffic_class,
        hop_limit,
        source_port: datagram.source_port(),
        destination_port: datagram.destination_port(),
        checksum: if omitted { UdpChecksum::Omitted } else { UdpChecksum::Computed },
    };
    let payload = datagram.payload();
    let written = emitted_packet(template.header_bytes(), payload, |buffer| {
        template.emit_headers(buffer, payload).map(drop)
    });
    check_udp_frame(&template, payload, &written);
}

/// Reads a frame that was written from `template` in front of `payload`; it may be padded.
///
/// # Panics
/// When any field of the template, or the payload, does not arrive.
pub fn check_udp_frame(template: &UdpFrame, payload: &[u8], bytes: &[u8]) {
    let frame = ethernet::Frame::parse(bytes).expect("Ethernet");
    assert_eq!((frame.source(), frame.destination()), (template.source_mac, template.destination_mac));
    let stack = vlan::TagStack::parse(&frame).expect("tags");
    assert!(stack.tags().map(|(_, tag)| tag.control).eq(template.vlan));
    let transport = match template.addresses {
        IpAddresses::V4 { .. } => {
            assert_eq!(stack.ether_type(), EtherType::IPV4);
            let packet = ipv4::Packet::parse(stack.payload()).expect("IPv4");
            assert!(packet.checksum_is_valid());
            assert_eq!((packet.addresses(), packet.protocol()), (template.addresses, IpProtocol::UDP));
            assert_eq!(packet.fragmentation(), ipv4::Fragmentation::FORBIDDEN);
            assert_eq!(
                (packet.type_of_service(), packet.time_to_live()),
                (template.traffic_class, template.hop_limit)
            );
            packet.payload()
        }
        IpAddresses::V6 { .. } => {
            assert_eq!(stack.ether_type(), EtherType::IPV6);
            let packet = ipv6::Packet::parse(stack.payload()).expect("IPv6");
            assert_eq!((packet.addresses(), packet.next_header()), (template.addresses, IpProtocol::UDP));
            assert_eq!(
                (packet.traffic_class(), packet.hop_limit()),
                (template.traffic_class, template.hop_limit)
            );
            packet.payload()
        }
    };
    let datagram = udp::Datagram::parse(transport).expect("UDP");
    assert_eq!(datagram.source_port(), template.source_port);
    assert_eq!(datagram.destination_port(), template.destination_port);
    assert_eq!(datagram.payload(), payload);
    let integrity = match template.checksum {
        UdpChecksum::Computed | UdpChecksum::Offloaded => ChecksumStatus::Verified, // completed on the way
        UdpChecksum::Omitted => ChecksumStatus::Unprotected,
    };
    assert_eq!(datagram.verify_checksum(&template.addresses), Ok(integrity));
}

/// A header written by `emit`, and the payload after it.
fn emitted_packet<E: Debug>(
    header_bytes: usize,
    payload: &[u8],
    emit: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Vec<u8> {
    let mut buffer = vec![0xaa; header_bytes];
    emit(&mut buffer).expect("a header that was read can be written");
    buffer.extend(payload);
    buffer
}

/// Makes the compiler compute `value`, which is not used.
fn black_box_value<T>(value: T) {
    black_box(value);
}

/// Asserts that `inner` is a part of `outer`, and not only equal to one.
fn assert_within(outer: &[u8], inner: &[u8]) {
    let (outer, inner) = (outer.as_ptr_range(), inner.as_ptr_range());
    assert!(outer.start <= inner.start && inner.end <= outer.end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::captured;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn every_truncation_of_captured_frames_is_parsed_safely() {
        let frames: [&[u8]; 8] = [
            &captured::ARP_REQUEST,
            &captured::UDP_V4,
            &captured::UDP_V4_NO_CHECKSUM,
            &captured::UDP_V6,
            &captured::MLD_REPORT,
            &captured::UDP_V6_SECOND_FRAGMENT_HEADERS,
            &captured::TCP_SYN,
            &captured::PORT_UNREACHABLE,
        ];
        for frame in frames {
            for start in 0..frame.len() {
                for end in start..=frame.len() {
                    walk_views(&frame[start..end]);
                    check_round_trips(&frame[start..end]);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_parsed_safely(bytes in vec(any::<u8>(), 0..200)) {
            walk_views(&bytes);
            check_round_trips(&bytes);
        }

        /// Random bytes are rarely IPv6 or tags, so these get fixed first bytes.
        #[test]
        fn arbitrary_bytes_after_valid_headers_are_parsed_safely(
            start in prop::sample::select(vec![
                &b"\x45\x00\x00\x28"[..],
                b"\x46\x00\x00\x28",
                b"\x60\x00\x00\x00\x00\x20\x00",
                b"\x60\x00\x00\x00\x00\x20\x2c",
                b"\x60\x00\x00\x00\x00\x20\x3c",
                b"\x00\x01\x08\x00\x06\x04",
                b"\x9c\x40\x1e\x61\x48\xde\x29\x91\x00\x00\x00\x00\x80\x02",
                b"\x87\x00\x00\x00",
                b"\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x88\xa8\x00\x01\x81\x00",
            ]),
            rest in vec(any::<u8>(), 0..200),
        ) {
            let bytes = [start, &rest].concat();
            walk_views(&bytes);
            check_round_trips(&bytes);
        }
    }
}
