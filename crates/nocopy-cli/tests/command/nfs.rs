//! `nocopy serve nfs` as users run it: clients continue after it was killed, and its summary says what was
//! copied.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Output;

use nocopy_lab::ProgramForAnyUser;
use nocopy_nfs::wire::mount::{self, MountReply, Text};
use nocopy_nfs::wire::nfs3::{
    self, Attributes, FileHandle, LookupArguments, LookupResult, NfsResult, Procedure, ReadArguments,
    ReadHead,
};
use nocopy_nfs::wire::record;
use nocopy_nfs::wire::rpc::{Call, Credential, Reply};
use nocopy_nfs::wire::xdr::{self, Reader, Xdr};
use nocopy_report::capability;
use rustix::process::Signal;
use serde_json::Value;

use crate::running::{
    PATIENCE, RunningNocopy, lossy_text, nocopy_command, piped_command, readable_directory,
};
use crate::sandbox::{self, Refused};

pub(crate) struct RunningNfsServer {
    pub(crate) running: RunningNocopy,
    pub(crate) address: SocketAddr,
}

impl RunningNfsServer {
    pub(crate) fn start(around: &tempfile::TempDir, options: &[&str]) -> Self {
        let directory = around.path().join("exported").display().to_string();
        let state = around.path().join("state").display().to_string();
        let begin = ["serve", "nfs", &directory, "--state", &state, "--listen", "127.0.0.1:0", "--json"];
        let mut running = RunningNocopy::start(&[&begin, options].concat());
        let mut errors = BufReader::new(running.0.as_mut().unwrap().stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let address = line.strip_prefix("nocopy: serving at nfs://").and_then(|rest| rest.split('/').next());
        let address = address.and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("{line}"));
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Self { running, address }
    }

    /// Makes a call on its own connection; returns the results.
    fn call_procedure<'a>(&self, program: u32, procedure: u32, asked: &impl Xdr<'a>) -> Vec<u8> {
        let stream = TcpStream::connect(self.address).unwrap();
        self.call_procedure_on(stream, program, procedure, asked)
    }

    pub(crate) fn call_procedure_on<'a>(
        &self,
        mut stream: TcpStream,
        program: u32,
        procedure: u32,
        asked: &impl Xdr<'a>,
    ) -> Vec<u8> {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&encode_call_record(1, program, procedure, asked)).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        let mut input = Reader::new(&reply[record::MARK_BYTES..]);
        assert_eq!(Reply::decode(&mut input), Ok((1, Reply::Success)));
        input.rest().to_vec()
    }

    fn look_up_file(&self, directory: FileHandle, name: &str) -> FileHandle {
        let asked = LookupArguments { directory, name: Text(name.as_bytes()) };
        let reply = self.call_procedure(nfs3::PROGRAM, Procedure::Lookup as u32, &asked);
        xdr::parse::<NfsResult<LookupResult, Option<Attributes>>>(&reply).unwrap().unwrap().file
    }

    fn read_file(&self, file: FileHandle, offset: u64, bytes: u32) -> Vec<u8> {
        let asked = ReadArguments { file, offset, bytes };
        let reply = self.call_procedure(nfs3::PROGRAM, Procedure::Read as u32, &asked);
        let mut input = Reader::new(&reply);
        let head: ReadHead = input.read::<NfsResult<_, Option<Attributes>>>().unwrap().unwrap();
        input.bytes(head.count as usize).unwrap().to_vec()
    }

    pub(crate) fn stop(self) -> Value {
        self.running.signal(Signal::INT);
        let (summary, code) = self.running.wait_for_summary();
        assert_eq!((code, &summary["schema"]), (0, &"nocopy.serve-nfs/2".into()), "{summary}");
        summary
    }
}

/// A call, as it is sent.
pub(crate) fn encode_call_record<'a>(
    xid: u32,
    program: u32,
    procedure: u32,
    asked: &impl Xdr<'a>,
) -> Vec<u8> {
    let mut arguments = Vec::new();
    asked.encode(&mut arguments);
    let mut call = record::begin();
    let credential = Credential::NONE;
    Call { xid, program, version: 3, procedure, credential, arguments: &arguments }.encode(&mut call);
    record::end(&mut call, 0);
    call
}

fn pattern_bytes() -> Vec<u8> {
    (0..300_000_u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn handles_of_files_renamed_between_restarts_stay_valid() {
    if rustix::thread::capabilities(None)
        .is_ok_and(|held| !held.effective.contains(rustix::thread::CapabilitySet::DAC_READ_SEARCH))
    {
        return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_DAC_READ_SEARCH"));
    }
    let around = readable_directory();
    fs::create_dir_all(around.path().join("exported/below")).unwrap();
    fs::write(around.path().join("exported/file"), pattern_bytes()).unwrap();
    let server = RunningNfsServer::start(&around, &[]);
    let path: mount::Path<'_> = Text(b"/");
    let root =
        xdr::parse::<MountReply>(&server.call_procedure(mount::PROGRAM, 1, &path)).unwrap().unwrap().handle;
    let file = server.look_up_file(root, "file");
    server.running.signal(Signal::KILL);
    drop(server);
    let [before, after, outside] =
        ["exported/file", "exported/below/renamed", "outside"].map(|path| around.path().join(path));
    fs::rename(before, &after).unwrap();
    let server = RunningNfsServer::start(&around, &[]);
    assert_eq!(server.read_file(file, 0, 1 << 20), pattern_bytes());
    fs::rename(after, outside).unwrap();
    let reply = server.call_procedure(nfs3::PROGRAM, Procedure::GetAttr as u32, &file);
    assert_eq!(reply, (nfs3::Status::Stale as u32).to_be_bytes());
    server.stop();
}

#[test]
fn file_handles_stay_valid_after_a_server_is_killed() {
    let around = readable_directory();
    fs::create_dir_all(around.path().join("exported/below")).unwrap();
    fs::write(around.path().join("exported/below/file"), pattern_bytes()).unwrap();
    let server = RunningNfsServer::start(&around, &[]);
    let path: mount::Path<'_> = Text(b"/");
    let root =
        xdr::parse::<MountReply>(&server.call_procedure(mount::PROGRAM, 1, &path)).unwrap().unwrap().handle;
    let file = server.look_up_file(server.look_up_file(root, "below"), "file");
    let first = server.read_file(file, 0, 100_000);
    server.running.signal(Signal::KILL);
    drop(server);
    let server = RunningNfsServer::start(&around, &[]);
    assert_eq!([first, server.read_file(file, 100_000, 1 << 20)].concat(), pattern_bytes());
    let summary = server.stop();
    assert_eq!((&summary["ended"], &summary["bytes"]), (&"interrupted".into(), &200_000.into()), "{summary}");
    let evidence = &summary["clients"][0]["evidence"];
    assert_eq!(evidence["unknown_bytes"], 200_000, "{summary}");
    assert_eq!(evidence["copied_bytes"], serde_json::json!({}), "{summary}");
    // For comparison: everything is copied, and the summary says so.
    let server = RunningNfsServer::start(&around, &["--stable"]);
    assert_eq!(server.read_file(file, 0, 1 << 20), pattern_bytes());
    let summary = server.stop();
    assert_eq!(summary["evidence"]["copied_bytes"], serde_json::json!({"stable": 300_000}), "{summary}");
    assert_eq!(summary["evidence"]["unknown_bytes"], 0, "{summary}");
}

#[test]
fn refused_exports_have_cause_and_remedy() {
    let around = readable_directory();
    let path = around.path().display().to_string();
    let state = around.path().join("state").display().to_string();
    let refused = [
        (&["/absent/directory"][..], ["/absent/directory", "name a directory"]),
        (&[&path, "--state", &state], ["inside the exported directory", "--state"]),
        (&[&path, "--state", "/proc/none", "--listen", "127.0.0.1:0"], ["/proc/none", "--state"]),
    ];
    for (arguments, words) in refused {
        let output = nocopy_command(&[&["serve", "nfs"], arguments].concat()).output().unwrap();
        assert_export_is_refused(&output, &words);
    }
}

fn assert_export_is_refused(output: &Output, words: &[&str]) {
    let message = lossy_text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
}

/// Root in a container may lack the right to act as other users; then it serves nobody as root.
#[test]
fn root_unable_to_act_as_other_users_does_not_serve() {
    let around = readable_directory();
    let path = around.path().join("exported").display().to_string();
    let state = around.path().join("state").display().to_string();
    fs::create_dir(&path).unwrap();
    let without_rights = |options: &[&str]| {
        let run = || {
            capability::drop_others(capability::NONE).unwrap(); // of this thread, and so of what it starts
            nocopy_command(
                &[&["serve", "nfs", &path, "--state", &state, "--duration", "1ms"], options].concat(),
            )
            .output()
            .unwrap()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    };
    let is_root = rustix::process::geteuid().is_root();
    let options = [None, Some("--writable"), Some("--no-root-squash"), Some("--insecure")];
    for option in options.into_iter().skip(if is_root { 0 } else { 2 }) {
        let output = without_rights(option.as_slice());
        match option {
            Some(option) if !is_root => assert_export_is_refused(&output, &[option, "start it as root"]),
            _ => assert_export_is_refused(
                &output,
                &["serve nfs: refused; this is root", "CAP_SETUID", "setpriv"],
            ),
        }
    }
}

/// Without faccessat2(2) the libraries check files for the real user, who is root, and all calls would have
/// root's rights.
#[test]
fn root_unable_to_check_access_does_not_serve() {
    if !rustix::process::geteuid().is_root() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_SETUID"));
    }
    let around = readable_directory();
    let path = around.path().join("exported").display().to_string();
    let state = around.path().join("state").display().to_string();
    fs::create_dir(&path).unwrap();
    for errno in [libc::ENOSYS, libc::EPERM] {
        let refused = [Refused::always(libc::SYS_faccessat2, errno)];
        let arguments =
            ["serve", "nfs", &path, "--state", &state, "--duration", "1ms", "--listen", "127.0.0.1:0"];
        let output = sandbox::sandboxed_nocopy_command(&refused, &arguments).output().unwrap();
        assert_export_is_refused(&output, &["serve nfs: refused", "faccessat2(2)", "Linux 5.8"]);
    }
}

/// Proves that a program without privileges reads no file of the user that it names, while root of a client
/// may name any user.
#[test]
fn user_ids_claimed_from_unprivileged_ports_are_ignored() {
    const OWNER: u32 = 1001;
    let around = readable_directory();
    fs::create_dir(around.path().join("exported")).unwrap();
    for (name, mode) in [("private", 0o600), ("readable", 0o644)] {
        let path = around.path().join("exported").join(name);
        fs::write(&path, "content").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        if chown(&path, Some(OWNER), Some(OWNER)).is_err() {
            return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_CHOWN"));
        }
    }
    fs::set_permissions(around.path().join("exported"), Permissions::from_mode(0o755)).unwrap();
    let program = ProgramForAnyUser::copy(Path::new(env!("CARGO_BIN_EXE_nocopy"))).unwrap();
    let printed = |server: &RunningNfsServer, user: u32, name: &str| {
        let url = format!("nfs://{}/{name}", server.address);
        let mut command =
            piped_command(program.path(), &["cat", "--user", &format!("{OWNER}:{OWNER}"), &url]);
        let output = command.uid(user).gid(user).output().unwrap();
        if output.status.success() { Ok(output.stdout) } else { Err(lossy_text(&output.stderr).to_owned()) }
    };
    for (option, is_believed) in [(None, false), (Some("--insecure"), true)] {
        let server = RunningNfsServer::start(&around, option.as_slice());
        assert_eq!(printed(&server, OWNER, "readable"), Ok(b"content".to_vec()));
        assert_eq!(printed(&server, 0, "private"), Ok(b"content".to_vec()), "root names a user");
        match printed(&server, OWNER, "private") {
            Ok(content) => assert!(is_believed && content == b"content"),
            Err(message) => assert!(!is_believed && message.contains("EACCES"), "{message}"),
        }
        server.stop();
    }
}
