//! Filters and packets for the property tests here and in `nocopy`, and for the fuzz targets in `fuzz/`.
//!
//! Not part of the interface.

use super::instruction::{ANCILLARY, LINK, NETWORK, code};
use super::{AncillaryData, Extension, Instruction, InvalidProgram, Program, VlanTag};
use crate::wire::{IpAddresses, MacAddress, UdpChecksum, UdpFrame, vlan::TagControl};

/// Real filters: the expression each was compiled from, and the program.
///
/// # Panics
/// One of them is refused, which no kernel does.
pub fn corpus_filters() -> Vec<(&'static str, Program)> {
    let lines = include_str!("corpus.txt").lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (expression, program) = line.split_once('\t').expect("expression, tab, program");
            (expression, Program::parse(program).unwrap_or_else(|error| panic!("{expression}: {error}")))
        })
        .collect()
}

/// Bytes that any list of bytes turns into choices.
#[derive(Debug)]
struct ByteChoices<'a>(&'a [u8]);

impl ByteChoices<'_> {
    /// The next byte; 0 after the end.
    fn next_byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn choice_below(&mut self, limit: usize) -> usize {
        usize::from(u16::from_be_bytes([self.next_byte(), self.next_byte()])) % limit
    }

    /// A constant: usually small, as offsets are, sometimes arbitrary.
    fn any_constant(&mut self) -> u32 {
        let small = u32::from(self.next_byte());
        match self.next_byte() % 16 {
            0..6 | 13.. if small < 240 => small % 20,
            0..6 => small,
            6 => small % 64,
            7 | 8 if small < 250 => small % 4,
            7 | 8 => small << 8 | u32::from(self.next_byte()),
            9 => 0_u32.wrapping_sub(small),
            10 => {
                u32::from_be_bytes([self.next_byte(), self.next_byte(), self.next_byte(), self.next_byte()])
            }
            11 => LINK.wrapping_add(small).wrapping_sub(4),
            12 => NETWORK.wrapping_add(small % 80).wrapping_sub(4),
            _ => [0x8100, 0x88a8, 0x0800, 0x86dd][small as usize % 4],
        }
    }
}

/// All codes except returns; common ones more than once.
const CODES: [u16; 56] = [
    0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1, 0xb1, 0x00, 0x01, 0x60,
    0x61, 0x80, 0x81, 0x02, 0x03, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c,
    0x64, 0x6c, 0x74, 0x7c, 0x84, 0x94, 0x9c, 0xa4, 0xac, 0x07, 0x87, 0x07, 0x05, 0x15, 0x1d, 0x25, 0x2d,
    0x35, 0x3d, 0x45, 0x4d, 0x15,
];

/// Extensions for which a Unix socket, a test run and [`Program::run`] give the same value.
const EXTENSIONS: [Extension; 4] =
    [Extension::XorX, Extension::HardwareType, Extension::InterfaceIndex, Extension::Mark];

/// Input bytes for one instruction of [`program_from_bytes`].
const CHOICE_BYTES: usize = 12;

/// A valid program out of any bytes. It ends with a return of A.
///
/// # Panics
/// When what is valid by construction is refused.
pub fn program_from_bytes(bytes: &[u8]) -> Program {
    let chunks = bytes.chunks_exact(CHOICE_BYTES).take(100);
    // Only slots that are stored to first are loaded from.
    let mut instructions =
        vec![Instruction::non_branching(code::STORE, 0), Instruction::non_branching(code::STORE_X, 1)];
    let count = chunks.len();
    for (index, chunk) in chunks.enumerate() {
        instructions.extend(any_instructions(&mut ByteChoices(chunk), count - index));
    }
    instructions.push(Instruction::non_branching(code::RETURN_A, 0));
    Program::new(instructions).expect("valid by construction")
}

/// An instruction that needs at most `left` more after it, usually preceded by one that makes it succeed.
fn any_instructions(choices: &mut ByteChoices<'_>, left: usize) -> Vec<Instruction> {
    let (luck, x) = (choices.next_byte(), choices.next_byte());
    // Now and then the filter ends early.
    if luck == 1 {
        return vec![Instruction::non_branching(code::RETURN_CONSTANT, u32::from(x) % 3 * 20)];
    }
    let instruction = any_instruction(choices, left);
    let needs_x = matches!(
        instruction.code,
        code::LOAD_BYTE_INDIRECT | code::LOAD_HALF_INDIRECT | code::LOAD_WORD_INDIRECT | 0x3c | 0x9c
    );
    let front = match luck % 16 {
        0..8 => Instruction::non_branching(code::LOAD_X_CONSTANT, u32::from(x) % 24),
        8..15 => Instruction::non_branching(code::LOAD_X_HEADER, u32::from(x) % 16),
        _ => return vec![instruction],
    };
    if needs_x { vec![front, instruction] } else { vec![instruction] }
}

fn any_instruction(choices: &mut ByteChoices<'_>, left: usize) -> Instruction {
    let mut instruction =
        Instruction::non_branching(CODES[choices.choice_below(CODES.len())], choices.any_constant());
    let distance = |choices: &mut ByteChoices<'_>| usize::from(choices.next_byte()) % 8.min(left);
    match instruction.code {
        code::JUMP => instruction.constant = distance(choices) as u32,
        code if code & 7 == code::BRANCH => {
            (instruction.jump_true, instruction.jump_false) =
                (distance(choices) as u8, distance(choices) as u8);
        }
        code::LOAD_SCRATCH | code::LOAD_X_SCRATCH => instruction.constant %= 2,
        code::STORE | code::STORE_X => instruction.constant %= 16,
        0x34 | 0x94 => instruction.constant = instruction.constant.max(1),
        0x64 | 0x74 => instruction.constant %= 32,
        code::LOAD_WORD if instruction.constant % 16 == 15 => {
            instruction.constant = EXTENSIONS[choices.choice_below(EXTENSIONS.len())].load_offset();
        }
        // Offsets just below 0 would be questions.
        code::LOAD_WORD | code::LOAD_HALF | code::LOAD_BYTE if instruction.constant >= ANCILLARY => {
            instruction.constant &= 0xff;
        }
        _ => {}
    }
    instruction
}

/// Every load at every offset around the tag and the headers, with a constant offset and relative to X, and a
/// packet for each. X is a constant of the program, or a byte or a word of the packet, so that it may have
/// any value.
pub fn loads_around_tag() -> Vec<(Program, Vec<u8>)> {
    let mut loads = Vec::new();
    for (offset, base) in (0..24).flat_map(|offset| [0, LINK, NETWORK].map(|base| (offset, base))) {
        for load in [code::LOAD_BYTE, code::LOAD_HALF, code::LOAD_WORD, code::LOAD_X_HEADER] {
            loads.push((0, vec![(load, base + offset)]));
        }
        for load in [code::LOAD_BYTE_INDIRECT, code::LOAD_HALF_INDIRECT, code::LOAD_WORD_INDIRECT] {
            for constant in [0, 2, 14, offset] {
                let x = base.wrapping_add(offset).wrapping_sub(constant);
                loads.push((x, vec![(code::LOAD_X_CONSTANT, x), (load, constant)]));
                loads.push((x, vec![(code::LOAD_WORD, 0), (code::A_TO_X, 0), (load, constant)]));
                if x < 256 {
                    loads.push((x, vec![(code::LOAD_BYTE, 3), (code::A_TO_X, 0), (load, constant)]));
                }
            }
        }
    }
    // Registers that a load must not change are part of the result.
    let around = |load: Vec<(u16, u32)>| {
        let load = load.into_iter().chain([(0x24, 31), (0x0c, 0), (code::RETURN_A, 0)]);
        Program::new(load.map(|(code, constant)| Instruction::non_branching(code, constant)).collect())
    };
    let packet = |x: u32| [&x.to_be_bytes()[..], &(0xb0..0xda).collect::<Vec<u8>>()].concat();
    loads.into_iter().map(|(x, load)| (around(load).expect("a load and a return"), packet(x))).collect()
}

/// A program that returns all ones where `program`, which ends with a return of A, returns `value`, and 0
/// elsewhere: a test that only sees whether a filter matches can then determine A.
pub fn program_that_compares(program: &Program, value: u32) -> Option<Program> {
    let (last, rest) = program.instructions().split_last()?;
    let compare = Instruction { code: 0x15, jump_true: 0, jump_false: 1, constant: value };
    let mut instructions = rest.to_vec();
    for instruction in &mut instructions {
        if instruction.code == code::RETURN_CONSTANT {
            instruction.constant = 0;
        }
    }
    instructions.push(compare);
    instructions.extend([u32::MAX, 0].map(|value| Instruction::non_branching(code::RETURN_CONSTANT, value)));
    (last.code == code::RETURN_A).then(|| Program::new(instructions).ok()).flatten()
}

/// Packets of every kind, some cut short, the longest of 65,000 bytes.
pub fn sample_packets() -> Vec<Vec<u8>> {
    let mut packets: Vec<Vec<u8>> = Vec::new();
    for frame in udp_flow_frames() {
        packets.extend(transport_variants(&frame));
        packets.extend(encapsulation_variants(&frame));
        packets.extend(
            [14, 15, 18, 20, 33, 34, 36, 41, 42, 54, 60].map(|end| frame[..end.min(frame.len())].to_vec()),
        );
    }
    packets.extend(non_ip_and_broadcast_frames());
    packets.extend([1400, 2990, 9000, 20_000, 65_000].map(|bytes| {
        let mut packet = udp_frame(None, ipv4_addresses([10, 0, 0, 1], [10, 0, 0, 2]), [9000, 9003], 1000);
        packet.resize(bytes, 0x5a);
        packet
    }));
    packets
}

fn ipv4_addresses(source: [u8; 4], destination: [u8; 4]) -> IpAddresses {
    IpAddresses::V4 { source: source.into(), destination: destination.into() }
}

fn ipv6_addresses(source: u16, destination: u16) -> IpAddresses {
    let address = |last| [0x2001, 0xdb8, 0, 0, 0, 0, 0, last].into();
    IpAddresses::V6 { source: address(source), destination: address(destination) }
}

fn udp_frame(vlan: Option<u16>, addresses: IpAddresses, ports: [u16; 2], payload_bytes: usize) -> Vec<u8> {
    let template = UdpFrame {
        source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
        vlan: vlan.map(TagControl),
        addresses,
        traffic_class: 0,
        hop_limit: 64,
        source_port: ports[0],
        destination_port: ports[1],
        checksum: UdpChecksum::Computed,
    };
    let payload: Vec<u8> = (1..=payload_bytes).map(|at| at as u8).collect();
    let mut frame = vec![0; template.header_bytes()];
    template.emit_headers(&mut frame, &payload).expect("room for headers");
    frame.extend(payload);
    frame
}

fn udp_flow_frames() -> Vec<Vec<u8>> {
    let addresses = [
        ipv4_addresses([10, 0, 0, 1], [10, 0, 0, 2]),
        ipv4_addresses([192, 168, 1, 7], [224, 0, 0, 5]),
        ipv4_addresses([172, 16, 0, 1], [10, 3, 0, 200]),
        ipv6_addresses(1, 2),
        ipv6_addresses(9, 0x20),
    ];
    let ports = [[9000, 53], [1500, 9005], [40_000, 80]];
    let mut frames = Vec::new();
    for (at, addresses) in addresses.into_iter().enumerate() {
        for (number, ports) in ports.into_iter().enumerate() {
            let vlan = [None, Some(5), Some(0x6064)][(at + number) % 3];
            frames.push(udp_frame(vlan, addresses, ports, [4, 40, 700][number]));
        }
    }
    frames
}

fn ip_offset(frame: &[u8]) -> usize {
    if frame[12] == 0x81 { 18 } else { 14 }
}

/// The frame with other transport protocols, fragmented, with options.
fn transport_variants(frame: &[u8]) -> Vec<Vec<u8>> {
    let ip = ip_offset(frame);
    let is_v4 = frame[ip] >> 4 == 4;
    let (protocol, transport) = if is_v4 { (ip + 9, ip + 20) } else { (ip + 6, ip + 40) };
    let mut variants = vec![frame.to_vec()];
    let change = |changes: &[(usize, u8)]| {
        let mut variant = frame.to_vec();
        for &(at, byte) in changes {
            if let Some(place) = variant.get_mut(at) {
                *place = byte;
            }
        }
        variant
    };
    for flags in [0x02, 0x12, 0x10, 0x11] {
        let mut segment = change(&[(protocol, 6), (transport + 12, 0x50), (transport + 13, flags)]);
        segment.resize(segment.len().max(transport + 20), 0);
        segment.extend(b"GET / HTTP/1.1");
        variants.push(segment);
    }
    for number in [1, 2, 47, 58, 89, 132] {
        variants.push(change(&[(protocol, number), (transport, 8)]));
        variants.push(change(&[(protocol, number), (transport, 128)]));
    }
    if is_v4 {
        let fragments = [(0x20, 0), (0x20, 0xb9), (0x00, 0xb9), (0x40, 0)];
        variants.extend(fragments.map(|(high, low)| change(&[(ip + 6, high), (ip + 7, low)])));
        for words in [4, 6, 15] {
            let mut variant = change(&[(ip, 0x40 | words)]);
            let options = usize::from(words).saturating_sub(5) * 4;
            variant.splice(transport..transport, vec![1; options]);
            variants.push(variant);
        }
        variants.push(change(&[(ip + 1, 0xff), (ip + 8, 2)]));
    }
    variants
}

/// The packet of the frame in frames with other link headers.
fn encapsulation_variants(frame: &[u8]) -> Vec<Vec<u8>> {
    let ip = ip_offset(frame);
    let wrap = |header: &[u8]| [&frame[..12], header, &frame[ip..]].concat();
    let inner_type = if frame[ip] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    let ppp_type = if frame[ip] >> 4 == 4 { [0x00, 0x21] } else { [0x00, 0x57] };
    vec![
        [&frame[..12], &[0x88, 0xa8, 0, 100], &frame[12..]].concat(),
        [&frame[..12], &[0x81, 0x00, 0x20, 5], &frame[12..]].concat(),
        [&frame[..12], &[0x91, 0x00, 0, 100, 0x81, 0x00, 0, 5], &frame[12..]].concat(),
        wrap(&[0x88, 0x47, 0x00, 0x40, 0x01, 0x40]),
        wrap(&[0x88, 0x47, 0x00, 0x40, 0x00, 0x40, 0x00, 0x01, 0x11, 0x40]),
        wrap(&[&[0x88, 0x64, 0x11, 0, 0, 7, 0, 200][..], &ppp_type].concat()),
        wrap(&[0x88, 0x63, 0x11, 9, 0, 0, 0, 20]),
        wrap(&[&[0x81, 0x00, 0, 5, 0x88, 0x64, 0x11, 0, 0, 7, 0, 200][..], &ppp_type].concat()),
        wrap(&inner_type),
    ]
}

/// Frames without IP, and to all.
fn non_ip_and_broadcast_frames() -> Vec<Vec<u8>> {
    let arp = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
    let frame = |to: [u8; 6], kind: [u8; 2], payload: &[u8]| {
        let mut frame = [&to[..], &[2, 0, 0, 0, 0, 1], &kind, payload].concat();
        frame.resize(frame.len().max(60), 0);
        frame
    };
    let all = [0xff; 6];
    vec![
        frame(all, [0x08, 0x06], &arp),
        frame([2, 0, 0, 0, 0, 2], [0x80, 0x35], &arp),
        frame(all, [0x08, 0x00], &[0x45, 0, 0, 20]),
        frame([1, 0x80, 0xc2, 0, 0, 0], [0, 38], &[0x42, 0x42, 3, 0, 0]),
        frame([1, 0x80, 0xc2, 0, 0, 0x14], [0, 40], &[0xfe, 0xfe, 3, 0x83]),
        frame([9, 0, 7, 0xff, 0xff, 0xff], [0x80, 0x9b], &[0; 20]),
        frame([9, 0, 7, 0xff, 0xff, 0xff], [0, 50], &[0xaa, 0xaa, 3, 8, 0, 7, 0x80, 0x9b]),
        frame([1, 0x80, 0xc2, 0, 0, 0x0e], [0x88, 0xcc], &[2, 7, 4]),
        vec![0; 14],
        vec![0xff; 14],
        vec![0xff; 64],
    ]
}

/// A filter rewritten for packet sockets returns for a frame without its tag, with the tag beside it, the
/// result of the original filter for the frame with the tag; and for frames that never had a tag, the
/// original result.
///
/// # Panics
/// When it does not.
pub fn check_packet_socket_filter(program: &Program, packets: &[Vec<u8>], control: u16) {
    let rewritten = match program.for_packet_socket() {
        Ok(rewritten) => rewritten,
        Err(error) => {
            assert!(
                matches!(error, InvalidProgram::TooLong { .. } | InvalidProgram::NoSlotLeft { .. }),
                "{error}"
            );
            return;
        }
    };
    for packet in packets.iter().filter(|packet| packet.len() >= 14) {
        let untagged = AncillaryData { interface_index: Some(1), ..AncillaryData::default() };
        assert_eq!(rewritten.run(&[packet], &untagged), program.run(&[packet], &untagged), "{packet:02x?}");
        for protocol in [0x8100_u16, 0x88a8] {
            let tag = [protocol.to_be_bytes(), control.to_be_bytes()].concat();
            let on_wire = program.run(&[&packet[..12], &tag, &packet[12..]], &untagged);
            let beside = AncillaryData { vlan: Some(VlanTag { protocol, control }), ..untagged };
            assert_eq!(
                rewritten.run(&[packet], &beside),
                on_wire,
                "tag {tag:02x?}: {program:?} over {packet:02x?}"
            );
        }
    }
}
