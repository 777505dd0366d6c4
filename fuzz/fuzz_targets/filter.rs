//! Any bytes as a filter and a packet: the kernel, our interpreter and our XDP program agree; rewritten for a
//! packet socket it says the same. Needs the privileges that XDP takes.

#![cfg_attr(fuzzing, no_main)]

use nocopy_proto::filter::oracle;

nocopy_fuzz::target!(|input: (Vec<u8>, Vec<u8>, u16)| {
    let (instructions, packet, cut) = input;
    let program = oracle::program_from_bytes(&instructions);
    let on_socket: Vec<u8> = packet.iter().copied().chain([0; 14]).collect();
    oracle::check_packet_socket_filter(&program, &[on_socket], cut);
    let long = if cut % 16 == 0 { usize::from(cut) } else { 0 };
    nocopy::model::filter::check_bytes_as_filter(&instructions, packet, long, cut);
});
