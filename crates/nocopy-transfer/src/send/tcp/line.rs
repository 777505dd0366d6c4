//! What is said to the receiver, and by it.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nocopy::integration::{Wakeup, poll};
use rustix::event::{PollFd, PollFlags};

use super::Error;
use crate::control::{Control, Heard};
use crate::transfer::stream::{Asking, Count, Findings, Standing};
use nocopy_report::Interrupt;

/// How long to wait for an answer before looking around.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The most that is heard at a time: who never stops talking is not to be all that is heard.
const MESSAGES_MAX: u32 = 64;

/// How long the last word of a receiver that closes its connections may take.
const LAST_WORD: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Line {
    control: Control,
    asking: Asking,
    to: SocketAddr,
    start: Instant,
    is_open: bool,
}

impl Line {
    pub(super) fn new(stream: TcpStream, to: SocketAddr, asking: Asking) -> io::Result<Self> {
        Ok(Self { control: Control::new(stream)?, asking, to, start: Instant::now(), is_open: true })
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 // ns of 584 years
    }

    pub(super) fn standing(&self) -> Standing {
        self.asking.standing(self.now_ns())
    }

    pub(super) fn has_checksums(&self) -> bool {
        self.asking.has_checksums()
    }

    pub(super) fn findings(&self) -> Findings {
        self.asking.findings()
    }

    /// Waits until the receiver answers. `false`: the user has had enough of that.
    pub(super) fn begin(&mut self, interrupt: &Interrupt) -> Result<bool, Error> {
        let to = self.to;
        loop {
            self.talk(0);
            match self.standing() {
                Standing::Connecting if interrupt.came() => return Ok(false),
                Standing::Connecting => {}
                Standing::Refused(why) => return Err(Error::Refused { to, why }),
                Standing::Nonsense => {
                    return Err(Error::NoAnswer { to, said: "says what 'nocopy recv' never says" });
                }
                Standing::Gone => return Err(Error::NoAnswer { to, said: "closes the connection" }),
                Standing::Silent => return Err(Error::NoAnswer { to, said: "does not answer" }),
                // Perhaps that it has enough already.
                _ => return Ok(true),
            }
        }
    }

    /// Says what is to be said, and takes what comes within a moment.
    pub(super) fn talk(&mut self, sent_bytes: u64) {
        self.speak(sent_bytes);
        if !self.is_open {
            std::thread::sleep(LOOK_INTERVAL);
            return;
        }
        match poll(&mut [PollFd::new(&self.control, PollFlags::IN)], Some(LOOK_INTERVAL)) {
            Ok(Wakeup::TimedOut | Wakeup::Interrupted) => {}
            // What poll refuses, reading would tell better.
            _ => self.listen(),
        }
    }

    fn speak(&mut self, sent_bytes: u64) {
        let now_ns = self.now_ns();
        if self.control.is_clear()
            && let Some(message) = self.asking.ask(sent_bytes, now_ns)
        {
            self.control.say(&message);
        }
    }

    fn listen(&mut self) {
        let now_ns = self.now_ns();
        for _ in 0..MESSAGES_MAX {
            match self.control.hear() {
                Heard::Message(message) => self.asking.handle(message, now_ns),
                Heard::Nothing => return,
                Heard::End => {
                    self.asking.end();
                    self.is_open = false;
                    return;
                }
            }
        }
    }

    /// Listens to the receiver's last word, which may have been on its way when it closed a stream.
    pub(super) fn hear_out(&mut self) {
        let start = Instant::now();
        while self.standing() == Standing::Running && start.elapsed() < LAST_WORD {
            self.talk(0);
        }
    }

    /// Tells that all was sent, and waits until it is known what arrived.
    pub(super) fn finish(&mut self, sent: Count, interrupt: &Interrupt) {
        self.asking.finish(sent);
        let was_interrupted = interrupt.came();
        while self.standing() == Standing::Finishing && (was_interrupted || !interrupt.came()) {
            self.talk(0);
        }
        self.speak(0); // with thanks
    }
}
