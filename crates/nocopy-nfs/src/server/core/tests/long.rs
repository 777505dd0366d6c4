//! Arguments of any length that the RFC permits are answered by a status of the procedure.

use super::*;
use crate::wire::nfs3::{
    CreateMode, CreateResult, LinkResult, MakeNodeArguments, NewNode, RenameArguments, RenameResult,
    SymbolicLinkArguments,
};

fn refusal_status<T: for<'a> Xdr<'a>, R: for<'a> Xdr<'a>>(reply: &[u8]) -> Status {
    match xdr::parse::<NfsResult<T, R>>(reply).unwrap() {
        Ok(_) => panic!("it was done"),
        Err(refused) => refused.status,
    }
}

#[test]
fn long_names_and_paths_are_refused_with_a_status() {
    for bytes in [256, 1025, 5000, 38_000] {
        for is_writable in [true, false] {
            let mut scene = Scene::new();
            scene.core.is_writable = is_writable;
            let (long, root) = (vec![b'a'; bytes], scene.root_handle());
            let at = Entry { directory: root, name: Text(&long) };
            let short = Entry { directory: root, name: Text(b"made") };
            let refused = if is_writable { Status::NameTooLong } else { Status::ReadOnlyFileSystem };
            let found = scene.call_nfs(Procedure::Lookup, &at);
            assert_eq!(
                refusal_status::<LookupResult, Option<Attributes>>(&found),
                Status::NameTooLong,
                "{bytes}"
            );
            let new = NewAttributes::NONE;
            let node = NewNode { file_type: FileType::Fifo, attributes: new, major: 0, minor: 0 };
            let how = CreateMode::Guarded(new);
            for (procedure, reply) in [
                (Procedure::Create, scene.call_nfs(Procedure::Create, &(at, how))),
                (Procedure::MakeDirectory, scene.call_nfs(Procedure::MakeDirectory, &(at, new))),
                (Procedure::MakeNode, scene.call_nfs(Procedure::MakeNode, &MakeNodeArguments { at, node })),
                (Procedure::Remove, scene.call_nfs(Procedure::Remove, &at)),
                (Procedure::RemoveDirectory, scene.call_nfs(Procedure::RemoveDirectory, &at)),
            ] {
                assert_eq!(
                    refusal_status::<CreateResult, WeakCacheConsistency>(&reply),
                    refused,
                    "{procedure:?} {bytes}"
                );
            }
            for (from, to) in [(at, short), (short, at), (at, at)] {
                let reply = scene.call_nfs(Procedure::Rename, &RenameArguments { from, to });
                let found = refusal_status::<RenameResult, RenameResult>(&reply);
                // A name that does not exist may be found first.
                assert!(found == refused || from == short && found == Status::NoEntry, "{found:?}");
            }
            let reply = scene.call_nfs(Procedure::Link, &(scene.file_handle("file"), at));
            assert_eq!(refusal_status::<LinkResult, LinkResult>(&reply), refused, "LINK {bytes}");
            if bytes > 4096 {
                let path = Text(&long);
                let link = SymbolicLinkArguments { at: short, attributes: new, path };
                let reply = scene.call_nfs(Procedure::SymbolicLink, &link);
                assert_eq!(
                    refusal_status::<CreateResult, WeakCacheConsistency>(&reply),
                    refused,
                    "SYMLINK {bytes}"
                );
            }
            let long = format!("/{}", "a".repeat(bytes));
            let expected = if bytes < 4095 { mount::Status::NoEntry } else { mount::Status::NameTooLong };
            assert_eq!(scene.mount(&long), Err(expected), "MOUNT {bytes}");
            let inside = format!("{}{long}", scene.path("").to_str().unwrap().trim_end_matches('/'));
            assert_eq!(scene.mount(&inside), Err(mount::Status::NameTooLong), "MOUNT {bytes}");
            let mut path = Vec::new();
            Text::<{ nfs3::ARGUMENT_BYTES_MAX }>(long.as_bytes()).encode(&mut path);
            assert_eq!(scene.call_program(mount::PROGRAM, 3, &path), Ok(Vec::new()), "UMNT {bytes}");
        }
    }
}

/// Types that have no node, and such as do not exist.
#[test]
fn nodes_of_invalid_types_are_refused_with_a_status() {
    let mut scene = Scene::new();
    scene.core.is_writable = true;
    for number in [0_u32, 1, 2, 5, 8, u32::MAX] {
        for rest in [&[][..], &[0; 24]] {
            let mut arguments = Vec::new();
            Entry { directory: scene.root_handle(), name: Text(b"made") }.encode(&mut arguments);
            number.encode(&mut arguments);
            arguments.extend_from_slice(rest);
            let reply = scene.call_program(nfs3::PROGRAM, Procedure::MakeNode as u32, &arguments).unwrap();
            assert_eq!(
                refusal_status::<CreateResult, WeakCacheConsistency>(&reply),
                Status::BadType,
                "{number}"
            );
        }
    }
}

/// The source of a datagram may be forged.
#[test]
fn datagram_replies_do_not_amplify_their_calls() {
    let scene = Scene::new();
    let ask = |program, version, procedure, arguments: &[u8]| {
        let credential = Credential::NONE;
        let mut datagram = Vec::new();
        Call { xid: 7, program, version, procedure, credential, arguments }.encode(&mut datagram);
        let reply = scene.core.answer_datagram(&datagram)?;
        let mut input = Reader::new(&reply);
        let (xid, kind) = Reply::decode(&mut input).unwrap();
        let most = if procedure == 4 { datagram.len() + 28 } else { datagram.len() };
        assert!(xid == 7 && reply.len() <= most, "{} bytes", reply.len());
        Some((kind, input.rest().to_vec()))
    };
    let mut wanted = Vec::new();
    let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
    portmap::Mapping { program, version, protocol: portmap::TCP, port: 0 }.encode(&mut wanted);
    assert_eq!(ask(portmap::PROGRAM, 2, 3, &wanted), Some((Reply::Success, 2049_u32.to_be_bytes().into())));
    wanted[11] = 17;
    assert_eq!(ask(portmap::PROGRAM, 2, 3, &wanted), Some((Reply::Success, vec![0; 4])), "NFS by UDP");
    assert_eq!(ask(portmap::PROGRAM, 2, 0, &[]), Some((Reply::Success, Vec::new())));
    assert_eq!(ask(portmap::PROGRAM, 2, 4, &[]).unwrap().1.len(), 44);
    let mismatch = Reply::ProgramMismatch { low: 2, high: 2 };
    assert_eq!(ask(portmap::PROGRAM, 4, 3, &[]), Some((mismatch, Vec::new())));
    assert_eq!(ask(nfs3::PROGRAM, 3, 1, &[]), Some((Reply::ProgramUnavailable, Vec::new())));
    assert_eq!(ask(portmap::PROGRAM, 2, 3, &[]), Some((Reply::GarbageArguments, Vec::new())));
    assert_eq!(ask(portmap::PROGRAM, 2, portmap::CALL_INDIRECTLY, &[]), None);
    let mut reply = Vec::new();
    Reply::Success.encode(7, &mut reply);
    for other in [&[][..], &[0; 39], &reply, &[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3]] {
        assert_eq!(scene.core.answer_datagram(other), None);
    }
}
