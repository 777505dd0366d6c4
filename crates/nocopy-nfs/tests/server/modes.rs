//! What clients may make of a file that belongs to the user of the server: never a program that runs as that
//! user, and no device.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use nocopy_nfs::wire::mount::Text;
use nocopy_nfs::wire::nfs3::{
    CommitArguments, CreateArguments, CreateMode, CreateResult, Data, Entry, FileHandle, LinkArguments,
    MakeDirectoryArguments, NewAttributes, NfsResult, Procedure, RenameArguments, SetAttributesArguments,
    SetTime, Stability, Status, SymbolicLinkArguments, WeakCacheConsistency, WriteArguments,
};
use nocopy_nfs::wire::xdr::{Xdr, parse};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::process::{getegid, geteuid};

use crate::client::Client;
use crate::scene::{RunningServer, Scene};

/// Everything: set-user-ID, set-group-ID, sticky, and all permissions.
const ALL: u32 = 0o7777;
const WITHOUT_IDS: u32 = 0o1777;

/// Kinds of MKNOD (RFC 1813, 3.3.11): the last is no file type.
const KINDS: std::ops::RangeInclusive<u32> = 1..=8;
const BLOCK_DEVICE: u32 = 3;
const CHARACTER_DEVICE: u32 = 4;
const SOCKET: u32 = 6;
const FIFO: u32 = 7;

fn serve_writable(scene: &Scene) -> RunningServer {
    scene.serve_with(|settings| settings.is_writable = true)
}

struct MountedClient {
    client: Client,
    root: FileHandle,
}

impl MountedClient {
    fn connect_and_mount(server: &RunningServer) -> Self {
        let mut client = server.connect();
        let root = client.mount("/").unwrap().handle;
        Self { client, root }
    }

    fn root_entry<'n>(&self, name: &'n str) -> Entry<'n> {
        Entry { directory: self.root, name: Text(name.as_bytes()) }
    }

    fn call_status<'a>(&mut self, procedure: Procedure, asked: &impl Xdr<'a>) -> u32 {
        let reply = self.client.call_nfs(procedure, asked);
        u32::from_be_bytes(reply[..4].try_into().unwrap())
    }

    fn create(&mut self, name: &str, how: CreateMode) -> FileHandle {
        let asked = CreateArguments { at: self.root_entry(name), how };
        let reply = self.client.call_nfs(Procedure::Create, &asked);
        parse::<NfsResult<CreateResult, WeakCacheConsistency>>(&reply).unwrap().unwrap().file.unwrap()
    }

    fn set_attributes(&mut self, file: FileHandle, new: NewAttributes) {
        assert_eq!(
            self.call_status(Procedure::SetAttr, &SetAttributesArguments { file, new, guard: None }),
            0
        );
    }
}

fn permission_bits(scene: &Scene, name: &str) -> u32 {
    fs::symlink_metadata(scene.path(name)).unwrap().mode() & ALL
}

#[test]
fn set_id_bits_of_the_server_user_are_dropped() {
    let scene = Scene::new();
    let server = serve_writable(&scene);
    let mut caller = MountedClient::connect_and_mount(&server);
    let all = NewAttributes { mode: Some(ALL), ..NewAttributes::NONE };
    for (name, how) in [
        ("unchecked", CreateMode::Unchecked(all)),
        ("guarded", CreateMode::Guarded(NewAttributes { size: Some(10), ..all })),
        ("exclusive", CreateMode::Exclusive([7; 8])),
    ] {
        let file = caller.create(name, how);
        let expected = if name == "exclusive" { 0o600 } else { WITHOUT_IDS };
        assert_eq!(permission_bits(&scene, name), expected, "{name}");
        // Together with other attributes, some of which clear these bits before they are set again.
        let (user, group) = (Some(geteuid().as_raw()), Some(getegid().as_raw()));
        for new in [
            all,
            NewAttributes { mode: Some(0o4711), ..all },
            NewAttributes { mode: Some(0o2711), group, ..all },
            NewAttributes { mode: Some(0o6711), user, group, size: Some(0), ..all },
            NewAttributes { mode: Some(0o6711 | 0o1_000_000), size: Some(20), modified: SetTime::Now, ..all },
        ] {
            caller.set_attributes(file, new);
            assert_eq!(permission_bits(&scene, name), new.mode.unwrap() & WITHOUT_IDS, "{name}: {new:?}");
        }
        let (stability, data) = (Stability::FileSync, Data(b"#!/bin/sh"));
        caller.call_status(Procedure::Write, &WriteArguments { file, offset: 0, count: 9, stability, data });
        let renamed = format!("renamed {name}");
        let (from, to) = (caller.root_entry(name), caller.root_entry(&renamed));
        assert_eq!(caller.call_status(Procedure::Rename, &RenameArguments { from, to }), 0);
        let at = caller.root_entry(name);
        assert_eq!(caller.call_status(Procedure::Link, &LinkArguments { file, at }), 0);
        // Not made anew, so only its size changes.
        caller.create(name, CreateMode::Unchecked(NewAttributes { size: Some(0), ..all }));
        assert_eq!(permission_bits(&scene, name), 0o711, "{name}");
    }
    let attributes = all;
    let asked = SymbolicLinkArguments { at: caller.root_entry("link"), attributes, path: Text(b"guarded") };
    assert_eq!(caller.call_status(Procedure::SymbolicLink, &asked), 0);
    assert_eq!(permission_bits(&scene, "guarded"), 0o711);
    // Of a directory they give no rights; mkdir(2) leaves them out.
    let asked = MakeDirectoryArguments { at: caller.root_entry("directory"), attributes };
    assert_eq!(caller.call_status(Procedure::MakeDirectory, &asked), 0);
    assert_eq!(permission_bits(&scene, "directory"), WITHOUT_IDS);
    let directory = caller.client.look_up_path("directory");
    caller.set_attributes(directory, all);
    assert_eq!(permission_bits(&scene, "directory"), ALL);
    drop(server.stop());
}

#[test]
fn devices_are_never_made_and_never_opened() {
    let scene = Scene::new();
    let server = serve_writable(&scene);
    let mut caller = MountedClient::connect_and_mount(&server);
    let all = NewAttributes { mode: Some(0o666), ..NewAttributes::NONE };
    for kind in KINDS {
        let name = format!("kind {kind}");
        let (major, minor) = (1_u32, 3_u32);
        let is_device = kind == BLOCK_DEVICE || kind == CHARACTER_DEVICE;
        let status = match is_device {
            true => caller
                .call_status(Procedure::MakeNode, &(caller.root_entry(&name), (kind, (all, (major, minor))))),
            false => caller.call_status(Procedure::MakeNode, &(caller.root_entry(&name), (kind, all))),
        };
        let is_made = kind == SOCKET || kind == FIFO;
        let refused = if is_device { Status::NotPermitted } else { Status::BadType };
        assert_eq!(status, if is_made { 0 } else { refused as u32 }, "{kind}");
        assert_eq!(scene.path(&name).exists(), is_made, "{kind}");
    }
    let is_made = |name: &str, kind, device| {
        mknodat(CWD, scene.path(name), kind, Mode::from_raw_mode(0o666), device).is_ok()
    };
    assert!(is_made("fifo", FileType::Fifo, 0));
    // A FIFO without a reader, and a terminal, would wait for ever; a container may not make devices.
    let is_device = is_made("device", FileType::CharacterDevice, makedev(5, 0));
    for name in ["fifo"].into_iter().chain(is_device.then_some("device")) {
        let file = caller.client.look_up_path(name);
        let invalid = Status::Invalid as u32;
        assert_eq!(caller.client.read(file, 0, 1), Err(Status::Invalid), "{name}");
        let (stability, data) = (Stability::FileSync, Data(b"x"));
        let asked = WriteArguments { file, offset: 0, count: 1, stability, data };
        assert_eq!(caller.call_status(Procedure::Write, &asked), invalid, "{name}");
        let new = NewAttributes { size: Some(0), ..NewAttributes::NONE };
        let asked = SetAttributesArguments { file, new, guard: None };
        assert_eq!(caller.call_status(Procedure::SetAttr, &asked), invalid, "{name}");
        assert_eq!(
            caller.call_status(Procedure::Commit, &CommitArguments { file, offset: 0, count: 0 }),
            invalid
        );
        let asked = CreateArguments { at: caller.root_entry(name), how: CreateMode::Unchecked(new) };
        assert_eq!(caller.call_status(Procedure::Create, &asked), Status::Exists as u32, "{name}");
        caller.set_attributes(file, NewAttributes { mode: Some(0o6777), ..NewAttributes::NONE });
        assert_eq!(permission_bits(&scene, name), 0o777);
        assert!(fs::symlink_metadata(scene.path(name)).unwrap().file_type().is_fifo() == (name == "fifo"));
    }
    drop(server.stop());
}
