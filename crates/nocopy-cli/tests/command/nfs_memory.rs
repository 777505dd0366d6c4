//! The memory of `nocopy serve nfs` while one address sends thousands of incomplete calls.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;

use nocopy_nfs::wire::mount::{self, MountReply, Text};
use nocopy_nfs::wire::nfs3::{
    self, Attributes, Data, FileHandle, LookupArguments, LookupResult, NfsResult, Procedure, Stability,
    WeakCacheConsistency, WriteArguments, WriteResult,
};
use nocopy_nfs::wire::rpc::{Call, Credential};
use nocopy_nfs::wire::xdr;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::nfs::RunningNfsServer;
use crate::running::readable_directory;

const HONEST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Fewer where so many descriptors are not allowed.
const CONNECTIONS: usize = 2000;

const SERVER_BYTES_MAX: usize = 256 << 20;

/// The longest record that a writable server accepts, a write.
const LONG_BYTES: usize = (1 << 20) + (40 << 10);

/// The longest record of any other kind.
const SHORT_BYTES: usize = 40 << 10;

/// Marks the last fragment of a record.
const LAST: u32 = 1 << 31;

fn encode_call(procedure: Procedure, arguments: &[u8]) -> Vec<u8> {
    let (xid, procedure, credential) = (1, procedure as u32, Credential::NONE);
    let mut out = Vec::new();
    Call { xid, program: nfs3::PROGRAM, version: 3, procedure, credential, arguments }.encode(&mut out);
    out
}

/// The beginning of a record that claims to be longer.
fn partial_call(mark: u32, begin: &[u8], claimed: usize) -> Vec<u8> {
    let mut out = (claimed as u32 | mark).to_be_bytes().to_vec();
    out.extend_from_slice(begin);
    out.resize(4 + claimed - 8, 0);
    out
}

fn connect_from_address(from: IpAddr, to: SocketAddr) -> TcpStream {
    let opened = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&opened, &SocketAddr::new(from, 0)).unwrap();
    // What the server does not read takes little memory of the kernel.
    sockopt::set_socket_send_buffer_size(&opened, 32 << 10).unwrap();
    connect(&opened, &to).unwrap();
    opened.into()
}

/// The most memory that a process ever had.
fn peak_memory_bytes(process: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
}

/// Sends as much as the server takes: until no connection could send more while an honest client was answered
/// several times.
fn send_until_nothing_is_taken(connections: &mut [(TcpStream, &[u8])], honest: impl Fn() -> FileHandle) {
    let mut quiet = 0;
    while quiet < 5 {
        let mut count = 0;
        for (stream, rest) in connections.iter_mut() {
            // An error: its buffers are full, or the server has ended it.
            while let Ok(sent @ 1..) = stream.write(rest) {
                *rest = &rest[sent..];
                count += sent;
            }
        }
        let _ = honest();
        quiet = if count == 0 { quiet + 1 } else { 0 };
    }
}

fn connections_max() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let most = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| most as usize);
    // The server needs as many, and two for a pipe each.
    CONNECTIONS.min(most.saturating_sub(1024) / 3)
}

#[test]
fn incomplete_calls_of_one_address_take_bounded_memory() {
    check_incomplete_calls_are_bounded(|_| IpAddr::V4(Ipv4Addr::LOCALHOST));
}

/// Sends incomplete calls from these addresses, and checks the server's memory, and that another address is
/// served.
pub(crate) fn check_incomplete_calls_are_bounded(from: impl Fn(usize) -> IpAddr) {
    if !nocopy_lab::descriptors_or_skip() {
        return;
    }
    let around = readable_directory();
    fs::create_dir(around.path().join("exported")).unwrap();
    let path = around.path().join("exported/file");
    fs::write(&path, b"content").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let server = RunningNfsServer::start(&around, &["--writable"]);
    let process = server.running.id();
    let honest = || {
        let path: mount::Path<'_> = Text(b"/");
        let reply =
            server.call_procedure_on(connect_from_address(HONEST, server.address), mount::PROGRAM, 1, &path);
        xdr::parse::<MountReply>(&reply).unwrap().unwrap().handle
    };
    let halves = [
        partial_call(LAST, &encode_call(Procedure::Null, &[]), LONG_BYTES),
        partial_call(0, &encode_call(Procedure::Write, &[]), LONG_BYTES - 100),
        partial_call(LAST, &encode_call(Procedure::Null, &[]), SHORT_BYTES),
        partial_call(LAST, &encode_call(Procedure::Write, &[]), SHORT_BYTES),
        partial_call(0, &encode_call(Procedure::Null, &[]), SHORT_BYTES),
    ];
    let attack = |number: usize| {
        let stream = connect_from_address(from(number), server.address);
        stream.set_nonblocking(true).unwrap();
        // The long ones are few, because the kernel's memory of unread bytes is limited, too.
        let kind = if number.is_multiple_of(4) { number / 4 % 2 } else { 2 + number % 3 };
        (stream, &halves[kind][..])
    };
    let mut connections: Vec<_> = (0..connections_max()).map(attack).collect();
    send_until_nothing_is_taken(&mut connections, honest);
    let root = honest();
    let file = look_up_file(&server, root);
    let data = vec![b'x'; 1 << 20];
    let (count, stability, data) = (data.len() as u32, Stability::Unstable, Data(&data));
    let asked = WriteArguments { file, offset: 0, count, stability, data };
    let stream = connect_from_address(HONEST, server.address);
    let reply = server.call_procedure_on(stream, nfs3::PROGRAM, Procedure::Write as u32, &asked);
    let written = xdr::parse::<NfsResult<WriteResult, WeakCacheConsistency>>(&reply).unwrap().unwrap();
    assert_eq!(written.count, count);
    let peak = peak_memory_bytes(process);
    assert!(peak <= SERVER_BYTES_MAX, "{peak} bytes of memory");
}

fn look_up_file(server: &RunningNfsServer, directory: FileHandle) -> FileHandle {
    let asked = LookupArguments { directory, name: Text(b"file") };
    let stream = connect_from_address(HONEST, server.address);
    let reply = server.call_procedure_on(stream, nfs3::PROGRAM, Procedure::Lookup as u32, &asked);
    xdr::parse::<NfsResult<LookupResult, Option<Attributes>>>(&reply).unwrap().unwrap().file
}
