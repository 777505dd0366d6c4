mod json;
mod text;

use std::io::{self, Write};

use json::JsonExporter;
use text::TextExporter;

use super::source::CapturedPacket;
use crate::arguments::SniffArguments;

/// Changes when a field is removed or changes its meaning.
pub(super) const SCHEMA: &str = "nocopy.sniff/2";

pub(super) enum PacketExporter {
    Text(Box<TextExporter>),
    Json(JsonExporter),
    Nothing,
}

impl PacketExporter {
    pub(super) fn new(arguments: &SniffArguments) -> Self {
        match arguments {
            SniffArguments { quiet: true, .. } => Self::Nothing,
            SniffArguments { json: true, .. } => Self::Json(JsonExporter::new(arguments)),
            _ => Self::Text(Box::new(TextExporter::new(arguments))),
        }
    }

    pub(super) fn print_packet(
        &mut self,
        packet: &CapturedPacket<'_>,
        output: &mut impl Write,
    ) -> io::Result<()> {
        match self {
            Self::Text(text) => text.print_packet(packet, output),
            Self::Json(json) => json.print_packet(packet, output),
            Self::Nothing => Ok(()),
        }
    }
}
