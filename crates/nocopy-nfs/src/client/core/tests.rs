//! Replies as servers make them, good and bad, given to the core piece by piece.

mod joined;
mod simulation;

use nocopy::{Buffer, BufferMut, Pool};

use super::*;
use crate::wire::nfs3::{
    Attributes, CommitResult, NfsResult, ReadHead, Status, Time, WeakCacheConsistency, WriteResult,
};
use crate::wire::rpc::{AuthError, Reply};
use crate::wire::xdr::{self, XdrError, padding};

const FIRST_XID: u32 = 100;

fn file_handle() -> FileHandle {
    FileHandle::new(&[1; 32]).unwrap()
}

fn position(offset: u64) -> FilePosition {
    FilePosition { file: file_handle(), offset }
}

fn new_core() -> Core {
    let mut core = Core::new(2, FIRST_XID, Vec::new());
    core.set_limits(TransferLimits { read_bytes_max: 4096, write_bytes_max: 4096 });
    core
}

fn new_buffer(bytes: usize) -> BufferMut {
    let mut buffer = Pool::new(1, bytes).unwrap().take().unwrap();
    buffer.resize(bytes);
    buffer[..].fill(0xee);
    buffer
}

/// Sends everything by connection 0, and returns the numbers of the calls.
fn send_all_calls(core: &mut Core) -> Vec<u32> {
    std::iter::from_fn(|| core.assign_next_call(0)).collect()
}

fn receive_in_pieces(
    core: &mut Core,
    connection: usize,
    mut bytes: &[u8],
    at_once: usize,
) -> Result<(), BadReply> {
    while !bytes.is_empty() {
        let filled = core.receive_buffers(connection).fill(&bytes[..at_once.min(bytes.len())]);
        bytes = &bytes[filled..];
        core.handle_received(connection, filled)?;
    }
    Ok(())
}

fn reply_record(xid: u32, reply: Reply, results: &[u8]) -> Vec<u8> {
    let mut out = record::begin();
    reply.encode(xid, &mut out);
    out.extend_from_slice(results);
    record::end(&mut out, 0);
    out
}

fn encode_xdr<'a>(value: &impl Xdr<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn file_attributes() -> Attributes {
    let time = Time { seconds: 1, nanoseconds: 2 };
    Attributes {
        file_type: nfs3::FileType::Regular,
        mode: 0o644,
        links: 1,
        user: 0,
        group: 0,
        size: 10_000,
        used: 12_288,
        device_major: 0,
        device_minor: 0,
        file_system: 1,
        file_id: 2,
        accessed: time,
        modified: time,
        changed: time,
    }
}

fn encode_read_results(data: &[u8], is_end: bool, attributes: Option<Attributes>) -> Vec<u8> {
    let count = data.len() as u32;
    let head = ReadHead { attributes, count, is_end, data_bytes: count };
    let mut out = encode_xdr(&NfsResult::<_, Option<Attributes>>::Ok(head));
    out.extend_from_slice(data);
    out.resize(out.len() + padding(data.len()), 0);
    out
}

fn read_reply_record(xid: u32, data: &[u8], is_end: bool) -> Vec<u8> {
    reply_record(xid, Reply::Success, &encode_read_results(data, is_end, Some(file_attributes())))
}

fn pattern_bytes(from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn take_filled_buffer(core: &mut Core) -> (Ticket, BufferMut, Result<ReadMetadata, CallError>) {
    match core.next_completion() {
        Some(Completion::Filled { ticket, buffer, outcome, .. }) => (ticket, buffer, outcome),
        other => panic!("no buffer came back: {other:?}"),
    }
}

fn take_commit_outcome(core: &mut Core) -> Option<Result<(), CallError>> {
    core.next_completion().map(|done| match done {
        Completion::Committed { outcome, .. } => outcome,
        other => panic!("no commit: {other:?}"),
    })
}

#[test]
fn calls_are_sent_as_one_record_with_their_data() {
    let mut core = Core::new(1, FIRST_XID, vec![0; 20]);
    let mut data = new_buffer(7);
    data.fill(b"content").unwrap();
    core.write(data, position(3)).unwrap();
    let xid = core.assign_next_call(0).unwrap();
    let whole = core.call_pieces(xid).unwrap().concat();
    let mut records = record::RecordAssembler::new(1 << 16);
    records.push(&whole);
    let record = records.take().unwrap().unwrap().to_vec();
    assert_eq!(records.buffered_bytes(), 0, "one record");
    let call = rpc::Call::parse(&record).unwrap();
    assert_eq!((call.xid, call.procedure, call.credential.body.len()), (xid, 7, 20));
    let asked: nfs3::WriteArguments<'_> = xdr::parse(call.arguments).unwrap();
    assert_eq!((asked.file, asked.offset, asked.count, asked.data.0), (file_handle(), 3, 7, &b"content"[..]));
    assert_eq!(asked.stability, Stability::Unstable);
}

/// However the stream is cut, in whatever order the replies come, with attributes or without.
#[test]
fn replies_in_any_order_fill_their_buffers() {
    for at_once in [1, 3, 36, 131, 132, 133, 1000, usize::MAX] {
        let mut core = new_core();
        let lengths = [4096, 1, 4095, 131, 2];
        let tickets: Vec<Ticket> = lengths
            .iter()
            .enumerate()
            .map(|(number, bytes)| core.post(new_buffer(*bytes), position(number as u64 * 5000)).unwrap())
            .collect();
        let about = core.call(Procedure::GetAttr.into(), &file_handle(), 200);
        let xids = send_all_calls(&mut core);
        assert_eq!(xids, (FIRST_XID..FIRST_XID + 6).collect::<Vec<_>>());
        let mut stream = Vec::new();
        for number in [5, 3, 0, 4, 1, 2] {
            let known = (number % 2 == 0).then(file_attributes);
            let reply = match lengths.get(number) {
                Some(bytes) => encode_read_results(&pattern_bytes(number * 5000, *bytes), number == 2, known),
                None => encode_xdr(&NfsResult::<Attributes, ()>::Ok(file_attributes())),
            };
            stream.extend(reply_record(xids[number], Reply::Success, &reply));
        }
        receive_in_pieces(&mut core, 0, &stream, at_once).unwrap();
        let Some(Completion::Results { ticket, results, is_repeated: false }) = core.next_completion() else {
            panic!()
        };
        let results = results.unwrap();
        let known = xdr::parse::<NfsResult<Attributes, ()>>(&results).unwrap();
        assert_eq!((ticket, known), (about, Ok(file_attributes())));
        for number in [3, 0, 4, 1, 2] {
            let (ticket, buffer, outcome) = take_filled_buffer(&mut core);
            assert_eq!(ticket, tickets[number]);
            assert!(buffer[..] == pattern_bytes(number * 5000, lengths[number]), "{at_once}: {number}");
            let known = (number % 2 == 0).then(file_attributes);
            assert_eq!(outcome, Ok(ReadMetadata { is_end: number == 2, attributes: known }));
        }
        assert!(core.next_completion().is_none() && core.in_flight() == 0 && core.is_between_replies(0));
        assert_eq!(core.counts().read_bytes, lengths.iter().sum::<usize>() as u64);
    }
}

/// Proves that bytes of files are received where they stay, as long as heads are as long as servers make
/// them.
#[test]
fn read_data_is_received_without_copies() {
    let mut core = new_core();
    for number in 0..8 {
        core.post(new_buffer(4096), position(number * 4096)).unwrap();
    }
    let xids = send_all_calls(&mut core);
    let stream: Vec<u8> = xids.iter().flat_map(|xid| read_reply_record(*xid, &[7; 4095], true)).collect();
    receive_in_pieces(&mut core, 0, &stream, usize::MAX).unwrap();
    assert_eq!((core.counts().reads, core.counts().read_bytes, core.counts().moved_bytes), (8, 8 * 4095, 0));
}

#[test]
fn fragmented_records_are_assembled() {
    // However they arrive: also the mark of a long fragment alone.
    for (fragment, received_at_a_time) in [1, 5, 40, 150, 1000]
        .into_iter()
        .flat_map(|fragment| [1, 4, 5, 17, 5000].map(|received_at_a_time| (fragment, received_at_a_time)))
    {
        let mut core = new_core();
        core.post(new_buffer(3000), position(0)).unwrap();
        core.post(new_buffer(300), position(6000)).unwrap();
        let xids = send_all_calls(&mut core);
        let mut stream = Vec::new();
        let body = &read_reply_record(xids[0], &pattern_bytes(0, 3000), false)[4..];
        let pieces = body.chunks(fragment);
        let count = pieces.len();
        for (number, piece) in pieces.enumerate() {
            let last = if number + 1 == count { 1 << 31 } else { 0 };
            stream.extend_from_slice(&(piece.len() as u32 | last).to_be_bytes());
            stream.extend_from_slice(piece);
        }
        stream.extend(read_reply_record(xids[1], &pattern_bytes(6000, 300), false));
        receive_in_pieces(&mut core, 0, &stream, received_at_a_time).unwrap();
        for (start, bytes) in [(0, 3000), (6000, 300)] {
            let (_, buffer, outcome) = take_filled_buffer(&mut core);
            let is_right = outcome.is_ok() && buffer[..] == pattern_bytes(start, bytes);
            assert!(is_right, "{fragment} {received_at_a_time}: {start}");
        }
    }
}

/// A server does not decide how much memory a reply takes, however it is cut.
#[test]
fn fragments_beyond_the_requested_length_are_refused() {
    for (first, second) in [(0x7fff_ffff, 0), (5000, 0), (3, 0x7fff_ffff), (1000, 4000)] {
        let mut core = new_core();
        core.post(new_buffer(3000), position(0)).unwrap();
        let [xid] = send_all_calls(&mut core)[..] else { panic!("one call") };
        let body = [&xid.to_be_bytes()[..], &[0; 996]].concat();
        let mut stream = u32::to_be_bytes(first).to_vec();
        let (begin, rest) = body.split_at((first as usize).min(body.len()));
        stream.extend(begin);
        if second > 0 {
            stream.extend(u32::to_be_bytes(second));
            stream.extend(rest);
            stream.extend([0; 8]);
        }
        let refused = receive_in_pieces(&mut core, 0, &stream, 4).unwrap_err();
        assert!(matches!(refused, BadReply::TooLong { .. }), "{first} {second}: {refused:?}");
    }
}

#[test]
fn reads_continue_until_buffer_or_file_end() {
    let mut core = new_core();
    core.post(new_buffer(10_000), position(50)).unwrap();
    let (mut offset, mut asked_bytes) = (50, Vec::new());
    for (bytes, is_end) in [(4096, false), (100, false), (4096, false), (8, true)] {
        let [xid] = send_all_calls(&mut core)[..] else { panic!("one call at a time") };
        let sent = core.call_pieces(xid).unwrap().concat();
        let call = rpc::Call::parse(&sent[4..]).unwrap();
        let asked: ReadArguments = xdr::parse(call.arguments).unwrap();
        assert_eq!(asked.offset, offset as u64);
        asked_bytes.push(asked.bytes);
        receive_in_pieces(&mut core, 0, &read_reply_record(xid, &pattern_bytes(offset, bytes), is_end), 1000)
            .unwrap();
        offset += bytes;
    }
    assert_eq!(asked_bytes, [4096, 4096, 4096, 1708]);
    let (_, buffer, outcome) = take_filled_buffer(&mut core);
    assert!(outcome.unwrap().is_end && buffer[..] == pattern_bytes(50, 8300));
    assert_eq!(core.counts().calls, 4);
}

/// Each is refused before anything is written behind what was asked for; the others are sent again, and none
/// is lost.
#[test]
fn bad_replies_fail_their_call_and_others_are_resent() {
    let xid = FIRST_XID;
    let head = |count, data_bytes| {
        let head = ReadHead { attributes: None, count, is_end: false, data_bytes };
        encode_xdr(&NfsResult::<_, Option<Attributes>>::Ok(head))
    };
    let mut announced = read_reply_record(xid, &[7; 100], false);
    announced[..4].copy_from_slice(&(u32::MAX >> 1 | 1 << 31).to_be_bytes());
    let mut no_padding = read_reply_record(xid, &[7; 5], false);
    no_padding.truncate(no_padding.len() - 3);
    record::end(&mut no_padding, 0);
    let results = |results: &[u8]| reply_record(xid, Reply::Success, results);
    type IsExpected = fn(&BadReply) -> bool;
    let cases: [(Vec<u8>, bool, IsExpected); 9] = [
        (read_reply_record(xid, &[7; 101], false), true, |error| {
            *error == BadReply::MoreThanAsked { bytes: 101, asked: 100 }
        }),
        (results(&head(50, 60)), true, |error| *error == BadReply::Counts { count: 50, data_bytes: 60 }),
        (results(&head(64, 64)), true, |error| *error == BadReply::Length { data_bytes: 64, behind: 0 }),
        (announced, true, |error| matches!(error, BadReply::Length { data_bytes: 100, .. })),
        (no_padding, true, |error| *error == BadReply::Length { data_bytes: 5, behind: 5 }),
        (read_reply_record(xid, &[], false), true, |error| {
            *error == BadReply::NoProgress { bytes: 0, asked: 100 }
        }),
        (results(&[0xff; 8]), true, |error| {
            matches!(error, BadReply::Malformed(XdrError::Value { .. } | XdrError::TooShort { .. }))
        }),
        (read_reply_record(xid + 77, &[7; 100], true), false, |error| {
            *error == BadReply::UnknownCall { xid: 177 }
        }),
        (vec![0x80, 0, 0, 4, 0, 0, 0, 100], false, |error| matches!(error, BadReply::Malformed(_))),
    ];
    for (number, (stream, is_known, is_expected)) in cases.into_iter().enumerate() {
        for at_once in [1, usize::MAX] {
            let mut core = new_core();
            let tickets = [(); 2].map(|()| core.post(new_buffer(100), position(0)).unwrap());
            assert_eq!(send_all_calls(&mut core), [xid, xid + 1]);
            let error = receive_in_pieces(&mut core, 0, &stream, at_once).unwrap_err();
            assert!(is_expected(&error), "{number}: {error:?}");
            if is_known {
                let (ticket, buffer, outcome) = take_filled_buffer(&mut core);
                assert_eq!((ticket, outcome), (tickets[0], Err(CallError::BadReply(error))));
                assert!(buffer.is_empty());
            }
            let again = send_all_calls(&mut core);
            assert_eq!(again, if is_known { vec![xid + 1] } else { vec![xid, xid + 1] }, "{number}");
            for xid in again {
                receive_in_pieces(
                    &mut core,
                    0,
                    &read_reply_record(xid, &pattern_bytes(0, 100), false),
                    at_once,
                )
                .unwrap();
                let (_, buffer, outcome) = take_filled_buffer(&mut core);
                assert!(outcome.is_ok() && buffer[..] == pattern_bytes(0, 100));
            }
            assert_eq!((core.counts().bad_replies, core.in_flight()), (1, 0));
        }
    }
}

/// A reply that comes by another connection than its call, or a second time, belongs to no call.
#[test]
fn replies_are_accepted_once_on_their_connection() {
    let mut core = new_core();
    core.post(new_buffer(8), position(0)).unwrap();
    let [xid] = send_all_calls(&mut core)[..] else { panic!() };
    let reply = read_reply_record(xid, &[7; 8], false);
    assert_eq!(receive_in_pieces(&mut core, 1, &reply, 50), Err(BadReply::UnknownCall { xid }));
    receive_in_pieces(&mut core, 0, &reply, 50).unwrap();
    assert!(take_filled_buffer(&mut core).2.is_ok());
    assert_eq!(receive_in_pieces(&mut core, 0, &reply, 50), Err(BadReply::UnknownCall { xid }));
}

#[test]
fn oversized_replies_are_refused_from_the_record_mark() {
    let mut core = new_core();
    core.call(Procedure::GetAttr.into(), &file_handle(), 200);
    let xid = send_all_calls(&mut core)[0];
    let mut begin = (0x8000_0000_u32 | 5_000_000).to_be_bytes().to_vec();
    begin.extend_from_slice(&xid.to_be_bytes());
    let error = receive_in_pieces(&mut core, 0, &begin, 8).unwrap_err();
    assert_eq!(error, BadReply::TooLong { bytes: 5_000_000, max: 200 });
    let Some(Completion::Results { results, .. }) = core.next_completion() else { panic!() };
    assert_eq!(
        results.unwrap_err().to_string(),
        "NFS call: not answered correctly; the reply has 5000000 bytes, more than the 200 that are possible; check that the server speaks NFS version 3"
    );
}

#[test]
fn nfs_status_errors_differ_from_rpc_refusals() {
    let mut core = new_core();
    for _ in 0..3 {
        core.post(new_buffer(8), position(0)).unwrap();
    }
    let xids = send_all_calls(&mut core);
    let refused = nfs3::Refusal { status: Status::Stale, rest: None::<Attributes> };
    let stale = encode_xdr(&NfsResult::<ReadHead, Option<Attributes>>::Err(refused));
    let stream = [
        reply_record(xids[0], Reply::Success, &stale),
        reply_record(xids[1], Reply::Denied(AuthError::TooWeak), &[]),
        reply_record(xids[2], Reply::ProgramUnavailable, &[]),
    ]
    .concat();
    receive_in_pieces(&mut core, 0, &stream, usize::MAX).unwrap();
    let outcomes = [(); 3].map(|()| take_filled_buffer(&mut core).2.unwrap_err());
    assert_eq!(outcomes[0].status(), Some(Status::Stale));
    for (outcome, replied) in outcomes[1..].iter().zip(["Denied(TooWeak)", "ProgramUnavailable"]) {
        assert_eq!(
            outcome.to_string(),
            format!(
                "NFS call: not accepted; the server replied {replied}; check that it serves NFS version 3 to this user"
            )
        );
    }
}

/// Reads and writes for which the server is not ready are made again when it was given time, as calls of
/// their own; not without end.
#[test]
fn reads_and_writes_are_repeated_on_jukebox_up_to_a_limit() {
    let mut core = new_core();
    core.set_delays_max(2);
    core.post(new_buffer(8), position(0)).unwrap();
    core.write(new_buffer(8), position(0)).unwrap();
    let refused = nfs3::Refusal { status: Status::Jukebox, rest: None::<Attributes> };
    let read = encode_xdr(&NfsResult::<ReadHead, Option<Attributes>>::Err(refused));
    let refused = nfs3::Refusal { status: Status::Jukebox, rest: WeakCacheConsistency::unchanged(None) };
    let write = encode_xdr(&NfsResult::<WriteResult, WeakCacheConsistency>::Err(refused));
    for round in 0..3 {
        let xids = send_all_calls(&mut core);
        assert_eq!(xids, [FIRST_XID + 2 * round, FIRST_XID + 2 * round + 1]);
        let replies =
            [reply_record(xids[0], Reply::Success, &read), reply_record(xids[1], Reply::Success, &write)];
        receive_in_pieces(&mut core, 0, &replies.concat(), 99).unwrap();
        if round < 2 {
            assert_eq!((core.delayed_count(), core.in_flight(), core.queued_count()), (2, 2, 0));
            core.resume_delayed();
        }
    }
    assert_eq!(take_filled_buffer(&mut core).2.unwrap_err().status(), Some(Status::Jukebox));
    core.commit(file_handle()).unwrap();
    assert_eq!(take_commit_outcome(&mut core).unwrap().unwrap_err().status(), Some(Status::Jukebox));
    assert_eq!((core.delayed_count(), core.in_flight()), (0, 0));
}

/// Repeated calls keep their numbers and order, over any connection, and the caller is informed.
#[test]
fn calls_of_a_lost_connection_are_sent_again() {
    let mut core = new_core();
    core.post(new_buffer(4096), position(0)).unwrap();
    core.call(Procedure::GetAttr.into(), &file_handle(), 200);
    let xids = send_all_calls(&mut core);
    core.post(new_buffer(10), position(9)).unwrap();
    let before: Vec<_> = xids.iter().map(|xid| core.call_pieces(*xid).unwrap().concat()).collect();
    // In the middle of the data.
    receive_in_pieces(&mut core, 0, &read_reply_record(xids[0], &[9; 4096], false)[..2000], usize::MAX)
        .unwrap();
    assert!(!core.is_between_replies(0));
    core.on_connection_lost(0);
    assert_eq!(core.queued_count(), 3);
    let again: Vec<u32> = std::iter::from_fn(|| core.assign_next_call(1)).collect();
    assert_eq!(again, [xids[0], xids[1], FIRST_XID + 2]);
    assert!(xids.iter().zip(&before).all(|(xid, sent)| core.call_pieces(*xid).unwrap().concat() == *sent));
    receive_in_pieces(&mut core, 1, &read_reply_record(xids[0], &pattern_bytes(0, 4096), false), 1000)
        .unwrap();
    let (_, buffer, outcome) = take_filled_buffer(&mut core);
    assert!(outcome.is_ok() && buffer[..] == pattern_bytes(0, 4096));
    let about = encode_xdr(&NfsResult::<Attributes, ()>::Ok(file_attributes()));
    receive_in_pieces(&mut core, 1, &reply_record(xids[1], Reply::Success, &about), 1000).unwrap();
    assert!(matches!(
        core.next_completion(),
        Some(Completion::Results { is_repeated: true, results: Ok(_), .. })
    ));
    assert_eq!(core.counts().retransmitted_calls, 2);
}

#[test]
fn abandoned_requests_fail_once_and_return_their_buffers() {
    let mut core = new_core();
    let pool = Pool::new(2, 4096).unwrap();
    core.post(pool.take().unwrap(), position(0)).unwrap();
    core.write(new_buffer(9000), position(0)).unwrap();
    core.commit(file_handle()).unwrap();
    assert_eq!(send_all_calls(&mut core).len(), 4);
    core.give_up(CallError::Unanswered);
    let (_, buffer, outcome) = take_filled_buffer(&mut core);
    assert_eq!((buffer.len(), outcome), (0, Err(CallError::Unanswered)));
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "NFS call: not answered; the client stopped waiting for the server; try again"
    );
    assert_eq!(take_commit_outcome(&mut core), Some(Err(CallError::Unanswered)));
    assert!(core.next_completion().is_none());
    assert_eq!((core.in_flight(), core.queued_count(), core.uncommitted_bytes()), (0, 0, 0));
    drop(buffer);
    assert_eq!(pool.available(), 2);
}

#[test]
fn empty_writes_are_rejected() {
    let mut core = new_core();
    assert!(matches!(core.write(Buffer::from(Vec::new()), position(0)).unwrap_err().reason, Reason::Empty));
    assert_eq!(core.in_flight(), 0);
}

fn write_reply_record(xid: u32, count: u32, stability: Stability, verifier: u8) -> Vec<u8> {
    let changed = WeakCacheConsistency::unchanged(None);
    let result = WriteResult { changed, count, stability, verifier: [verifier; 8] };
    reply_record(xid, Reply::Success, &encode_xdr(&NfsResult::<_, WeakCacheConsistency>::Ok(result)))
}

fn commit_reply_record(xid: u32, verifier: u8) -> Vec<u8> {
    let result = CommitResult { changed: WeakCacheConsistency::unchanged(None), verifier: [verifier; 8] };
    reply_record(xid, Reply::Success, &encode_xdr(&NfsResult::<_, WeakCacheConsistency>::Ok(result)))
}

/// The bytes and place of a write in flight; `None`: it is a COMMIT.
fn sent_write(core: &Core, xid: u32) -> Option<(u64, Vec<u8>)> {
    let sent = core.call_pieces(xid).unwrap().concat();
    let call = rpc::Call::parse(&sent[4..]).unwrap();
    if call.procedure == Procedure::Commit as u32 {
        return None;
    }
    let asked: nfs3::WriteArguments<'_> = xdr::parse(call.arguments).unwrap();
    Some((asked.offset, asked.data.0.to_vec()))
}

#[test]
fn a_commit_is_sent_after_its_writes_and_frees_their_buffers() {
    let mut core = new_core();
    let pool = Pool::new(1, 10_000).unwrap();
    let mut data = pool.take().unwrap();
    data.fill(&pattern_bytes(0, 10_000)).unwrap();
    core.write(data, position(70)).unwrap();
    core.commit(file_handle()).unwrap();
    assert!(core.commit(file_handle()).is_none(), "one at a time");
    let xids = send_all_calls(&mut core);
    let sent: Vec<_> = xids.iter().map(|xid| sent_write(&core, *xid).unwrap()).collect();
    assert_eq!(sent.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [70, 70 + 4096, 70 + 8192]);
    assert!(sent.iter().flat_map(|(_, data)| data).copied().eq(pattern_bytes(0, 10_000)));
    for (xid, (_, data)) in xids.iter().zip(&sent) {
        assert_eq!(core.queued_count(), 0, "no COMMIT before all are written");
        receive_in_pieces(
            &mut core,
            0,
            &write_reply_record(*xid, data.len() as u32, Stability::Unstable, 1),
            99,
        )
        .unwrap();
    }
    assert_eq!((core.uncommitted_bytes(), pool.available()), (10_000, 0));
    let [commit] = send_all_calls(&mut core)[..] else { panic!("a COMMIT") };
    assert!(sent_write(&core, commit).is_none() && core.next_completion().is_none());
    receive_in_pieces(&mut core, 0, &commit_reply_record(commit, 1), 99).unwrap();
    assert_eq!(take_commit_outcome(&mut core), Some(Ok(())));
    assert_eq!((core.uncommitted_bytes(), pool.available(), core.counts().lost_bytes), (0, 1, 0));
}

/// Of what was written before and after the server was started again, only the first is sent again; and again
/// until it stays.
#[test]
fn writes_lost_by_a_server_restart_are_sent_again() {
    let mut core = new_core();
    core.write(new_buffer(100), position(0)).unwrap();
    core.write(new_buffer(50), position(1000)).unwrap();
    let xids = send_all_calls(&mut core);
    receive_in_pieces(&mut core, 0, &write_reply_record(xids[0], 100, Stability::Unstable, 1), 99).unwrap();
    core.on_connection_lost(0);
    let [xid] = send_all_calls(&mut core)[..] else { panic!() };
    receive_in_pieces(&mut core, 0, &write_reply_record(xid, 50, Stability::Unstable, 2), 99).unwrap();
    core.commit(file_handle()).unwrap();
    let [commit] = send_all_calls(&mut core)[..] else { panic!() };
    receive_in_pieces(&mut core, 0, &commit_reply_record(commit, 2), 99).unwrap();
    assert!(core.next_completion().is_none(), "one is lost");
    for verifier in [3, 3] {
        let [xid] = send_all_calls(&mut core)[..] else { panic!() };
        assert_eq!(sent_write(&core, xid).map(|(offset, data)| (offset, data.len())), Some((0, 100)));
        receive_in_pieces(&mut core, 0, &write_reply_record(xid, 100, Stability::Unstable, verifier), 99)
            .unwrap();
        let [commit] = send_all_calls(&mut core)[..] else { panic!() };
        let is_first = core.counts().lost_bytes == 100;
        receive_in_pieces(&mut core, 0, &commit_reply_record(commit, if is_first { 9 } else { 3 }), 99)
            .unwrap();
    }
    assert_eq!(take_commit_outcome(&mut core), Some(Ok(())));
    assert_eq!((core.counts().lost_bytes, core.uncommitted_bytes()), (200, 0));
}

/// A server that writes little at a time decides neither how much is kept, nor how many calls are made to
/// send it again.
#[test]
fn short_pieces_of_a_lost_write_are_merged_when_resent() {
    let mut core = new_core();
    core.write(new_buffer(10_000), position(0)).unwrap();
    core.commit(file_handle()).unwrap();
    let commit = loop {
        let xid = core.assign_next_call(0).unwrap();
        let Some((_, data)) = sent_write(&core, xid) else { break xid };
        let count = data.len().min(100) as u32;
        receive_in_pieces(&mut core, 0, &write_reply_record(xid, count, Stability::Unstable, 1), 99).unwrap();
    };
    assert_eq!(core.uncommitted_bytes(), 10_000);
    receive_in_pieces(&mut core, 0, &commit_reply_record(commit, 2), 99).unwrap();
    let sent = send_all_calls(&mut core).into_iter().map(|xid| sent_write(&core, xid).unwrap());
    let mut sent: Vec<_> = sent.map(|(offset, data)| (offset, data.len())).collect();
    sent.sort_unstable();
    assert_eq!(sent, [(0, 4096), (4096, 4096), (8192, 10_000 - 8192)]);
}

#[test]
fn commits_fail_if_the_server_keeps_losing_writes() {
    let mut core = new_core();
    core.write(new_buffer(10), position(0)).unwrap();
    core.commit(file_handle()).unwrap();
    let mut sent = 0;
    let outcome = loop {
        match send_all_calls(&mut core)[..] {
            [xid] if sent_write(&core, xid).is_some() => {
                sent += 1;
                receive_in_pieces(&mut core, 0, &write_reply_record(xid, 10, Stability::Unstable, 1), 99)
                    .unwrap();
            }
            [xid] => receive_in_pieces(&mut core, 0, &commit_reply_record(xid, 2), 99).unwrap(),
            _ => break take_commit_outcome(&mut core).expect("the commit is over"),
        }
    };
    assert_eq!((sent, outcome), (17, Err(BadReply::NeverCommitted { rounds: 16 }.into())));
}

#[test]
fn short_writes_continue_and_stable_ones_need_no_commit() {
    let mut core = new_core();
    core.write(new_buffer(100), position(0)).unwrap();
    let xid = send_all_calls(&mut core)[0];
    receive_in_pieces(&mut core, 0, &write_reply_record(xid, 60, Stability::FileSync, 1), 99).unwrap();
    let xid = send_all_calls(&mut core)[0];
    assert_eq!(sent_write(&core, xid).map(|(offset, data)| (offset, data.len())), Some((60, 40)));
    receive_in_pieces(&mut core, 0, &write_reply_record(xid, 40, Stability::FileSync, 1), 99).unwrap();
    core.commit(file_handle()).unwrap();
    assert_eq!((take_commit_outcome(&mut core), core.queued_count()), (Some(Ok(())), 0));
}

#[test]
fn a_failed_write_fails_only_the_next_commit() {
    let mut core = new_core();
    core.write(new_buffer(10), position(0)).unwrap();
    core.write(new_buffer(10), position(10)).unwrap();
    let xids = send_all_calls(&mut core);
    let refused = nfs3::Refusal { status: Status::NoSpace, rest: WeakCacheConsistency::unchanged(None) };
    let refused = encode_xdr(&NfsResult::<WriteResult, WeakCacheConsistency>::Err(refused));
    receive_in_pieces(&mut core, 0, &reply_record(xids[0], Reply::Success, &refused), 99).unwrap();
    receive_in_pieces(&mut core, 0, &write_reply_record(xids[1], 10, Stability::Unstable, 1), 99).unwrap();
    core.commit(file_handle()).unwrap();
    assert_eq!(take_commit_outcome(&mut core).unwrap().unwrap_err().status(), Some(Status::NoSpace));
    core.commit(file_handle()).unwrap();
    assert_eq!(take_commit_outcome(&mut core), Some(Ok(())));
    for (count, bytes) in [(0, 10), (11, 10)] {
        core.write(new_buffer(bytes), position(0)).unwrap();
        let xid = send_all_calls(&mut core)[0];
        let error =
            receive_in_pieces(&mut core, 0, &write_reply_record(xid, count, Stability::Unstable, 1), 99)
                .unwrap_err();
        assert_eq!(error, BadReply::NoProgress { bytes: count as usize, asked: 10 });
        core.commit(file_handle()).unwrap();
        assert_eq!(take_commit_outcome(&mut core), Some(Err(error.into())));
    }
}

/// The fuzz target's rules, for bytes from seeds.
#[test]
fn arbitrary_replies_keep_the_core_consistent() {
    let mut state = 7_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    let (mut reads, mut writes, mut repeated, mut bad_replies) = (0, 0, 0, 0);
    for _ in 0..2000 {
        let input: Vec<u8> = (0..400).map(|_| random()).collect();
        let counts = oracle::run_client_model(&input);
        reads += counts.read_bytes;
        writes += counts.written_bytes;
        repeated += counts.retransmitted_calls;
        bad_replies += counts.bad_replies;
    }
    let least = [reads, writes, repeated, bad_replies].into_iter().min();
    assert!(least > Some(200), "too little happened: {reads} {writes} {repeated} {bad_replies}");
}

fn core_with_pool(count: u32) -> (Core, Vec<BufferMut>) {
    let (mut core, pool) = (new_core(), Pool::new(count, 4096).unwrap());
    core.set_pool(&pool);
    (core, std::iter::from_fn(|| pool.take()).collect())
}

#[test]
fn replies_fill_the_most_recently_posted_pool_buffer() {
    let (mut core, buffers) = core_with_pool(3);
    let places: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr()).collect();
    for (number, buffer) in buffers.into_iter().enumerate() {
        core.post(buffer, position(number as u64 * 4096)).unwrap();
    }
    let xids = send_all_calls(&mut core);
    let mut last = places[2];
    for (number, xid) in xids.iter().enumerate() {
        let data = pattern_bytes(number * 4096, 4096);
        receive_in_pieces(&mut core, 0, &read_reply_record(*xid, &data, false), 1000).unwrap();
        let Some(Completion::Filled { buffer, place, outcome, .. }) = core.next_completion() else {
            panic!("nothing came back")
        };
        assert_eq!((place, &buffer[..]), (position(number as u64 * 4096), &data[..]));
        assert!(outcome.is_ok());
        // It is posted again before the next reply comes.
        assert_eq!(buffer.as_ptr(), last, "reply {number}");
        last = buffer.as_ptr();
        core.post(buffer, position((number as u64 + 3) * 4096)).unwrap();
    }
}

#[test]
fn buffers_outside_the_pool_are_not_exchanged() {
    let (mut core, mut buffers) = core_with_pool(2);
    let foreign = new_buffer(4096);
    let place = foreign.as_ptr();
    core.post(foreign, position(0)).unwrap();
    core.post(buffers.remove(0), position(4096)).unwrap();
    let mut shorter = buffers.remove(0);
    shorter.resize(100);
    core.post(shorter, position(8192)).unwrap();
    let xids = send_all_calls(&mut core);
    for (number, bytes) in [(0, 4096), (1, 4096), (2, 100)] {
        let data = pattern_bytes(number, bytes);
        receive_in_pieces(&mut core, 0, &read_reply_record(xids[number], &data, false), usize::MAX).unwrap();
        let (_, buffer, _) = take_filled_buffer(&mut core);
        assert_eq!((&buffer[..], buffer.as_ptr() == place), (&data[..], number == 0), "read {number}");
    }
}

#[test]
fn queued_reads_are_delayed_only_while_the_server_is_busy() {
    let mut core = new_core();
    for number in 0..4 {
        core.post(new_buffer(1000), position(number * 4096)).unwrap();
    }
    assert!(!core.may_delay_queued(), "the server has nothing to do");
    send_all_calls(&mut core);
    core.post(new_buffer(1000), position(0)).unwrap();
    assert!(core.may_delay_queued());
    core.post(new_buffer(1000), position(0)).unwrap();
    assert!(!core.may_delay_queued(), "it has twice as much to do as waits");
    send_all_calls(&mut core);
    core.call(Procedure::GetAttr.into(), &file_handle(), 100);
    assert!(!core.may_delay_queued(), "a program waits for that");
}
