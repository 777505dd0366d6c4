//! Errors in a capture file, with packet and byte.

use nocopy_proto::errno::Why;
use nocopy_report::input_advice;
use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Damage {
    #[error("it cannot be read{cause}; {}", input_advice(.0), cause = Why(.0))]
    Read(#[source] io::Error),
    #[error(
        "nothing was read before the interrupt, so nothing was sent; it is a pipe to which no packet was written; start the program that writes to it"
    )]
    Silence,
    #[error("it cannot be read twice{cause}; leave out --loop, or name a file", cause = Why(.0))]
    Rewind(#[source] io::Error),
    #[error("it is empty; record it again")]
    Empty,
    #[error("it holds no packets; record it again")]
    NoPackets,
    #[error("it is no capture file (it begins with {}); give a pcap or pcapng file that is not compressed", hex(.0))]
    NotACapture(Vec<u8>),
    #[error(
        "it is of version {major} of pcap, and only version 2 is known; convert it with 'editcap -F pcap'"
    )]
    Version { major: u16 },
    #[error(
        "packet {packet} (byte {byte}) is of link type {link_type}, not Ethernet (1), and an Ethernet interface cannot send it; record \
         on an Ethernet interface"
    )]
    LinkType { packet: u64, byte: u64, link_type: i64 },
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
        "packet {packet} (byte {byte}) is in a block of the obsolete type 2; convert the file with 'editcap'"
    )]
    Obsolete { packet: u64, byte: u64 },
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock => Damage::Silence,
            _ => Damage::Read(error),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let pairs: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.join(" ")
}
