//! The message protocol: plain messages are sent back, requests get a response.

mod jobs;

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nocopy::message::{Endpoint, Event, Kind, Peer};
use nocopy::{Buffer, Reason, Rejected};
use nocopy_proto::message::network_of;

use super::program::Program;
use super::summary::ServiceCounters;
use crate::exchange::{PATIENCE, WaitMode, none_while_interface_down};
use jobs::{JobSubmitter, ProgramRequest, ProgramResult, RUNS_MAX, SharedJobQueue};
use nocopy_report::Interrupt;
use nocopy_report::print;

/// The most bytes of answers kept for one peer that does not receive them, and for all. Beyond that the peer
/// for which most are kept is disconnected.
const PENDING_BYTES_MAX: usize = 32 << 20;
const KEPT_BYTES_MAX_ALL: usize = 256 << 20;

/// The largest overhead of a kept answer: its slot in a queue that doubles, its owner, and the allocator's
/// overhead.
const ANSWER_BYTES: usize = 192;

/// How long to wait for messages while programs run, because their responses end no wait.
const RUN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How long peers may take to receive their last answers.
const CLOSE_MAX: Duration = Duration::from_millis(500);

/// Answers until the end is requested.
pub(super) fn serve_messages(
    endpoint: Endpoint,
    waiting: WaitMode,
    program: Option<&Program>,
    interrupt: &Interrupt,
    served: &mut ServiceCounters,
) -> io::Result<()> {
    served.program_failures = program.map(|_| 0);
    let Some(program) = program else {
        return MessageServer::new(endpoint, waiting, None, served).run(interrupt);
    };
    let (jobs, (done, responses)) = (SharedJobQueue::default(), mpsc::channel());
    thread::scope(|scope| {
        for _ in 0..RUNS_MAX {
            let (jobs, done) = (&jobs, done.clone());
            scope.spawn(move || jobs.run_programs(program, &done, interrupt));
        }
        // It drops its end of the jobs when it returns, which ends the threads.
        MessageServer::new(endpoint, waiting, Some(JobSubmitter::new(&jobs, responses)), served)
            .run(interrupt)
    })
}

/// The peer that uses the most, in the network that uses the most, so that a network gains nothing by many
/// connections.
fn largest_user(uses: impl Iterator<Item = (IpAddr, Peer, usize)> + Clone) -> Option<Peer> {
    let network = key_with_highest_sum(uses.clone().map(|(network, _, count)| (network, count)))?;
    key_with_highest_sum(uses.filter(|(of, ..)| *of == network).map(|(_, peer, count)| (peer, count)))
}

/// The one with the highest sum.
fn key_with_highest_sum<K: Copy + Eq + Hash + Ord>(counts: impl Iterator<Item = (K, usize)>) -> Option<K> {
    let mut sums = HashMap::<K, usize>::new();
    counts.for_each(|(key, count)| *sums.entry(key).or_default() += count);
    sums.into_iter().max_by_key(|(key, sum)| (*sum, *key)).map(|(key, _)| key)
}

/// An answer: its kind and its bytes. It is kept while its peer has no room for it.
struct Answer {
    kind: Kind,
    buffer: Buffer,
}

impl Answer {
    fn new(kind: Kind, bytes: Vec<u8>) -> Self {
        Self { kind, buffer: bytes.into() }
    }

    fn memory_bytes(&self) -> usize {
        ANSWER_BYTES + self.buffer.len()
    }
}

struct PendingAnswers {
    network: IpAddr,
    answers: VecDeque<Answer>,
    /// The memory of all of them.
    bytes: usize,
}

struct MessageServer<'a> {
    endpoint: Endpoint,
    waiting: WaitMode,
    runs: Option<JobSubmitter<'a>>,
    pending: HashMap<Peer, PendingAnswers>,
    pending_bytes: usize,
    /// Peers that have ended their direction, and whose other direction is not ended yet.
    finished: HashSet<Peer>,
    served: &'a mut ServiceCounters,
    /// The message that is being answered.
    scratch: Vec<u8>,
}

impl<'a> MessageServer<'a> {
    fn new(
        endpoint: Endpoint,
        waiting: WaitMode,
        runs: Option<JobSubmitter<'a>>,
        served: &'a mut ServiceCounters,
    ) -> Self {
        Self {
            endpoint,
            waiting,
            runs,
            pending: HashMap::new(),
            pending_bytes: 0,
            finished: HashSet::new(),
            served,
            scratch: Vec::new(),
        }
    }

    fn run(mut self, interrupt: &Interrupt) -> io::Result<()> {
        while !interrupt.was_interrupted() {
            let timeout = match &self.runs {
                Some(runs) if !runs.is_idle() => RUN_POLL_INTERVAL,
                _ => PATIENCE,
            };
            let received = match self.waiting {
                WaitMode::Spinning => self.endpoint.try_receive(),
                WaitMode::Blocking | WaitMode::Adaptive => self.endpoint.receive_timeout(timeout),
            };
            let received = none_while_interface_down(received)?.flatten();
            let scratch = &mut self.scratch;
            let about = received.map(|message| {
                scratch.clear();
                message.pieces().for_each(|piece| scratch.extend_from_slice(piece));
                (message.peer(), message.kind())
            });
            if let Some((peer, kind)) = about {
                self.handle_message(peer, kind);
            }
            // Also while messages arrive: otherwise a peer that never pauses would delay the answers of
            // others.
            self.handle_events();
            self.handle_program_results();
        }
        self.endpoint.close(CLOSE_MAX).map(drop)
    }

    /// Answers the message in the scratch memory, or makes the program answer it.
    fn handle_message(&mut self, peer: Peer, kind: Kind) {
        let kind = match (kind, &mut self.runs) {
            (Kind::Request(call), Some(_)) => return self.start_program(peer, call),
            (Kind::Request(call), None) => Kind::Response(call),
            (Kind::Plain, _) => Kind::Plain,
            // A response, but nothing was asked.
            (Kind::Response(_), _) => return self.served.refused += 1,
        };
        // After waiting ones, to keep the order.
        if kind == Kind::Plain && !self.pending.contains_key(&peer) {
            match self.endpoint.send_copy_to(&self.scratch, peer) {
                Err(Reason::Full) => {}
                sent => return self.record_sent(peer, sent, self.scratch.len()),
            }
        }
        self.answer_or_hold(peer, Answer::new(kind, self.scratch.clone()));
    }

    /// The network of a peer, or `None` if its connection has ended.
    fn network_of_peer(&self, peer: Peer) -> Option<IpAddr> {
        self.endpoint.peer_stats(peer).map(|peer| network_of(peer.address.ip()))
    }

    /// Makes the program answer the request in the scratch memory.
    fn start_program(&mut self, peer: Peer, call: u32) {
        let Some(network) = self.network_of_peer(peer) else { return self.served.refused += 1 };
        let Some(runs) = &mut self.runs else { return };
        runs.submit(ProgramRequest { peer, network, call, request: self.scratch.clone() });
        while let Some(peer) = self.runs.as_ref().and_then(JobSubmitter::peer_over_limit) {
            self.disconnect(peer);
        }
    }

    fn answer_or_hold(&mut self, peer: Peer, answer: Answer) {
        if self.pending.contains_key(&peer) {
            return self.hold_answer(peer, answer);
        }
        if let Some(refused) = self.try_send(peer, answer) {
            self.hold_answer(peer, refused);
        }
    }

    /// Sends an answer, or returns it while there is no room.
    fn try_send(&mut self, peer: Peer, Answer { kind, buffer }: Answer) -> Option<Answer> {
        let bytes = buffer.len();
        let sent = match kind {
            Kind::Response(call) => self.endpoint.respond(buffer, peer, call),
            _ => self.endpoint.send_to(buffer, peer),
        };
        if let Err(Rejected { item, reason: Reason::Full }) = sent {
            return item.into_iter().next().map(|buffer| Answer { kind, buffer });
        }
        self.record_sent(peer, sent.map_err(|rejected| rejected.reason), bytes);
        None
    }

    fn record_sent(&mut self, peer: Peer, sent: Result<(), Reason>, bytes: usize) {
        match sent {
            Ok(()) => self.served.count_answer(bytes),
            Err(Reason::TooLong { .. }) => self.disconnect(peer),
            Err(_) => self.served.refused += 1,
        }
    }

    fn hold_answer(&mut self, peer: Peer, answer: Answer) {
        let Some(network) = self.network_of_peer(peer) else { return self.served.refused += 1 };
        let pending = self.pending.entry(peer).or_insert_with(|| PendingAnswers {
            network,
            answers: VecDeque::new(),
            bytes: 0,
        });
        pending.bytes += answer.memory_bytes();
        self.pending_bytes += answer.memory_bytes();
        pending.answers.push_back(answer);
        if pending.bytes > PENDING_BYTES_MAX {
            self.disconnect(peer);
        }
        while self.pending_bytes > KEPT_BYTES_MAX_ALL {
            let uses = self.pending.iter().map(|(peer, pending)| (pending.network, *peer, pending.bytes));
            let Some(peer) = largest_user(uses) else { return };
            self.disconnect(peer);
        }
    }

    fn send_pending(&mut self, peer: Peer) {
        while let Some(pending) = self.pending.get_mut(&peer)
            && let Some(answer) = pending.answers.pop_front()
        {
            let bytes = answer.memory_bytes();
            pending.bytes -= bytes;
            self.pending_bytes -= bytes;
            let Some(refused) = self.try_send(peer, answer) else { continue };
            self.pending_bytes += bytes;
            if let Some(pending) = self.pending.get_mut(&peer) {
                pending.bytes += bytes;
                pending.answers.push_front(refused);
            }
            return;
        }
        self.drop_pending(peer);
    }

    /// Ends the direction to a peer that has ended its own, after the last answer.
    fn finish_if_answered(&mut self, peer: Peer) {
        let has_runs = self.runs.as_ref().is_some_and(|runs| runs.has_requests_of(peer));
        if has_runs || self.pending.contains_key(&peer) || !self.finished.contains(&peer) {
            return;
        }
        // Without room it is tried again when there is some.
        if !matches!(self.endpoint.finish(peer), Err(Reason::Full)) {
            self.finished.remove(&peer);
        }
    }

    fn forget_peer(&mut self, peer: Peer) {
        self.finished.remove(&peer);
        self.drop_pending(peer);
        let forgotten = self.runs.as_mut().map_or(0, |runs| runs.discard_requests(peer));
        self.served.refused += forgotten as u64;
    }

    fn drop_pending(&mut self, peer: Peer) {
        if let Some(pending) = self.pending.remove(&peer) {
            self.pending_bytes -= pending.bytes;
            self.served.refused += pending.answers.len() as u64;
        }
    }

    /// Disconnects a peer that cannot be answered, so that it is notified.
    fn disconnect(&mut self, peer: Peer) {
        self.forget_peer(peer);
        self.served.refused += 1;
        self.endpoint.abort(peer);
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Accepted(..) => *self.served.connections.get_or_insert(0) += 1,
                Event::Writable(peer) => {
                    self.send_pending(peer);
                    self.finish_if_answered(peer);
                }
                Event::Finished(peer) => {
                    self.finished.insert(peer);
                    self.finish_if_answered(peer);
                }
                Event::Lost(peer, _) | Event::Closed(peer) => self.forget_peer(peer),
                _ => {}
            }
        }
    }

    fn handle_program_results(&mut self) {
        while let Some(runs) = &mut self.runs
            && let Some(ProgramResult { peer, call, response, .. }) = runs.try_next_result()
        {
            match response {
                Ok(response) => {
                    self.answer_or_hold(peer, Answer::new(Kind::Response(call), response));
                    self.finish_if_answered(peer);
                }
                Err(error) => {
                    print::print_status(format_args!("nocopy: {error}"));
                    *self.served.program_failures.get_or_insert(0) += 1;
                    self.disconnect(peer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::Instant;

    use nocopy::message::Error;
    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
    use rustix::io::Errno;

    use super::*;
    use crate::endpoint::Scheme;

    const LONG: Duration = Duration::from_secs(60);

    fn endpoint_at(address: &str) -> Endpoint {
        Endpoint::builder().bind(address).unwrap()
    }

    fn local_endpoint() -> Endpoint {
        endpoint_at("127.0.0.1:0")
    }

    /// A server that the test runs step by step, a client, and the peer handle that each has of the other.
    fn connected_server(served: &mut ServiceCounters) -> (MessageServer<'_>, Peer, Endpoint, Peer) {
        let mut server = MessageServer::new(local_endpoint(), WaitMode::Blocking, None, served);
        let (to_client, client, to_server) = connect_client(&mut server, "127.0.0.1:0");
        (server, to_client, client, to_server)
    }

    /// The server's name for a new client, the client, and its name for the server.
    fn connect_client(server: &mut MessageServer<'_>, from: &str) -> (Peer, Endpoint, Peer) {
        let mut client = endpoint_at(from);
        let to_server = client.start_connect(server.endpoint.local_addr()).unwrap();
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LONG);
            client.wait(Duration::ZERO).unwrap();
            server.endpoint.wait(Duration::ZERO).unwrap();
            if let Some(Event::Accepted(to_client, _)) = server.endpoint.poll_event() {
                return (to_client, client, to_server);
            }
        }
    }

    /// The answers have no bytes.
    #[test]
    fn a_peer_that_reads_no_answers_is_disconnected() {
        let mut served = ServiceCounters::new(Scheme::Message, ([127, 0, 0, 1], 0).into());
        let (mut server, peer, ..) = connected_server(&mut served);
        let most = PENDING_BYTES_MAX / ANSWER_BYTES;
        for _ in 0..most {
            server.hold_answer(peer, Answer::new(Kind::Plain, Vec::new()));
        }
        assert_eq!((server.pending[&peer].answers.len(), server.served.refused), (most, 0));
        server.hold_answer(peer, Answer::new(Kind::Plain, Vec::new()));
        assert!(server.pending.is_empty() && server.pending_bytes == 0);
        assert!(server.endpoint.peer_stats(peer).is_none(), "its connection has ended");
        assert_eq!(server.served.refused, most as u64 + 2, "the answers and the connection");
    }

    /// Serves while there are requests.
    fn run_client_against_server(
        program: Option<&Program>,
        ask: impl FnOnce(Endpoint, Peer),
    ) -> ServiceCounters {
        let mut served = ServiceCounters::new(Scheme::Message, ([127, 0, 0, 1], 0).into());
        let (interrupt, server) = (Interrupt::catch().unwrap(), local_endpoint());
        let address = server.local_addr();
        thread::scope(|scope| {
            let ended = ServerEndGuard(&interrupt);
            scope.spawn(|| {
                serve_messages(server, WaitMode::Blocking, program, &interrupt, &mut served).unwrap()
            });
            let mut client = local_endpoint();
            let peer = client.connect(address, LONG).unwrap();
            ask(client, peer);
            drop(ended);
        });
        served
    }

    /// Ends the server even if the test fails.
    struct ServerEndGuard<'a>(&'a Interrupt);

    impl Drop for ServerEndGuard<'_> {
        fn drop(&mut self) {
            self.0.request_end();
        }
    }

    /// Everything received until the other end ends its direction.
    fn receive_all_answers(client: &mut Endpoint) -> Vec<(Kind, usize)> {
        let mut answers = Vec::new();
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LONG, "{} answers, and no end", answers.len());
            let answer = client.receive_timeout(PATIENCE).unwrap();
            answers.extend(answer.map(|message| (message.kind(), message.len())));
            while let Some(event) = client.poll_event() {
                match event {
                    Event::Finished(_) | Event::Closed(_) => return answers,
                    Event::Lost(_, reason) => panic!("{reason}"),
                    _ => {}
                }
            }
        }
    }

    /// Also if answers must wait for room, the peer gets each, and then the end.
    #[test]
    fn all_answers_are_sent_before_the_direction_ends() {
        const MESSAGES: usize = 4000;
        let served = run_client_against_server(None, |mut client, peer| {
            let message = [7; 1000];
            let start = Instant::now();
            let mut sent = 0;
            // Nothing is read until everything was sent.
            while sent <= MESSAGES {
                assert!(start.elapsed() < LONG, "{sent} messages");
                let done =
                    if sent < MESSAGES { client.send_copy_to(&message, peer) } else { client.finish(peer) };
                match done {
                    Ok(()) => sent += 1,
                    Err(Reason::Full) => drop(client.wait(PATIENCE).unwrap()),
                    Err(error) => panic!("{error}"),
                }
            }
            let answers = receive_all_answers(&mut client);
            assert_eq!(answers, vec![(Kind::Plain, message.len()); MESSAGES]);
        });
        assert_eq!((served.answered, served.refused), (Some(MESSAGES as u64), 0));
    }

    #[test]
    fn a_peer_is_disconnected_if_its_answer_is_too_long() {
        let program = Program::parse("head -c 3000000 /dev/zero", LONG).unwrap();
        let served = run_client_against_server(Some(&program), |mut client, peer| {
            // Disconnected at once, not after the time-out.
            assert!(matches!(client.call([], peer, LONG), Err(Error::Lost)));
        });
        assert_eq!((served.answered, served.refused, served.program_failures), (Some(0), 1, Some(0)));
    }

    /// A network that fills the queue of requests, with any number of connections, loses places to other
    /// networks.
    #[test]
    fn a_peer_with_few_requests_is_answered_during_a_flood() {
        // Programs wait until the pipe's other end is opened; by then most requests have been dropped.
        let fifo = Fifo::new("greedy");
        let program = fifo.reading_program();
        let served = run_client_against_server(Some(&program), |mut honest, peer| {
            let (mut greedy, address) =
                (endpoint_at("127.0.0.2:0"), honest.peer_stats(peer).unwrap().address);
            let to_server = greedy.connect(address, LONG).unwrap();
            let start = Instant::now();
            while greedy.peer_stats(to_server).is_some() {
                assert!(start.elapsed() < LONG, "its connection does not end");
                let _ = greedy.request([], to_server);
                greedy.wait(Duration::ZERO).unwrap();
            }
            let call = honest.request([], peer).unwrap();
            // All programs that read the pipe now end.
            while honest.receive_timeout(Duration::from_millis(1)).unwrap().map(|answer| answer.kind())
                != Some(Kind::Response(call))
            {
                assert!(start.elapsed() < LONG, "no answer");
                drop(fifo.try_open_writing_end());
            }
        });
        assert_eq!(served.program_failures, Some(0));
    }

    /// Makes a server keep more answers than allowed: for eight peers of one network, and for one peer of
    /// another network, which has the last answer, and more than any other peer. That one must stay, and one
    /// of the others be disconnected.
    fn assert_largest_network_is_evicted(at: &str, honest_from: &str, others_from: impl Fn(usize) -> String) {
        const BYTES: usize = 15 << 20;
        let mut served = ServiceCounters::new(Scheme::Message, at.parse().unwrap());
        let mut server = MessageServer::new(endpoint_at(at), WaitMode::Blocking, None, &mut served);
        let (honest, _client, _) = connect_client(&mut server, honest_from);
        let clients: Vec<_> =
            (0..9).map(|number| connect_client(&mut server, &others_from(number))).collect();
        let zeros = |bytes| Answer::new(Kind::Plain, vec![0; bytes]);
        for (peer, ..) in &clients[..8] {
            server.hold_answer(*peer, zeros(BYTES));
            server.hold_answer(*peer, zeros(BYTES));
        }
        server.hold_answer(honest, zeros(BYTES));
        server.hold_answer(honest, zeros(BYTES + 1000));
        let is_there = |server: &MessageServer<'_>, peer| server.endpoint.peer_stats(peer).is_some();
        assert!(is_there(&server, honest), "its network has less");
        assert_eq!(clients.iter().filter(|(peer, ..)| !is_there(&server, *peer)).count(), 1);
        assert!(server.pending_bytes <= KEPT_BYTES_MAX_ALL);
    }

    #[test]
    fn an_address_with_many_connections_is_evicted_first() {
        assert_largest_network_is_evicted("127.0.0.1:0", "127.0.0.1:0", |_| "127.0.0.2:0".into());
    }

    #[test]
    fn an_ipv6_subnet_with_many_addresses_is_evicted_first() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        if !nocopy_lab::ipv6_sockets_or_skip() {
            return;
        }
        lab.left().namespace().run(|| {
            for (setting, value) in [("conf/lo/disable_ipv6", "0"), ("ip_nonlocal_bind", "1")] {
                std::fs::write(format!("/proc/sys/net/ipv6/{setting}"), value).unwrap();
            }
            for arguments in ["link set lo up", "-6 route add local 2001:db8::/32 dev lo"] {
                let done = Command::new("ip").args(arguments.split(' ')).output().unwrap();
                assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
            }
            assert_largest_network_is_evicted("[2001:db8:1::1]:0", "[2001:db8:2::1]:0", |number| {
                format!("[2001:db8:3::{number}]:0")
            });
        });
    }

    /// A named pipe that is removed with the test.
    struct Fifo(PathBuf);

    impl Fifo {
        /// A program that reads it.
        fn reading_program(&self) -> Program {
            Program::with_argument("cat", &self.0, LONG)
        }

        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("nocopy-serve-{name}-{}.fifo", std::process::id()));
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
            Self(path)
        }

        /// Its writing end, if a program has opened the other.
        fn try_open_writing_end(&self) -> rustix::io::Result<OwnedFd> {
            open(&self.0, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        }

        /// Its writing end, once a program opens the other.
        fn open_writing_end(&self) -> OwnedFd {
            let start = Instant::now();
            loop {
                match self.try_open_writing_end() {
                    Err(Errno::NXIO) => assert!(start.elapsed() < LONG, "no program reads it"),
                    opened => return opened.unwrap(),
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl Drop for Fifo {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// The response was still being made when the peer ended its direction.
    #[test]
    fn a_response_reaches_a_peer_that_ended_its_direction() {
        // Its program waits until the pipe's other end is opened.
        let fifo = Fifo::new("finished");
        let program = fifo.reading_program();
        let served = run_client_against_server(Some(&program), |mut client, peer| {
            let call = client.request([], peer).unwrap();
            client.finish(peer).unwrap();
            let start = Instant::now();
            // Until the server has acknowledged both.
            while client.peer_stats(peer).is_none_or(|path| path.in_flight + path.queued > 0) {
                assert!(start.elapsed() < LONG, "{:?}", client.peer_stats(peer));
                client.wait(PATIENCE).unwrap();
            }
            drop(fifo.open_writing_end());
            assert_eq!(receive_all_answers(&mut client), [(Kind::Response(call), 0)]);
        });
        assert_eq!((served.answered, served.refused, served.program_failures), (Some(1), 0, Some(0)));
    }
}
