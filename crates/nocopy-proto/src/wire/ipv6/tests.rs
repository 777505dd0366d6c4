use super::*;
use crate::wire::captured;
use proptest::prelude::*;

/// A packet of extension headers: those of `parts`, each announced by the previous one.
fn packet_of_headers(first: IpProtocol, parts: &[&[u8]]) -> Vec<u8> {
    let payload = parts.concat();
    let repr = Repr {
        traffic_class: 0,
        flow_label: FlowLabel::default(),
        payload_bytes: payload.len() as u16,
        next_header: first,
        hop_limit: 64,
        source: Ipv6Addr::LOCALHOST,
        destination: Ipv6Addr::LOCALHOST,
    };
    let mut bytes = vec![0; HEADER_BYTES];
    repr.emit(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

fn upper_layer_error(bytes: &[u8]) -> ExtensionError {
    Packet::parse(bytes).unwrap().upper_layer().unwrap_err()
}

#[test]
fn a_captured_ipv6_packet_is_parsed() {
    let mut padded = captured::UDP_V6[14..].to_vec();
    padded.extend([0; 3]);
    let packet = Packet::parse(&padded).unwrap();
    assert_eq!((packet.traffic_class(), packet.flow_label()), (0, FlowLabel(0x5f4d8)));
    assert_eq!((packet.payload_bytes(), packet.hop_limit()), (Some(15), 64));
    assert_eq!(packet.next_header(), IpProtocol::UDP);
    assert_eq!(packet.source(), "fd00::1".parse::<Ipv6Addr>().unwrap());
    assert_eq!(packet.destination(), "fd00::2".parse::<Ipv6Addr>().unwrap());
    let upper = packet.upper_layer().unwrap();
    assert_eq!((upper.protocol(), upper.fragmentation()), (IpProtocol::UDP, None));
    assert_eq!((upper.extensions().count(), upper.payload()), (0, &captured::UDP_V6[54..]));
    let mut emitted = [0xaa; HEADER_BYTES];
    Repr::parse(&packet).emit(&mut emitted).unwrap();
    assert_eq!(emitted, captured::UDP_V6[14..54]);
}

#[test]
fn captured_hop_by_hop_options_are_parsed() {
    let packet = Packet::parse(&captured::MLD_REPORT[14..]).unwrap();
    let upper = packet.upper_layer().unwrap();
    assert_eq!(upper.protocol(), IpProtocol::ICMPV6);
    assert_eq!(upper.payload(), &captured::MLD_REPORT[62..]);
    let extensions: Vec<_> = upper.extensions().collect();
    assert_eq!((extensions.len(), upper.extensions().len()), (1, 1));
    assert_eq!(extensions[0].protocol(), IpProtocol::HOP_BY_HOP);
    assert_eq!(extensions[0].next_header(), IpProtocol::ICMPV6);
    assert_eq!(extensions[0].bytes(), &captured::MLD_REPORT[54..62]);
    assert_eq!(extensions[0].fragmentation(), None);
    // ICMPv6 has the same pseudo-header: the kernel's checksum of its report agrees with ours.
    let sum = packet.addresses().pseudo_header_sum(upper.protocol(), upper.payload().len() as u32);
    assert!(sum.with(upper.payload()).is_valid());
}

#[test]
fn captured_later_fragment_is_not_read_as_udp_header() {
    let mut bytes = captured::UDP_V6_SECOND_FRAGMENT_HEADERS[14..].to_vec();
    bytes.extend([0; 96]);
    let upper = Packet::parse(&bytes).unwrap().upper_layer().unwrap();
    let fragmentation =
        Fragmentation { offset_bytes: 1448, more_fragments: false, identification: 0x9440_c17b };
    assert_eq!(upper.fragmentation(), Some(fragmentation));
    assert_eq!((upper.protocol(), upper.payload().len()), (IpProtocol::UDP, 96));
}

#[test]
fn the_walk_stops_after_a_later_fragment_header() {
    // The bytes are from the middle of the packet, so they are no header, although the field announces one.
    let bytes = packet_of_headers(IpProtocol::IPV6_FRAGMENT, &[&[60, 0, 0, 8, 0, 0, 0, 1], &[0xff; 8]]);
    let packet = Packet::parse(&bytes).unwrap();
    let upper = packet.upper_layer().unwrap();
    assert_eq!(upper.protocol(), IpProtocol::DESTINATION_OPTIONS);
    assert_eq!((upper.extensions().count(), upper.payload()), (1, &[0xff; 8][..]));
}

#[test]
fn all_extension_headers_are_walked() {
    let destination_options: [u8; 16] = [17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let bytes = packet_of_headers(
        IpProtocol::HOP_BY_HOP,
        &[
            &[43, 0, 1, 4, 0, 0, 0, 0],
            &[44, 0, 0, 0, 0, 0, 0, 0],
            // In a fragment header, the byte that is a length elsewhere and the bits between offset and "more
            // fragments" are reserved and must not count.
            &[60, 0xff, 0, 0b111, 0, 0, 0, 9],
            &destination_options,
            b"\x00\x01\x00\x02\x00\x08\x00\x00",
        ],
    );
    let packet = Packet::parse(&bytes).unwrap();
    let upper = packet.upper_layer().unwrap();
    let lengths: Vec<_> = upper.extensions().map(|extension| extension.bytes().len()).collect();
    assert_eq!(lengths, [8, 8, 8, 16]);
    let first = Fragmentation { offset_bytes: 0, more_fragments: true, identification: 9 };
    assert_eq!(upper.fragmentation(), Some(first));
    assert_eq!((upper.protocol(), upper.payload().len()), (IpProtocol::UDP, 8));
    assert_eq!(
        upper_layer_error(&self::packet_of_headers(
            IpProtocol::DESTINATION_OPTIONS,
            &[&destination_options[..12]]
        )),
        ExtensionError::TooShort {
            protocol: IpProtocol::DESTINATION_OPTIONS,
            needed_bytes: 16,
            present_bytes: 12
        }
    );
}

#[test]
fn too_many_extension_headers_are_refused() {
    let options = [60, 0, 1, 4, 0, 0, 0, 0];
    let last = [59, 0, 1, 4, 0, 0, 0, 0];
    let chain = |count: usize| {
        let mut parts = vec![&options[..]; count - 1];
        parts.push(&last);
        packet_of_headers(IpProtocol::DESTINATION_OPTIONS, &parts)
    };
    let longest = chain(EXTENSIONS_MAX);
    let upper = Packet::parse(&longest).unwrap().upper_layer().unwrap();
    assert_eq!((upper.protocol(), upper.extensions().len()), (IpProtocol::NO_NEXT_HEADER, EXTENSIONS_MAX));
    assert_eq!(upper_layer_error(&chain(EXTENSIONS_MAX + 1)), ExtensionError::TooMany);
    assert_eq!(ExtensionError::TooMany.to_string(), "there are more than 8 IPv6 extension headers");
}

#[test]
fn hop_by_hop_options_must_come_first() {
    let bytes = packet_of_headers(IpProtocol::DESTINATION_OPTIONS, &[&[0, 0, 1, 4, 0, 0, 0, 0], &[59; 8]]);
    assert_eq!(upper_layer_error(&bytes), ExtensionError::HopByHopNotFirst);
}

#[test]
fn contradicting_header_fields_are_refused() {
    let error_with = |at: usize, byte| {
        let mut bytes = captured::MLD_REPORT;
        bytes[14 + at] = byte;
        Packet::parse(&bytes[14..]).unwrap_err()
    };
    assert_eq!(error_with(0, 0x45), ParseError::WrongVersion { version: 4 });
    let (declared_bytes, present_bytes) = (37, 36);
    assert_eq!(error_with(5, 37), ParseError::PayloadBeyondPacket { declared_bytes, present_bytes });
    assert_eq!(error_with(5, 0), ParseError::NoJumboLength);
    for packet_bytes in 0..76 {
        assert!(Packet::parse(&captured::MLD_REPORT[14..14 + packet_bytes]).is_err());
    }
    assert_eq!(FlowLabel::new(0x10_0000), None);
}

/// A packet whose header says that it has no payload.
fn packet_with_payload_length_zero(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = captured::MLD_REPORT[14..14 + HEADER_BYTES].to_vec();
    bytes[4..7].copy_from_slice(&[0, 0, next_header]);
    [bytes, payload.to_vec()].concat()
}

#[test]
fn a_jumbogram_has_the_length_of_its_option() {
    let jumbo = |bytes: u32, options: &[u8]| {
        let units = ((4 + 4 + options.len()) / 8 - 1) as u8;
        let option = [&[6, units], options, &[0xc2, 4], &bytes.to_be_bytes()].concat();
        let mut packet = packet_with_payload_length_zero(0, &option);
        packet.resize(HEADER_BYTES + 70_000, 7);
        packet
    };
    for options in [&[][..], &[0; 8], &[1, 6, 0, 0, 0, 0, 0, 0], &[0, 5, 2, 0, 0, 1, 1, 0]] {
        let packet = jumbo(69_000, options);
        let view = Packet::parse(&packet).unwrap();
        assert_eq!((view.payload_bytes(), view.payload().len()), (Some(69_000), 69_000));
        let upper = view.upper_layer().unwrap();
        assert_eq!((upper.protocol(), upper.payload().len()), (IpProtocol::TCP, 69_000 - 8 - options.len()));
        let cut = Packet::parse_cut(&packet[..HEADER_BYTES + 8 + options.len()]).unwrap();
        assert_eq!(cut.payload_bytes(), Some(69_000));
        for bytes in 0..8 + options.len() {
            let cut = Packet::parse_cut(&packet[..HEADER_BYTES + bytes]).unwrap();
            assert_eq!((cut.payload_bytes(), cut.payload().len()), (None, bytes));
            assert!(cut.upper_layer().is_err());
        }
        let beyond = ParseError::PayloadBeyondPacket { declared_bytes: 70_001, present_bytes: 70_000 };
        assert_eq!(Packet::parse(&jumbo(70_001, options)).unwrap_err(), beyond);
        assert_eq!(Packet::parse(&jumbo(65_535, options)).unwrap_err(), ParseError::NoJumboLength);
    }
    // An option that leaves the header.
    assert_eq!(
        Packet::parse(&jumbo(69_000, &[1, 200, 0, 0, 0, 0, 0, 0])).unwrap_err(),
        ParseError::NoJumboLength
    );
}

#[test]
fn a_payload_length_of_zero_before_tcp_means_the_frame_length() {
    for protocol in [IpProtocol::TCP, IpProtocol::UDP] {
        let packet = packet_with_payload_length_zero(protocol.0, &[7; 70_000]);
        let view = Packet::parse(&packet).unwrap();
        assert_eq!((view.payload_bytes(), view.payload().len()), (None, 70_000));
    }
    // Nothing follows, and the frame is padded.
    let packet = packet_with_payload_length_zero(IpProtocol::NO_NEXT_HEADER.0, &[0; 6]);
    let view = Packet::parse(&packet).unwrap();
    assert_eq!((view.payload_bytes(), view.payload().len()), (Some(0), 0));
}

proptest! {
    #[test]
    fn emit_then_parse(
        bytes: [u8; 3], flow_label in 0..0x10_0000_u32, source: u128, destination: u128,
        payload_bytes in 1..2000_u16,
    ) {
        let repr = Repr {
            traffic_class: bytes[0],
            flow_label: FlowLabel::new(flow_label).unwrap(),
            payload_bytes,
            next_header: IpProtocol(bytes[1]),
            hop_limit: bytes[2],
            source: source.into(),
            destination: destination.into(),
        };
        let mut packet = vec![0; HEADER_BYTES + usize::from(payload_bytes)];
        repr.emit(&mut packet).unwrap();
        let packet = Packet::parse(&packet).unwrap();
        prop_assert_eq!(packet.payload().len(), usize::from(payload_bytes));
        prop_assert_eq!(Repr::parse(&packet), repr);
    }
}
