//! The message protocol: plain messages go back as they came, requests get their response.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nocopy::message::{Endpoint, Event, Kind, Peer, SendError};

use super::program::{Program, RunError};
use super::summary::Served;
use crate::exchange::{PATIENCE, Waiting};
use crate::interrupt::Interrupt;

/// Bytes of answers that are kept at most for one peer that does not take them, and for all; then such a peer is let go.
const KEPT_BYTES_MAX: usize = 32 << 20;
const KEPT_BYTES_MAX_ALL: usize = 256 << 20;

/// What a kept answer costs beside its bytes, at most: its place in a queue that doubles, and what the allocator adds.
const ANSWER_BYTES: usize = 96;

/// Programs that run at a time, and requests that wait for one.
const RUNS_MAX: usize = 8;
const JOBS_MAX: usize = 256;

/// How long to wait for messages while programs run: their responses end no wait.
const RUN_LOOK: Duration = Duration::from_millis(1);

/// How long peers are given to take their last answers.
const CLOSE_MAX: Duration = Duration::from_millis(500);

/// Answers until the end is asked for.
pub(super) fn serve(
    endpoint: Endpoint,
    waiting: Waiting,
    program: Option<&Program>,
    interrupt: &Interrupt,
    served: &mut Served,
) -> io::Result<()> {
    served.failed_runs = program.map(|_| 0);
    let Some(program) = program else {
        return Server::new(endpoint, waiting, None, served).run(interrupt);
    };
    let (jobs, to_run) = mpsc::sync_channel(JOBS_MAX);
    let (done, responses) = mpsc::channel();
    let to_run = Mutex::new(to_run);
    thread::scope(|scope| {
        for _ in 0..RUNS_MAX {
            let (to_run, done) = (&to_run, done.clone());
            scope.spawn(move || work(program, to_run, &done, interrupt));
        }
        // Its end of the jobs is gone when it returns, and the threads end by that.
        Server::new(endpoint, waiting, Some(Runs { jobs, responses, under_way: 0 }), served).run(interrupt)
    })
}

/// A request for the program.
struct Job {
    peer: Peer,
    call: u32,
    request: Vec<u8>,
}

/// What came of it.
struct Done {
    peer: Peer,
    call: u32,
    response: Result<Vec<u8>, RunError>,
}

fn work(program: &Program, jobs: &Mutex<Receiver<Job>>, done: &mpsc::Sender<Done>, interrupt: &Interrupt) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { peer, call, request }) = job else { return };
        let response = program.run(&request, interrupt);
        if done.send(Done { peer, call, response }).is_err() {
            return;
        }
    }
}

struct Runs {
    jobs: SyncSender<Job>,
    responses: Receiver<Done>,
    under_way: usize,
}

/// An answer that its peer had no room for.
struct Answer {
    kind: Kind,
    bytes: Vec<u8>,
}

impl Answer {
    /// Bytes of memory.
    fn cost(&self) -> usize {
        ANSWER_BYTES + self.bytes.len()
    }
}

#[derive(Default)]
struct Kept {
    answers: VecDeque<Answer>,
    /// What all of them cost.
    bytes: usize,
}

struct Server<'a> {
    endpoint: Endpoint,
    waiting: Waiting,
    runs: Option<Runs>,
    kept: HashMap<Peer, Kept>,
    kept_bytes: usize,
    served: &'a mut Served,
    /// The message that is being answered.
    scratch: Vec<u8>,
}

impl<'a> Server<'a> {
    fn new(endpoint: Endpoint, waiting: Waiting, runs: Option<Runs>, served: &'a mut Served) -> Self {
        Self { endpoint, waiting, runs, kept: HashMap::new(), kept_bytes: 0, served, scratch: Vec::new() }
    }

    fn run(mut self, interrupt: &Interrupt) -> io::Result<()> {
        while !interrupt.came() {
            let patience = match &self.runs {
                Some(runs) if runs.under_way > 0 => RUN_LOOK,
                _ => PATIENCE,
            };
            let received = match self.waiting {
                Waiting::Spinning => self.endpoint.try_receive()?,
                Waiting::Blocking | Waiting::Adaptive => self.endpoint.receive_timeout(patience)?,
            };
            let scratch = &mut self.scratch;
            let about = received.map(|message| {
                scratch.clear();
                message.pieces().for_each(|piece| scratch.extend_from_slice(piece));
                (message.peer(), message.kind())
            });
            match about {
                Some((peer, kind)) => self.take(peer, kind),
                None => self.note_events(),
            }
            self.take_responses();
        }
        self.endpoint.close(CLOSE_MAX).map(drop)
    }

    /// Answers what is in the scratch memory, or has it answered.
    fn take(&mut self, peer: Peer, kind: Kind) {
        let kind = match (kind, &mut self.runs) {
            (Kind::Request(call), Some(runs)) => {
                let job = Job { peer, call, request: self.scratch.clone() };
                match runs.jobs.try_send(job) {
                    Ok(()) => runs.under_way += 1,
                    Err(_) => self.let_go(peer),
                }
                return;
            }
            (Kind::Request(call), None) => Kind::Response(call),
            (Kind::Plain, _) => Kind::Plain,
            // Nothing was asked here.
            (Kind::Response(_), _) => return self.served.refused += 1,
        };
        let scratch = std::mem::take(&mut self.scratch);
        self.answer(peer, kind, &scratch);
        self.scratch = scratch;
    }

    fn answer(&mut self, peer: Peer, kind: Kind, bytes: &[u8]) {
        // Behind those that wait, or they would change places.
        let waits = !self.kept.is_empty() && self.kept.contains_key(&peer);
        match if waits { Err(SendError::WouldBlock) } else { self.send(peer, kind, bytes) } {
            Ok(()) => {}
            Err(SendError::WouldBlock) => self.keep(peer, Answer { kind, bytes: bytes.to_vec() }),
            Err(_) => self.served.refused += 1,
        }
    }

    fn send(&mut self, peer: Peer, kind: Kind, bytes: &[u8]) -> Result<(), SendError> {
        match kind {
            Kind::Response(call) => self.endpoint.respond(peer, call, bytes)?,
            _ => self.endpoint.send(peer, bytes)?,
        }
        self.served.answer(bytes.len());
        Ok(())
    }

    /// Until there is room.
    fn keep(&mut self, peer: Peer, answer: Answer) {
        let kept = self.kept.entry(peer).or_default();
        kept.bytes += answer.cost();
        self.kept_bytes += answer.cost();
        kept.answers.push_back(answer);
        if kept.bytes > KEPT_BYTES_MAX || self.kept_bytes > KEPT_BYTES_MAX_ALL {
            self.let_go(peer);
        }
    }

    fn send_kept(&mut self, peer: Peer) {
        while let Some(kept) = self.kept.get_mut(&peer)
            && let Some(answer) = kept.answers.pop_front()
        {
            match self.send(peer, answer.kind, &answer.bytes) {
                Err(SendError::WouldBlock) => {
                    if let Some(kept) = self.kept.get_mut(&peer) {
                        kept.answers.push_front(answer);
                    }
                    return;
                }
                Ok(()) => {}
                Err(_) => self.served.refused += 1,
            }
            let bytes = answer.cost();
            self.kept_bytes -= bytes;
            if let Some(kept) = self.kept.get_mut(&peer) {
                kept.bytes -= bytes;
            }
        }
        self.forget(peer);
    }

    fn forget(&mut self, peer: Peer) {
        if let Some(kept) = self.kept.remove(&peer) {
            self.kept_bytes -= kept.bytes;
            self.served.refused += kept.answers.len() as u64;
        }
    }

    /// Ends the connection of who cannot be answered: so it knows.
    fn let_go(&mut self, peer: Peer) {
        self.forget(peer);
        self.served.refused += 1;
        self.endpoint.abort(peer);
    }

    fn note_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Accepted(..) => *self.served.connections.get_or_insert(0) += 1,
                Event::Writable(peer) => self.send_kept(peer),
                // It has all its answers, or is to have them; then nothing follows.
                Event::Finished(peer) => {
                    self.send_kept(peer);
                    let _ = self.endpoint.finish(peer);
                }
                Event::Lost(peer, _) | Event::Closed(peer) => self.forget(peer),
                _ => {}
            }
        }
    }

    fn take_responses(&mut self) {
        while let Some(runs) = &mut self.runs
            && let Ok(Done { peer, call, response }) = runs.responses.try_recv()
        {
            runs.under_way -= 1;
            match response {
                Ok(response) => self.answer(peer, Kind::Response(call), &response),
                Err(error) => {
                    eprintln!("nocopy: {error}");
                    *self.served.failed_runs.get_or_insert(0) += 1;
                    self.let_go(peer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::endpoint::Scheme;

    const LONG: Duration = Duration::from_secs(30);

    fn endpoint() -> Endpoint {
        Endpoint::builder().bind("127.0.0.1:0".parse().unwrap()).unwrap()
    }

    /// Who answers nobody by itself, a client of it, and what each calls the other.
    fn connected(served: &mut Served) -> (Server<'_>, Peer, Endpoint, Peer) {
        let (mut client, mut server) = (endpoint(), Server::new(endpoint(), Waiting::Blocking, None, served));
        let to_server = client.start_connect(server.endpoint.local_address()).unwrap();
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LONG);
            client.wait(Duration::ZERO).unwrap();
            server.endpoint.wait(Duration::ZERO).unwrap();
            if let Some(Event::Accepted(to_client, _)) = server.endpoint.poll_event() {
                return (server, to_client, client, to_server);
            }
        }
    }

    /// Proves that answers without bytes are not kept without end.
    #[test]
    fn who_takes_no_answers_is_let_go_however_short_they_are() {
        let mut served = Served::new(Scheme::Message, ([127, 0, 0, 1], 0).into());
        let (mut server, peer, ..) = connected(&mut served);
        let most = KEPT_BYTES_MAX / ANSWER_BYTES;
        for _ in 0..most {
            server.keep(peer, Answer { kind: Kind::Plain, bytes: Vec::new() });
        }
        assert_eq!((server.kept[&peer].answers.len(), server.served.refused), (most, 0));
        server.keep(peer, Answer { kind: Kind::Plain, bytes: Vec::new() });
        assert!(server.kept.is_empty() && server.kept_bytes == 0);
        assert!(server.endpoint.statistics(peer).is_err(), "its connection has ended");
        assert_eq!(server.served.refused, most as u64 + 2, "the answers and the connection");
    }
}
