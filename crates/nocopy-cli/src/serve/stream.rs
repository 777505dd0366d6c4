//! TCP connections: what comes goes back, byte for byte.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::summary::Served;
use crate::exchange::{PATIENCE, SPIN, Waiting};
use crate::interrupt::Interrupt;

/// Connections at a time; more are closed at once.
const CONNECTIONS_MAX: usize = 256;

/// What is kept at most for a peer that sends and does not read: more than the longest message, so that who sends one before it
/// reads has it back.
const KEPT_BYTES_MAX: usize = (16 << 20) + BUFFER_BYTES;

const BUFFER_BYTES: usize = 64 << 10;

pub(super) fn serve(
    listener: &TcpListener,
    waiting: Waiting,
    interrupt: &Interrupt,
    served: &mut Served,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let bytes = AtomicU64::new(0);
    let (mut connections, mut refused) = (0, 0);
    let done = thread::scope(|scope| {
        let mut open: Vec<thread::ScopedJoinHandle<'_, ()>> = Vec::new();
        while !interrupt.came() {
            wait(&[PollFd::new(listener, PollFlags::IN)])?;
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Whatever is wrong with one connection, the next may be sound.
                    if is_lasting(&error) {
                        thread::sleep(PATIENCE);
                    }
                    continue;
                }
            };
            open.retain(|thread| !thread.is_finished());
            if open.len() == CONNECTIONS_MAX {
                refused += 1;
                continue;
            }
            connections += 1;
            let bytes = &bytes;
            open.push(scope.spawn(move || {
                // However it ends, it ends for its peer alone.
                let _ = Echo::new(stream).and_then(|mut echo| echo.run(waiting, interrupt, bytes));
            }));
        }
        Ok(())
    });
    served.connections = Some(connections);
    served.refused += refused;
    served.bytes = bytes.into_inner();
    done
}

/// Whether it is wrong with us, for a while, as when there are no more descriptors: the connection waits and wakes us at once again.
fn is_lasting(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}

/// Until one of them is ready, or it is time to look whether all is over.
fn wait(descriptors: &[PollFd<'_>]) -> io::Result<()> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: PATIENCE.as_nanos() as i64 };
    match poll(&mut descriptors.to_vec(), Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// One connection.
struct Echo {
    stream: TcpStream,
    /// Came, and did not go back yet.
    kept: VecDeque<u8>,
    /// The peer sends no more.
    is_ended: bool,
}

impl Echo {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, kept: VecDeque::new(), is_ended: false })
    }

    fn run(&mut self, waiting: Waiting, interrupt: &Interrupt, bytes: &AtomicU64) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut idle_since: Option<Instant> = None;
        let is_over = |echo: &Self| echo.is_ended && echo.kept.is_empty();
        while !interrupt.came() && !is_over(self) {
            let moved = self.read(&mut buffer)? + self.write_kept()?;
            if moved > 0 {
                // Relaxed: it is read when all threads have ended.
                bytes.fetch_add(moved as u64, Ordering::Relaxed);
                idle_since = None;
                continue;
            }
            let idle_since = idle_since.get_or_insert_with(Instant::now);
            match waiting {
                Waiting::Spinning => {}
                Waiting::Adaptive if idle_since.elapsed() < SPIN => {}
                Waiting::Blocking | Waiting::Adaptive => self.wait()?,
            }
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, self.has_room());
        wanted.set(PollFlags::OUT, !self.kept.is_empty());
        wait(&[PollFd::new(&self.stream, wanted)])
    }

    fn has_room(&self) -> bool {
        !self.is_ended && self.kept.len() + BUFFER_BYTES <= KEPT_BYTES_MAX
    }

    /// Reads, and writes it back as far as that goes at once. How many bytes went back.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.has_room() {
            return Ok(0);
        }
        let Some(read) = unless_full(self.stream.read(buffer))? else { return Ok(0) };
        self.is_ended = read == 0;
        let mut written = 0;
        if self.kept.is_empty() && read > 0 {
            written = unless_full(self.stream.write(&buffer[..read]))?.unwrap_or(0);
        }
        self.kept.extend(&buffer[written..read]);
        Ok(written)
    }

    fn write_kept(&mut self) -> io::Result<usize> {
        let (first, _) = self.kept.as_slices();
        if first.is_empty() {
            return Ok(0);
        }
        let written = unless_full(self.stream.write(first))?.unwrap_or(0);
        self.kept.drain(..written);
        Ok(written)
    }
}

fn unless_full<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
