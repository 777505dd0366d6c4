//! Odd files, made from a seed: what was written into them is read again, and Wireshark reads the same.

use std::process::Command;

use serde_json::Value;

use super::compressed::{gzip, zstd};
use super::*;

const FILES: u64 = 60;

struct RandomNumbers(u64);

impl RandomNumbers {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn choose<T: Copy>(&mut self, choice: &[T]) -> T {
        choice[self.below(choice.len() as u64) as usize]
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// An Ethernet frame of no known protocol.
    fn packet(&mut self) -> Vec<u8> {
        let bytes = self.choose(&[14, 15, 60, 61, 64, 333, 1514, 3000]);
        let mut packet = self.bytes(bytes);
        packet[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
        packet
    }
}

/// What was written into a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ExpectedPacket {
    time_ns: Option<i128>,
    truncated: bool,
    link_type: u16,
    bytes: Vec<u8>,
}

fn random_pcap(random: &mut RandomNumbers) -> (Vec<u8>, Vec<ExpectedPacket>) {
    let order = Order { big_endian: random.below(2) == 1 };
    let (magic, record_bytes, ns_per_fraction) = random.choose(&[
        (0xa1b2_c3d4_u32, 16, 1000),
        (0xa1b2_3c4d, 16, 1),
        (0xa1b2_cd34, 24, 1000),
        (0xa1b2_cd34, 28, 1000),
        (0x1c00_01ac, 16, 1000),
    ]);
    let version =
        if record_bytes == 16 { random.choose(&[[2, 4], [2, 4], [2, 3], [2, 1], [543, 0]]) } else { [2, 4] };
    let link_type = random.choose(&[1, 1, 1, 113, 101, 0]);
    let mut file = order.u32(magic).to_vec();
    file.extend(version.map(|number| order.u16(number)).as_flattened());
    file.extend([order.u32(0), order.u32(0), order.u32(262_144), order.u32(link_type)].as_flattened());
    if magic == 0x1c00_01ac {
        file.extend([0x55; 4]);
    }
    let mut written = Vec::new();
    for _ in 0..2 + random.below(20) {
        let (bytes, cut_bytes) = (random.packet(), random.choose(&[0, 0, 0, 5, 900]));
        let (seconds, fraction) = (1_700_000_000 + random.below(9) as u32, random.below(1_000_000) as u32);
        let lengths = [bytes.len() as u32, bytes.len() as u32 + cut_bytes];
        let is_swapped = version == [2, 1] || version == [543, 0];
        let [first, second] = if is_swapped { [lengths[1], lengths[0]] } else { lengths };
        let record_at = file.len();
        file.extend([seconds, fraction, first, second].map(|word| order.u32(word)).as_flattened());
        file.resize(record_at + record_bytes, 0);
        file.extend(&bytes);
        let time_ns = i128::from(seconds) * 1_000_000_000 + i128::from(fraction) * ns_per_fraction;
        written.push(ExpectedPacket {
            time_ns: Some(time_ns),
            truncated: cut_bytes > 0,
            link_type: link_type as u16,
            bytes,
        });
    }
    (file, written)
}

fn random_section(random: &mut RandomNumbers) -> (Vec<u8>, Vec<ExpectedPacket>) {
    let order = Order { big_endian: random.below(2) == 1 };
    let interfaces: Vec<_> = (0..1 + random.below(4))
        .map(|_| Interface {
            link_type: random.choose(&[1, 1, 1, 113, 127, 276]),
            // tshark 4.0 computes times of finer resolutions wrongly.
            resolution: random.choose(&[None, Some(6), Some(9), Some(3), Some(0x8a), Some(0)]),
            offset_s: random.choose(&[None, None, Some(0), Some(1_000), Some(-77)]),
            fcs: None,
        })
        .collect();
    let mut file = section(order);
    interfaces.iter().for_each(|&one| file.extend(interface(order, one)));
    let mut written = Vec::new();
    for _ in 0..2 + random.below(15) {
        let number = random.below(interfaces.len() as u64) as usize;
        let Interface { link_type, resolution, offset_s, .. } = interfaces[number];
        let (bytes, cut_bytes) = (random.packet(), random.choose(&[0, 0, 0, 5, 900]));
        let ticks = match resolution {
            None | Some(6) => 1_700_000_000_000_000 + random.below(1 << 30),
            Some(9) => 1_700_000_000_000_000_000 + random.below(1 << 40),
            Some(3) => 1_700_000_000_000 + random.below(1 << 20),
            Some(0x8a) => (1_700_000_000 << 10) | random.below(1 << 20),
            _ => 1_700_000_000 + random.below(1 << 10),
        };
        let of_ticks = |ticks: i128| match resolution {
            None | Some(6) => ticks * 1000,
            Some(9) => ticks,
            Some(3) => ticks * 1_000_000,
            Some(0x8a) => ticks * 1_000_000_000 / 1024,
            _ => ticks * 1_000_000_000,
        };
        let time_ns = of_ticks(ticks.into()) + i128::from(offset_s.unwrap_or(0)) * 1_000_000_000;
        let packet = Packet { time_ns: 0, interface: number as u32, bytes, cut_bytes };
        let kind = random.below(4);
        file.extend(match kind {
            0 => {
                let words = [(ticks >> 32) as u32, ticks as u32];
                let lengths = [packet.bytes.len() as u32, packet.bytes.len() as u32 + cut_bytes];
                let words = [words, lengths].map(|pair| pair.map(|word| order.u32(word)));
                let drops = random.next() as u16;
                let head = [order.u16(number as u16), order.u16(drops)];
                let head = [head.as_flattened(), words.as_flattened().as_flattened()].concat();
                block(order, 2, &[head, packet.bytes.clone()].concat())
            }
            1 if number == 0 && cut_bytes == 0 => {
                block(order, 3, &[&order.u32(packet.bytes.len() as u32)[..], &packet.bytes].concat())
            }
            _ => enhanced(order, number as u32, ticks, &packet),
        });
        let is_simple = kind == 1 && number == 0 && cut_bytes == 0;
        let time_ns = (!is_simple).then_some(time_ns);
        written.push(ExpectedPacket { time_ns, truncated: cut_bytes > 0, link_type, bytes: packet.bytes });
        if random.below(3) == 0 {
            let unknown = random.bytes(9);
            file.extend(block(order, 0x8000_1234, &unknown)); // for local use
        }
    }
    (file, written)
}

fn random_file(seed: u64) -> (Vec<u8>, Vec<ExpectedPacket>) {
    let random = &mut RandomNumbers(seed);
    let (mut file, mut written) = match random.below(2) {
        0 => random_pcap(random),
        _ => (Vec::new(), Vec::new()),
    };
    if file.is_empty() {
        for _ in 0..1 + random.below(3) {
            let (part, of_part) = random_section(random);
            file.extend(part);
            written.extend(of_part);
        }
    }
    match random.below(4) {
        0 => file = gzip(&file),
        1 => file = zstd(&file),
        _ => {}
    }
    (file, written)
}

fn expected_from_read((recorded, bytes): (RecordedPacket, Vec<u8>)) -> ExpectedPacket {
    let RecordedPacket { time_ns, truncated, link_type } = recorded;
    ExpectedPacket { time_ns, truncated, link_type, bytes }
}

#[test]
fn random_files_are_read_as_they_were_written() {
    for seed in 0..FILES {
        let (file, written) = random_file(seed);
        let (found, damage) = read_all_packets(&file);
        assert!(damage.is_none(), "{seed}: {damage:?}");
        assert_eq!(found.into_iter().map(expected_from_read).collect::<Vec<_>>(), written, "{seed}");
        oracle::check_file(&file);
        // Cut off anywhere, what comes before is read.
        let mut random = RandomNumbers(!seed);
        for _ in 0..20 {
            let bytes = random.below(file.len() as u64) as usize;
            let found: Vec<_> =
                read_all_packets(&file[..bytes]).0.into_iter().map(expected_from_read).collect();
            assert_eq!(found, written[..found.len()], "{seed}, {bytes} bytes");
            let mut damaged = file.clone();
            for _ in 0..1 + random.below(4) {
                let place = random.below(file.len() as u64) as usize;
                damaged[place] = random.next() as u8;
            }
            oracle::check_file(&damaged);
        }
    }
}

/// An independent reader reads the same packets and times, so the files are what they are meant to be.
#[test]
fn tshark_reads_the_same_packets_of_random_files() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Device("tshark"));
    }
    let directory = tempfile::tempdir().unwrap();
    for seed in 0..FILES {
        let (file, written) = random_file(seed);
        let path = directory.path().join(format!("{seed}.pcap"));
        std::fs::write(&path, file).unwrap();
        let arguments = ["-n", "-T", "json", "-x", "-j", "frame", "-r"];
        let output = Command::new("tshark").args(arguments).arg(&path).output().unwrap();
        let packets: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let found: Vec<_> =
            packets.iter().map(|packet| parse_tshark_packet(&packet["_source"]["layers"])).collect();
        let expected: Vec<_> = written
            .iter()
            .map(|ExpectedPacket { time_ns, truncated, bytes, .. }| {
                (time_ns.unwrap_or(0), *truncated, hex(bytes))
            })
            .collect();
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "{seed}, packet {number}");
        }
        assert_eq!(found.len(), expected.len(), "{seed}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The time, whether it was cut, and the bytes of a packet.
fn parse_tshark_packet(layers: &Value) -> (i128, bool, String) {
    let text = |name: &str| layers["frame"][name].as_str().unwrap_or_default().to_owned();
    let time = text("frame.time_epoch");
    let (seconds, fraction) = time.split_once('.').unwrap_or((&time, "0"));
    let time_ns =
        seconds.parse::<i128>().unwrap_or(0) * 1_000_000_000 + fraction.parse::<i128>().unwrap_or(0);
    let raw = layers["frame_raw"][0].as_str().unwrap_or_default().to_owned();
    (time_ns, text("frame.len") != text("frame.cap_len"), raw)
}
