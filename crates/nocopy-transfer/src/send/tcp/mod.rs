//! `nocopy send tcp://HOST:PORT`: sends a stream to a host, by one connection or several, and prints the
//! receiver's report.

mod connect;
mod connection;
mod error;
mod plan;
mod session;
mod summary;
mod worker;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::PATIENCE;
use crate::arguments::SendArguments;
use crate::endpoint::Endpoint;
use crate::streams::LiveBytes;
use crate::transfer::stream::{ControlState, Count, Head, SenderControl};
use crate::{Failure, processor};
use connection::Connection;
use error::Error;
use nocopy_report::{CommandEnd, Interrupt, Outcome, capability, print};
use plan::Plan;
use session::Session;
use summary::Summary;
use worker::{Progress, Worker, WorkerEnd};

/// How long to wait for streams before other checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(super) fn run(
    target: &Endpoint,
    arguments: &SendArguments,
    interrupt: Interrupt,
) -> Result<Outcome, Failure> {
    // Files are opened with the rights of the user, before capabilities are dropped.
    let plan = Plan::new(arguments)?;
    capability::drop_all_but(plan.needs())?;
    let addresses = target
        .resolve(arguments.family())
        .map_err(|source| Error::Resolve { target: target.clone(), source })?;
    let mut transmission = Transmission { target, addresses, arguments, plan, interrupt, session: None };
    let workers = transmission.open()?;
    capability::drop_all_but(capability::NONE)?;
    let start = processor::StartTime::now();
    let (mut ends, ended) = match workers {
        Some(workers) => transmission.send(workers),
        None => (Vec::new(), CommandEnd::Interrupted),
    };
    let failure = ends.iter_mut().find_map(|end| end.failure.take());
    // Once the receiver has reported: until then a shorter file may have changed what was sent.
    let failure = failure.or_else(|| transmission.plan.check_length().err().map(Failure::from));
    let ended = if failure.is_some() { CommandEnd::Failed } else { ended };
    let summary = transmission.summary(&ends, ended, start);
    print::finish(&summary, arguments.json, failure)
}

struct Transmission<'a> {
    target: &'a Endpoint,
    /// Those of the target; from the first connection on only its address.
    addresses: Vec<SocketAddr>,
    arguments: &'a SendArguments,
    plan: Plan,
    interrupt: Interrupt,
    /// `None` with `--raw`: no receiver reports.
    session: Option<Session>,
}

impl Transmission<'_> {
    /// Opens all connections. `None`: the user interrupted it.
    fn open(&mut self) -> Result<Option<Vec<Worker>>, Error> {
        if let Some(name) = &self.arguments.stream.congestion {
            connect::check_congestion(name, self.to())?;
        }
        let run = super::run_number().map_err(Error::Random)?;
        if !self.arguments.host.raw {
            let Some(stream) = self.connect()? else { return Ok(None) };
            let patience = self.arguments.host.patience();
            let sender_control = SenderControl::new(
                run,
                self.plan.streams(),
                self.plan.total,
                self.arguments.host.verify,
                patience,
            );
            let session = Session::new(stream, self.to(), sender_control).map_err(self.unprepared())?;
            if !self.session.insert(session).begin(&self.interrupt)? {
                return Ok(None);
            }
        }
        (0..self.plan.streams()).map(|number| self.open_worker(run, number)).collect()
    }

    fn connect(&mut self) -> Result<Option<TcpStream>, Error> {
        let congestion = self.arguments.stream.congestion.as_deref();
        let (to, patience) = ((self.target, &*self.addresses), self.arguments.host.patience());
        let connected = connect::connect(to, patience, congestion, &self.interrupt)?;
        Ok(connected.map(|(stream, to)| {
            self.addresses = vec![to];
            stream
        }))
    }

    fn to(&self) -> SocketAddr {
        self.addresses[0] // there is at least one
    }

    fn unprepared(&self) -> impl Fn(io::Error) -> Error + use<> {
        let to = self.to();
        move |source| Error::Prepare { to, source }
    }

    fn open_worker(&mut self, run: u64, number: u32) -> Result<Option<Worker>, Error> {
        let Some(mut stream) = self.connect()? else { return Ok(None) };
        let range = self.plan.ranges[number as usize].clone();
        if self.session.is_some() {
            let (offset, length) = match &range {
                Some(range) => (range.start, Some(range.end - range.start)),
                None => (0, None),
            };
            let head = Head { run, number, streams: self.plan.streams(), offset, length };
            // The kernel always has room for so few bytes.
            stream.write_all(&head.emit()).map_err(|source| Error::Broken { to: self.to(), source })?;
        }
        let piece_bytes = self.plan.piece_bytes as usize;
        let (piece, pieces_apart) = self.plan.pieces(number);
        Ok(Some(Worker {
            number,
            content: self.plan.content(),
            path: self.plan.path(),
            range,
            piece_bytes,
            piece,
            pieces_apart,
            schedule: self.plan.schedule(),
            count: Count::empty(self.has_checksums()),
            connection: Connection::new(stream, self.plan.method, piece_bytes)
                .map_err(|source| Error::Open { to: self.to(), source })?,
            read: Vec::new(),
        }))
    }

    fn has_checksums(&self) -> bool {
        self.session.as_ref().is_some_and(Session::has_checksums)
    }

    /// Sends on all streams at once, and waits until the receiver's counts are known.
    fn send(&mut self, workers: Vec<Worker>) -> (Vec<WorkerEnd>, CommandEnd) {
        let progress = Progress::default();
        let start = Instant::now();
        let (mut ends, reason) = thread::scope(|scope| {
            let progress = &progress;
            let spawn = |worker: Worker| scope.spawn(move || worker.run(start, progress));
            let running: Vec<_> = workers.into_iter().map(spawn).collect();
            let reason = self.watch(progress, || running.iter().all(thread::ScopedJoinHandle::is_finished));
            let ends = running.into_iter().map(|worker| match worker.join() {
                Ok(end) => end,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            (ends.collect::<Vec<_>>(), reason)
        });
        let ended = match reason {
            _ if ends.iter().any(|end| end.failure.is_some()) => CommandEnd::Failed,
            Some(ended) => ended,
            None => CommandEnd::Done,
        };
        let ended = self.settle(ended, &mut ends);
        (ends, ended)
    }

    /// Waits for all streams, and stops them early if there is a reason, which it returns.
    fn watch(&mut self, progress: &Progress, are_done: impl Fn() -> bool) -> Option<CommandEnd> {
        let mut live = LiveBytes::new(" handed over");
        let mut reason = None;
        while !are_done() {
            let bytes = progress.bytes.load(Ordering::Relaxed);
            match &mut self.session {
                Some(session) => session.exchange(bytes),
                None => thread::sleep(POLL_INTERVAL),
            }
            live.update(bytes);
            let state = self.session.as_ref().map_or(ControlState::Running, Session::state);
            let now = match state {
                ControlState::EndedEarly => Some(CommandEnd::ByReceiver),
                ControlState::Running if self.interrupt.was_interrupted() => Some(CommandEnd::Interrupted),
                ControlState::Running => None,
                _ => Some(CommandEnd::Disconnected),
            };
            if now.is_some() {
                let is_abandoned = now != Some(CommandEnd::Interrupted);
                progress.is_abandoned.store(is_abandoned, Ordering::Relaxed);
                progress.stop.store(true, Ordering::Relaxed);
                reason = reason.or(now);
            }
        }
        reason
    }

    /// The final exchange, after all streams have ended.
    fn settle(&mut self, mut ended: CommandEnd, ends: &mut [WorkerEnd]) -> CommandEnd {
        let is_broken = ends.iter().any(|end| end.connection_error.is_some());
        match &mut self.session {
            Some(session) => {
                if is_broken {
                    session.await_end();
                }
                let sent = ends.iter().map(|end| end.count);
                let sent = sent.reduce(Count::then).unwrap_or_default();
                match session.state() {
                    ControlState::EndedEarly => {
                        ended = if ended == CommandEnd::Done { CommandEnd::ByReceiver } else { ended };
                        session.finish(sent, &self.interrupt);
                    }
                    // A stream that failed, although the receiver still works.
                    ControlState::Running if is_broken => ended = ended.but(CommandEnd::Disconnected),
                    ControlState::Running => session.finish(sent, &self.interrupt),
                    _ => ended = ended.but(CommandEnd::Disconnected),
                }
                if !matches!(session.state(), ControlState::Agreed) {
                    ended = ended.but(CommandEnd::Disconnected);
                }
            }
            None if is_broken => ended = ended.but(CommandEnd::Disconnected),
            None => ends.iter_mut().for_each(|end| end.connection.await_end(PATIENCE)),
        }
        let start = Instant::now();
        ends.iter_mut().for_each(|end| end.close(PATIENCE.saturating_sub(start.elapsed()))); // together
        ended
    }

    fn summary(&self, ends: &[WorkerEnd], ended: CommandEnd, start: processor::StartTime) -> Summary {
        let state = self.session.as_ref().map(Session::state);
        let run_counts = self.session.as_ref().map(Session::run_counts);
        Summary::new(self.arguments, (self.target, self.to()), &self.plan, ends, ended, state)
            .with_run_counts(run_counts, self.has_checksums())
            .with_processor_use(start)
    }
}
