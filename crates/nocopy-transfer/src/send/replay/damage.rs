//! Errors in a capture file, with packet and byte.

use nocopy_proto::errno::ErrorCause;
use nocopy_report::input_advice;
use std::io::{self, ErrorKind};

use super::framing::link_type_name;

#[derive(Debug, thiserror::Error)]
pub(in crate::send) enum CaptureError {
    #[error("it cannot be read{cause}; {}", input_advice(.0), cause = ErrorCause(.0))]
    Read(#[source] io::Error),
    #[error(
        "no packet was read before the interrupt, so nothing was sent; start the program that writes to it, if it is a pipe"
    )]
    Silence,
    #[error("it cannot be read twice{cause}; leave out --loop, or name a file", cause = ErrorCause(.0))]
    Rewind(#[source] io::Error),
    #[error("it is empty; record it again")]
    Empty,
    #[error("it holds no packets; record it again")]
    NoPackets,
    #[error("it is no capture file (it begins with {}){}", hex_bytes(.0), file_kind_advice(.0))]
    NotACapture(Vec<u8>),
    #[error(
        "it is of version {major} of pcap, and only version 2 is known; convert it with 'editcap -F pcap'"
    )]
    Version { major: u16 },
    #[error(
        "its packets are of link type {_0}{name}, and an Ethernet interface cannot send them; record on an Ethernet interface",
        name = link_type_name(*_0).map(|name| format!(" ({name})")).unwrap_or_default()
    )]
    LinkType(u16),
    #[error(
        "none of its {packets} packets can be sent on an Ethernet interface ({counts}); record on an Ethernet interface"
    )]
    Unsendable { packets: u64, counts: String },
    #[error(
        "it ends inside packet {packet} (byte {byte}), {bytes_missing} bytes short; the program that wrote it was stopped; the packets before are complete ('editcap' can save them)"
    )]
    Truncated { packet: u64, byte: u64, bytes_missing: u64 },
    #[error(
        "packet {packet} (byte {byte}) claims {bytes_claimed} bytes, more than {bytes_max}; the file is damaged there; the packets before are complete ('editcap' can save them)"
    )]
    Claim { packet: u64, byte: u64, bytes_claimed: u64, bytes_max: u64 },
    #[error(
        "packet {packet} (byte {byte}): {what}; the file is damaged there; the packets before are complete ('editcap' can save them)"
    )]
    Corrupt { packet: u64, byte: u64, what: &'static str },
    #[error(
        "packet {packet} (byte {byte} of the decompressed data): its {compression} data {words}; decompress it with '{compression} -dc' to see more",
        words = decompression_problem(.source)
    )]
    Compressed { packet: u64, byte: u64, compression: &'static str, source: io::Error },
}

impl CaptureError {
    /// As many of a file's first bytes as tell what it is.
    pub(super) const BEGIN_BYTES: usize = 8;

    /// For an error while packet `place.0` was read, at byte `place.1`.
    pub(super) fn from_read_error(
        source: io::Error,
        compression: Option<&'static str>,
        (packet, byte): (u64, u64),
    ) -> Self {
        match compression {
            Some(compression)
                if source.kind() != ErrorKind::WouldBlock && source.raw_os_error().is_none() =>
            {
                Self::Compressed { packet, byte, compression, source }
            }
            _ => source.into(),
        }
    }
}

impl From<io::Error> for CaptureError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock => CaptureError::Silence,
            _ => CaptureError::Read(error),
        }
    }
}

/// What is wrong with compressed data.
fn decompression_problem(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::UnexpectedEof => "end too early",
        ErrorKind::FileTooLarge => "need more than 128 MiB of memory (a window)",
        ErrorKind::NotFound => "need a dictionary",
        _ => "are damaged",
    }
}

fn hex_bytes(bytes: &[u8]) -> String {
    let pairs: Vec<_> = bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    pairs.join(" ")
}

/// What to do with a file of another kind.
fn file_kind_advice(begin: &[u8]) -> &'static str {
    match begin {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "; it is compressed with xz; decompress it with 'xz -dc'",
        [b'B', b'Z', b'h', ..] => "; it is compressed with bzip2; decompress it with 'bzip2 -dc'",
        [0x04, 0x22, 0x4d, 0x18, ..] => "; it is compressed with lz4; decompress it with 'lz4 -dc'",
        [b'P', b'K', 3, 4, ..] => "; it is compressed with zip; decompress it with 'unzip'",
        [0x1f, 0x9d, ..] => "; it is compressed with compress; decompress it with 'gzip -dc'",
        [b's', b'n', b'o', b'o', b'p', ..] => "; it is of snoop; convert it with 'editcap -F pcapng'",
        [b'G', b'M', b'B', b'U', ..] | [b'R', b'T', b'S', b'S', ..] => {
            "; it is of Network Monitor; convert it with 'editcap -F pcapng'"
        }
        _ => "; give a pcap or pcapng file, which may be compressed with gzip or zstd",
    }
}
