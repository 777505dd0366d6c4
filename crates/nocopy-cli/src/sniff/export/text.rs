//! Packets for people: a line each, and their bytes on request.

use std::fmt::Write as _;
use std::io::{self, Write};

use nocopy_proto::describe::{CapturedBytes, DescriptionStyle};

use crate::arguments::{SniffArguments, TimeFormat};
use crate::sniff::clock::TimestampFormatter;
use crate::sniff::source::CapturedPacket;

const BYTES_PER_LINE: usize = 16;

pub(in crate::sniff) struct TextExporter {
    clock: TimestampFormatter,
    style: DescriptionStyle,
    hex: bool,
    /// The line, reused for all packets.
    line: String,
}

impl TextExporter {
    pub(super) fn new(arguments: &SniffArguments) -> Self {
        let format = if arguments.relative { TimeFormat::Relative } else { arguments.time };
        let style =
            DescriptionStyle::default().with_link_header(arguments.link).with_port_names(arguments.names);
        Self { clock: TimestampFormatter::new(format), style, hex: arguments.hex, line: String::new() }
    }

    pub(super) fn print_packet(
        &mut self,
        packet: &CapturedPacket<'_>,
        output: &mut impl Write,
    ) -> io::Result<()> {
        let Self { clock, style, hex, line } = self;
        let CapturedPacket { bytes, packet_bytes, .. } = *packet;
        line.clear();
        clock.write_timestamp(packet.time.ns, line);
        line.push(' ');
        CapturedBytes { bytes, packet_bytes }.describe(*style, line);
        line.push('\n');
        if *hex {
            append_hex_dump(bytes, line);
        }
        output.write_all(line.as_bytes())
    }
}

/// Bytes from the link-level header on: offset, pairs of hex digits, and printable characters.
fn append_hex_dump(bytes: &[u8], text: &mut String) {
    for (number, row) in bytes.chunks(BYTES_PER_LINE).enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(text, "\t0x{:04x}: ", number * BYTES_PER_LINE);
        for place in 0..BYTES_PER_LINE {
            let gap = if place % 2 == 0 { " " } else { "" };
            let _ = match row.get(place) {
                Some(byte) => write!(text, "{gap}{byte:02x}"),
                None => write!(text, "{gap}  "),
            };
        }
        text.push_str("  ");
        text.extend(row.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' }));
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_hex_dump_line_up() {
        let bytes: Vec<u8> = (0x38..0x38 + 18).collect();
        let mut text = String::new();
        append_hex_dump(&bytes, &mut text);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "\t0x0000:  3839 3a3b 3c3d 3e3f 4041 4243 4445 4647  89:;<=>?@ABCDEFG");
        assert_eq!(lines[1], "\t0x0010:  4849                                     HI");
        let mut control = String::new();
        append_hex_dump(b"\x1b[2J \n", &mut control);
        assert!(control.ends_with(".[2J..\n"), "{control}");
    }
}
