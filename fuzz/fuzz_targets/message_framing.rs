//! Any bytes as a packet's payload, and any messages laid into packets: no panic, and what comes back is what
//! went in.

#![cfg_attr(fuzzing, no_main)]

use nocopy_proto::message::Kind;
use nocopy_proto::message::framing::oracle;

/// A call that a message belongs to (true: it is the response), and the message's length.
type Message = (Option<(bool, u32)>, u16);

nocopy_fuzz::target!(|input: (&[u8], Vec<Message>, u8)| {
    let (bytes, messages, payload_bytes) = input;
    oracle::check_payload(bytes);
    oracle::check_unit(bytes);
    let text: Vec<u8> =
        bytes.iter().copied().cycle().take(if bytes.is_empty() { 0 } else { 1 << 16 }).collect();
    let messages: Vec<_> = messages
        .iter()
        .take(64)
        .map(|&(call, bytes)| {
            let kind = match call {
                None => Kind::Plain,
                Some((false, call)) => Kind::Request(call),
                Some((true, call)) => Kind::Response(call),
            };
            (kind, &text[..usize::from(bytes).min(text.len())])
        })
        .collect();
    oracle::check_messages(&messages, 16 + usize::from(payload_bytes));
});
