//! The ways to receive a stream.

use std::io::{self, Read};
use std::net::TcpStream;

use nocopy::tcp::ReceiveMethod;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};

use super::messages::PeerReport;
use super::meter::StreamMeter;
use super::{asynchronous, ours};
use crate::asynchronous::AsyncLibrary;
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
    /// By `copy_buf` of tokio, into a sink that does not read the bytes.
    CopyBuf(AsyncLibrary),
}

impl ReceiveMode {
    /// The length of the buffer, if it is fixed.
    pub(crate) fn buffer_bytes(self) -> Option<usize> {
        match self {
            Self::Unread { buffer_bytes } | Self::Recv { buffer_bytes } => Some(buffer_bytes),
            Self::CopyBuf(AsyncLibrary::Tokio) => Some(asynchronous::BUFFER_BYTES),
            Self::Discard | Self::Auto | Self::Mapped | Self::CopyBuf(AsyncLibrary::Nocopy) => None,
        }
    }
}

pub(super) fn receive_stream(
    mut stream: TcpStream,
    mode: ReceiveMode,
    mut meter: StreamMeter<'_>,
) -> io::Result<PeerReport> {
    match mode {
        ReceiveMode::Unread { buffer_bytes } => {
            receive_by_read(&mut stream, buffer_bytes, &mut meter, |_| ())?
        }
        ReceiveMode::Recv { buffer_bytes } => {
            receive_by_read(&mut stream, buffer_bytes, &mut meter, frame::read_every_byte)?
        }
        ReceiveMode::Discard => discard_stream(&stream, &mut meter)?,
        ReceiveMode::Auto => return ours::receive_chunks(stream, None, meter),
        ReceiveMode::Mapped => return ours::receive_chunks(stream, Some(ReceiveMethod::Mapped), meter),
        ReceiveMode::CopyBuf(library) => return asynchronous::receive_by_copy_buf(stream, library, meter),
    }
    let evidence = Some(Evidence::copied(SOCKET_CAUSE));
    Ok(PeerReport { reading: meter.finish(), evidence, ..PeerReport::default() })
}

fn receive_by_read(
    stream: &mut TcpStream,
    buffer_bytes: usize,
    meter: &mut StreamMeter<'_>,
    inspect: impl Fn(&[u8]),
) -> io::Result<()> {
    let mut buffer = vec![0; buffer_bytes];
    loop {
        let received = stream.read(&mut buffer)?;
        if received == 0 {
            return Ok(());
        }
        inspect(&buffer[..received]);
        meter.count_bytes(received)?;
    }
}

fn discard_stream(stream: &TcpStream, meter: &mut StreamMeter<'_>) -> io::Result<()> {
    // Never written to: with MSG_TRUNC, TCP only uses the length.
    let mut buffer = vec![0; DISCARD_BYTES];
    loop {
        let (_, received) = recv(stream, &mut buffer[..], RecvFlags::TRUNC)?;
        if received == 0 {
            return Ok(());
        }
        meter.count_bytes(received)?;
    }
}
