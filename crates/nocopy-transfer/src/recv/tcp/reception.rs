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
use super::disk::DiskSync;
use super::reader;
use super::sink::SharedOutput;
use super::summary::Summary;
use super::worker::{SharedProgress, StreamEndReason, Worker, WorkerResult};
use crate::arguments::RecvArguments;
use crate::control::{ControlConnection, ControlReceiveResult};
use crate::recv::IDLE;
use crate::streams::LiveBytes;
use crate::transfer::stream::{
    ByteCount, ControlMessage, ReceiverControl, Refusal, StreamHead, StreamRanges, refusal_message,
};
use crate::{Failure, processor};
use nocopy_report::{CommandEnd, Interrupt};

/// The longest wait for the sender's messages: after it the live line is updated, and the user may interrupt.
const WAIT: Duration = Duration::from_millis(10);

/// The most messages received at a time: a peer that never stops sending must not delay others.
const MESSAGES_MAX: u32 = 64;

pub(super) struct TcpReceiveCommand<'a> {
    arguments: &'a RecvArguments,
    acceptor: Acceptor,
    sink: Option<&'a SharedOutput>,
    interrupt: Interrupt,
    start: Instant,
    progress: Arc<SharedProgress>,
    /// When bytes last arrived, and how many had arrived then.
    last_progress: (Instant, u64),
}

struct TransferRun<'scope> {
    from: SocketAddr,
    /// `None` with `--raw`.
    session: Option<ControlSession>,
    /// Streams that are not read yet: without offsets, only the next one is read.
    waiting: Vec<(TcpStream, StreamHead)>,
    running: Vec<RunningStream<'scope>>,
    ends: Vec<WorkerResult>,
    started: processor::ProcessorTimeSnapshot,
}

struct RunningStream<'scope> {
    /// For checks; the worker reads it.
    stream: TcpStream,
    worker: ScopedJoinHandle<'scope, WorkerResult>,
}

struct ControlSession {
    control: ControlConnection,
    receiver_control: ReceiverControl,
    ranges: StreamRanges,
}

impl<'a> TcpReceiveCommand<'a> {
    pub(super) fn new(
        arguments: &'a RecvArguments,
        listener: TcpListener,
        sink: Option<&'a SharedOutput>,
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
            let foreign = self.acceptor.foreign_connections();
            let output = self.sink.map(SharedOutput::description);
            let Some(mut run) = run else {
                return Ok((Summary::without_sender(address, ended, foreign, output), None));
            };
            run.ends.sort_by_key(|end| end.number);
            let failure = run.ends.iter_mut().find_map(|end| {
                match std::mem::replace(&mut end.reason, StreamEndReason::Stopped) {
                    StreamEndReason::Failed(failure) => Some(failure),
                    why => {
                        end.reason = why;
                        None
                    }
                }
            });
            let run_counts = run.session.as_ref().map(|session| session.receiver_control.run_counts());
            let summary = Summary::from_run(address, run.from, ended, &run.ends, (foreign, output))
                .with_run_counts(run_counts, run.has_checksums())
                .with_processor_use(run.started);
            Ok((summary, failure))
        })
    }

    fn receive<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        run: &mut Option<TransferRun<'scope>>,
    ) -> Result<CommandEnd, Error>
    where
        'a: 'scope,
    {
        let mut live = LiveBytes::new("");
        let (mut ended, mut disk) = (None, DiskSync::default());
        loop {
            self.wait_for_input(run.as_ref())?;
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
                    match disk.start_or_check_sync(scope, self.sink, ended) {
                        // The sender gets no last report: that would say that all is well.
                        Err(failure) => {
                            run.record_failure(failure);
                            return Ok(CommandEnd::Failed);
                        }
                        Ok(true) => {
                            run.send_final_report(
                                matches!(ended, CommandEnd::Done | CommandEnd::Timeout),
                                now_ns,
                            );
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

    fn wait_for_input(&self, run: Option<&TransferRun>) -> Result<(), Error> {
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
    fn accept(&mut self, run: &mut Option<TransferRun>) {
        let may_send = |from| self.arguments.is_sender_allowed(from);
        if self.arguments.raw {
            for (stream, from) in self.acceptor.accept(may_send) {
                match run {
                    None => *run = Some(TransferRun::without_session(stream, from)),
                    Some(_) => self.acceptor.count_foreign_connection(),
                }
            }
            return;
        }
        self.acceptor.accept_and_hold(may_send);
        for first in self.acceptor.take_first_messages() {
            let is_ours = match first.message {
                ControlMessage::Probe(_) => self.begin_run(run, first),
                ControlMessage::Head(head) => {
                    run.as_mut().is_some_and(|run| run.claim_stream(&head, first.control))
                }
                ControlMessage::Report(_) => false,
            };
            if !is_ours {
                self.acceptor.count_foreign_connection();
            }
        }
    }

    /// Begins the run with the first sender that sends a probe; refuses others.
    fn begin_run(&self, run: &mut Option<TransferRun>, first: FirstMessage) -> bool {
        let FirstMessage { mut control, from, message } = first;
        let ControlMessage::Probe(probe) = message else { return false };
        let has_no_ranges = self.sink.is_some() && probe.streams > 1 && probe.total.is_none();
        let why = match run {
            Some(_) => Refusal::Busy,
            None if has_no_ranges => Refusal::NoRanges,
            None => {
                let now_ns = self.start.elapsed().as_nanos() as u64;
                let idle = self.arguments.idle.unwrap_or(IDLE);
                let receiver_control = ReceiverControl::new(&probe, self.arguments.verify, idle, now_ns);
                let ranges = StreamRanges::new(probe.run, probe.streams, probe.total);
                *run = Some(TransferRun::new(from, ControlSession { control, receiver_control, ranges }));
                return true;
            }
        };
        control.send(&refusal_message(&probe, why));
        false
    }

    /// Reads the waiting streams: all, or without offsets, the next one.
    fn start_streams<'scope>(&self, scope: &'scope Scope<'scope, '_>, run: &mut TransferRun<'scope>)
    where
        'a: 'scope,
    {
        let in_order = self.sink.is_some_and(|sink| !sink.is_seekable());
        let next = (run.running.len() + run.ends.len()) as u32;
        let is_ready = |head: &StreamHead| !in_order || head.number == next && run.running.is_empty();
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut run.waiting).into_iter().partition(|(_, head)| is_ready(head));
        run.waiting = waiting;
        for (stream, head) in ready {
            let StreamHead { number, offset, length, .. } = head;
            let count = ByteCount::empty(run.has_checksums());
            let begin = || {
                let own = reader::open_stream(stream.try_clone()?, self.arguments.stream.receive.0)?;
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
                    run.ends.push(WorkerResult::failed_before_reading(number, offset, count, failure));
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

    fn reason_to_end(&mut self, run: &TransferRun, now_ns: u64) -> Option<CommandEnd> {
        if run.ends.iter().any(|end| matches!(end.reason, StreamEndReason::Failed(_))) {
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
        let is_silent_for = |time| self.last_progress.0.elapsed() > time && !run.has_unread_bytes();
        // After the streams, or their remaining parts, have ended.
        let is_read = run.running.is_empty() && run.waiting.is_empty();
        let Some(session) = &run.session else {
            return match run.ends.first().map(|end| &end.reason) {
                Some(StreamEndReason::End) => Some(CommandEnd::Done),
                Some(_) => Some(CommandEnd::Disconnected),
                None => self.arguments.idle.is_some_and(is_silent_for).then_some(CommandEnd::Timeout),
            };
        };
        let is_stalled = is_silent_for(self.arguments.idle.unwrap_or(IDLE));
        let ControlSession { receiver_control, ranges, .. } = session;
        if run.ends.iter().any(|end| matches!(end.reason, StreamEndReason::TooMuch)) {
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

impl<'scope> TransferRun<'scope> {
    fn new(from: SocketAddr, session: impl Into<Option<ControlSession>>) -> Self {
        let session = session.into();
        let started = processor::ProcessorTimeSnapshot::now();
        Self { from, session, waiting: Vec::new(), running: Vec::new(), ends: Vec::new(), started }
    }

    fn without_session(stream: TcpStream, from: SocketAddr) -> Self {
        let mut run = Self::new(from, None);
        let head = StreamHead { run: 0, number: 0, streams: 1, offset: 0, length: None };
        run.waiting.push((stream, head));
        run
    }

    fn has_checksums(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.receiver_control.has_checksums())
    }

    /// Takes a connection as a stream of this run; false if it is not one.
    fn claim_stream(&mut self, head: &StreamHead, control: ControlConnection) -> bool {
        let taken = self.session.as_mut().is_some_and(|session| session.ranges.claim_range(head));
        self.waiting.extend(taken.then(|| (control.into_stream(), *head)));
        taken
    }

    fn receive_probes(&mut self, now_ns: u64) {
        let Some(ControlSession { control, receiver_control, .. }) = &mut self.session else { return };
        for _ in 0..MESSAGES_MAX {
            match control.receive() {
                _ if receiver_control.is_over(now_ns) => return,
                ControlReceiveResult::Message(message) => receiver_control.handle_message(message, now_ns),
                ControlReceiveResult::Nothing => return,
                ControlReceiveResult::End => receiver_control.record_connection_end(),
            }
        }
    }

    fn send_report(&mut self, received_bytes: u64) {
        let Some(ControlSession { control, receiver_control, .. }) = &mut self.session else { return };
        if control.has_sent_all()
            && let Some(message) = receiver_control.next_report(received_bytes)
        {
            control.send(&message);
        }
    }

    /// Whether bytes, or the end, of a stream being read are in its socket.
    fn has_unread_bytes(&self) -> bool {
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
    fn record_failure(&mut self, failure: Failure) {
        match self.ends.first_mut() {
            Some(end) => end.reason = StreamEndReason::Failed(failure),
            None => {
                self.ends.push(WorkerResult::failed_before_reading(0, 0, ByteCount::empty(false), failure))
            }
        }
    }

    /// Sends the last message, once.
    fn send_final_report(&mut self, is_whole: bool, now_ns: u64) {
        self.ends.sort_by_key(|end| end.number);
        let count = self.ends.iter().map(|end| end.count).reduce(ByteCount::append);
        let nothing = ByteCount::empty(self.has_checksums());
        if let Some(session) = &mut self.session {
            // A sender that disconnected early has not reported what is missing; no end was requested.
            let is_whole = is_whole
                || session.receiver_control.has_disconnected()
                || session.receiver_control.is_silent(now_ns);
            session.receiver_control.stop_counting(count.unwrap_or(nothing), is_whole, now_ns);
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
                    WorkerResult::failed_before_reading(0, 0, ByteCount::empty(false), failure)
                });
                let mut run = TransferRun::new(from, None);
                run.running.push(RunningStream { stream, worker });
                assert!(!run.has_unread_bytes());
                match is_end {
                    true => sender.shutdown(Shutdown::Write).unwrap(),
                    false => sender.write_all(b"a").unwrap(),
                }
                let start = Instant::now();
                while !run.has_unread_bytes() {
                    assert!(start.elapsed() < Duration::from_secs(60));
                    thread::yield_now();
                }
                drop(go_on);
            });
        }
    }
}
