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
use crate::transfer::stream::{ByteCount, ControlState, SenderControl, StreamHead};
use crate::{Failure, processor};
use connection::Connection;
use error::Error;
use nocopy_report::{CommandEnd, Interrupt, Outcome, capability, print};
use plan::SendPlan;
use session::ControlSession;
use summary::Summary;
use worker::{SharedProgress, Worker, WorkerResult};

/// How long to wait for streams before other checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(super) fn run(
    target: &Endpoint,
    arguments: &SendArguments,
    interrupt: Interrupt,
) -> Result<Outcome, Failure> {
    // Files are opened with the rights of the user, before capabilities are dropped.
    let plan = SendPlan::new(arguments)?;
    capability::drop_all_but(plan.needed_capabilities())?;
    let addresses = target
        .resolve(arguments.address_family())
        .map_err(|source| Error::Resolve { target: target.clone(), source })?;
    let mut transmission = TcpSendCommand { target, addresses, arguments, plan, interrupt, session: None };
    let workers = transmission.open_connections()?;
    capability::drop_all_but(capability::NONE)?;
    let start = processor::ProcessorTimeSnapshot::now();
    let (mut ends, ended) = match workers {
        Some(workers) => transmission.send_on_all_streams(workers),
        None => (Vec::new(), CommandEnd::Interrupted),
    };
    let failure = ends.iter_mut().find_map(|end| end.failure.take());
    // Once the receiver has reported: until then a shorter file may have changed what was sent.
    let failure = failure.or_else(|| transmission.plan.check_length().err().map(Failure::from));
    let ended = if failure.is_some() { CommandEnd::Failed } else { ended };
    let summary = transmission.summary(&ends, ended, start);
    print::print_summary(&summary, arguments.json, failure)
}

struct TcpSendCommand<'a> {
    target: &'a Endpoint,
    /// Those of the target; from the first connection on only its address.
    addresses: Vec<SocketAddr>,
    arguments: &'a SendArguments,
    plan: SendPlan,
    interrupt: Interrupt,
    /// `None` with `--raw`: no receiver reports.
    session: Option<ControlSession>,
}

impl TcpSendCommand<'_> {
    /// Opens all connections. `None`: the user interrupted it.
    fn open_connections(&mut self) -> Result<Option<Vec<Worker>>, Error> {
        if let Some(name) = &self.arguments.stream.congestion {
            connect::check_congestion(name, self.target_address())?;
        }
        let run = super::random_run_number().map_err(Error::Random)?;
        if !self.arguments.host.raw {
            let Some(stream) = self.connect()? else { return Ok(None) };
            let patience = self.arguments.host.connect_timeout_or_default();
            let sender_control = SenderControl::new(
                run,
                self.plan.stream_count(),
                self.plan.total,
                self.arguments.host.verify,
                patience,
            );
            let session = ControlSession::new(stream, self.target_address(), sender_control)
                .map_err(self.prepare_error())?;
            if !self.session.insert(session).await_receiver(&self.interrupt)? {
                return Ok(None);
            }
        }
        (0..self.plan.stream_count()).map(|number| self.open_worker(run, number)).collect()
    }

    fn connect(&mut self) -> Result<Option<TcpStream>, Error> {
        let congestion = self.arguments.stream.congestion.as_deref();
        let (to, patience) =
            ((self.target, &*self.addresses), self.arguments.host.connect_timeout_or_default());
        let connected = connect::connect(to, patience, congestion, &self.interrupt)?;
        Ok(connected.map(|(stream, to)| {
            self.addresses = vec![to];
            stream
        }))
    }

    fn target_address(&self) -> SocketAddr {
        self.addresses[0] // there is at least one
    }

    fn prepare_error(&self) -> impl Fn(io::Error) -> Error + use<> {
        let to = self.target_address();
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
            let head = StreamHead { run, number, streams: self.plan.stream_count(), offset, length };
            // The kernel always has room for so few bytes.
            stream
                .write_all(&head.emit())
                .map_err(|source| Error::Broken { to: self.target_address(), source })?;
        }
        let piece_bytes = self.plan.piece_bytes as usize;
        let (piece, pieces_apart) = self.plan.first_piece_and_step(number);
        Ok(Some(Worker {
            number,
            content: self.plan.worker_source(),
            path: self.plan.path(),
            range,
            piece_bytes,
            piece,
            pieces_apart,
            schedule: self.plan.stream_schedule(),
            count: ByteCount::empty(self.has_checksums()),
            connection: Connection::new(stream, self.plan.method, piece_bytes)
                .map_err(|source| Error::Open { to: self.target_address(), source })?,
            read: Vec::new(),
        }))
    }

    fn has_checksums(&self) -> bool {
        self.session.as_ref().is_some_and(ControlSession::has_checksums)
    }

    /// Sends on all streams at once, and waits until the receiver's counts are known.
    fn send_on_all_streams(&mut self, workers: Vec<Worker>) -> (Vec<WorkerResult>, CommandEnd) {
        let progress = SharedProgress::default();
        let start = Instant::now();
        let (mut ends, reason) = thread::scope(|scope| {
            let progress = &progress;
            let spawn = |worker: Worker| scope.spawn(move || worker.run(start, progress));
            let running: Vec<_> = workers.into_iter().map(spawn).collect();
            let reason =
                self.watch_streams(progress, || running.iter().all(thread::ScopedJoinHandle::is_finished));
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
        let ended = self.exchange_final_counts(ended, &mut ends);
        (ends, ended)
    }

    /// Waits for all streams, and stops them early if there is a reason, which it returns.
    fn watch_streams(
        &mut self,
        progress: &SharedProgress,
        are_done: impl Fn() -> bool,
    ) -> Option<CommandEnd> {
        let mut live = LiveBytes::new(" handed over");
        let mut reason = None;
        while !are_done() {
            let bytes = progress.bytes.load(Ordering::Relaxed);
            match &mut self.session {
                Some(session) => session.exchange_messages(bytes),
                None => thread::sleep(POLL_INTERVAL),
            }
            live.update(bytes);
            let state = self.session.as_ref().map_or(ControlState::Running, ControlSession::state);
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
    fn exchange_final_counts(&mut self, mut ended: CommandEnd, ends: &mut [WorkerResult]) -> CommandEnd {
        let is_broken = ends.iter().any(|end| end.connection_error.is_some());
        match &mut self.session {
            Some(session) => {
                if is_broken {
                    session.await_end();
                }
                let sent = ends.iter().map(|end| end.count);
                let sent = sent.reduce(ByteCount::append).unwrap_or_default();
                match session.state() {
                    ControlState::EndedEarly => {
                        ended = if ended == CommandEnd::Done { CommandEnd::ByReceiver } else { ended };
                        session.finish(sent, &self.interrupt);
                    }
                    // A stream that failed, although the receiver still works.
                    ControlState::Running if is_broken => {
                        ended = ended.unless_failed(CommandEnd::Disconnected)
                    }
                    ControlState::Running => session.finish(sent, &self.interrupt),
                    _ => ended = ended.unless_failed(CommandEnd::Disconnected),
                }
                if !matches!(session.state(), ControlState::Agreed) {
                    ended = ended.unless_failed(CommandEnd::Disconnected);
                }
            }
            None if is_broken => ended = ended.unless_failed(CommandEnd::Disconnected),
            None => ends.iter_mut().for_each(|end| end.connection.await_peer_close(PATIENCE)),
        }
        let start = Instant::now();
        // Together.
        ends.iter_mut().for_each(|end| end.close_connection(PATIENCE.saturating_sub(start.elapsed())));
        ended
    }

    fn summary(
        &self,
        ends: &[WorkerResult],
        ended: CommandEnd,
        start: processor::ProcessorTimeSnapshot,
    ) -> Summary {
        let state = self.session.as_ref().map(ControlSession::state);
        let run_counts = self.session.as_ref().map(ControlSession::run_counts);
        Summary::new(self.arguments, (self.target, self.target_address()), &self.plan, ends, ended, state)
            .with_run_counts(run_counts, self.has_checksums())
            .with_processor_use(start)
    }
}
