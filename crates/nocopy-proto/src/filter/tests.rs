//! Invalid programs, and their error texts.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::instruction::{LINK, NETWORK, code};
use super::{
    AncillaryData, Extension, INSTRUCTIONS_MAX, Instruction, InvalidProgram, ParseError, Program,
    UnanswerableLoad, VlanTag, oracle,
};

const RETURN: Instruction = Instruction::non_branching(code::RETURN_CONSTANT, 1);

fn error_of_program(instructions: &[Instruction]) -> InvalidProgram {
    Program::new(instructions.to_vec()).unwrap_err()
}

fn branch_instruction(jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code: 0x15, jump_true, jump_false, constant: 0 }
}

#[test]
fn every_invalid_program_has_its_error() {
    let plain = Instruction::non_branching;
    assert_eq!(error_of_program(&[]), InvalidProgram::Empty);
    assert_eq!(error_of_program(&[RETURN; 4097]), InvalidProgram::TooLong { count: 4097 });
    assert!(Program::new(vec![RETURN; INSTRUCTIONS_MAX]).is_ok());
    for code in [0xff, 0x8001, 0x8c, 0x0d, 0x55, 0xb4, 0x18, 0x38, 0x29, 0x0106] {
        assert_eq!(
            error_of_program(&[plain(code, 0), RETURN]),
            InvalidProgram::UnknownCode { index: 0, code }
        );
    }
    for offset in [0xffff_f001, 0xffff_f040, 0xffff_ffff] {
        let load = plain(code::LOAD_HALF, offset);
        assert_eq!(
            error_of_program(&[RETURN, load, RETURN]),
            InvalidProgram::UnknownExtension { index: 1, offset }
        );
    }
    for code in [0x34, 0x94] {
        assert_eq!(error_of_program(&[plain(code, 0), RETURN]), InvalidProgram::DivisionByZero { index: 0 });
        assert!(Program::new(vec![plain(code | code::WITH_X, 0), RETURN]).is_ok());
    }
    for code in [0x64, 0x74] {
        assert_eq!(
            error_of_program(&[plain(code, 32), RETURN]),
            InvalidProgram::ShiftTooFar { index: 0, bits: 32 }
        );
        assert!(Program::new(vec![plain(code, 31), RETURN]).is_ok());
    }
    for code in [code::STORE, code::STORE_X, code::LOAD_SCRATCH, code::LOAD_X_SCRATCH] {
        assert_eq!(
            error_of_program(&[plain(code, 16), RETURN]),
            InvalidProgram::NoSuchSlot { index: 0, slot: 16 }
        );
    }
    let past = |target| InvalidProgram::JumpPastEnd { index: 0, target, count: 2 };
    assert_eq!(error_of_program(&[branch_instruction(0, 1), RETURN]), past(2));
    assert_eq!(error_of_program(&[branch_instruction(255, 0), RETURN]), past(256));
    assert_eq!(error_of_program(&[plain(code::JUMP, 1), RETURN]), past(2));
    assert_eq!(error_of_program(&[plain(code::JUMP, u32::MAX), RETURN]), past(1 << 32));
    assert_eq!(error_of_program(&[RETURN, plain(code::NEGATE, 0)]), InvalidProgram::NoReturn { index: 1 });
}

#[test]
fn a_slot_is_read_only_after_a_store_on_every_path() {
    let (store, load) =
        (Instruction::non_branching(code::STORE, 3), Instruction::non_branching(code::LOAD_SCRATCH, 3));
    assert_eq!(error_of_program(&[load, RETURN]), InvalidProgram::SlotNotStored { index: 0, slot: 3 });
    assert!(Program::new(vec![store, load, RETURN]).is_ok());
    assert_eq!(
        error_of_program(&[branch_instruction(0, 1), store, load, RETURN]),
        InvalidProgram::SlotNotStored { index: 2, slot: 3 }
    );
    assert!(Program::new(vec![branch_instruction(1, 0), store, RETURN]).is_ok());
    assert!(
        Program::new(vec![
            branch_instruction(0, 2),
            store,
            Instruction::non_branching(code::JUMP, 1),
            store,
            load,
            RETURN
        ])
        .is_ok()
    );
}

#[test]
fn lines_and_commas_are_both_parsed_as_programs() {
    let lines = "4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0\n";
    let program = Program::parse(lines).unwrap();
    assert_eq!(program.instructions().len(), 4);
    assert_eq!(
        program.instructions()[1],
        Instruction { code: 21, jump_true: 0, jump_false: 1, constant: 2048 }
    );
    assert_eq!(Program::parse("4,40 0 0 12,21 0 1 2048,6 0 0 262144,6 0 0 0"), Ok(program.clone()));
    assert_eq!(Program::parse(" 4, 40 0 0 12,21 0 1 2048,6 0 0 262144,6 0 0 0,\n"), Ok(program.clone()));
    assert_eq!(Program::parse(&lines.replace('\n', "\r\n")), Ok(program));
}

#[test]
fn errors_in_programs_have_cause_and_remedy() {
    let whole = "give the output of 'tcpdump -ddd EXPRESSION'";
    let mend = format!("correct it, or {whole}");
    for (text, expected) in [
        ("", format!("it begins with \"\"; the number of instructions must come first; {whole}")),
        ("ldh [12]", format!("it begins with \"ldh [12]\"; the number of instructions must come first; {whole}")),
        ("1,6 0 0", format!("instruction 0 is \"6 0 0\"; it must be 'code jt jf k' in decimal; {whole}")),
        (
            "2,6 0 0 1",
            "it announces 2 instructions and has 1; the text was cut or joined; give the whole output of 'tcpdump -ddd EXPRESSION'"
                .into(),
        ),
        ("0", format!("it has no instructions; a filter ends with a return; {mend}")),
        ("5000", "it has 5000 instructions; the kernel accepts at most 4096; shorten the filter".into()),
        ("1,255 0 0 0", format!("instruction 0 is unknown; classic BPF has no code 0x00ff; {mend}")),
        ("1,4 0 0 1", format!("instruction 0 is the last and no return; a filter must end with one; {mend}")),
        (
            "2,32 0 0 4294963400,6 0 0 0",
            format!("instruction 0 reads outside the packet; Linux has no data at offset -3896; {mend}"),
        ),
        (
            "2,52 0 0 0,6 0 0 0",
            format!("instruction 0 divides by 0; the kernel refuses such a filter; {mend}"),
        ),
        ("2,100 0 0 32,6 0 0 0", format!("instruction 0 shifts by 32 bits; registers have 32; {mend}")),
        (
            "2,96 0 0 16,6 0 0 0",
            format!("instruction 0 uses scratch slot 16; there are 16, counted from 0; {mend}"),
        ),
        (
            "2,96 0 0 3,6 0 0 0",
            format!("instruction 0 reads scratch slot 3; not every path to it stores a value there; {mend}"),
        ),
        ("2,5 0 0 7,6 0 0 0", format!("instruction 0 jumps to 8; the last instruction is 1; {mend}")),
    ] {
        assert_eq!(Program::parse(text).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn invalid_program_text_is_refused() {
    assert_eq!(Program::parse("2\n6 0 0 1"), Err(ParseError::WrongCount { count: 2, found: 1 }));
    assert_eq!(Program::parse("1\n6 0 0 1\n6 0 0 1"), Err(ParseError::WrongCount { count: 1, found: 2 }));
    for bad in ["6 0 0", "6 0 0 1 2", "6 0 256 1", "6 0 0 -1", "x 0 0 1", "65536 0 0 1", "6 0 0 4294967296"] {
        let found = bad.to_owned();
        assert_eq!(
            Program::parse(&format!("1,{bad}")),
            Err(ParseError::NotAnInstruction { index: 0, found })
        );
    }
    assert_eq!(
        Program::parse("99999999"),
        Err(ParseError::Invalid(InvalidProgram::TooLong { count: 99_999_999 }))
    );
    assert_eq!(Program::parse("0"), Err(ParseError::Invalid(InvalidProgram::Empty)));
}

/// Instructions by code, both jumps and constant.
fn program_of_tuples(instructions: &[(u16, u8, u8, u32)]) -> Program {
    let instructions = instructions.iter().map(|&(code, jump_true, jump_false, constant)| Instruction {
        code,
        jump_true,
        jump_false,
        constant,
    });
    Program::new(instructions.collect()).unwrap()
}

/// The value of A after one instruction, started with A and X.
fn result_of_instruction(a: u32, x: u32, code: u16, constant: u32, packet: &[&[u8]]) -> u32 {
    program_of_tuples(&[(0x01, 0, 0, x), (0x00, 0, 0, a), (code, 0, 0, constant), (0x16, 0, 0, 0)])
        .run(packet, &AncillaryData::default())
}

#[test]
fn arithmetic_wraps_at_32_bits() {
    let a = |a, x, code, constant| result_of_instruction(a, x, code, constant, &[]);
    assert_eq!(a(u32::MAX, 0, 0x04, 2), 1);
    assert_eq!(a(1, 2, 0x1c, 0), u32::MAX);
    assert_eq!(a(0x1_0001, 0x1_0001, 0x2c, 0), 0x2_0001);
    assert_eq!((a(7, 2, 0x3c, 0), a(7, 2, 0x9c, 0)), (3, 1));
    assert_eq!((a(7, 0, 0x3c, 0), a(7, 0, 0x9c, 0)), (0, 0));
    assert_eq!((a(1, 33, 0x6c, 0), a(4, 33, 0x7c, 0)), (2, 2), "distances are masked");
    assert_eq!((a(1, 0, 0x84, 0), a(0, 0, 0x84, 0)), (u32::MAX, 0));
}

#[test]
fn loads_cross_pieces_up_to_the_packets_end() {
    let packet: [&[u8]; 4] = [&[1, 2], &[], &[3], &[4, 5]];
    let a = |x, code, constant| result_of_instruction(9, x, code, constant, &packet);
    assert_eq!((a(0, code::LOAD_WORD, 0), a(0, code::LOAD_WORD, 1)), (0x0102_0304, 0x0203_0405));
    assert_eq!((a(0, code::LOAD_WORD, 2), a(0, code::LOAD_BYTE, 5), a(0, code::LOAD_BYTE, 4)), (0, 0, 5));
    assert_eq!(a(u32::MAX, code::LOAD_HALF_INDIRECT, 2), 0x0203, "the sum is of 32 bits");
    assert_eq!(a(0, code::LOAD_LENGTH, 0), 5);
    assert_eq!(a(0, code::LOAD_HALF, LINK), 0x0102);
    assert_eq!(a(0, code::LOAD_HALF, LINK + 1), 0x0203);
    assert_eq!(a(0, code::LOAD_BYTE, LINK - 1), 0);
}

#[test]
fn the_network_header_follows_a_tag() {
    let (mut frame, load) =
        ([0; 20], |frame: &[u8]| result_of_instruction(0, 0, code::LOAD_BYTE, NETWORK + 1, &[frame]));
    (frame[15], frame[19]) = (15, 19);
    assert_eq!(load(&frame), 15);
    frame[12] = 0x81;
    assert_eq!(load(&frame), 19);
    assert_eq!(load(&frame[..13]), 0);
}

#[test]
fn unanswerable_loads_are_named() {
    let ask =
        |extension: Extension| program_of_tuples(&[(0x20, 0, 0, extension.load_offset()), (0x16, 0, 0, 0)]);
    assert_eq!(ask(Extension::Cpu).check_answerable(), Ok(()));
    let refusal = ask(Extension::ReceiveHash).check_answerable().unwrap_err();
    assert_eq!(refusal, UnanswerableLoad { index: 0, extension: Extension::ReceiveHash });
    assert_eq!(
        refusal.to_string(),
        "instruction 0 asks for the receive hash, which is computed by the device or later; run the filter on a packet socket"
    );
    let beside = AncillaryData {
        cpu: 3,
        queue: 2,
        vlan: Some(VlanTag { protocol: 0x88a8, control: 5 }),
        interface_index: Some(7),
        ..AncillaryData::default()
    };
    let answers = [
        (Extension::Cpu, 3),
        (Extension::Queue, 2),
        (Extension::VlanProtocol, 0x88a8),
        (Extension::VlanTag, 5),
        (Extension::VlanTagPresent, 1),
        (Extension::InterfaceIndex, 7),
        (Extension::HardwareType, 1),
    ];
    for (extension, answer) in answers {
        assert_eq!(ask(extension).run(&[], &beside), answer, "{extension}");
    }
}

#[test]
fn filters_of_the_corpus_match_expected_packets() {
    let packets = oracle::sample_packets();
    let matches = |expression: &str| {
        let (_, program) =
            oracle::corpus_filters().into_iter().find(|(text, _)| *text == expression).unwrap();
        packets.iter().filter(|packet| program.run(&[packet], &AncillaryData::default()) > 0).count()
    };
    for (expression, program) in oracle::corpus_filters() {
        assert!(program.check_answerable().is_ok(), "{expression}");
    }
    assert_eq!(matches("ip") + matches("not (ip or ip6)") + matches("ip6"), packets.len());
    for expression in ["udp port 9000", "vlan 5 and udp", "tcp[tcpflags] == tcp-syn", "mpls", "stp"] {
        assert!((1..packets.len()).contains(&matches(expression)), "{expression}");
    }
}

#[test]
fn packet_socket_filters_see_the_tag_in_place() {
    let packets = oracle::sample_packets();
    for (expression, program) in oracle::corpus_filters() {
        let rewritten = program.for_packet_socket().unwrap();
        assert_ne!(rewritten, program, "{expression}");
        assert_eq!(rewritten.for_packet_socket(), Ok(rewritten), "{expression}: asks for the tag now");
        oracle::check_packet_socket_filter(&program, &packets, 5);
        oracle::check_packet_socket_filter(&program, &packets, 0x6f64);
    }
}

#[test]
fn every_load_around_the_tag_reads_the_original_bytes() {
    for (program, packet) in oracle::loads_around_tag() {
        for end in [14, 15, 16, 20, packet.len()] {
            oracle::check_packet_socket_filter(&program, &[packet[..end].to_vec()], 0x6f64);
        }
    }
}

#[test]
fn random_filters_terminate() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (filters, packets) = (vec(any::<u8>(), 0..250), vec(any::<u8>(), 40..100));
    let mut results = std::collections::HashSet::new();
    for _ in 0..1000 {
        let mut any = |strategy: &proptest::collection::VecStrategy<_>| {
            strategy.new_tree(&mut runner).unwrap().current()
        };
        results.insert(
            oracle::program_from_bytes(&any(&filters)).run(&[&any(&packets)], &AncillaryData::default()),
        );
    }
    assert!(results.len() > 300, "{} results of 1000: they would hide what is wrong", results.len());
}

#[test]
fn a_filter_without_a_free_slot_is_not_rewritten() {
    let mut instructions: Vec<_> = (0..16).map(|slot| (code::STORE, 0, 0, slot)).collect();
    instructions.extend([(code::LOAD_X_LENGTH, 0, 0, 0), (code::RETURN_A, 0, 0, 0)]);
    assert_eq!(
        program_of_tuples(&instructions).for_packet_socket(),
        Err(InvalidProgram::NoSlotLeft { index: 16 })
    );
}

proptest! {
    #[test]
    fn any_instructions_are_refused_or_run(
        instructions in vec(any::<(u16, u8, u8, u32)>(), 0..8),
        codes in vec(0..0xb2_u16, 8),
        packet in vec(any::<u8>(), 0..64),
    ) {
        let known = instructions.iter().zip(codes).map(|(&(_, jump_true, jump_false, constant), code)| Instruction {
            code,
            jump_true: jump_true % 4,
            jump_false: jump_false % 4,
            constant: if jump_true < 128 { constant % 64 } else { constant },
        });
        let anything = instructions.iter().map(|&(code, jump_true, jump_false, constant)| Instruction {
            code,
            jump_true,
            jump_false,
            constant,
        });
        for mut instructions in [known.collect::<Vec<_>>(), anything.collect()] {
            instructions.push(Instruction::non_branching(code::RETURN_A, 0));
            let Ok(program) = Program::new(instructions) else { continue };
            program.run(&[&packet], &AncillaryData::default());
            let _ = (program.to_xdp(false), program.to_xdp(true));
            oracle::check_packet_socket_filter(&program, std::slice::from_ref(&packet), 5);
        }
    }

    #[test]
    fn any_text_is_refused_or_read(text in "[0-9, \n]{0,60}", anything in ".{0,40}") {
        for text in [text, anything] {
            if let Ok(program) = Program::parse(&text) {
                prop_assert!(!program.instructions().is_empty());
            }
        }
    }

    #[test]
    fn random_packet_socket_filters_see_the_tag_in_place(
        bytes in vec(any::<u8>(), 0..250), packets in vec(vec(any::<u8>(), 14..100), 1..4), control in any::<u16>(),
    ) {
        oracle::check_packet_socket_filter(&oracle::program_from_bytes(&bytes), &packets, control);
    }

    #[test]
    fn jumps_of_translated_filters_stay_in_the_program(bytes in vec(any::<u8>(), 0..800), fragments in any::<bool>()) {
        let Ok(code) = oracle::program_from_bytes(&bytes).to_xdp(fragments) else { return Ok(()) };
        for (at, instruction) in code.iter().enumerate() {
            let is_jump = matches!(instruction.code & 7, 5 | 6) && !matches!(instruction.code, 0x85 | 0x95);
            if is_jump {
                let target = at as isize + 1 + isize::from(instruction.offset);
                prop_assert!((0..code.len() as isize).contains(&target), "{at}: {instruction:x?}");
            }
        }
        prop_assert_eq!(code.last().copied(), Some(crate::ebpf::copy(crate::ebpf::R1, crate::ebpf::R6)));
    }
}

#[test]
fn a_filter_with_a_byte_limit_matches_the_same_packets() {
    for (expression, program) in oracle::corpus_filters() {
        let keeping = program.with_snap_length(7).unwrap_or_else(|error| panic!("{expression}: {error}"));
        for packet in oracle::sample_packets() {
            let matches = program.run(&[&packet], &AncillaryData::default()) > 0;
            assert_eq!(
                keeping.run(&[&packet], &AncillaryData::default()),
                u32::from(matches) * 7,
                "{expression}"
            );
        }
    }
    let whatever = Program::parse("2,48 0 0 0,22 0 0 0").unwrap().with_snap_length(7).unwrap(); // returns the first byte
    let kept = [0, 1, 255].map(|byte| whatever.run(&[&[byte]], &AncillaryData::default()));
    assert_eq!(kept, [0, 7, 7]);
}
