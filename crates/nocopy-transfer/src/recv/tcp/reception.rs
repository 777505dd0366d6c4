//! One run: from the first connection to the last message.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use nocopy::integration::{Wakeup, poll};
use rustix::event::{PollFd, PollFlags};

use super::Error;
use super::acceptor::{Acceptor, FirstMessage};
use super::disk::Disk;
use super::reader;
use super::sink::Sink;
use super::summary::Summary;
use super::worker::{EndReason, Progress, Worker, WorkerEnd};
use crate::arguments::RecvArguments;
use crate::control::{Control, Incoming};
use crate::recv::IDLE;
use crate::streams::LiveBytes;
use crate::transfer::stream::{Count, Head, Message, ReceiverControl, Refusal, StreamRanges, refuse};
use crate::{Failure, processor};
use nocopy_report::{CommandEnd, Interrupt};

/// The longest wait for the sender's messages: after it the live line is updated, and the user may interrupt.
const WAIT: Duration = Duration::from_millis(10);

/// The most messages received at a time: a peer that never stops sending must not delay others.
const MESSAGES_MAX: u32 = 64;

pub(super) struct Reception<'a> {
    arguments: &'a RecvArguments,
    acceptor: Acceptor,
    sink: Option<&'a Sink>,
    interrupt: Interrupt,
    start: Instant,
    progress: Arc<Progress>,
    /// When bytes last arrived, and how many had arrived then.
    last_progress: (Instant, u64),
}

struct Run<'scope> {
    from: SocketAddr,
    /// `None` with `--raw`.
    session: Option<Session>,
    /// Streams that are not read yet: without offsets, only the next one is read.
    waiting: Vec<(TcpStream, Head)>,
    running: Vec<RunningStream<'scope>>,
    ends: Vec<WorkerEnd>,
    started: processor::StartTime,
}

struct RunningStream<'scope> {
    /// For checks; the worker reads it.
    stream: TcpStream,
    worker: ScopedJoinHandle<'scope, WorkerEnd>,
}

struct Session {
    control: Control,
    receiver_control: ReceiverControl,
    ranges: StreamRanges,
}

impl<'a> Reception<'a> {
    pub(super) fn new(
        arguments: &'a RecvArguments,
        listener: TcpListener,
        sink: Option<&'a Sink>,
        interrupt: Interrupt,
    ) -> Self {
        let acceptor = Acceptor::new(listener, arguments.idle.unwrap_or(IDLE));
        let start = Instant::now();
        Self {
            arguments,
            acceptor,
            sink,
            interrupt,
            start,
            progress: Arc::default(),
            last_progress: (start, 0),
        }
    }

    /// Receives; returns the summary, and the error if any.
    pub(super) fn run(mut self, address: SocketAddr) -> Result<(Summary, Option<Failure>), Failure> {
        thread::scope(|scope| {
            let mut run = None;
            let received = self.receive(scope, &mut run);
            self.progress.stop.store(true, Ordering::Relaxed); // also after a failure
            let ended = received?;
            let foreign = self.acceptor.foreign();
            let output = self.sink.map(Sink::words);
            let Some(mut run) = run else {
                return Ok((Summary::without_sender(address, ended, foreign, output), None));
            };
            run.ends.sort_by_key(|end| end.number);
            let failure = run.ends.iter_mut().find_map(|end| {
                match std::mem::replace(&mut end.reason, EndReason::Stopped) {
                    EndReason::Failed(failure) => Some(failure),
                    why => {
                        end.reason = why;
                        None
                    }
                }
            });
            let run_counts = run.session.as_ref().map(|session| session.receiver_control.run_counts());
            let summary = Summary::of_run(address, run.from, ended, &run.ends, (foreign, output))
                .with_run_counts(run_counts, run.has_checksums())
                .with_processor_use(run.started);
            Ok((summary, failure))
        })
    }

    fn receive<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        run: &mut Option<Run<'scope>>,
    ) -> Result<CommandEnd, Error>
    where
        'a: 'scope,
    {
        let mut live = LiveBytes::new("");
        let (mut ended, mut disk) = (None, Disk::default());
        loop {
            self.wait(run.as_ref())?;
            let was_alone = run.is_none();
            self.accept(run);
            if was_alone && run.is_some() {
                // Silence counts from the first connection.
                self.last_progress = (Instant::now(), 0);
            }
            let now_ns = self.start.elapsed().as_nanos() as u64; // ns of 584 years
            let Some(run) = run else {
                if let Some(ended) = self.end_requested() {
                    return Ok(ended);
                }
                continue;
            };
            run.receive_probes(now_ns);
            if ended.is_none() {
                self.start_streams(scope, run);
                ended = self.reason_to_end(run, now_ns);
            }
            run.join_finished();
            if let Some(ended) = ended {
                // When it ends, the receiver does not wait for its streams.
                self.progress.stop.store(true, Ordering::Relaxed);
                if run.running.is_empty() {
                    match disk.is_synced(scope, self.sink, ended) {
                        // The sender gets no last report: that would say that all is well.
                        Err(failure) => {
                            run.fail(failure);
                            return Ok(CommandEnd::Failed);
                        }
                        Ok(true) => {
                            run.close(matches!(ended, CommandEnd::Done | CommandEnd::Timeout), now_ns);
                            run.send_report(0);
                            if run.is_over(now_ns) {
                                return Ok(ended);
                            }
                            continue;
                        }
                        Ok(false) => {}
                    }
                }
            }
            let bytes = self.progress.bytes.load(Ordering::Relaxed);
            run.send_report(bytes);
            live.update(bytes);
        }
    }

    fn wait(&self, run: Option<&Run>) -> Result<(), Error> {
        let session =
            run.and_then(|run| run.session.as_ref()).filter(|session| !session.receiver_control.is_over(0));
        let control = session.map(|session| session.control.as_fd());
        let mut descriptors: Vec<_> = self
            .acceptor
            .descriptors()
            .chain(control)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        poll(&mut descriptors, Some(WAIT)).map(drop).map_err(Error::Wait)
    }

    /// Accepts new connections, and reads what each is for.
    fn accept(&mut self, run: &mut Option<Run>) {
        let may_send = |from| self.arguments.may_send(from);
        if self.arguments.raw {
            for (stream, from) in self.acceptor.accept(may_send) {
                match run {
                    None => *run = Some(Run::raw(stream, from)),
                    Some(_) => self.acceptor.count_foreign(),
                }
            }
            return;
        }
        self.acceptor.accept_waiting(may_send);
        for first in self.acceptor.first_messages() {
            let is_ours = match first.message {
                Message::Probe(_) => self.begin(run, first),
                Message::Head(head) => run.as_mut().is_some_and(|run| run.claim_stream(&head, first.control)),
                Message::Report(_) => false,
            };
            if !is_ours {
                self.acceptor.count_foreign();
            }
        }
    }

    /// Begins the run with the first sender that sends a probe; refuses others.
    fn begin(&self, run: &mut Option<Run>, first: FirstMessage) -> bool {
        let FirstMessage { mut control, from, message } = first;
        let Message::Probe(probe) = message else { return false };
        let has_no_ranges = self.sink.is_some() && probe.streams > 1 && probe.total.is_none();
        let why = match run {
            Some(_) => Refusal::Busy,
            None if has_no_ranges => Refusal::NoRanges,
            None => {
                let now_ns = self.start.elapsed().as_nanos() as u64;
                let idle = self.arguments.idle.unwrap_or(IDLE);
                let receiver_control = ReceiverControl::new(&probe, self.arguments.verify, idle, now_ns);
                let ranges = StreamRanges::new(probe.run, probe.streams, probe.total);
                *run = Some(Run::new(from, Session { control, receiver_control, ranges }));
                return true;
            }
        };
        control.send(&refuse(&probe, why));
        false
    }

    /// Reads the waiting streams: all, or without offsets, the next one.
    fn start_streams<'scope>(&self, scope: &'scope Scope<'scope, '_>, run: &mut Run<'scope>)
    where
        'a: 'scope,
    {
        let in_order = self.sink.is_some_and(|sink| !sink.has_places());
        let next = (run.running.len() + run.ends.len()) as u32;
        let is_ready = |head: &Head| !in_order || head.number == next && run.running.is_empty();
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut run.waiting).into_iter().partition(|(_, head)| is_ready(head));
        run.waiting = waiting;
        for (stream, head) in ready {
            let Head { number, offset, length, .. } = head;
            let count = Count::empty(run.has_checksums());
            let begin = || {
                let own = reader::open(stream.try_clone()?, self.arguments.stream.receive.0)?;
                let worker = Worker { number, stream: own, offset, length, count, sink: self.sink };
                let (start, progress) = (self.start, Arc::clone(&self.progress));
                let worker =
                    thread::Builder::new().spawn_scoped(scope, move || worker.run(start, &progress))?;
                Ok(RunningStream { stream, worker })
            };
            match begin() {
                Ok(running) => run.running.push(running),
                Err(source) => {
                    let failure = Error::Prepare { from: run.from, source }.into();
                    run.ends.push(WorkerEnd::of_nothing(number, offset, count, failure));
                }
            }
        }
    }

    fn end_requested(&self) -> Option<CommandEnd> {
        if self.interrupt.was_interrupted() {
            return Some(CommandEnd::Interrupted);
        }
        let is_late = self.arguments.duration.is_some_and(|duration| self.start.elapsed() >= duration);
        is_late.then_some(CommandEnd::Duration)
    }

    fn reason_to_end(&mut self, run: &Run, now_ns: u64) -> Option<CommandEnd> {
        if run.ends.iter().any(|end| matches!(end.reason, EndReason::Failed(_))) {
            return Some(CommandEnd::Failed);
        }
        if let Some(asked) = self.end_requested() {
            return Some(asked);
        }
        let bytes = self.progress.bytes.load(Ordering::Relaxed);
        if bytes != self.last_progress.1 || self.progress.writing.load(Ordering::Relaxed) > 0 {
            self.last_progress = (Instant::now(), bytes);
        }
        // Unread data means that the sender was not silent: this process itself may have been stopped.
        let is_silent_for = |time| self.last_progress.0.elapsed() > time && !run.has_unread();
        // After the streams, or their remaining parts, have ended.
        let is_read = run.running.is_empty() && run.waiting.is_empty();
        let Some(session) = &run.session else {
            return match run.ends.first().map(|end| &end.reason) {
                Some(EndReason::End) => Some(CommandEnd::Done),
                Some(_) => Some(CommandEnd::Disconnected),
                None => self.arguments.idle.is_some_and(is_silent_for).then_some(CommandEnd::Timeout),
            };
        };
        let is_stalled = is_silent_for(self.arguments.idle.unwrap_or(IDLE));
        let Session { receiver_control, ranges, .. } = session;
        if run.ends.iter().any(|end| matches!(end.reason, EndReason::TooMuch)) {
            Some(CommandEnd::Disconnected)
        } else if is_read && receiver_control.is_all_sent() && ranges.are_all_claimed() {
            Some(CommandEnd::Done)
        } else if receiver_control.has_disconnected() {
            (is_read || is_stalled).then_some(CommandEnd::Disconnected)
        } else {
            (receiver_control.is_silent(now_ns) || receiver_control.is_all_sent() && is_stalled)
                .then_some(CommandEnd::Timeout)
        }
    }
}

impl<'scope> Run<'scope> {
    fn new(from: SocketAddr, session: impl Into<Option<Session>>) -> Self {
        let session = session.into();
        let started = processor::StartTime::now();
        Self { from, session, waiting: Vec::new(), running: Vec::new(), ends: Vec::new(), started }
    }

    fn raw(stream: TcpStream, from: SocketAddr) -> Self {
        let mut run = Self::new(from, None);
        let head = Head { run: 0, number: 0, streams: 1, offset: 0, length: None };
        run.waiting.push((stream, head));
        run
    }

    fn has_checksums(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.receiver_control.has_checksums())
    }

    /// Takes a connection as a stream of this run; false if it is not one.
    fn claim_stream(&mut self, head: &Head, control: Control) -> bool {
        let taken = self.session.as_mut().is_some_and(|session| session.ranges.claim(head));
        self.waiting.extend(taken.then(|| (control.into_stream(), *head)));
        taken
    }

    fn receive_probes(&mut self, now_ns: u64) {
        let Some(Session { control, receiver_control, .. }) = &mut self.session else { return };
        for _ in 0..MESSAGES_MAX {
            match control.receive() {
                _ if receiver_control.is_over(now_ns) => return,
                Incoming::Message(message) => receiver_control.handle(message, now_ns),
                Incoming::Nothing => return,
                Incoming::End => receiver_control.end(),
            }
        }
    }

    fn send_report(&mut self, received_bytes: u64) {
        let Some(Session { control, receiver_control, .. }) = &mut self.session else { return };
        if control.is_clear()
            && let Some(message) = receiver_control.report(received_bytes)
        {
            control.send(&message);
        }
    }

    /// Whether bytes, or the end, of a stream being read are in its socket.
    fn has_unread(&self) -> bool {
        let streams = self.running.iter().map(|reading| PollFd::new(&reading.stream, PollFlags::IN));
        let polled = poll(&mut streams.collect::<Vec<_>>(), Some(Duration::ZERO));
        polled.is_ok_and(|wakeup| wakeup == Wakeup::Ready)
    }

    fn join_finished(&mut self) {
        let (ended, running): (Vec<_>, Vec<_>) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(|reading: &RunningStream| reading.worker.is_finished());
        self.running = running;
        for RunningStream { worker, .. } in ended {
            match worker.join() {
                Ok(end) => self.ends.push(end),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    }

    /// Notes a failure that concerns all streams.
    fn fail(&mut self, failure: Failure) {
        match self.ends.first_mut() {
            Some(end) => end.reason = EndReason::Failed(failure),
            None => self.ends.push(WorkerEnd::of_nothing(0, 0, Count::empty(false), failure)),
        }
    }

    /// Sends the last message, once.
    fn close(&mut self, is_whole: bool, now_ns: u64) {
        self.ends.sort_by_key(|end| end.number);
        let count = self.ends.iter().map(|end| end.count).reduce(Count::then);
        let nothing = Count::empty(self.has_checksums());
        if let Some(session) = &mut self.session {
            // A sender that disconnected early has not reported what is missing; no end was requested.
            let is_whole = is_whole
                || session.receiver_control.has_disconnected()
                || session.receiver_control.is_silent(now_ns);
            session.receiver_control.close(count.unwrap_or(nothing), is_whole, now_ns);
        }
    }

    fn is_over(&mut self, now_ns: u64) -> bool {
        self.session.as_ref().is_none_or(|session| session.receiver_control.is_over(now_ns))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::net::Shutdown;
    use std::sync::mpsc;

    use super::*;

    /// Also while the stream's thread does not run.
    #[test]
    fn bytes_in_a_socket_count_as_unread() {
        for is_end in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, from) = listener.accept().unwrap();
            thread::scope(|scope| {
                let (go_on, held) = mpsc::channel::<()>();
                let worker = scope.spawn(move || {
                    let _ = held.recv();
                    let failure = nocopy_report::Failure::Print(io::ErrorKind::Other.into()).into();
                    WorkerEnd::of_nothing(0, 0, Count::empty(false), failure)
                });
                let mut run = Run::new(from, None);
                run.running.push(RunningStream { stream, worker });
                assert!(!run.has_unread());
                match is_end {
                    true => sender.shutdown(Shutdown::Write).unwrap(),
                    false => sender.write_all(b"a").unwrap(),
                }
                let start = Instant::now();
                while !run.has_unread() {
                    assert!(start.elapsed() < Duration::from_secs(60));
                    thread::yield_now();
                }
                drop(go_on);
            });
        }
    }
}
