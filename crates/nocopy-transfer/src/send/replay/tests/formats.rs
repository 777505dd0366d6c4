//! The relatives of pcap, and the blocks of pcapng, that few programs write.

use super::*;

/// A file in a format given by its numbers: `lengths_swapped` as before version 2.3.
struct PcapVariant {
    magic: u32,
    version: [u16; 2],
    link_type: u32,
    header_bytes: usize,
    record_bytes: usize,
    lengths_swapped: bool,
}

const STANDARD: PcapVariant = PcapVariant {
    magic: 0xa1b2_c3d4,
    version: [2, 4],
    link_type: 1,
    header_bytes: 24,
    record_bytes: 16,
    lengths_swapped: false,
};

impl PcapVariant {
    fn to_file(&self, order: Order, packets: &[Packet], ns_per_fraction: u64) -> Vec<u8> {
        let mut file = order.u32(self.magic).to_vec();
        file.extend(self.version.map(|number| order.u16(number)).as_flattened());
        file.extend([0; 8]);
        file.extend([order.u32(262_144), order.u32(self.link_type)].as_flattened());
        file.resize(self.header_bytes, 0x77);
        for packet in packets {
            let bytes = packet.bytes.len() as u32;
            let [first, second] = match self.lengths_swapped {
                true => [bytes + packet.cut_bytes, bytes],
                false => [bytes, bytes + packet.cut_bytes],
            };
            let fraction = packet.time_ns % SECOND_NS / ns_per_fraction;
            let words = [(packet.time_ns / SECOND_NS) as u32, fraction as u32, first, second];
            let record_at = file.len();
            file.extend(words.map(|word| order.u32(word)).as_flattened());
            file.resize(record_at + self.record_bytes, 0);
            file.extend(&packet.bytes);
        }
        file
    }
}

#[test]
fn every_variant_of_pcap_is_read() {
    let mut packets = test_packets(20);
    packets[3].cut_bytes = 70;
    for (name, old, ns_per_fraction) in [
        ("nanoseconds", PcapVariant { magic: 0xa1b2_3c4d, ..STANDARD }, 1),
        ("Navtel", PcapVariant { magic: 0xa12b_3c4d, ..STANDARD }, 1),
        ("patched", PcapVariant { magic: 0xa1b2_cd34, record_bytes: 24, ..STANDARD }, 1000),
        ("patched, earlier", PcapVariant { magic: 0xa1b2_cd34, record_bytes: 28, ..STANDARD }, 1000),
        ("patched, later", PcapVariant { record_bytes: 24, ..STANDARD }, 1000),
        ("Nokia", PcapVariant { record_bytes: 20, ..STANDARD }, 1000),
        ("Ixia's hardware", PcapVariant { magic: 0x1c00_01ac, header_bytes: 28, ..STANDARD }, 1000),
        ("Ixia's software", PcapVariant { magic: 0x1c00_01ab, header_bytes: 28, ..STANDARD }, 1000),
        ("AIX", PcapVariant { version: [2, 2], link_type: 6, lengths_swapped: true, ..STANDARD }, 1),
        ("2.0", PcapVariant { version: [2, 0], lengths_swapped: true, ..STANDARD }, 1000),
        ("2.2", PcapVariant { version: [2, 2], lengths_swapped: true, ..STANDARD }, 1000),
        ("2.3", PcapVariant { version: [2, 3], ..STANDARD }, 1000),
        ("2.3, swapped", PcapVariant { version: [2, 3], lengths_swapped: true, ..STANDARD }, 1000),
        ("DG/UX", PcapVariant { version: [543, 0], lengths_swapped: true, ..STANDARD }, 1000),
    ] {
        for big_endian in [false, true] {
            let file = old.to_file(Order { big_endian }, &packets, ns_per_fraction);
            assert_eq!(read_all_packets(&file).0.len(), packets.len(), "{name}, big-endian: {big_endian}");
            assert_file_yields_packets(&file, &packets, ns_per_fraction);
        }
    }
}

/// The obsolete block has a count of drops next to the number of its interface.
#[test]
fn the_obsolete_packet_block_is_read() {
    for big_endian in [false, true] {
        let order = Order { big_endian };
        let one = Interface { resolution: Some(9), ..ETHERNET };
        let mut packets = test_packets(3);
        packets.iter_mut().for_each(|packet| packet.interface = 1);
        packets[1].cut_bytes = 9;
        let old = |packet: &Packet| {
            let words = [(packet.time_ns >> 32) as u32, packet.time_ns as u32];
            let bytes = packet.bytes.len() as u32;
            let words = [words[0], words[1], bytes, bytes + packet.cut_bytes].map(|word| order.u32(word));
            let head = [order.u16(1), order.u16(0xffff)];
            block(order, 2, &[head.as_flattened(), words.as_flattened(), &packet.bytes].concat())
        };
        let file = [
            section(order),
            interface(order, ETHERNET),
            interface(order, one),
            packets.iter().flat_map(old).collect(),
        ];
        assert_file_yields_packets(&file.concat(), &packets, 1);
    }
}

#[test]
fn a_pcapng_section_of_another_version_is_refused() {
    let mut file = pcapng(false, &[ETHERNET], &test_packets(1));
    file[12] = 2;
    assert!(error_text(&file).contains("its section is of another version than 1"), "{}", error_text(&file));
}

#[test]
fn packets_of_other_links_are_counted_by_name() {
    let wireless = Interface { link_type: 127, ..ETHERNET };
    let unknown = Interface { link_type: 299, ..ETHERNET };
    let mut packets = test_packets(9);
    packets.iter_mut().zip(0..).for_each(|(packet, number)| packet.interface = number % 3);
    let file = pcapng(true, &[wireless, ETHERNET, unknown], &packets);
    let mut playback = open_playback(Cursor::new(&file), RepeatCount::Times(2)).unwrap();
    let mut sent = 0;
    while let PeekResult::Packet(upcoming) = playback.peek().unwrap() {
        let mut frame = vec![0; upcoming.bytes];
        playback.write(&mut frame);
        assert_eq!(frame, packets[1 + 3 * (sent % 3)].bytes);
        sent += 1;
        playback.advance();
    }
    let counted: Vec<_> =
        playback.unsendable_by_cause().iter().map(|(cause, count)| (cause.name(), *count)).collect();
    let expected = [("link_type_ieee802_11_radiotap".to_owned(), 6), ("link_type_299".to_owned(), 6)];
    assert_eq!((sent, &counted[..], playback.rounds_done()), (6, &expected[..], 2));
    let none = pcapng(true, &[wireless, wireless, unknown], &packets);
    assert_eq!(
        super::open_playback(Cursor::new(&none), RepeatCount::Forever).unwrap_err().to_string(),
        "none of its 9 packets can be sent on an Ethernet interface (link_type_ieee802_11_radiotap 6, link_type_299 3); record on an Ethernet interface"
    );
}
