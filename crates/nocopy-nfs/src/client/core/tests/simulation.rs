//! The core against the server's core, from seeds: streams cut anywhere, replies in any order, connections
//! lost in any place, and the server started again without what was not committed.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use nocopy::Pool;

use super::super::*;
use crate::export::{Caller, Export};
use crate::server::core::{Answer, Core as Server, encode_read_reply};
use crate::wire::mount::Text;
use crate::wire::nfs3::{
    CreateResult, Entry, MakeDirectoryArguments, NewAttributes, NfsResult, Status, WeakCacheConsistency,
};
use crate::wire::record::RecordAssembler;
use crate::wire::xdr::{self, padding};

const CONNECTIONS: usize = 3;
const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1023);
const FILE_BYTES: usize = 50_000;
const SEEDS: u64 = 20;
const STEPS: usize = 1500;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % end as u64) as usize
    }

    fn is_one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// One connection: the calls that the server has received, and its replies.
struct SimulatedConnection {
    calls: RecordAssembler,
    /// Sent and not arrived; of the last call a part may never be sent.
    to_server: Vec<u8>,
    replies: Vec<Vec<u8>>,
    to_client: Vec<u8>,
}

impl SimulatedConnection {
    fn new() -> Self {
        let calls = RecordAssembler::new(2 << 20);
        Self { calls, to_server: Vec::new(), replies: Vec::new(), to_client: Vec::new() }
    }
}

struct Simulation {
    random: Random,
    around: tempfile::TempDir,
    /// Always there, but while it is started again: one at a time may have the state.
    server: Option<Server>,
    core: Core,
    links: Vec<SimulatedConnection>,
    pool: Pool,
    behind: u64,
    /// The committed bytes of the written file.
    stable: Vec<u8>,
    written: Vec<u8>,
    reads: HashMap<Ticket, FilePosition>,
    directories: HashMap<Ticket, String>,
    commit: Option<(Ticket, Vec<u8>)>,
    restarts: usize,
    cuts: usize,
    commits: usize,
    repeated: usize,
}

fn pattern_bytes(from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn start_server(around: &tempfile::TempDir) -> Server {
    let export = Export::open(&around.path().join("exported"), Some(&around.path().join("state"))).unwrap();
    Server::new(std::sync::Arc::new(export), Vec::new(), 2049).writable(true)
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let around = tempfile::tempdir().unwrap();
        let exported = around.path().join("exported");
        fs::create_dir(&exported).unwrap();
        fs::write(exported.join("read"), pattern_bytes(0, FILE_BYTES)).unwrap();
        fs::write(exported.join("written"), vec![0; FILE_BYTES]).unwrap();
        let server = Some(start_server(&around));
        let mut random = Random(seed);
        for _ in 0..4 {
            random.below(2); // seeds that are close begin alike
        }
        let mut core = Core::new(CONNECTIONS, random.below(1 << 30) as u32, vec![0; 20]);
        core.set_limits(TransferLimits { read_bytes_max: 3000, write_bytes_max: 3000 });
        let pool = Pool::new(32, 8192).unwrap();
        core.set_pool(&pool);
        Self {
            random,
            around,
            server,
            core,
            links: (0..CONNECTIONS).map(|_| SimulatedConnection::new()).collect(),
            pool,
            behind: 0,
            stable: vec![0; FILE_BYTES],
            written: vec![0; FILE_BYTES],
            reads: HashMap::new(),
            directories: HashMap::new(),
            commit: None,
            restarts: 0,
            cuts: 0,
            commits: 0,
            repeated: 0,
        }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("started again at once")
    }

    fn exported_path(&self, name: &str) -> PathBuf {
        self.around.path().join("exported").join(name)
    }

    fn file_handle(&self, name: &str) -> FileHandle {
        let export = self.server().export();
        let file =
            export.walk(&Caller::Server, name.as_ref()).unwrap_or_else(|status| panic!("{name}: {status:?}"));
        export.save_index().unwrap(); // as the server's core does before it replies
        file
    }

    fn make_random_request(&mut self, files: [FileHandle; 2]) {
        let [to_read, to_write] = files;
        match self.random.below(12) {
            0..4 => {
                let Some(mut buffer) = self.pool.take() else { return };
                let is_next = self.behind < FILE_BYTES as u64 && !self.random.is_one_in(3);
                buffer.resize(1 + self.random.below(if is_next { 1000 } else { 8192 }));
                let anywhere = self.random.below(FILE_BYTES + 1000) as u64;
                let offset = if is_next { self.behind } else { anywhere };
                self.behind = offset + buffer.len() as u64;
                let place = FilePosition { file: to_read, offset };
                let ticket = self.core.post(buffer, place).unwrap();
                self.reads.insert(ticket, place);
            }
            4..8 if self.commit.is_none() => {
                let Some(mut buffer) = self.pool.take() else { return };
                // Places that no write before it has that is not committed: those have no order.
                let start = self.random.below(FILE_BYTES / 100) * 100;
                if self.written[start..start + 100] != self.stable[start..start + 100] {
                    return;
                }
                let bytes = 100.min(1 + self.random.below(100));
                let value = self.stable[start] % 255 + 1; // another than is there
                buffer.fill(&vec![value; bytes]).unwrap();
                self.written[start..start + bytes].fill(value);
                self.core.write(buffer, FilePosition { file: to_write, offset: start as u64 }).unwrap();
            }
            8 if self.commit.is_none() => {
                let ticket = self.core.commit(to_write).expect("no other commit");
                self.commit = Some((ticket, self.written.clone()));
            }
            9 => {
                let name = format!("directory-{}", self.directories.len());
                let at =
                    Entry { directory: self.server().export().root_handle(), name: Text(name.as_bytes()) };
                let asked = MakeDirectoryArguments { at, attributes: NewAttributes::NONE };
                let ticket = self.core.call(Procedure::MakeDirectory.into(), &asked, 1000);
                self.directories.insert(ticket, name);
            }
            _ => {}
        }
    }

    fn send_next_call(&mut self, connection: usize) {
        let Some(xid) = self.core.assign_next_call(connection) else { return };
        let whole = self.core.call_pieces(xid).unwrap().concat();
        self.links[connection].to_server.extend(whole);
    }

    fn receive_some_bytes(&mut self, connection: usize) {
        let Self { random, core, links, .. } = self;
        let waiting = &mut links[connection].to_client;
        let count = random.below(4000).min(waiting.len());
        let filled = core.receive_buffers(connection).fill(&waiting[..count]);
        waiting.drain(..filled);
        core.handle_received(connection, filled).unwrap();
    }

    fn check_completions(&mut self) {
        while let Some(done) = self.core.next_completion() {
            match done {
                Completion::Filled { ticket, buffer, place, outcome } => {
                    assert_eq!(self.reads.remove(&ticket), Some(place), "once");
                    let start = place.offset as usize;
                    assert!(buffer[..] == pattern_bytes(start, buffer.len()), "from {start} on");
                    let is_end = outcome.unwrap().is_end;
                    assert_eq!(is_end, start + buffer.len() >= FILE_BYTES);
                }
                Completion::Results { ticket, results, is_repeated } => {
                    let name = self.directories.get(&ticket).cloned().unwrap();
                    let results = results.unwrap();
                    self.repeated += usize::from(is_repeated);
                    match xdr::parse::<NfsResult<CreateResult, WeakCacheConsistency>>(&results).unwrap() {
                        Ok(_) => {}
                        Err(refused) => {
                            assert_eq!(refused.status, Status::Exists);
                            assert!(is_repeated && self.restarts > 0, "{name}: made twice");
                        }
                    }
                    assert!(self.exported_path(&name).is_dir(), "{name}");
                }
                Completion::Committed { ticket, outcome, .. } => {
                    let (asked, written) = self.commit.take().unwrap();
                    assert_eq!((asked, outcome), (ticket, Ok(())));
                    assert!(self.stable == written, "what is committed is on the disk");
                    self.commits += 1;
                }
            }
        }
    }

    fn serve_received_calls(&mut self, connection: usize) {
        let link = &mut self.links[connection];
        let count = self.random.below(5000).min(link.to_server.len());
        let arrived: Vec<u8> = link.to_server.drain(..count).collect();
        link.calls.push(&arrived);
        while let Some(record) = self.links[connection].calls.take().unwrap().map(|record| record.to_vec()) {
            let reply = self.execute_call(&record);
            let place = self.random.below(self.links[connection].replies.len() + 1);
            self.links[connection].replies.insert(place, reply);
        }
        // Some are worked on for longer.
        while !self.links[connection].replies.is_empty() && !self.random.is_one_in(4) {
            let reply = self.links[connection].replies.remove(0);
            self.links[connection].to_client.extend(reply);
        }
    }

    fn execute_call(&mut self, record: &[u8]) -> Vec<u8> {
        let call = rpc::Call::parse(record).unwrap();
        match self.server().answer(record, CLIENT).unwrap() {
            Answer::Reply(reply) => {
                if call.procedure == Procedure::Commit as u32 {
                    self.stable = fs::read(self.exported_path("written")).unwrap();
                }
                reply
            }
            Answer::Written(reply, _) => reply,
            other @ (Answer::List(_) | Answer::InProgress { .. } | Answer::Repeated { .. }) => {
                panic!("not asked for: {other:?}")
            }
            Answer::Read(call) => {
                let file = self.server().open_for_read(&call).unwrap();
                // A server may return less.
                let bytes = if self.random.is_one_in(5) { 1 + call.bytes / 2 } else { call.bytes };
                let mut data = vec![0; bytes];
                let count = rustix::io::pread(&*file, &mut data, call.offset).unwrap();
                let is_end = call.offset + count as u64 >= FILE_BYTES as u64;
                let mut reply = encode_read_reply(call.xid, Ok((file.attributes().unwrap(), count, is_end)));
                reply.extend_from_slice(&data[..count]);
                reply.resize(reply.len() + padding(count), 0);
                reply
            }
        }
    }

    /// The connection breaks in the middle of whatever it carries.
    fn cut_connection(&mut self, connection: usize) {
        let link = &mut self.links[connection];
        let count = self.random.below(link.to_server.len() + 1);
        let arrived: Vec<u8> = link.to_server.drain(..count).collect();
        link.calls.push(&arrived);
        // Complete calls are executed even if the reply can no longer be delivered.
        while let Some(record) = self.links[connection].calls.take().unwrap().map(|record| record.to_vec()) {
            drop(self.execute_call(&record));
        }
        self.links[connection] = SimulatedConnection::new();
        self.core.on_connection_lost(connection);
        self.cuts += 1;
    }

    /// Restarts the server: uncommitted data is lost.
    fn restart_server(&mut self) {
        (0..CONNECTIONS).for_each(|connection| self.cut_connection(connection));
        let mut now = fs::read(self.exported_path("written")).unwrap();
        for start in (0..FILE_BYTES).step_by(100) {
            if self.random.is_one_in(2) {
                now[start..start + 100].copy_from_slice(&self.stable[start..start + 100]);
            }
        }
        fs::write(self.exported_path("written"), &now).unwrap();
        drop(self.server.take());
        self.server = Some(start_server(&self.around));
        self.restarts += 1;
    }

    fn run_step(&mut self) {
        let connection = self.random.below(CONNECTIONS);
        match self.random.below(200) {
            0 => self.cut_connection(connection),
            1 if self.random.is_one_in(3) => self.restart_server(),
            2..60 => self.send_next_call(connection),
            60..120 => self.serve_received_calls(connection),
            _ => self.receive_some_bytes(connection),
        }
        self.check_completions();
    }
}

/// What happened: restarts, commits, bytes lost by restarts, repeated calls, reads.
fn run_simulation(seed: u64) -> [u64; 5] {
    let mut world = Simulation::new(seed);
    let files = [world.file_handle("read"), world.file_handle("written")];
    for _ in 0..STEPS {
        world.make_random_request(files);
        world.run_step();
    }
    if world.commit.is_none() {
        let ticket = world.core.commit(files[1]).unwrap();
        world.commit = Some((ticket, world.written.clone()));
    }
    // All requests end once no more are made.
    let mut left = 200_000;
    while world.core.in_flight() > 0 && left > 0 {
        world.run_step();
        left -= 1;
    }
    world.check_completions();
    assert_eq!((world.core.in_flight(), world.reads.len()), (0, 0), "seed {seed}");
    assert!(world.commit.is_none() && world.core.uncommitted_bytes() == 0, "seed {seed}");
    assert!(fs::read(world.exported_path("written")).unwrap() == world.written, "seed {seed}");
    assert_eq!(world.pool.available(), world.pool.total());
    let counts = world.core.counts();
    assert_eq!(counts.bad_replies, 0);
    let [restarts, commits, repeated] =
        [world.restarts, world.commits, world.repeated].map(|count| count as u64);
    [restarts, commits, counts.lost_bytes, repeated, counts.reads]
}

#[test]
fn requests_complete_despite_lost_connections_and_restarts() {
    // At the same time, since each waits for the disk again and again.
    let happened = std::thread::scope(|scope| {
        let worlds: Vec<_> = (0..SEEDS).map(|seed| scope.spawn(move || run_simulation(seed))).collect();
        worlds
            .into_iter()
            .map(|world| world.join().unwrap())
            .reduce(|sum, one| std::array::from_fn(|at| sum[at] + one[at]))
    });
    let [restarts, commits, lost, repeated, reads] = happened.unwrap();
    assert!(
        restarts > 20 && commits > 50 && lost > 1000 && repeated > 20 && reads > 2000,
        "too little happened: {restarts} {commits} {lost} {repeated} {reads}"
    );
}
