//! `nocopy serve nfs`: clients that work, beside others that flood, stall, forge and repeat.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;

use nocopy_nfs::wire::mount::{self, MountReply, Text};
use nocopy_nfs::wire::nfs3::{
    self, Attributes, CommitArguments, CommitResult, CreateArguments, CreateMode, CreateResult, Data, Entry,
    FileHandle, LookupResult, NewAttributes, NfsResult, Procedure, ReadArguments, ReadDirPlusArguments,
    ReadHead, Stability, Status, WeakCacheConsistency, WriteArguments, WriteResult,
};
use nocopy_nfs::wire::record;
use nocopy_nfs::wire::rpc::Reply;
use nocopy_nfs::wire::xdr::{self, Reader, Xdr};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    RunningAttack, attacker_address, connect_from_address, flood_connections, run_victims_during_attack,
    victim_address,
};
use crate::nfs::{RunningNfsServer, encode_call_record};
use crate::running::{PATIENCE, readable_directory};

const VICTIMS: usize = 8;
/// What each victim does: a file is made, written, committed, found, read and removed.
const ROUNDS: usize = 50;
const CALLS_PER_ROUND: usize = 6;
const ATTACKERS: usize = 16;
/// What the attackers do before the victims begin.
const CALLS_BEFORE: u64 = 200;
const FILES: usize = 2_000;
const FILE_BYTES: usize = 4096;

/// A connection that makes one call after the other.
struct NfsTestClient {
    stream: TcpStream,
    root: FileHandle,
    xid: u32,
}

/// The results of the next reply, which belongs to the call with that number.
fn read_call_results(stream: &mut TcpStream, expected: u32) -> std::io::Result<Vec<u8>> {
    let mut mark = [0; record::MARK_BYTES];
    stream.read_exact(&mut mark)?;
    let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    stream.read_exact(&mut reply)?;
    let mut input = Reader::new(&reply);
    assert_eq!(Reply::decode(&mut input), Ok((expected, Reply::Success)));
    Ok(input.rest().to_vec())
}

fn mount_root(stream: &mut TcpStream) -> std::io::Result<FileHandle> {
    let path: mount::Path<'_> = Text(b"/");
    stream.write_all(&encode_call_record(1, mount::PROGRAM, 1, &path))?;
    let mounted: MountReply = xdr::parse(&read_call_results(stream, 1)?).expect("a reply to a mount");
    Ok(mounted.expect("it may be mounted").handle)
}

impl NfsTestClient {
    fn connect(from: IpAddr, to: SocketAddr) -> Self {
        let mut stream = connect_from_address(from, to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let root = mount_root(&mut stream).unwrap();
        Self { stream, root, xid: 1 }
    }

    fn call_procedure<'a>(&mut self, procedure: Procedure, asked: &impl Xdr<'a>) -> Vec<u8> {
        self.xid += 1;
        self.stream.write_all(&encode_call_record(self.xid, nfs3::PROGRAM, procedure as u32, asked)).unwrap();
        read_call_results(&mut self.stream, self.xid).unwrap()
    }

    fn call_and_parse<'a, T>(&mut self, procedure: Procedure, asked: &impl Xdr<'a>) -> T
    where
        T: for<'b> Xdr<'b>,
    {
        xdr::parse(&self.call_procedure(procedure, asked))
            .unwrap_or_else(|error| panic!("{procedure:?}: {error}"))
    }

    /// Makes a file, and checks that everybody's next call sees what the last one did.
    fn check_file_operations(&mut self, name: &str, filled_with: u8) {
        let at = Entry { directory: self.root, name: Text(name.as_bytes()) };
        let how = CreateMode::Guarded(NewAttributes { mode: Some(0o600), ..NewAttributes::NONE });
        let made: NfsResult<CreateResult, WeakCacheConsistency> =
            self.call_and_parse(Procedure::Create, &CreateArguments { at, how });
        let file = made.unwrap().file.unwrap();
        let content = [filled_with; FILE_BYTES];
        let (count, stability, data) = (content.len() as u32, Stability::Unstable, Data(&content));
        let asked = WriteArguments { file, offset: 0, count, stability, data };
        let written: NfsResult<WriteResult, WeakCacheConsistency> =
            self.call_and_parse(Procedure::Write, &asked);
        assert_eq!(written.unwrap().count, count);
        let asked = CommitArguments { file, offset: 0, count: 0 };
        let committed: NfsResult<CommitResult, WeakCacheConsistency> =
            self.call_and_parse(Procedure::Commit, &asked);
        committed.unwrap();
        let found: NfsResult<LookupResult, Option<Attributes>> = self.call_and_parse(Procedure::Lookup, &at);
        assert_eq!(found.unwrap().file, file);
        let read = self.call_procedure(Procedure::Read, &ReadArguments { file, offset: 0, bytes: count });
        let mut read = Reader::new(&read);
        let head: ReadHead = read.read::<NfsResult<_, Option<Attributes>>>().unwrap().unwrap();
        assert_eq!(read.bytes(head.count as usize).unwrap(), content);
        let removed: NfsResult<WeakCacheConsistency, WeakCacheConsistency> =
            self.call_and_parse(Procedure::Remove, &at);
        removed.unwrap();
    }
}

struct AttackedServer {
    root_directory: TempDir,
    server: RunningNfsServer,
}

impl AttackedServer {
    fn new() -> Self {
        let root_directory = readable_directory();
        let exported = root_directory.path().join("exported");
        fs::create_dir(&exported).unwrap();
        fs::set_permissions(&exported, fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(exported.join("many")).unwrap();
        (0..FILES)
            .for_each(|number| drop(fs::File::create(exported.join(format!("many/{number}"))).unwrap()));
        fs::write(root_directory.path().join("outside"), b"nobody's business").unwrap();
        let server = RunningNfsServer::start(&root_directory, &["--writable"]);
        Self { root_directory, server }
    }

    /// All victims work beside the attack; each call of theirs is answered, and counted as theirs by the
    /// server.
    fn check_service_during_attack(
        self,
        attack: impl Fn(usize, &RunningAttack, SocketAddr) + Sync,
    ) -> (Value, TempDir) {
        let address = self.server.address;
        let mut victims: Vec<NfsTestClient> =
            (0..VICTIMS).map(|number| NfsTestClient::connect(victim_address(number), address)).collect();
        run_victims_during_attack(
            ATTACKERS,
            CALLS_BEFORE,
            |number, attacking| attack(number, attacking, address),
            || {
                for round in 0..ROUNDS {
                    for (number, client) in victims.iter_mut().enumerate() {
                        client.check_file_operations(&format!("of {number}"), (round + number) as u8);
                    }
                }
            },
        );
        drop(victims);
        let summary = self.server.stop();
        let clients = summary["clients"].as_array().unwrap();
        for number in 0..VICTIMS {
            let address = victim_address(number).to_string();
            let of_it = clients.iter().find(|client| client["address"] == address[..]);
            let of_it = of_it.unwrap_or_else(|| panic!("{address}: {summary}"));
            let counted =
                ["connections", "calls", "written_bytes", "bytes"].map(|field| of_it[field].as_u64());
            let bytes = (ROUNDS * FILE_BYTES) as u64;
            let calls = (1 + ROUNDS * CALLS_PER_ROUND) as u64;
            assert_eq!(counted, [1, calls, bytes, bytes].map(Some), "{address}: {summary}");
        }
        (summary, self.root_directory)
    }
}

/// A network that always has more to do for all workers than there are leaves some of them to others.
#[test]
#[ignore = "an attack: cargo xtask nightly trust"]
fn one_network_never_keeps_all_worker_threads_busy() {
    if !nocopy_lab::descriptors_or_skip() {
        return;
    }
    let (summary, _) = AttackedServer::new().check_service_during_attack(|number, attacking, address| {
        let mut stream = connect_from_address(attacker_address(number), address).unwrap();
        let root = mount_root(&mut stream).unwrap();
        let many = encode_call_record(
            1,
            nfs3::PROGRAM,
            Procedure::Lookup as u32,
            &Entry { directory: root, name: Text(b"many") },
        );
        stream.write_all(&many).unwrap();
        let found: NfsResult<LookupResult, Option<Attributes>> =
            xdr::parse(&read_call_results(&mut stream, 1).unwrap()).unwrap();
        let directory = found.unwrap().file;
        let listed = ReadDirPlusArguments {
            directory,
            cookie: 0,
            verifier: [0; 8],
            names_bytes_max: 1 << 20,
            bytes_max: 1 << 20,
        };
        let name = format!("stranger's {number}");
        let at = Entry { directory: root, name: Text(name.as_bytes()) };
        let create = CreateArguments { at, how: CreateMode::Unchecked(NewAttributes::NONE) };
        while attacking.is_running() {
            // The same call many times, and long ones.
            let mut calls = Vec::new();
            (0..8).for_each(|_| {
                calls.extend(encode_call_record(7, nfs3::PROGRAM, Procedure::Create as u32, &create));
            });
            (0..4).for_each(|_| {
                calls.extend(encode_call_record(8, nfs3::PROGRAM, Procedure::ReadDirPlus as u32, &listed));
            });
            calls.extend(encode_call_record(9, nfs3::PROGRAM, Procedure::Remove as u32, &at));
            if stream.write_all(&calls).is_err() {
                break;
            }
            // A call repeated while it is made is answered once.
            let mut mark = [0; record::MARK_BYTES];
            for _ in 0..6 {
                if stream.read_exact(&mut mark).is_err() {
                    return;
                }
                let bytes = (u32::from_be_bytes(mark) & !(1 << 31)).into();
                std::io::copy(&mut (&mut stream).take(bytes), &mut std::io::sink()).unwrap();
                attacking.add_done(1);
            }
        }
    });
    assert_eq!(summary["malformed"], 0, "{summary}");
}

/// Connections by the thousand, with half a call each, or none, end no connection that is used.
#[test]
#[ignore = "an attack: cargo xtask nightly trust"]
fn connection_floods_evict_only_their_own_network() {
    if !nocopy_lab::descriptors_or_skip() {
        return;
    }
    let call = encode_call_record(1, nfs3::PROGRAM, Procedure::Null as u32, &());
    let begins = [0, 3, call.len() - 1, call.len()].map(|bytes| &call[..bytes]);
    let (summary, _) = AttackedServer::new().check_service_during_attack(|number, attacking, address| {
        flood_connections(number, attacking, address, 100, |done| begins[done % begins.len()]);
    });
    assert_eq!(summary["malformed"], 0, "half a call is no other message: {summary}");
}

/// Handles that the server did not make, and records that are no calls, lead nowhere and cost nobody else
/// anything.
#[test]
#[ignore = "an attack: cargo xtask nightly trust"]
fn forged_handles_and_records_have_no_effect() {
    let (summary, root_directory) =
        AttackedServer::new().check_service_during_attack(|number, attacking, address| {
            let mut done = 0;
            'connections: while attacking.is_running() {
                let mut stream = connect_from_address(attacker_address(number), address).unwrap();
                let Ok(root) = mount_root(&mut stream) else { continue };
                for _ in 0..200 {
                    let mut bytes = root.as_bytes().to_vec();
                    let at = (number + done) % bytes.len();
                    bytes[at] ^= (1 + done % 255) as u8;
                    let file = FileHandle::new(&bytes).unwrap();
                    let (procedure, asked) = match done % 4 {
                        0 => (Procedure::GetAttr, encode_arguments(&file)),
                        1 => (
                            Procedure::Read,
                            encode_arguments(&ReadArguments { file, offset: 0, bytes: 4096 }),
                        ),
                        2 => (
                            Procedure::Lookup,
                            encode_arguments(&Entry { directory: file, name: Text(b"outside") }),
                        ),
                        _ => (
                            Procedure::Remove,
                            encode_arguments(&Entry { directory: file, name: Text(b"of 1") }),
                        ),
                    };
                    if stream
                        .write_all(&encode_call_record(
                            5,
                            nfs3::PROGRAM,
                            procedure as u32,
                            &EncodedArguments(&asked),
                        ))
                        .is_err()
                    {
                        continue 'connections;
                    }
                    let Ok(reply) = read_call_results(&mut stream, 5) else { continue 'connections };
                    let status = u32::from_be_bytes(reply[..4].try_into().unwrap());
                    assert_eq!(status, Status::BadHandle as u32, "{procedure:?}");
                    done += 1;
                    attacking.add_done(1);
                }
                let _ = stream.write_all(&[done as u8; 64]);
            }
        });
    assert_eq!(fs::read(root_directory.path().join("outside")).unwrap(), b"nobody's business", "{summary}");
}

/// Arguments that are encoded already.
struct EncodedArguments<'a>(&'a [u8]);

impl Xdr<'_> for EncodedArguments<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0);
    }

    fn decode(_: &mut Reader<'_>) -> Result<Self, xdr::XdrError> {
        unreachable!("only arguments are sent so")
    }
}

fn encode_arguments<'a>(asked: &impl Xdr<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    asked.encode(&mut out);
    out
}
