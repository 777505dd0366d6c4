//! Reads of adjacent places, which one call asks for.

use super::*;

/// Four reads of 1000 bytes each from byte 0 on.
fn core_with_four_reads() -> (Core, Vec<Ticket>) {
    let mut core = new_core();
    let tickets =
        (0..4).map(|number| core.post(new_buffer(1000), position(1000 * number)).unwrap()).collect();
    (core, tickets)
}

/// The offset and length that a sent call asks for.
fn requested_range(core: &Core, xid: u32) -> (u64, u32) {
    let sent = core.call_pieces(xid).unwrap().concat();
    let call = rpc::Call::parse(&sent[4..]).unwrap();
    let asked: ReadArguments = xdr::parse(call.arguments).unwrap();
    (asked.offset, asked.bytes)
}

fn send_all_requested_ranges(core: &mut Core) -> Vec<(u64, u32)> {
    send_all_calls(core).into_iter().map(|xid| requested_range(core, xid)).collect()
}

#[test]
fn adjacent_reads_share_a_call_and_its_reply() {
    for at_once in [1, 7, 999, 1001, 2500, usize::MAX] {
        let (mut core, tickets) = core_with_four_reads();
        let [xid] = send_all_calls(&mut core)[..] else { panic!("one call") };
        assert_eq!((requested_range(&core, xid), core.in_flight()), ((0, 4000), 4));
        receive_in_pieces(&mut core, 0, &read_reply_record(xid, &pattern_bytes(0, 4000), false), at_once)
            .unwrap();
        for (number, expected) in tickets.into_iter().enumerate() {
            let (ticket, buffer, outcome) = take_filled_buffer(&mut core);
            assert_eq!(ticket, expected);
            assert!(buffer[..] == pattern_bytes(1000 * number, 1000), "{at_once}: {number}");
            assert_eq!(outcome, Ok(ReadMetadata { is_end: false, attributes: Some(file_attributes()) }));
        }
        let counts = core.counts();
        assert_eq!((counts.calls, counts.reads, counts.joined, counts.read_bytes), (4, 4, 3, 4000));
        assert!(core.next_completion().is_none() && core.in_flight() == 0 && core.is_between_replies(0));
    }
}

#[test]
fn only_adjacent_reads_within_the_limit_are_joined() {
    let mut core = new_core();
    for (bytes, offset) in [(2000, 0), (2000, 2000), (2000, 4000), (100, 7000), (100, 6900), (5000, 7000)] {
        core.post(new_buffer(bytes), position(offset)).unwrap();
    }
    core.call(Procedure::GetAttr.into(), &file_handle(), 100);
    core.post(new_buffer(100), position(12_000)).unwrap();
    let xids = send_all_calls(&mut core);
    let reads = [(0, 4000), (4000, 2000), (7000, 100), (6900, 100), (7000, 4096)];
    let found: Vec<_> = xids[..5].iter().map(|xid| requested_range(&core, *xid)).collect();
    assert_eq!(found, reads);
    assert_eq!((xids.len(), requested_range(&core, xids[6])), (7, (12_000, 100)));
}

#[test]
fn joined_reads_past_the_file_end_are_empty() {
    for (bytes, lengths) in [(1500, [1000, 500, 0, 0]), (2000, [1000, 1000, 0, 0]), (0, [0; 4])] {
        let (mut core, _) = core_with_four_reads();
        let [xid] = send_all_calls(&mut core)[..] else { panic!("one call") };
        receive_in_pieces(&mut core, 0, &read_reply_record(xid, &pattern_bytes(0, bytes), true), 300)
            .unwrap();
        for (number, length) in lengths.into_iter().enumerate() {
            let (_, buffer, outcome) = take_filled_buffer(&mut core);
            assert!(buffer[..] == pattern_bytes(1000 * number, length), "{bytes}: {number}");
            let is_last = 1000 * (number + 1) >= bytes;
            assert_eq!(outcome.map(|end| end.is_end), Ok(is_last), "{bytes}: {number}");
        }
        assert_eq!(core.in_flight(), 0);
    }
}

#[test]
fn missing_data_of_short_replies_is_requested_again() {
    let (mut core, _) = core_with_four_reads();
    let [xid] = send_all_calls(&mut core)[..] else { panic!("one call") };
    receive_in_pieces(&mut core, 0, &read_reply_record(xid, &pattern_bytes(0, 1700), false), 300).unwrap();
    assert!(take_filled_buffer(&mut core).1[..] == pattern_bytes(0, 1000));
    assert!(core.next_completion().is_none());
    assert_eq!(send_all_requested_ranges(&mut core), [(1700, 300), (2000, 2000)]);
}

/// Forty reads of 100 bytes: more buffers than one system call receives into.
#[test]
fn a_joined_read_fills_more_buffers_than_one_receive_call() {
    let mut core = new_core();
    for number in 0..40 {
        core.post(new_buffer(100), position(100 * number)).unwrap();
    }
    let [xid] = send_all_calls(&mut core)[..] else { panic!("one call") };
    receive_in_pieces(&mut core, 0, &read_reply_record(xid, &pattern_bytes(0, 4000), true), usize::MAX)
        .unwrap();
    for number in 0..40 {
        let (_, buffer, outcome) = take_filled_buffer(&mut core);
        assert!(buffer[..] == pattern_bytes(100 * number, 100), "{number}");
        assert_eq!(outcome.map(|end| end.is_end), Ok(number == 39));
    }
    assert!(core.in_flight() == 0 && core.is_between_replies(0));
}

#[test]
fn refused_joined_reads_are_repeated_separately() {
    let (mut core, tickets) = core_with_four_reads();
    let [xid] = send_all_calls(&mut core)[..] else { panic!("one call") };
    let refusal = |status| {
        encode_xdr(&NfsResult::<ReadHead, _>::Err(nfs3::Refusal { status, rest: Some(file_attributes()) }))
    };
    receive_in_pieces(&mut core, 0, &reply_record(xid, Reply::Success, &refusal(Status::Io)), 300).unwrap();
    assert!(core.next_completion().is_none());
    let xids = send_all_calls(&mut core);
    let found: Vec<_> = xids.iter().map(|xid| requested_range(&core, *xid)).collect();
    assert_eq!(found, [(0, 1000), (1000, 1000), (2000, 1000), (3000, 1000)]);
    for (number, xid) in xids.into_iter().enumerate() {
        let reply = match number {
            2 => reply_record(xid, Reply::Success, &refusal(Status::Io)),
            _ => read_reply_record(xid, &pattern_bytes(1000 * number, 1000), false),
        };
        receive_in_pieces(&mut core, 0, &reply, 300).unwrap();
        let (ticket, _, outcome) = take_filled_buffer(&mut core);
        assert_eq!((ticket, outcome.is_err()), (tickets[number], number == 2));
    }
}

#[test]
fn joined_reads_refused_as_jukebox_are_repeated_separately() {
    let refusal = nfs3::Refusal { status: Status::Jukebox, rest: None::<Attributes> };
    let not_ready = encode_xdr(&NfsResult::<ReadHead, _>::Err(refusal));
    for (reply, results) in [(Reply::Success, &not_ready[..]), (Reply::SystemError, &[])] {
        let (mut core, _) = core_with_four_reads();
        core.set_delays_max(1);
        let [xid] = send_all_calls(&mut core)[..] else { panic!("one call") };
        receive_in_pieces(&mut core, 0, &reply_record(xid, reply, results), 300).unwrap();
        assert_eq!((core.delayed_count(), core.in_flight()), (0, 4));
        let xids = send_all_calls(&mut core);
        assert_eq!((xids.len(), requested_range(&core, xids[2])), (4, (2000, 1000)));
        receive_in_pieces(&mut core, 0, &reply_record(xids[2], Reply::Success, &not_ready), 300).unwrap();
        assert_eq!((core.delayed_count(), core.in_flight()), (1, 4));
        core.resume_delayed();
        assert_eq!(send_all_requested_ranges(&mut core), [(2000, 1000)]);
    }
}

#[test]
fn joined_reads_request_only_missing_data_after_a_lost_connection() {
    let (mut core, tickets) = core_with_four_reads();
    let [xid] = send_all_calls(&mut core)[..] else { panic!("one call") };
    let reply = read_reply_record(xid, &pattern_bytes(0, 4000), false);
    let head = reply.len() - 4000;
    receive_in_pieces(&mut core, 0, &reply[..head + 2400], 300).unwrap();
    assert_eq!(take_filled_buffer(&mut core).0, tickets[0]);
    assert_eq!(take_filled_buffer(&mut core).0, tickets[1]);
    core.on_connection_lost(0);
    let [xid] = send_all_calls(&mut core)[..] else { panic!("one call") };
    assert_eq!(requested_range(&core, xid), (2000, 2000));
    receive_in_pieces(&mut core, 0, &read_reply_record(xid, &pattern_bytes(2000, 2000), false), 300).unwrap();
    for number in [2, 3] {
        let (ticket, buffer, outcome) = take_filled_buffer(&mut core);
        assert!(
            ticket == tickets[number] && outcome.is_ok() && buffer[..] == pattern_bytes(1000 * number, 1000)
        );
    }
    assert_eq!((core.in_flight(), core.counts().read_bytes), (0, 4000));
}

#[test]
fn malformed_replies_fail_all_joined_reads() {
    let (mut core, _) = core_with_four_reads();
    let [xid] = send_all_calls(&mut core)[..] else { panic!("one call") };
    let error =
        receive_in_pieces(&mut core, 0, &read_reply_record(xid, &pattern_bytes(0, 4001), false), 5000)
            .unwrap_err();
    assert_eq!(error, BadReply::MoreThanAsked { bytes: 4001, asked: 4000 });
    for _ in 0..4 {
        assert_eq!(take_filled_buffer(&mut core).2, Err(error.into()));
    }
    assert_eq!(core.in_flight(), 0);
}
