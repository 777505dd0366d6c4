//! Requests for the program: waiting ones, running ones, and the next.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use nocopy::message::Peer;

use super::largest_user;
use crate::serve::program::{Program, RunError};
use nocopy_report::Interrupt;

/// The most programs running at a time.
pub(super) const RUNS_MAX: usize = 8;

/// The most programs running for one network, so that one is left for others.
const RUNS_MAX_OF_NETWORK: usize = RUNS_MAX - 1;

const WAITING_BYTES_MAX: usize = 256 << 20;

/// The most waiting requests in total; a short request counts as this share of the bytes.
const WAITING_MAX: usize = 256;

pub(super) struct ProgramRequest {
    pub peer: Peer,
    /// The network of its peer, whose peers share a limit.
    pub network: IpAddr,
    pub call: u32,
    pub request: Vec<u8>,
}

impl ProgramRequest {
    /// How much it counts towards the bytes that may wait.
    fn queued_bytes(&self) -> usize {
        self.request.len().max(WAITING_BYTES_MAX / WAITING_MAX)
    }
}

pub(super) struct ProgramResult {
    pub peer: Peer,
    pub call: u32,
    pub response: Result<Vec<u8>, RunError>,
}

/// Shared by the server and the threads that run programs.
#[derive(Default)]
pub(super) struct SharedJobQueue {
    queue: Mutex<JobQueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct JobQueueState {
    waiting: VecDeque<ProgramRequest>,
    cost: usize,
    /// Number of running programs for each network that has some.
    running: HashMap<IpAddr, usize>,
    is_closed: bool,
}

impl JobQueueState {
    /// Takes the oldest request of the network with the fewest running programs, unless that one has reached
    /// its limit.
    fn take_next(&mut self) -> Option<ProgramRequest> {
        let running = |job: &ProgramRequest| self.running.get(&job.network).copied().unwrap_or(0);
        let (index, runs) =
            self.waiting.iter().map(running).enumerate().min_by_key(|(index, runs)| (*runs, *index))?;
        if runs >= RUNS_MAX_OF_NETWORK {
            return None;
        }
        let job = self.waiting.remove(index)?;
        self.cost -= job.queued_bytes();
        *self.running.entry(job.network).or_default() += 1;
        Some(job)
    }
}

impl SharedJobQueue {
    fn lock_queue(&self) -> MutexGuard<'_, JobQueueState> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a request; `None` when there are no more.
    fn wait_for_request(&self) -> Option<ProgramRequest> {
        let mut queue = self.lock_queue();
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(job) = queue.take_next() {
                return Some(job);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn record_program_end(&self, network: IpAddr) {
        let mut queue = self.lock_queue();
        subtract_count(&mut queue.running, network, 1);
        drop(queue);
        self.changed.notify_all();
    }

    /// Runs the program for one request after the other, until there are no more.
    pub(super) fn run_programs(
        &self,
        program: &Program,
        done: &Sender<ProgramResult>,
        interrupt: &Interrupt,
    ) {
        while let Some(ProgramRequest { peer, network, call, request }) = self.wait_for_request() {
            if interrupt.was_interrupted() {
                return;
            }
            let response = program.run(&request, interrupt);
            self.record_program_end(network);
            if done.send(ProgramResult { peer, call, response }).is_err() {
                return;
            }
        }
    }
}

/// The server's end. When it is dropped, no more programs are started.
pub(super) struct JobSubmitter<'a> {
    jobs: &'a SharedJobQueue,
    responses: Receiver<ProgramResult>,
    /// Number of waiting and running requests for each peer that has some.
    of_peers: HashMap<Peer, usize>,
}

impl<'a> JobSubmitter<'a> {
    pub(super) fn new(jobs: &'a SharedJobQueue, responses: Receiver<ProgramResult>) -> Self {
        Self { jobs, responses, of_peers: HashMap::new() }
    }

    pub(super) fn submit(&mut self, job: ProgramRequest) {
        *self.of_peers.entry(job.peer).or_default() += 1;
        let mut queue = self.jobs.lock_queue();
        queue.cost += job.queued_bytes();
        queue.waiting.push_back(job);
        drop(queue);
        self.jobs.changed.notify_one();
    }

    /// If too many requests wait, the peer whose requests count most in bytes, in the network whose requests
    /// do.
    pub(super) fn peer_over_limit(&self) -> Option<Peer> {
        let queue = self.jobs.lock_queue();
        let uses = queue.waiting.iter().map(|job| (job.network, job.peer, job.queued_bytes()));
        if queue.cost > WAITING_BYTES_MAX { largest_user(uses) } else { None }
    }

    /// Discards the waiting requests of a peer; returns how many those were.
    pub(super) fn discard_requests(&mut self, peer: Peer) -> usize {
        if !self.has_requests_of(peer) {
            return 0;
        }
        let mut queue = self.jobs.lock_queue();
        let before = queue.waiting.len();
        queue.waiting.retain(|job| job.peer != peer);
        queue.cost = queue.waiting.iter().map(ProgramRequest::queued_bytes).sum();
        let count = before - queue.waiting.len();
        drop(queue);
        subtract_count(&mut self.of_peers, peer, count);
        count
    }

    pub(super) fn try_next_result(&mut self) -> Option<ProgramResult> {
        let done = self.responses.try_recv().ok()?;
        subtract_count(&mut self.of_peers, done.peer, 1);
        Some(done)
    }

    pub(super) fn has_requests_of(&self, peer: Peer) -> bool {
        self.of_peers.contains_key(&peer)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.of_peers.is_empty()
    }
}

impl Drop for JobSubmitter<'_> {
    fn drop(&mut self) {
        self.jobs.lock_queue().is_closed = true;
        self.jobs.changed.notify_all();
    }
}

/// Subtracts a number; removes a peer with none left.
fn subtract_count<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K, fewer: usize) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= fewer;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use nocopy::message::Endpoint;

    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    /// Handles of peers that do not exist.
    fn unconnected_peers<const COUNT: usize>() -> [Peer; COUNT] {
        let mut endpoint = Endpoint::builder().bind("127.0.0.1:0").unwrap();
        std::array::from_fn(|_| endpoint.start_connect("127.0.0.1:9").unwrap())
    }

    fn test_request(peer: Peer, network: IpAddr, bytes: usize) -> ProgramRequest {
        ProgramRequest { peer, network, call: 0, request: vec![0; bytes] }
    }

    /// The peers whose requests would be started, in order.
    fn started_peers(jobs: &SharedJobQueue) -> Vec<Peer> {
        std::iter::from_fn(|| jobs.lock_queue().take_next()).map(|job| job.peer).collect()
    }

    #[test]
    fn networks_take_turns_and_none_occupies_all_program_runs() {
        let [one, same, other] = unconnected_peers();
        let (jobs, (_done, responses)) = (SharedJobQueue::default(), mpsc::channel());
        let mut runs = JobSubmitter::new(&jobs, responses);
        for peer in [one, one, one, same] {
            runs.submit(test_request(peer, ONE, 0));
        }
        runs.submit(test_request(other, OTHER, 0));
        assert_eq!(started_peers(&jobs), [one, other, one, one, same]);
        for _ in 0..RUNS_MAX {
            runs.submit(test_request(one, ONE, 0));
        }
        assert_eq!(started_peers(&jobs), [one; 3], "it has seven of eight places");
        runs.submit(test_request(other, OTHER, 0));
        assert_eq!(started_peers(&jobs), [other]);
        jobs.record_program_end(ONE);
        assert_eq!(started_peers(&jobs), [one]);
    }

    /// Waiting requests do not exceed their limit of memory.
    #[test]
    fn the_peer_with_most_requests_loses_them_first() {
        for bytes in [0, 16 << 20] {
            let [few, greedy, other] = unconnected_peers();
            let (jobs, (_done, responses)) = (SharedJobQueue::default(), mpsc::channel());
            let mut runs = JobSubmitter::new(&jobs, responses);
            let most = WAITING_MAX.min(WAITING_BYTES_MAX / bytes.max(1));
            runs.submit(test_request(other, OTHER, bytes));
            for _ in 1..most {
                runs.submit(test_request(greedy, ONE, bytes));
            }
            assert_eq!(runs.peer_over_limit(), None);
            runs.submit(test_request(few, ONE, bytes));
            assert_eq!(runs.peer_over_limit(), Some(greedy), "and not the last one");
            assert_eq!((runs.discard_requests(greedy), runs.discard_requests(greedy)), (most - 1, 0));
            assert_eq!(runs.peer_over_limit(), None);
            assert!(!runs.has_requests_of(greedy) && runs.has_requests_of(few));
            assert_eq!(started_peers(&jobs), [other, few]);
        }
    }

    #[test]
    fn requests_are_counted_over_all_connections_of_a_network() {
        let [honest, rest @ ..] = unconnected_peers::<9>();
        let (jobs, (_done, responses)) = (SharedJobQueue::default(), mpsc::channel());
        let mut runs = JobSubmitter::new(&jobs, responses);
        for _ in 0..WAITING_MAX / 8 {
            runs.submit(test_request(honest, OTHER, 0));
            rest[1..].iter().for_each(|peer| runs.submit(test_request(*peer, ONE, 0)));
        }
        runs.submit(test_request(rest[0], OTHER, 0));
        assert!(runs.peer_over_limit().is_some_and(|peer_over_limit| rest[1..].contains(&peer_over_limit)));
    }
}
