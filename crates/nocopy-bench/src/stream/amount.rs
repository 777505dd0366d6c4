//! Moves a given amount once, into a buffer of a given length, and measures the time.

use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Instant;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};

use super::messages::Report;
use super::source::{SOURCE_BYTES, Source};
use crate::cpu;
use crate::window::Reading;

/// How much, received in whole buffers (`MSG_WAITALL`) that are not read.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Amount {
    pub bytes: u64,
    pub buffer_bytes: usize,
    /// `SO_RCVBUF`, if set; `None`: the kernel's choice.
    pub receive_buffer_bytes: Option<usize>,
}

impl Amount {
    pub(crate) fn receive(
        self,
        listener: &TcpListener,
        accept: impl FnOnce() -> io::Result<TcpStream>,
    ) -> io::Result<Report> {
        if let Some(bytes) = self.receive_buffer_bytes {
            // Accepted connections inherit the length, and derive the scale of their window from it.
            set_socket_recv_buffer_size(listener, bytes)?;
        }
        let mut buffer = vec![0; self.buffer_bytes];
        let stream = accept()?;
        let (start, cpu_start) = (Instant::now(), cpu::process_time());
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
        let (elapsed, cpu) = (start.elapsed(), cpu::process_time().saturating_sub(cpu_start));
        let reading = Reading { packets: bytes, elapsed, cpu, packets_total: bytes };
        Ok(Report { reading, ..Report::default() })
    }
}

/// The sent bytes, repeatedly; they are prepared before the connection is made.
pub(super) fn source() -> Source {
    Source::new(SOURCE_BYTES)
}

/// Sends by `write_all`, as most programs do.
pub(super) fn send(mut stream: TcpStream, source: &Source, bytes: u64) -> io::Result<Report> {
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
    Ok(Report::default())
}
