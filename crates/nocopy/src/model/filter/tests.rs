//! Real filters over real packets, and random ones over random ones.

use nocopy_proto::filter::{Program, oracle};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Filter, check};

fn filter(program: &Program) -> Option<Filter> {
    Filter::new(program).expect("the privileges that XDP takes")
}

#[test]
fn filters_of_the_corpus_agree_on_every_packet() {
    let (packets, mut too_complex) = (oracle::packets(), Vec::new());
    for (expression, program) in oracle::corpus() {
        let Some(filter) = filter(&program) else {
            assert!(expression.contains("ether[70000]"), "{expression}");
            continue;
        };
        if filter.is_too_complex() {
            too_complex.push(expression);
        }
        for (number, packet) in packets.iter().enumerate() {
            filter.check(packet, (number * 7) as u16);
        }
    }
    assert_eq!(too_complex, [""; 0], "too complex for the verifier");
}

#[test]
fn the_kernel_takes_filters_rewritten_for_packet_sockets() {
    let packets = oracle::packets();
    for (expression, program) in oracle::corpus() {
        let rewritten = program.for_packet_socket().unwrap_or_else(|error| panic!("{expression}: {error}"));
        let Some(filter) = filter(&rewritten) else { continue };
        packets.iter().step_by(17).for_each(|packet| filter.check(packet, 50));
    }
}

#[test]
fn returns_of_nothing_and_of_everything() {
    for text in ["1,6 0 0 0", "1,6 0 0 262144", "2,128 0 0 0,22 0 0 0", "3,5 0 0 1,6 0 0 1,6 0 0 0"] {
        let filter = filter(&Program::parse(text).unwrap()).expect("an XDP program");
        for packet in oracle::packets() {
            filter.check(&packet, 50);
        }
    }
}

proptest! {
    #[test]
    fn random_filters_agree_on_random_packets(
        instructions in vec(any::<u8>(), 0..300),
        packet in vec(any::<u8>(), 14..200),
        long in 0..20_000_usize,
        cut in any::<u16>(),
    ) {
        check(&instructions, packet, if long < 18_000 { 0 } else { long }, cut);
    }
}
