//! The control connection to the receiver: probes and reports.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nocopy::integration::{Wakeup, poll};
use rustix::event::{PollFd, PollFlags};

use super::Error;
use crate::control::{ControlConnection, ControlReceiveResult};
use crate::transfer::stream::{ByteCount, ControlState, RunCounts, SenderControl};
use nocopy_report::Interrupt;

/// How long to wait for a report before other checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The most messages received at a time: a receiver that never stops sending must not delay the sender.
const MESSAGES_MAX: u32 = 64;

/// How long to wait for the last report of a receiver that closes its connections.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct ControlSession {
    control: ControlConnection,
    sender_control: SenderControl,
    to: SocketAddr,
    start: Instant,
    is_open: bool,
}

impl ControlSession {
    pub(super) fn new(stream: TcpStream, to: SocketAddr, sender_control: SenderControl) -> io::Result<Self> {
        Ok(Self {
            control: ControlConnection::new(stream)?,
            sender_control,
            to,
            start: Instant::now(),
            is_open: true,
        })
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 // ns of 584 years
    }

    pub(super) fn state(&self) -> ControlState {
        self.sender_control.state(self.now_ns())
    }

    pub(super) fn has_checksums(&self) -> bool {
        self.sender_control.has_checksums()
    }

    pub(super) fn run_counts(&self) -> RunCounts {
        self.sender_control.run_counts()
    }

    /// Waits until the receiver reports. `false`: the user interrupted it.
    pub(super) fn await_receiver(&mut self, interrupt: &Interrupt) -> Result<bool, Error> {
        let to = self.to;
        loop {
            self.exchange_messages(0);
            match self.state() {
                ControlState::Connecting if interrupt.was_interrupted() => return Ok(false),
                ControlState::Connecting => {}
                ControlState::Refused(why) => return Err(Error::Refused { to, why }),
                ControlState::Malformed => {
                    return Err(Error::NoAnswer { to, said: "says what 'nocopy recv' never says" });
                }
                ControlState::Gone => return Err(Error::NoAnswer { to, said: "closes the connection" }),
                ControlState::Silent => return Err(Error::NoAnswer { to, said: "does not answer" }),
                // The receiver may have enough already.
                _ => return Ok(true),
            }
        }
    }

    /// Sends a probe when one is due, and reads reports that arrive within a short time.
    pub(super) fn exchange_messages(&mut self, sent_bytes: u64) {
        self.send_probe(sent_bytes);
        if !self.is_open {
            std::thread::sleep(POLL_INTERVAL);
            return;
        }
        match poll(&mut [PollFd::new(&self.control, PollFlags::IN)], Some(POLL_INTERVAL)) {
            Ok(Wakeup::TimedOut | Wakeup::Interrupted) => {}
            // If poll fails, reading finds the reason.
            _ => self.receive_reports(),
        }
    }

    fn send_probe(&mut self, sent_bytes: u64) {
        let now_ns = self.now_ns();
        if self.control.has_sent_all()
            && let Some(message) = self.sender_control.next_probe(sent_bytes, now_ns)
        {
            self.control.send(&message);
        }
    }

    fn receive_reports(&mut self) {
        let now_ns = self.now_ns();
        for _ in 0..MESSAGES_MAX {
            match self.control.receive() {
                ControlReceiveResult::Message(message) => self.sender_control.handle_message(message, now_ns),
                ControlReceiveResult::Nothing => return,
                ControlReceiveResult::End => {
                    self.sender_control.record_connection_end();
                    self.is_open = false;
                    return;
                }
            }
        }
    }

    /// Waits for the receiver's last report, which may have been in flight when it closed a stream.
    pub(super) fn await_end(&mut self) {
        let start = Instant::now();
        while self.state() == ControlState::Running && start.elapsed() < LAST_REPORT_TIMEOUT {
            self.exchange_messages(0);
        }
    }

    /// Reports that all was sent, and waits until the receiver's counts are known.
    pub(super) fn finish(&mut self, sent: ByteCount, interrupt: &Interrupt) {
        self.sender_control.finish(sent);
        let was_interrupted = interrupt.was_interrupted();
        while self.state() == ControlState::Finishing && (was_interrupted || !interrupt.was_interrupted()) {
            self.exchange_messages(0);
        }
        self.send_probe(0); // with the acknowledgement
    }
}
