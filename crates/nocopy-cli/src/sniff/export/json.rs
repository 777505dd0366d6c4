//! Packets for programs: an object each; described in docs/sniff.md.

use std::fmt::Write as _;
use std::io::{self, Write};

use nocopy_proto::describe::{CapturedBytes, DescriptionStyle};
use serde::Serialize;

use super::SCHEMA;
use crate::arguments::SniffArguments;
use crate::sniff::source::CapturedPacket;

pub(in crate::sniff) struct JsonExporter {
    style: DescriptionStyle,
    hex: bool,
    /// The line, reused for all packets.
    line: String,
    digits: String,
}

#[derive(Serialize)]
struct JsonPacket<'a> {
    schema: &'static str,
    kind: &'static str,
    time_ns: u64,
    clock: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    direction: Option<&'static str>,
    bytes: usize,
    line: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<&'a str>,
}

impl JsonExporter {
    pub(super) fn new(arguments: &SniffArguments) -> Self {
        let style =
            DescriptionStyle::default().with_link_header(arguments.link).with_port_names(arguments.names);
        Self { style, hex: arguments.hex, line: String::new(), digits: String::new() }
    }

    pub(super) fn print_packet(
        &mut self,
        packet: &CapturedPacket<'_>,
        output: &mut impl Write,
    ) -> io::Result<()> {
        let Self { style, hex, line, digits } = self;
        let CapturedPacket { bytes, packet_bytes, .. } = *packet;
        line.clear();
        CapturedBytes { bytes, packet_bytes }.describe(*style, line);
        digits.clear();
        if *hex {
            // Writing to a string cannot fail.
            let _ = bytes.iter().try_for_each(|byte| write!(digits, "{byte:02x}"));
        }
        let object = JsonPacket {
            schema: SCHEMA,
            kind: "packet",
            time_ns: packet.time.ns,
            clock: packet.time.clock.name(),
            direction: packet.outgoing.map(|outgoing| if outgoing { "out" } else { "in" }),
            bytes: packet_bytes,
            line,
            hex: hex.then_some(digits),
        };
        serde_json::to_writer(&mut *output, &object)?;
        output.write_all(b"\n")
    }
}
