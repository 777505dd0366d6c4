//! Files of every kind, whole and damaged, read packet by packet.

use std::io::{self, Cursor, Read, Seek};

use proptest::prelude::*;
use recording::{
    ByteOrder as Order, ETHERNET, RecordedPacket as Packet, WrittenInterface as Interface,
    enhanced_packet as enhanced, interface_description as interface, pcap_file as pcap,
    pcapng_block as block, pcapng_file as pcapng, section_header as section,
};

use super::capture::{CaptureReader, RecordedPacket};
use super::framing::MacAddresses;
use super::*;
use nocopy_proto::MacAddress;

mod compressed;
mod corrections;
mod formats;
mod frames;
mod random;
mod recording;
mod skipped;

const SECOND_NS: u64 = 1_000_000_000;

const ADDRESSES: MacAddresses = MacAddresses {
    source: None,
    destination: None,
    own: MacAddress([2, 0, 0, 0, 0, 0x11]),
    absent: MacAddress([2, 0, 0, 0, 0, 0x22]),
};

fn open_playback<R: Read + Seek>(input: R, rounds: RepeatCount) -> Result<Playback<R>, CaptureError> {
    let settings = PlaybackSettings { rounds, gap_max: GAP_MAX, addresses: ADDRESSES, fix_checksums: false };
    Playback::new(input, settings, || true)
}

fn test_packets(count: u64) -> Vec<Packet> {
    let bytes = |number: u64| (0..60 + number * 97 % 1400).map(|place| (number + place) as u8).collect();
    (0..count)
        .map(|number| Packet::new(1_700_000_000 * SECOND_NS + number * 1_234_567, bytes(number)))
        .collect()
}

/// All packets of a file, and the damage after them.
fn read_all_packets(file: &[u8]) -> (Vec<(RecordedPacket, Vec<u8>)>, Option<CaptureError>) {
    let mut all = Vec::new();
    let mut capture = match CaptureReader::open(file) {
        Ok(capture) => capture,
        Err(damage) => return (all, Some(damage)),
    };
    loop {
        match capture.next_packet() {
            Ok(Some(recorded)) => all.push((recorded, capture.packet().to_vec())),
            Ok(None) => return (all, None),
            Err(damage) => return (all, Some(damage)),
        }
    }
}

/// The damage, as it is printed.
fn error_text(file: &[u8]) -> String {
    read_all_packets(file).1.expect("damage").to_string()
}

fn assert_file_yields_packets(file: &[u8], expected: &[Packet], ns_of_time: u64) {
    let (found, damage) = read_all_packets(file);
    assert!(damage.is_none(), "{damage:?}");
    let expected: Vec<_> = expected
        .iter()
        .map(|packet| {
            let time_ns = Some(i128::from(packet.time_ns / ns_of_time * ns_of_time));
            (RecordedPacket { time_ns, truncated: packet.cut_bytes > 0, link_type: 1 }, packet.bytes.clone())
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn every_file_format_is_read() {
    let mut packets = test_packets(300);
    packets[7].cut_bytes = 100;
    for big_endian in [false, true] {
        assert_file_yields_packets(&pcap(big_endian, false, 1, &packets), &packets, 1000);
        assert_file_yields_packets(&pcap(big_endian, true, 1, &packets), &packets, 1);
        packets.iter_mut().zip(0..).for_each(|(packet, number)| packet.interface = number % 2);
        assert_file_yields_packets(&pcapng(big_endian, &[ETHERNET, ETHERNET], &packets), &packets, 1);
    }
}

#[test]
fn each_section_has_its_own_byte_order_and_interfaces() {
    let packets = test_packets(2);
    let file = [pcapng(true, &[ETHERNET], &packets[..1]), pcapng(false, &[ETHERNET], &packets[1..])].concat();
    assert_file_yields_packets(&file, &packets, 1);
    let strange = Packet { interface: 1, ..packets[1].clone() };
    let file = [pcapng(true, &[ETHERNET; 2], &packets[..1]), pcapng(false, &[ETHERNET], &[strange])].concat();
    assert_eq!(
        error_text(&file),
        "packet 2 (byte 300): it is from an interface that was not described; the file is damaged there; the packets before are complete ('editcap' can save them)"
    );
}

#[test]
fn times_are_in_the_units_of_the_interface() {
    let packet = test_packets(1).remove(0);
    for big_endian in [false, true] {
        let order = Order { big_endian };
        for (resolution, offset_s, ticks, time_ns) in [
            (None, None, 1_500_000, 1_500_000_000),
            (Some(0), None, 3, 3_000_000_000),
            (Some(12), None, 7_999, 7),
            (Some(0x80 | 10), None, 1536, 1_500_000_000),
            (Some(0x80 | 32), None, 5 << 31, 2_500_000_000),
            (Some(9), Some(1_000), 5, 1_000_000_000_005),
            (Some(9), Some(-2), 5_000_000_000, 3_000_000_000),
            (Some(127), None, u64::MAX, 0),
            (Some(255), None, u64::MAX, 0),
        ] {
            let one = Interface { resolution, offset_s, ..ETHERNET };
            let file = [section(order), interface(order, one), enhanced(order, 0, ticks, &packet)].concat();
            assert_eq!(read_all_packets(&file).0[0].0.time_ns, Some(time_ns), "{resolution:?} {offset_s:?}");
        }
    }
}

#[test]
fn simple_packets_have_no_time_and_no_interface_of_their_own() {
    let order = Order { big_endian: true };
    let simple = |bytes: u32, content: &[u8]| block(order, 3, &[&order.u32(bytes)[..], content].concat());
    let head = [section(order), interface(order, ETHERNET)].concat();
    let file = [&head[..], &simple(61, &[7; 61])].concat();
    assert_eq!(
        read_all_packets(&file).0,
        [(RecordedPacket { time_ns: None, truncated: false, link_type: 1 }, vec![7; 61])]
    );
    let longer = [&head[..], &simple(65, &[7; 61])].concat();
    assert!(matches!(read_all_packets(&longer).1, Some(CaptureError::Corrupt { packet: 1, .. })));
    let of_none = [section(order), simple(61, &[7; 61])].concat();
    assert!(matches!(read_all_packets(&of_none).1, Some(CaptureError::Corrupt { packet: 1, .. })));
}

/// Wherever a file declares it, and also if a part or all of it was cut off.
#[test]
fn frame_check_sequences_are_left_out() {
    for big_endian in [false, true] {
        let order = Order { big_endian };
        let packet = |bytes, cut_bytes| Packet { cut_bytes, ..Packet::new(0, vec![7; bytes]) };
        let packets = [packet(64, 0), packet(64, 2), packet(64, 4), packet(64, 5), packet(3, 0)];
        let one = |fcs| Interface { fcs, ..ETHERNET };
        let of_packet = |flags: u32| {
            let option = [&order.u16(2)[..], &order.u16(4), &order.u32(flags), &[0; 4]].concat();
            let words = [0, 0, 0, 64, 64].map(|word| order.u32(word));
            let content = [words.as_flattened(), &[7; 64], &option].concat();
            [section(order), interface(order, one(Some(16))), block(order, 6, &content)].concat()
        };
        let simple = block(order, 3, &[&order.u32(64)[..], &[7; 64]].concat());
        let kept = |file: Vec<u8>| -> Vec<_> {
            let (found, damage) = read_all_packets(&file);
            assert!(damage.is_none(), "{damage:?}");
            found.iter().map(|(recorded, bytes)| (bytes.len(), recorded.truncated)).collect()
        };
        let whole = [(64, false), (64, true), (64, true), (64, true), (3, false)];
        let without = [(60, false), (62, false), (64, false), (64, true), (0, false)];
        assert_eq!(kept(pcap(big_endian, false, 0x2400_0001, &packets)), without);
        assert_eq!(kept(pcap(big_endian, false, 0x2000_0001, &packets)), whole, "it is not said to be known");
        for (fcs, expected) in [(Some(32), without), (Some(4), without), (Some(0), whole), (None, whole)] {
            assert_eq!(kept(pcapng(big_endian, &[one(fcs)], &packets)), expected, "{fcs:?}");
        }
        assert_eq!(kept(of_packet(4 << 5 | 1)), [(60, false)], "the packet's own");
        assert_eq!(kept(of_packet(1)), [(62, false)], "the interface's");
        assert_eq!(kept([section(order), interface(order, one(Some(32))), simple].concat()), [(60, false)]);
    }
}

#[test]
fn recordings_of_other_links_are_refused() {
    let packets = test_packets(1);
    assert_eq!(error_text(b""), "it is empty; record it again");
    for (file, begin) in [(&b"\x7fELF and so on, and on, and on"[..], "7f 45 4c 46"), (b"abc", "61 62 63")] {
        assert_eq!(
            error_text(file),
            format!(
                "it is no capture file (it begins with {begin}); give a pcap or pcapng file, which may be compressed with gzip or zstd"
            )
        );
    }
    for (begin, words) in [
        (&b"\xfd7zXZ\0\0"[..], "compressed with xz; decompress it with 'xz -dc'"),
        (b"\x04\x22\x4d\x18....", "compressed with lz4; decompress it with 'lz4 -dc'"),
        (b"BZh91AY&", "compressed with bzip2; decompress it with 'bzip2 -dc'"),
        (b"snoop\0\0\0", "of snoop; convert it with 'editcap -F pcapng'"),
    ] {
        assert!(error_text(begin).ends_with(&format!("; it is {words}")), "{}", error_text(begin));
    }
    assert_eq!(
        error_text(&pcap(true, false, 105, &packets)),
        "its packets are of link type 105 (ieee802_11), and an Ethernet interface cannot send them; record on an Ethernet interface"
    );
    let mut version = pcap(false, false, 1, &packets);
    version[4] = 3;
    assert_eq!(
        error_text(&version),
        "it is of version 3 of pcap, and only version 2 is known; convert it with 'editcap -F pcap'"
    );
    for file in [pcap(false, false, 1, &[]), pcapng(false, &[ETHERNET], &[])] {
        let damage = open_playback(Cursor::new(&file), RepeatCount::Forever).unwrap_err();
        assert_eq!(damage.to_string(), "it holds no packets; record it again");
    }
}

/// A pipe from which nothing can be read yet.
#[derive(Debug)]
struct SilentPipe;

impl Read for SilentPipe {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Seek for SilentPipe {
    fn seek(&mut self, _: io::SeekFrom) -> io::Result<u64> {
        Err(io::Error::from_raw_os_error(libc::ESPIPE))
    }
}

#[test]
fn pipes_without_data_and_repeated_pipes_are_refused() {
    for (rounds, expected) in [
        (
            RepeatCount::Times(1),
            "no packet was read before the interrupt, so nothing was sent; start the program that writes to it, if it is a pipe",
        ),
        (
            RepeatCount::Times(2),
            "it cannot be read twice (ESPIPE); illegal seek; leave out --loop, or name a file",
        ),
    ] {
        assert_eq!(open_playback(SilentPipe, rounds).unwrap_err().to_string(), expected);
    }
}

/// The packets before the end are read, and the error names the place.
#[test]
fn truncated_captures_yield_the_packets_before_the_end() {
    let packets = test_packets(3);
    for (file, head) in [(pcap(true, true, 1, &packets), 24), (pcapng(false, &[ETHERNET], &packets), 28)] {
        let whole = read_all_packets(&file).0;
        let cut = error_text(&file[..file.len() - 1]);
        assert!(cut.starts_with("it ends inside packet 3 (byte ") && cut.ends_with("), 1 bytes short; the program that wrote it was stopped; the packets before are complete ('editcap' can save them)"), "{cut}");
        for bytes in 1..file.len() {
            let (found, damage) = read_all_packets(&file[..bytes]);
            assert_eq!(found, whole[..found.len()], "{bytes}");
            match damage {
                None => assert!(bytes >= head && found.len() < 3),
                Some(CaptureError::Truncated { packet, byte, bytes_missing }) => {
                    assert!(byte < bytes as u64 && bytes_missing > 0);
                    assert_eq!(packet, found.len() as u64 + 1, "{bytes}");
                }
                Some(CaptureError::NotACapture(_)) => assert!(bytes < 4),
                Some(other) => panic!("{bytes}: {other}"),
            }
        }
    }
}

#[test]
fn huge_claimed_lengths_are_refused_without_allocating() {
    let packets = test_packets(2);
    let mut file = pcap(false, false, 1, &packets);
    let second = 24 + 16 + packets[0].bytes.len();
    file[second + 8..second + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        error_text(&file),
        format!(
            "packet 2 (byte {second}) claims 4294967295 bytes, more than 262144; the file is damaged there; the packets before are complete ('editcap' can save them)"
        )
    );
    assert_eq!(read_all_packets(&file).0.len(), 1);
    let mut file = pcapng(true, &[ETHERNET], &packets);
    let block = 28 + 32;
    file[block + 4..block + 8].copy_from_slice(&0xffff_fffc_u32.to_be_bytes());
    assert!(matches!(read_all_packets(&file).1, Some(CaptureError::Claim { packet: 1, .. })));
}

#[test]
fn endless_interface_descriptions_are_refused() {
    let (order, packets) = (Order { big_endian: false }, test_packets(1));
    let described = |count: usize| [section(order), interface(order, ETHERNET).repeat(count)].concat();
    let packet = || enhanced(order, 65_535, 0, &packets[0]);
    let (found, damage) = read_all_packets(&[described(65_536), packet()].concat());
    assert_eq!((found.len(), damage.is_none()), (1, true), "{damage:?}");
    let damage = read_all_packets(&[described(65_537), packet()].concat()).1.unwrap();
    assert!(damage.to_string().contains("more than 65536 interfaces"), "{damage}");
    // As many in each section.
    let damage = read_all_packets(&[described(65_536), described(65_536), packet()].concat()).1;
    assert!(damage.is_none(), "{damage:?}");
}

#[test]
fn long_blocks_are_read_and_longer_ones_refused() {
    let (order, packets) = (Order { big_endian: false }, test_packets(1));
    let head = || [section(order), interface(order, ETHERNET)].concat();
    let packet = enhanced(order, 0, 0, &packets[0]);
    let empty = vec![0; 2 << 20];
    for kind in [0xbad, 1, 6] {
        let (found, damage) =
            read_all_packets(&[head(), block(order, kind, &empty), packet.clone()].concat());
        assert_eq!((found.len(), damage.is_none()), (1 + usize::from(kind == 6), true), "{kind} {damage:?}");
    }
    let damage = read_all_packets(&[head(), block(order, 0xbad, &vec![0; 16 << 20]), packet].concat()).1;
    assert!(matches!(damage, Some(CaptureError::Claim { bytes_max: 0x0100_0000, .. })), "{damage:?}");
}

#[test]
fn blocks_that_contradict_themselves_are_refused() {
    let packets = test_packets(1);
    let file = pcapng(false, &[ETHERNET], &packets);
    let custom = 28 + 32;
    for (place, value, words) in [
        (custom + 4, 8_u32, "shorter than its own header"),
        (custom + 4, 29, "no multiple of 4"),
        (custom + 24, 32, "two lengths of a block differ"),
        (custom + 28 + 20, 70_000, "longer than its block"),
        (custom + 28 + 8, 1, "not described"),
    ] {
        let mut damaged = file.clone();
        damaged[place..place + 4].copy_from_slice(&value.to_le_bytes());
        let (found, damage) = read_all_packets(&damaged);
        let damage = damage.expect("damaged").to_string();
        assert!(found.is_empty() && damage.contains(words) && damage.contains("packet 1 (byte "), "{damage}");
    }
}

/// Packets of a playback, as their lengths and times.
fn lengths_and_times(mut playback: Playback<Cursor<Vec<u8>>>, count: usize) -> Vec<(usize, u64)> {
    let mut all = Vec::new();
    while let PeekResult::Packet(upcoming) = playback.peek().unwrap() {
        if all.len() == count {
            break;
        }
        all.push((upcoming.bytes, upcoming.recorded_ns));
        playback.advance();
    }
    all
}

#[test]
fn rounds_follow_each_other_on_one_time_scale() {
    let at = |time_ns, bytes| Packet::new(SECOND_NS + time_ns, vec![0; bytes]);
    let file = pcap(false, true, 1, &[at(0, 60), at(500, 61), at(300, 62), at(900, 63)]);
    let playback = |rounds| open_playback(Cursor::new(file.clone()), rounds).unwrap();
    let once = [(60, 0), (61, 500), (62, 500), (63, 900)];
    assert_eq!(
        lengths_and_times(playback(RepeatCount::Times(1)), 99),
        once,
        "what was recorded out of order is not sent late"
    );
    let again = once.map(|(bytes, time_ns)| (bytes, time_ns + 900));
    assert_eq!(lengths_and_times(playback(RepeatCount::Times(2)), 99), [once, again].concat());
    assert_eq!(lengths_and_times(playback(RepeatCount::Forever), 10_000).len(), 10_000);
    let mut playback = playback(RepeatCount::Times(3));
    while playback.peek().unwrap() != PeekResult::End {
        playback.advance();
    }
    assert_eq!(playback.rounds_done(), 3);
}

/// Standard input may be a file that another program has read a part of.
#[test]
fn every_round_begins_at_the_initial_input_offset() {
    let packets = test_packets(40);
    let file = pcapng(false, &[ETHERNET], &packets);
    for content in [file.clone(), compressed::gzip(&file), compressed::zstd(&file)] {
        for head in [&b"what another program has read"[..], &pcap(true, false, 1, &packets[..3])] {
            for rounds in [1, 3] {
                let mut input = Cursor::new([head, &content].concat());
                input.set_position(head.len() as u64);
                let mut playback = open_playback(input, RepeatCount::Times(rounds)).unwrap();
                let mut lengths = Vec::new();
                while let PeekResult::Packet(upcoming) = playback.peek().unwrap() {
                    lengths.push(upcoming.bytes);
                    playback.advance();
                }
                let once: Vec<_> = packets.iter().map(|packet| packet.bytes.len()).collect();
                assert_eq!((lengths, playback.rounds_done()), (once.repeat(rounds as usize), rounds));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Arbitrary bytes after any header are read to an end or an error, and never give more packets than
    /// there is room for.
    #[test]
    fn no_input_panics(
        kind in 0..6_usize, count in 0..4_u64, tail in proptest::collection::vec(any::<u8>(), 0..200),
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let (packets, big_endian) = (test_packets(count), kind % 2 == 0);
        let mut file = match kind / 2 {
            0 => pcap(big_endian, false, 1, &packets),
            1 => pcapng(big_endian, &[ETHERNET], &packets),
            _ => Vec::new(),
        };
        file.extend(tail);
        for (place, value) in edits {
            if !file.is_empty() {
                let place = place.index(file.len());
                file[place] = value;
            }
        }
        let (found, _) = read_all_packets(&file);
        prop_assert!(found.iter().map(|(_, bytes)| bytes.len() + 16).sum::<usize>() <= file.len());
        oracle::check_file(&file);
        oracle::check_file(&compressed::gzip(&file));
    }
}
