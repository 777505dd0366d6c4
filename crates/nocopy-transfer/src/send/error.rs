//! Errors of sending, besides those of ports.

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use nocopy::Reason;
use nocopy::metadata::Unsupported;
use nocopy_proto::wire::UdpFrameError;

use super::replay::damage::CaptureError;
use crate::failure::CommandError;
use nocopy_report::input_advice;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(
        "{interface}: frames of {frame_bytes} B are too long; its MTU of {mtu_bytes} B allows {bytes_max}; lower --size or raise the MTU"
    )]
    FrameTooLong { interface: String, mtu_bytes: u32, frame_bytes: u64, bytes_max: usize },
    #[error(
        "--size: frames of {frame_bytes} B are too short; headers and payload need {bytes_min}; raise --size or leave it out"
    )]
    FrameTooShort { frame_bytes: u64, bytes_min: usize },
    #[error("send: cannot make the frame; {0}")]
    Headers(#[from] UdpFrameError),
    #[error(
        "{source_address}, {destination}: cannot be in one packet; one is IPv4, the other IPv6; give two addresses of one kind"
    )]
    Families { source_address: IpAddr, destination: IpAddr },
    #[error(
        "{address}: not an {family} address; -4 or -6 asks for packets of {family}; give another address or leave out that option"
    )]
    Family { address: IpAddr, family: &'static str },
    #[error(
        "--checksum: cannot be left out; IPv6 packets need a UDP checksum (RFC 8200); use --checksum computed or device, or IPv4"
    )]
    NoChecksumOnIpv6,
    #[error("{interface}: cannot compute checksums; {source}; use --checksum computed")]
    DeviceChecksum { interface: String, source: Unsupported },
    #[error("{path}: cannot be read{cause}; {}", input_advice(source), path = path.display(), cause = ErrorCause(.source))]
    PayloadFile { path: PathBuf, source: io::Error },
    #[error("{path}: too long for a datagram; one carries up to {bytes_max} bytes; name a shorter file", path = path.display())]
    LongPayload { path: PathBuf, bytes_max: usize },
    #[error(
        "{option}: not possible with --generator kernel; the kernel sends the same frame again and again; leave it out, or use --generator program"
    )]
    NotByKernel { option: &'static str },
    #[error(
        "{interface}: the kernel refuses to resend the frame{cause}; that needs Linux 5.18, a driver that takes redirected frames, and \
         frames of 14 to some 3,500 bytes; use --generator program", cause = ErrorCause(.source))]
    Generator { interface: String, source: io::Error },
    #[error("{path}: cannot be replayed; {source}", path = path.display())]
    Replay { path: PathBuf, source: CaptureError },
    #[error(
        "{option}: cannot be used with --timing flat-out; it is about the recorded times, which flat-out ignores; leave one out"
    )]
    NotFlatOut { option: &'static str },
    #[error("send: cannot send; {0}")]
    Rejected(#[from] Reason),
    #[error("{0}")]
    Port(#[source] io::Error),
}

impl CommandError for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command checks these before.
    #[test]
    fn rare_errors_print_cause_and_remedy() {
        for (error, expected) in [
            (
                Error::from(UdpFrameError::ChecksumOmittedOnIpv6),
                "send: cannot make the frame; UDP checksum: cannot be omitted; IPv6 needs it (RFC 8200); compute it, or use IPv4",
            ),
            (
                Error::from(Reason::Full),
                "send: cannot send; there is no room; flush, or receive what the peer has sent, and send again",
            ),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }
}
