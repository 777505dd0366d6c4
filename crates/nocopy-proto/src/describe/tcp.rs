//! TCP.

use std::fmt::{self, Display, Write};

use super::{DescriptionLine, PacketPart, describe_unreadable_header};
use crate::wire::tcp::{self, ParseError, Segment, TcpFlags, TcpOption};

/// The letters of tcpdump, in its order.
const LETTERS: [(TcpFlags, char); 9] = [
    (TcpFlags::FIN, 'F'),
    (TcpFlags::SYN, 'S'),
    (TcpFlags::RST, 'R'),
    (TcpFlags::PSH, 'P'),
    (TcpFlags::ACK, '.'),
    (TcpFlags::URG, 'U'),
    (TcpFlags::ECE, 'E'),
    (TcpFlags::CWR, 'W'),
    (TcpFlags::AE, 'e'),
];

pub(super) fn describe(
    line: &mut DescriptionLine<'_>,
    source: &dyn Display,
    destination: &dyn Display,
    part: PacketPart<'_>,
) -> fmt::Result {
    let segment = match Segment::parse_cut(part.bytes) {
        Ok(segment) => segment,
        Err(error) => {
            write!(line, "{source} > {destination}: TCP, ")?;
            return describe_unreadable_header(
                line,
                "tcp",
                matches!(error, ParseError::TooShort { .. }),
                error,
            );
        }
    };
    let ports = (line.displayed_port(segment.source_port()), line.displayed_port(segment.destination_port()));
    write!(line, "{source}.{} > {destination}.{}: ", ports.0, ports.1)?;
    describe_flags(line, segment.flags())?;
    let Some(payload_bytes) = part.declared_bytes.checked_sub(segment.header_bytes()) else {
        let (header_bytes, room) = (segment.header_bytes(), part.declared_bytes);
        return write!(line, ", [bad tcp: the header says {header_bytes} bytes, the segment has {room}]");
    };
    describe_sequence_numbers(line, &segment, payload_bytes)?;
    describe_options(line, &segment)?;
    write!(line, ", length {payload_bytes}")
}

fn describe_flags(line: &mut DescriptionLine<'_>, flags: TcpFlags) -> fmt::Result {
    line.write_str("Flags [")?;
    let mut none = true;
    for (flag, letter) in LETTERS {
        if flags.contains(flag) {
            line.write_char(letter)?;
            none = false;
        }
    }
    line.write_str(if none { "none]" } else { "]" })
}

/// Absolute numbers: a line knows of no other packet.
fn describe_sequence_numbers(
    line: &mut DescriptionLine<'_>,
    segment: &Segment<'_>,
    payload_bytes: usize,
) -> fmt::Result {
    let (first, flags) = (segment.sequence_number(), segment.flags());
    if payload_bytes > 0 {
        // The sequence wraps around; no IP packet has more than 2^32 bytes.
        write!(line, ", seq {first}:{}", first.wrapping_add(payload_bytes as u32))?;
    } else if [TcpFlags::SYN, TcpFlags::FIN, TcpFlags::RST].into_iter().any(|flag| flags.contains(flag)) {
        write!(line, ", seq {first}")?;
    }
    if flags.contains(TcpFlags::ACK) {
        write!(line, ", ack {}", segment.acknowledgement_number())?;
    }
    write!(line, ", win {}", segment.window())?;
    if flags.contains(TcpFlags::URG) {
        write!(line, ", urg {}", segment.urgent_pointer())?;
    }
    Ok(())
}

fn describe_options(line: &mut DescriptionLine<'_>, segment: &Segment<'_>) -> fmt::Result {
    if segment.header_bytes() == tcp::HEADER_BYTES {
        return Ok(());
    }
    let mut is_cut = tcp::HEADER_BYTES + segment.option_bytes().len() < segment.header_bytes();
    let mut separator = ", options [";
    for option in segment.options() {
        line.write_str(separator)?;
        separator = ",";
        match option {
            Ok(option) => self::describe_option(line, &option)?,
            Err(_) => {
                line.write_str("[|opt]")?;
                is_cut = false; // said
            }
        }
    }
    if is_cut {
        write!(line, "{separator}[|opt]")?;
    }
    line.write_str("]")
}

fn describe_option(line: &mut DescriptionLine<'_>, option: &TcpOption<'_>) -> fmt::Result {
    match option {
        TcpOption::End => line.write_str("eol"),
        TcpOption::NoOperation => line.write_str("nop"),
        TcpOption::MaximumSegmentSize(bytes) => write!(line, "mss {bytes}"),
        TcpOption::WindowScale(shift) => write!(line, "wscale {shift}"),
        TcpOption::SackPermitted => line.write_str("sackOK"),
        TcpOption::Timestamps { value, echo } => write!(line, "TS val {value} ecr {echo}"),
        TcpOption::Sack(blocks) => {
            write!(line, "sack {} ", blocks.iter().len())?;
            blocks.iter().try_for_each(|(first, end)| write!(line, "{{{first}:{end}}}"))
        }
        TcpOption::Other { kind, .. } => write!(line, "opt-{kind}"),
    }
}
