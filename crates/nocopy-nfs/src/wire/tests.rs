//! Random values there and back, against the types of an independent crate, and random bytes.

use nfs3_types::{nfs3, rpc, xdr_codec};
use proptest::prelude::*;
use xdr_codec::{Opaque, Pack, Unpack};

use super::mount::{self, MountSuccess};
use super::nfs3::{
    AccessArguments, Attributes, CommitArguments, CommitResult, CreateArguments, CreateMode, CreateResult,
    Data, DirectoryPage, Entry, FileHandle, FileType, FullDirectoryEntry, LinkArguments, LinkResult,
    LookupArguments, LookupResult, MakeDirectoryArguments, Name, NewAttributes, NfsResult, ReadArguments,
    ReadDirPlusArguments, ReadHead, ReadLinkResult, Refusal, RenameArguments, RenameResult,
    SetAttributesArguments, SetTime, Stability, Status, SymbolicLinkArguments, Time, WeakCacheConsistency,
    WriteArguments, WriteResult,
};
use super::record::{self, RecordAssembler, RecordLimits, RecordTooLong};
use super::rpc::{AuthError, Call, CallParseError, Credential, Reply};
use super::xdr::{self, Reader, Xdr, XdrError};

fn encode_xdr<'a>(value: &impl Xdr<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn pack_reference(value: &impl Pack) -> Vec<u8> {
    let mut out = Vec::new();
    value.pack(&mut out).unwrap();
    out
}

/// Decodes with the other crate, and encodes the result with it.
fn round_trip_reference<T: Pack + Unpack>(bytes: &[u8]) -> Vec<u8> {
    let (value, count) = T::unpack(&mut &bytes[..]).unwrap();
    assert_eq!(count, bytes.len());
    pack_reference(&value)
}

fn any_handle() -> impl Strategy<Value = FileHandle> {
    prop::collection::vec(any::<u8>(), 0..=64).prop_map(|bytes| FileHandle::new(&bytes).unwrap())
}

fn any_time() -> impl Strategy<Value = Time> {
    any::<(u32, u32)>().prop_map(|(seconds, nanoseconds)| Time { seconds, nanoseconds })
}

fn any_attributes() -> impl Strategy<Value = Attributes> {
    let words = any::<([u32; 6], [u64; 4])>();
    (prop::sample::select(FileType::ALL), words, any_time(), any_time(), any_time()).prop_map(
        |(file_type, (words, longs), accessed, modified, changed)| {
            let [mode, links, user, group, device_major, device_minor] = words;
            let [size, used, file_system, file_id] = longs;
            Attributes {
                file_type,
                mode,
                links,
                user,
                group,
                size,
                used,
                device_major,
                device_minor,
                file_system,
                file_id,
                accessed,
                modified,
                changed,
            }
        },
    )
}

fn any_new_attributes() -> impl Strategy<Value = NewAttributes> {
    let set = || prop_oneof![Just(SetTime::Keep), Just(SetTime::Now), any_time().prop_map(SetTime::To)];
    (any::<([Option<u32>; 3], Option<u64>)>(), set(), set()).prop_map(
        |(([mode, user, group], size), accessed, modified)| NewAttributes {
            mode,
            user,
            group,
            size,
            accessed,
            modified,
        },
    )
}

fn check_against_reference<'a, T: Pack + Unpack>(value: &impl Xdr<'a>) -> Result<(), TestCaseError> {
    let bytes = encode_xdr(value);
    prop_assert_eq!(&round_trip_reference::<T>(&bytes), &bytes);
    Ok(())
}

/// A value is decoded as it was encoded, and no prefix of its encoding is a value.
fn check_round_trip<T>(value: &T)
where
    T: for<'a> Xdr<'a> + PartialEq + std::fmt::Debug,
{
    let bytes = encode_xdr(value);
    assert_eq!(xdr::parse::<T>(&bytes).as_ref(), Ok(value));
    let short = &bytes[..bytes.len() - 1];
    assert!(matches!(xdr::parse::<T>(short), Err(XdrError::TooShort { .. })));
    let long = [&bytes[..], &[0]].concat();
    assert_eq!(xdr::parse::<T>(&long), Err(XdrError::TooLong { bytes: 1 }));
}

proptest! {
    #[test]
    fn attributes_match_the_reference_crate(value in any_attributes()) {
        check_round_trip(&value);
        let bytes = encode_xdr(&value);
        prop_assert_eq!(bytes.len(), Attributes::BYTES);
        prop_assert_eq!(&round_trip_reference::<nfs3::fattr3>(&bytes), &bytes);
        let changes = WeakCacheConsistency::unchanged(Some(value));
        check_round_trip(&changes);
        let bytes = encode_xdr(&changes);
        prop_assert_eq!(&round_trip_reference::<nfs3::wcc_data>(&bytes), &bytes);
    }

    #[test]
    fn arguments_match_the_reference_crate(
        file in any_handle(),
        name in prop::collection::vec(any::<u8>(), 0..300),
        (offset, bytes, access) in any::<(u64, u32, u32)>(),
    ) {
        let lookup = LookupArguments { directory: file, name: mount::Text(&name) };
        let lookup = encode_xdr(&lookup);
        prop_assert_eq!(&round_trip_reference::<nfs3::LOOKUP3args<'_>>(&lookup), &lookup);
        let read = ReadArguments { file, offset, bytes };
        check_round_trip(&read);
        let theirs = nfs3::READ3args {
            file: nfs3::nfs_fh3 { data: Opaque::owned(file.as_bytes().to_vec()) },
            offset,
            count: bytes,
        };
        prop_assert_eq!(encode_xdr(&read), pack_reference(&theirs));
        check_round_trip(&AccessArguments { file, access });
        check_round_trip(&ReadDirPlusArguments {
            directory: file,
            cookie: offset,
            verifier: [7; 8],
            names_bytes_max: bytes,
            bytes_max: access,
        });
    }

    #[test]
    fn change_calls_match_the_reference_crate(
        (file, other) in (any_handle(), any_handle()),
        name in prop::collection::vec(any::<u8>(), 0..300),
        (new, at) in (any_new_attributes(), any_time()),
        about in prop::option::of(any_attributes()),
        (offset, count, stability) in (any::<u64>(), any::<u32>(), prop::sample::select(Stability::ALL)),
    ) {
        let guarded = SetAttributesArguments { file, new, guard: Some(at) };
        check_round_trip(&guarded);
        check_against_reference::<nfs3::SETATTR3args>(&guarded)?;
        let write = WriteArguments { file, offset, count, stability, data: Data(&name) };
        check_against_reference::<nfs3::WRITE3args<'_>>(&write)?;
        let entry = Entry { directory: file, name: mount::Text(&name) };
        for how in [CreateMode::Unchecked(new), CreateMode::Guarded(new), CreateMode::Exclusive([7; 8])] {
            check_against_reference::<nfs3::CREATE3args<'_>>(&CreateArguments { at: entry, how })?;
        }
        let directory = MakeDirectoryArguments { at: entry, attributes: new };
        check_against_reference::<nfs3::MKDIR3args<'_>>(&directory)?;
        let link = SymbolicLinkArguments { at: entry, attributes: new, path: mount::Text(&name) };
        check_against_reference::<nfs3::SYMLINK3args<'_>>(&link)?;
        let to = Entry { directory: other, name: mount::Text(b"to") };
        check_against_reference::<nfs3::RENAME3args<'_, '_>>(&RenameArguments { from: entry, to })?;
        check_against_reference::<nfs3::LINK3args<'_>>(&LinkArguments { file: other, at: entry })?;
        check_against_reference::<nfs3::COMMIT3args>(&CommitArguments { file, offset, count })?;
        let changed = WeakCacheConsistency::unchanged(about);
        let verifier = offset.to_be_bytes();
        check_against_reference::<nfs3::WRITE3resok>(&WriteResult { changed, count, stability, verifier })?;
        check_against_reference::<nfs3::CREATE3resok>(&CreateResult {
            file: Some(file),
            attributes: about,
            directory: changed,
        })?;
        check_against_reference::<nfs3::COMMIT3resok>(&CommitResult { changed, verifier })?;
        check_against_reference::<nfs3::LINK3resok>(&LinkResult { attributes: about, directory: changed })?;
        check_against_reference::<nfs3::RENAME3resok>(&RenameResult { from: changed, to: changed })?;
    }

    #[test]
    fn results_match_the_reference_crate(
        file in any_handle(),
        about in prop::option::of(any_attributes()),
        names in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..9),
        (status, count) in (prop::sample::select(Status::ALL), any::<u32>()),
    ) {
        let found: NfsResult<LookupResult, Option<Attributes>> =
            Ok(LookupResult { file, attributes: about, directory_attributes: None });
        let refused: NfsResult<LookupResult, Option<Attributes>> = Err(Refusal { status, rest: about });
        for result in [found, refused] {
            check_round_trip(&result);
            let bytes = encode_xdr(&result);
            prop_assert_eq!(&round_trip_reference::<nfs3::LOOKUP3res>(&bytes), &bytes);
        }
        let entries: Vec<_> = names.iter().enumerate().map(|(place, name)| FullDirectoryEntry {
            file_id: place as u64,
            name: mount::Text(name),
            cookie: u64::from(count) + place as u64,
            attributes: about,
            file: (place % 2 == 0).then_some(file),
        }).collect();
        let page = DirectoryPage { attributes: about, verifier: [3; 8], entries, is_end: count % 2 == 0 };
        let bytes = encode_xdr(&page);
        let parsed = xdr::parse::<DirectoryPage<FullDirectoryEntry<'_>>>(&bytes);
        prop_assert_eq!(parsed.as_ref(), Ok(&page));
        prop_assert_eq!(&round_trip_reference::<nfs3::READDIRPLUS3resok<'_>>(&bytes), &bytes);
        let head = ReadHead { attributes: about, count: 5, is_end: true, data_bytes: 5 };
        let bytes = [&encode_xdr(&head)[..], b"bytes\0\0\0"].concat();
        prop_assert_eq!(&round_trip_reference::<nfs3::READ3resok<'_>>(&bytes), &bytes);
        let link = ReadLinkResult { attributes: about, path: mount::Text(b"a/b") };
        let bytes = encode_xdr(&link);
        prop_assert_eq!(&round_trip_reference::<nfs3::READLINK3resok<'_>>(&bytes), &bytes);
    }

    #[test]
    fn calls_and_replies_match_the_reference_crate(
        (xid, program, version, procedure, flavor) in any::<(u32, u32, u32, u32, bool)>(),
        body in prop::collection::vec(any::<u8>(), 0..400),
        arguments in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let credential = Credential { flavor: u32::from(flavor), body: &body };
        let call = Call { xid, program, version, procedure, credential, arguments: &arguments };
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        prop_assert_eq!(Call::parse(&bytes), Ok(call));
        let head = &bytes[..bytes.len() - arguments.len()];
        prop_assert_eq!(round_trip_reference::<rpc::rpc_msg<'_, '_>>(head), head);
        for reply in [
            Reply::Success,
            Reply::ProgramUnavailable,
            Reply::ProgramMismatch { low: version, high: program },
            Reply::ProcedureUnavailable,
            Reply::GarbageArguments,
            Reply::SystemError,
            Reply::MISMATCH,
            Reply::Denied(AuthError::TooWeak),
        ] {
            let mut bytes = Vec::new();
            reply.encode(xid, &mut bytes);
            let mut input = Reader::new(&bytes);
            prop_assert_eq!(Reply::decode(&mut input), Ok((xid, reply)));
            prop_assert!(input.finish().is_ok());
            prop_assert_eq!(&round_trip_reference::<rpc::rpc_msg<'_, '_>>(&bytes), &bytes);
        }
    }

    #[test]
    fn records_are_assembled_from_any_fragments_and_pieces(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..6),
        (fragment_bytes, piece_bytes) in (1..90_usize, 1..90_usize),
    ) {
        let mut stream = Vec::new();
        for bytes in &records {
            let mut fragments: Vec<&[u8]> = bytes.chunks(fragment_bytes).collect();
            let last = fragments.pop().unwrap_or_default();
            for fragment in fragments {
                stream.extend_from_slice(&(fragment.len() as u32).to_be_bytes());
                stream.extend_from_slice(fragment);
            }
            let mut whole = record::begin();
            whole.extend_from_slice(last);
            record::end(&mut whole, 0);
            stream.extend_from_slice(&whole);
        }
        let (mut reader, mut found) = (RecordAssembler::new(200), Vec::new());
        for piece in stream.chunks(piece_bytes) {
            reader.push(piece);
            while let Some(taken) = reader.take().unwrap() {
                found.push(taken.to_vec());
            }
            prop_assert!(reader.buffered_bytes() <= 200 + record::MARK_BYTES);
        }
        prop_assert_eq!(found, records);
    }

    #[test]
    fn random_bytes_are_decoded_or_refused_in_bounded_memory(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        super::oracle::check_wire_formats(&bytes);
    }
}

/// Long records among short ones, pushed, received into their final memory, or either in turn, with further
/// bytes after them.
#[test]
fn long_records_are_assembled_from_pieces() {
    let lengths = [10, 200_000, 3, 70_000, 16_384, 16_385, 0, 300_000];
    let records: Vec<Vec<u8>> = lengths
        .iter()
        .map(|&length| (0..length).map(|place: u32| (place ^ length) as u8).collect())
        .collect();
    let stream = records.iter().flat_map(|bytes| {
        let mut whole = record::begin();
        whole.extend_from_slice(bytes);
        record::end(&mut whole, 0);
        whole
    });
    let stream: Vec<u8> = stream.collect();
    for piece_bytes in [999, 40_000, 150_000, stream.len()] {
        for directly in [[false, false], [true, true], [true, false]] {
            let (mut reader, mut found) = (RecordAssembler::new(300_000), Vec::new());
            for (number, piece) in stream.chunks(piece_bytes).enumerate() {
                match reader.long_buffer().filter(|_| directly[number % 2]) {
                    Some(long) => long.extend_from_slice(piece),
                    None => reader.push(piece),
                }
                while let Some(taken) = reader.take().unwrap() {
                    found.push(taken.into_owned());
                }
            }
            assert!(found == records && reader.buffered_bytes() == 0, "{piece_bytes} {directly:?}");
        }
    }
}

#[test]
fn long_records_can_be_taken_before_they_are_complete() {
    let record = |length: usize| {
        let mut whole = record::begin();
        whole.extend((0..length).map(|place| place as u8));
        record::end(&mut whole, 0);
        whole
    };
    let (short, long) = (record(10), record(20_000));
    for come in [1023, 1024, 5000, 19_999, 20_000] {
        let mut reader = RecordAssembler::new(20_000);
        reader.push(&[&short, &long[..record::MARK_BYTES + come]].concat());
        assert_eq!(reader.partial_long_record(), None, "a short one comes first");
        assert!(reader.take().unwrap().is_some());
        let is_begun = (1024..20_000).contains(&come);
        let begun = reader.partial_long_record().map(|begun| (begun.begin.to_vec(), begun.bytes));
        assert_eq!(begun, is_begun.then(|| (long[4..][..come].to_vec(), 20_000)));
        if is_begun {
            let (begin, at) = reader.take_partial();
            assert_eq!((&begin[at..], reader.buffered_bytes()), (&long[4..][..come], 0));
            // The next record is another one.
            reader.push(&short);
        }
        assert_eq!(reader.take().unwrap().is_some(), come != 1023);
    }
    let mut reader = RecordAssembler::new(19_999);
    reader.push(&long[..5000]);
    assert_eq!(reader.partial_long_record(), None, "it is too long");
    assert!(reader.take().is_err());
}

/// However the first bytes, which tell its kind, are divided into fragments.
#[test]
fn records_above_the_limit_of_their_kind_are_refused() {
    let limits = RecordLimits { long: 100_000, other: 40_000, is_long: |begin| begin[700] == 1 };
    let fragment = |mark: u32, bytes: &[u8]| [&(bytes.len() as u32 | mark).to_be_bytes(), bytes].concat();
    for (kind, length, is_taken) in
        [(1, 90_000, true), (0, 90_000, false), (0, 40_000, true), (1, 100_001, false)]
    {
        for first in [0, 1, 500, 1000, 1023, 1024, 5000, 39_999] {
            let mut bytes = vec![0; length];
            bytes[700] = kind;
            let (begin, rest) = bytes.split_at(first);
            let stream = [fragment(0, begin), fragment(1 << 31, rest)].concat();
            let mut reader = RecordAssembler::with_limits(limits);
            let mut taken = Ok(None);
            for piece in stream.chunks(1000) {
                reader.push(piece);
                taken = reader.take().map(|taken| taken.map(std::borrow::Cow::into_owned));
                if !matches!(taken, Ok(None)) {
                    break;
                }
            }
            assert_eq!(taken.is_ok_and(|taken| taken == Some(bytes)), is_taken, "{kind} {length} {first}");
            assert!(is_taken || reader.reserved_bytes() < 45_000, "{}", reader.reserved_bytes());
            assert!(!is_taken || !reader.has_partial());
        }
    }
}

#[test]
fn excessive_lengths_are_refused_without_allocation() {
    let mut reader = RecordAssembler::new(64);
    reader.push(&[0xff; 4]);
    assert_eq!(reader.take(), Err(RecordTooLong { bytes: 0x7fff_ffff, max: 64 }));
    assert_eq!(reader.buffered_bytes(), 4);
    // Several fragments do not avoid the limit.
    let mut reader = RecordAssembler::new(64);
    for _ in 0..16 {
        reader.push(&[0, 0, 0, 4, 1, 2, 3, 4]);
        assert_eq!(reader.take(), Ok(None));
    }
    reader.push(&[0, 0, 0, 1]);
    let refused = reader.take().unwrap_err().to_string();
    assert_eq!(refused, "the message has at least 65 bytes, and at most 64 are accepted");
    let claims = [0xff, 0xff, 0xff, 0xfc, 1, 2, 3, 4];
    assert_eq!(Reader::new(&claims).opaque(usize::MAX), Err(XdrError::TooShort { missing: 0xffff_fffc - 4 }));
    assert_eq!(
        xdr::parse::<Name<'_>>(&claims),
        Err(XdrError::AboveLimit { bytes: 0xffff_fffc, max: 65_536 })
    );
}

#[test]
fn call_parse_errors_keep_the_xid_of_wrong_rpc_versions() {
    let mut bytes = Vec::new();
    Reply::Success.encode(7, &mut bytes);
    let malformed = Call::parse(&bytes).unwrap_err().to_string();
    assert_eq!(malformed, "the message is not a call (1 is not a valid value of a call)");
    let mut bytes = Vec::new();
    [9_u32, 0, 3].iter().for_each(|word| word.encode(&mut bytes));
    let error = Call::parse(&bytes).unwrap_err();
    assert_eq!(
        (error, &*error.to_string()),
        (CallParseError::Version { xid: 9 }, "the call is of another version of RPC")
    );
}

#[test]
fn mount_replies_round_trip_with_handle_or_status() {
    let handle = FileHandle::new(&[1, 2, 3]).unwrap();
    let mounted: mount::MountReply = Ok(MountSuccess { handle, flavors: vec![1, 0] });
    check_round_trip(&mounted);
    assert_eq!(
        round_trip_reference::<nfs3_types::mount::mountres3<'_>>(&encode_xdr(&mounted)),
        encode_xdr(&mounted)
    );
    check_round_trip::<mount::MountReply>(&Err(mount::Status::Access));
}
