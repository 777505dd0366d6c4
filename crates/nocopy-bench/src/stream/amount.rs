//! A given amount moved once: how long that takes, into a buffer of a given length.

use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Instant;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};

use super::SOURCE_BYTES;
use super::peer::Peer;
use super::send::Source;
use super::task::{Role, Task};
use super::words::Report;
use crate::cpu;
use crate::stage::Stage;
use crate::window::{Phase, Reading};

/// How much, and how it is received: whole buffers (`MSG_WAITALL`), which nobody looks at.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Amount {
    pub bytes: u64,
    pub buffer_bytes: usize,
    /// `SO_RCVBUF`, as it is given; `None`: the kernel's choice.
    pub receive_buffer_bytes: Option<usize>,
}

/// Its two processes. The receiver is there before any byte is sent, and until it is let go, so that it can be watched.
#[derive(Debug)]
pub struct Transfer {
    receiver: Peer,
    sender: Option<Peer>,
    bytes: u64,
}

impl Transfer {
    /// Starts the receiver.
    pub fn prepare(stage: &Stage, amount: Amount) -> io::Result<Self> {
        let site = &stage.receiver;
        let role = Role::ReceiveAmount { at: site.ipv4, amount };
        let receiver = Peer::start(site, &Task { role, processor: site.processor(0) })?;
        Ok(Self { receiver, sender: None, bytes: amount.bytes })
    }

    /// The receiver's number.
    pub fn receiver_id(&self) -> u32 {
        self.receiver.id()
    }

    /// Starts the sender, and waits until everything has come.
    pub fn run(&mut self, stage: &Stage) -> io::Result<()> {
        let to = self.receiver.address()?;
        let role = Role::SendAmount { to, bytes: self.bytes };
        let site = &stage.sender;
        self.sender = Some(Peer::start(site, &Task { role, processor: site.processor(0) })?);
        self.receiver.wait_until_received()
    }

    /// Lets the receiver go, and says how long it took it.
    pub fn end(mut self) -> io::Result<Reading> {
        self.receiver.tell(Phase::Stop)?;
        let reading = self.receiver.report()?.reading;
        self.sender.as_mut().map(Peer::report).transpose()?;
        match reading.packets == self.bytes {
            true => Ok(reading),
            false => {
                let said = format!("{} bytes were sent, and {} received", self.bytes, reading.packets);
                Err(io::Error::new(io::ErrorKind::InvalidData, said))
            }
        }
    }
}

impl Amount {
    pub fn receive(
        self,
        listener: &TcpListener,
        accept: impl FnOnce() -> io::Result<TcpStream>,
    ) -> io::Result<Report> {
        if let Some(bytes) = self.receive_buffer_bytes {
            // Connections have it from the listener, and the scale of their window by it.
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

/// What is sent, again and again: it lies ready before the connection is made.
pub(super) fn source() -> Source {
    Source::new(SOURCE_BYTES)
}

/// Sends as everybody does.
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
