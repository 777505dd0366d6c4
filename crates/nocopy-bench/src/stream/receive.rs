//! The ways to receive a stream.

use std::io::{self, Read};
use std::net::TcpStream;

use nocopy::tcp::ReceiveMethod;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};

use super::messages::Report;
use super::meter::Meter;
use super::ours;
use crate::frame;
use nocopy_report::result::Evidence;

const SOCKET_CAUSE: &str = "socket call: the kernel copies what is received";

const DISCARD_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReceiveMode {
    /// `recv()` into a reused buffer that is not read.
    Unread {
        buffer_bytes: usize,
    },
    /// `recv()` into a reused buffer, of which every byte is read.
    Recv {
        buffer_bytes: usize,
    },
    /// `recv()` that copies nothing: the kernel drops the bytes.
    Discard,
    /// The library's chunks, by the method that measures best or by mapping pages; every byte is read.
    Auto,
    Mapped,
}

impl ReceiveMode {
    /// The length of the buffer, if it is fixed.
    pub(crate) fn buffer_bytes(self) -> Option<usize> {
        match self {
            Self::Unread { buffer_bytes } | Self::Recv { buffer_bytes } => Some(buffer_bytes),
            Self::Discard | Self::Auto | Self::Mapped => None,
        }
    }
}

pub(super) fn run(mut stream: TcpStream, mode: ReceiveMode, mut meter: Meter<'_>) -> io::Result<Report> {
    match mode {
        ReceiveMode::Unread { buffer_bytes } => by_hand(&mut stream, buffer_bytes, &mut meter, |_| ())?,
        ReceiveMode::Recv { buffer_bytes } => by_hand(&mut stream, buffer_bytes, &mut meter, frame::read)?,
        ReceiveMode::Discard => discard(&stream, &mut meter)?,
        ReceiveMode::Auto => return ours::receive(stream, None, meter),
        ReceiveMode::Mapped => return ours::receive(stream, Some(ReceiveMethod::Mapped), meter),
    }
    let evidence = Some(Evidence::copied(SOCKET_CAUSE));
    Ok(Report { reading: meter.finish(), evidence, ..Report::default() })
}

fn by_hand(
    stream: &mut TcpStream,
    buffer_bytes: usize,
    meter: &mut Meter<'_>,
    inspect: impl Fn(&[u8]),
) -> io::Result<()> {
    let mut buffer = vec![0; buffer_bytes];
    loop {
        let received = stream.read(&mut buffer)?;
        if received == 0 {
            return Ok(());
        }
        inspect(&buffer[..received]);
        meter.count(received)?;
    }
}

fn discard(stream: &TcpStream, meter: &mut Meter<'_>) -> io::Result<()> {
    // Never written to: with MSG_TRUNC, TCP only uses the length.
    let mut buffer = vec![0; DISCARD_BYTES];
    loop {
        let (_, received) = recv(stream, &mut buffer[..], RecvFlags::TRUNC)?;
        if received == 0 {
            return Ok(());
        }
        meter.count(received)?;
    }
}
