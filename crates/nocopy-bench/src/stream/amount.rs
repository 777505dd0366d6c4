//! Moves a given amount once, into a buffer of a given length, and measures the time.

use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Instant;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};

use super::messages::PeerReport;
use super::source::{SOURCE_BYTES, StreamSource};
use crate::cpu;
use crate::window::WindowReading;

/// How much, received in whole buffers (`MSG_WAITALL`) that are not read.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct TransferAmount {
    pub bytes: u64,
    pub buffer_bytes: usize,
    /// `SO_RCVBUF`, if set; `None`: the kernel's choice.
    pub receive_buffer_bytes: Option<usize>,
}

impl TransferAmount {
    pub(crate) fn receive_amount(
        self,
        listener: &TcpListener,
        accept: impl FnOnce() -> io::Result<TcpStream>,
    ) -> io::Result<PeerReport> {
        if let Some(bytes) = self.receive_buffer_bytes {
            // Accepted connections inherit the length, and derive the scale of their window from it.
            set_socket_recv_buffer_size(listener, bytes)?;
        }
        let mut buffer = vec![0; self.buffer_bytes];
        let stream = accept()?;
        let (start, cpu_start) = (Instant::now(), cpu::process_cpu_time());
        let mut bytes = 0;
        loop {
            let (_, received) = recv(&stream, &mut buffer[..], RecvFlags::WAITALL)?;
            bytes += received as u64;
            // A signal cuts a call short, too.
            let is_short = received < buffer.len();
            if received == 0 || is_short && bytes == self.bytes {
                break;
            }
        }
        let (elapsed, cpu) = (start.elapsed(), cpu::process_cpu_time().saturating_sub(cpu_start));
        let reading = WindowReading { packets: bytes, elapsed, cpu, packets_total: bytes };
        Ok(PeerReport { reading, ..PeerReport::default() })
    }
}

/// The sent bytes, repeatedly; they are prepared before the connection is made.
pub(super) fn new_source() -> StreamSource {
    StreamSource::new(SOURCE_BYTES)
}

/// Sends by `write_all`, as most programs do.
pub(super) fn send_amount(
    mut stream: TcpStream,
    source: &StreamSource,
    bytes: u64,
) -> io::Result<PeerReport> {
    let mut left = bytes;
    for chunk in source.chunks().cycle() {
        let length = usize::try_from(left).map_or(chunk.len(), |left| left.min(chunk.len()));
        if length == 0 {
            break;
        }
        stream.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(PeerReport::default())
}
