//! Real filters over real packets, and random ones over random ones.

use nocopy_proto::filter::{AncillaryData, Instruction, Program, oracle};
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fd::AsFd;
use rustix::thread::{
    CapabilitySet, CpuSet, capabilities, sched_getaffinity, sched_setaffinity, set_capabilities,
};

use super::{ComparedFilter, MATCHED, check_bytes_as_filter, load_as_xdp};
use crate::sys::{bpf, capability};

fn compared_filter(program: &Program) -> Option<ComparedFilter> {
    ComparedFilter::new(program).expect("the privileges that XDP takes")
}

/// Whether programs may be loaded here: otherwise the test is skipped with a message.
fn can_load_or_skip() -> bool {
    let missing = capability::missing_capability(LOAD);
    if let Some(name) = missing {
        nocopy_lab::skip(&nocopy_lab::Missing::Capability(name));
    }
    missing.is_none()
}

const LOAD: &[(CapabilitySet, &str)] =
    &[(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), (CapabilitySet::BPF, "CAP_BPF")];

/// Runs it in a thread with only the capabilities that filters in XDP need.
fn run_with_load_capabilities(check: impl FnOnce() + Send) {
    let check = || {
        let mut sets = capabilities(None).expect("our own capabilities");
        sets.effective &= CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
        set_capabilities(None, sets).expect("fewer capabilities");
        check();
    };
    std::thread::scope(|scope| scope.spawn(check).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn load_instructions_beyond_the_linear_part_agree_with_the_kernel() {
    if !can_load_or_skip() {
        return;
    }
    let network_header = 0xfff0_0000; // SKF_NET_OFF, linux/filter.h
    let [load_x, load_byte_indirect, return_a] = [0x01, 0x50, 0x16];
    for offset in [100, 20_000, 65_000] {
        let plain = |(code, constant)| Instruction { code, jump_true: 0, jump_false: 0, constant };
        let instructions = [(load_x, offset), (load_byte_indirect, network_header), (return_a, 0)];
        let program = Program::new(instructions.map(plain).to_vec());
        let filter = compared_filter(&program.expect("valid")).expect("XDP can do it");
        filter.check_packet(&[0x5a; 65_280], 0);
    }
}

#[test]
fn corpus_filters_agree_with_the_kernel_on_every_packet() {
    if can_load_or_skip() {
        run_with_load_capabilities(check_corpus);
    }
}

fn check_corpus() {
    let (packets, mut too_complex) = (oracle::sample_packets(), Vec::new());
    for (expression, program) in oracle::corpus_filters() {
        let Some(filter) = compared_filter(&program) else {
            assert!(expression.contains("ether[70000]"), "{expression}");
            continue;
        };
        if filter.is_too_complex() {
            too_complex.push(expression);
        }
        for (number, packet) in packets.iter().enumerate() {
            filter.check_packet(packet, (number * 7) as u16);
        }
    }
    assert_eq!(too_complex, [""; 0], "too complex for the verifier");
}

#[test]
fn the_kernel_accepts_rewritten_packet_socket_filters() {
    if !can_load_or_skip() {
        return;
    }
    let packets = oracle::sample_packets();
    for (expression, program) in oracle::corpus_filters() {
        let rewritten = program.for_packet_socket().unwrap_or_else(|error| panic!("{expression}: {error}"));
        let Some(filter) = compared_filter(&rewritten) else { continue };
        packets.iter().step_by(17).for_each(|packet| filter.check_packet(packet, 50));
    }
}

#[test]
fn load_instructions_agree_with_the_kernel_at_every_packet_length() {
    if !can_load_or_skip() {
        return;
    }
    for (number, (program, packet)) in oracle::loads_around_tag().into_iter().enumerate().step_by(3) {
        let result = program.run(&[&packet], &AncillaryData::default());
        let comparing = oracle::program_that_compares(&program, result).expect("ends with a return of A");
        let filter = compared_filter(&comparing).expect("an XDP program");
        for end in 14..=packet.len().min(14 + 24) {
            filter.check_packet(&packet[..end], (number * end) as u16);
        }
        filter.check_packet(&packet, number as u16);
    }
}

#[test]
fn filters_returning_zero_or_the_maximum_agree_with_the_kernel() {
    if !can_load_or_skip() {
        return;
    }
    for text in ["1,6 0 0 0", "1,6 0 0 262144", "2,128 0 0 0,22 0 0 0", "3,5 0 0 1,6 0 0 1,6 0 0 0"] {
        let filter = compared_filter(&Program::parse(text).unwrap()).expect("an XDP program");
        for packet in oracle::sample_packets() {
            filter.check_packet(&packet, 50);
        }
    }
}

fn count_xdp_matches(text: &str, runs: usize) -> [usize; 2] {
    [false, true].map(|fragments| {
        let prefix = Program::parse(text).unwrap().to_xdp(fragments).unwrap();
        let program =
            load_as_xdp(prefix, fragments).expect("the privileges that XDP takes").expect("it is short");
        let matched = |_: &usize| bpf::test_run(program.as_fd(), &[0; 64], 64).unwrap() == MATCHED;
        (0..runs).filter(matched).count()
    })
}

/// No comparison of runs could show this.
#[test]
fn xdp_filters_load_the_kernels_cpu_and_random_numbers() {
    if !can_load_or_skip() {
        return;
    }
    run_with_load_capabilities(|| {
        let allowed = sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).rfind(|&cpu| allowed.is_set(cpu)).expect("at least one");
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).unwrap(); // of this thread, which ends with the check
        for (wanted, matches) in [(cpu, 3), (cpu + 1, 0)] {
            let text = format!("4,32 0 0 4294963236,21 0 1 {wanted},6 0 0 1,6 0 0 0");
            assert_eq!(count_xdp_matches(&text, 3), [matches; 2], "{wanted} on {cpu}");
        }
        for bit in [1_u32, 1 << 31] {
            let text = format!("4,32 0 0 4294963256,69 0 1 {bit},6 0 0 1,6 0 0 0");
            let matches = count_xdp_matches(&text, 200);
            assert!(matches.iter().all(|matches| (1..200).contains(matches)), "{bit:#x}: {matches:?} of 200");
        }
    });
}

proptest! {
    #[test]
    fn random_filters_agree_with_the_kernel_on_random_packets(
        instructions in prop_oneof![vec(any::<u8>(), 0..250), vec(any::<u8>(), 0..800)],
        packet in vec(any::<u8>(), 14..200),
        long in 0..20_000_usize,
        cut in any::<u16>(),
    ) {
        if !can_load_or_skip() {
            return Ok(());
        }
        check_bytes_as_filter(&instructions, packet, if long < 18_000 { 0 } else { long }, cut);
    }
}
