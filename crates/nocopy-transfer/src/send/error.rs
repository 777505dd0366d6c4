//! Errors of sending, besides those of ports.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use nocopy::Reason;
use nocopy::metadata::Unsupported;
use nocopy_proto::wire::UdpFrameError;

use super::replay::damage::Damage;
use crate::Failure;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "frames of {frame_bytes} bytes are too long for {interface}: its MTU of {mtu_bytes} allows {bytes_max}: send less or \
         raise the MTU"
    )]
    FrameTooLong { interface: String, mtu_bytes: u32, frame_bytes: u64, bytes_max: usize },
    #[error(
        "frames of {frame_bytes} bytes are too short: headers and payload need {bytes_min}: raise --size or leave it out"
    )]
    FrameTooShort { frame_bytes: u64, bytes_min: usize },
    #[error("cannot make the frame: {0}")]
    Headers(#[from] UdpFrameError),
    #[error(
        "{source_address} and {destination} are of two families: a packet has one: give both as IPv4 or both as IPv6"
    )]
    Families { source_address: IpAddr, destination: IpAddr },
    #[error(
        "{address} is no {family} address: the packets are {family}: give another address or leave out the option -4 or -6"
    )]
    Family { address: IpAddr, family: &'static str },
    #[error("IPv6 packets need a UDP checksum (RFC 8200): use --checksum computed or device, or IPv4")]
    NoChecksumOnIpv6,
    #[error("cannot leave checksums to {interface}: {source}: use --checksum computed")]
    DeviceChecksum { interface: String, source: Unsupported },
    #[error("cannot read {path}: {source}: name a file that exists and may be read", path = path.display())]
    PayloadFile { path: PathBuf, source: io::Error },
    #[error("{path} has more than the {bytes_max} bytes a datagram carries: name a shorter file", path = path.display())]
    LongPayload { path: PathBuf, bytes_max: usize },
    #[error(
        "the kernel's generator cannot do {option}: it resends one frame as it is: leave it out, or use --generator program"
    )]
    NotByKernel { option: &'static str },
    #[error(
        "{interface}: the kernel does not resend the frame: {source}: it needs Linux 5.18, a driver that takes redirected frames, and \
         frames of 14 to some 3,500 bytes; use --generator program"
    )]
    Generator { interface: String, source: io::Error },
    #[error("cannot replay {path}: {source}", path = path.display())]
    Replay { path: PathBuf, source: Damage },
    #[error(
        "--speed makes the recorded times shorter or longer: with --timing flat-out there are none: leave one out"
    )]
    SpeedOfFlatOut,
    #[error("cannot send: {0}")]
    Rejected(#[from] Reason),
    /// An error of a port.
    #[error("{0}")]
    Port(#[source] io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Command(Box::new(error))
    }
}
