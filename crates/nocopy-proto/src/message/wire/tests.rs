use proptest::prelude::*;

use super::*;

fn header(kind: HeaderKind) -> impl Strategy<Value = Header> {
    let flags = match kind {
        HeaderKind::Data => prop::sample::subsequence(vec![1, 2, 4, 16], 0..=4),
        HeaderKind::Ack => prop::sample::subsequence(vec![1, 4, 16], 0..=3),
    };
    (flags, any::<(u16, u64, u32, u32, u32, u32, u32)>()).prop_map(move |(flags, fields)| {
        let (marked, to, sequence, expected, credit, sent, echo) = fields;
        let flags = [Flags::ANSWER, Flags::FIN, Flags::CRC, Flags::ECHO]
            .into_iter()
            .filter(|flag| flags.contains(&flag.bits()))
            .fold(Flags::NONE, Flags::with);
        Header { kind, flags, marked, to, sequence, expected, credit, sent, echo }
    })
}

fn parameters() -> impl Strategy<Value = Parameters> {
    (DATAGRAM_BYTES_MIN..=9000, any::<(u32, u32, u32, bool, u64)>()).prop_map(|(datagram_bytes, fields)| {
        let (max_message_bytes, initial_credit, first_sequence, crc, key) = fields;
        let stream_key = std::num::NonZeroU64::new(key);
        let placement = [Placement::None, Placement::Known, Placement::Beside(first_sequence as u64 + 2)];
        let placement = placement[first_sequence as usize % 3];
        Parameters {
            datagram_bytes,
            max_message_bytes,
            initial_credit,
            first_sequence,
            crc,
            stream_key,
            placement,
        }
    })
}

fn versions() -> impl Strategy<Value = Versions> {
    any::<(u8, u8)>().prop_map(|(a, b)| Versions { first: a.min(b), last: a.max(b) })
}

/// Datagrams as they are sent, of every kind but Data and Ack.
fn rare() -> impl Strategy<Value = Vec<u8>> {
    let ids = any::<(u64, u64, [u8; COOKIE_BYTES], u16, u8)>();
    (ids, parameters(), versions()).prop_map(
        |((client_id, to, cookie, reason, kind), parameters, versions)| {
            oracle::emit(&match kind % 7 {
                0 => Datagram::Hello(Hello { versions, client_id }),
                1 => Datagram::Cookie(Cookie { client_id, cookie }),
                2 => Datagram::Refused(Refused { versions, client_id }),
                3 => Datagram::Connect(Connect { client_id, cookie, parameters }),
                4 => Datagram::Accept(Accept { client_id, server_id: to, parameters }),
                5 => Datagram::Abort(Abort { to, reason: AbortReason(reason) }),
                _ => Datagram::Unknown(Unknown { to }),
            })
        },
    )
}

/// Ranges beyond `expected` that an Ack can say, as (gap, length).
fn gaps() -> impl Strategy<Value = Vec<(u16, u16)>> {
    prop::collection::vec((1u16.., 1u16..), 0..=RANGES_MAX)
}

fn ranges(expected: u64, gaps: &[(u16, u16)]) -> Vec<std::ops::Range<u64>> {
    let mut end = expected;
    let range = |&(gap, length): &(u16, u16)| {
        let start = end + u64::from(gap);
        end = start + u64::from(length);
        start..end
    };
    gaps.iter().map(range).collect()
}

#[test]
fn the_header_is_where_the_document_says() {
    let header = Header {
        kind: HeaderKind::Data,
        flags: Flags::ANSWER.with(Flags::FIN).with(Flags::ECHO),
        marked: 0x0203,
        to: 0x0405_0607_0809_0a0b,
        sequence: 0x0c0d_0e0f,
        expected: 0x1011_1213,
        credit: 0x1415_1617,
        sent: 0x1819_1a1b,
        echo: 0x1c1d_1e1f,
    };
    let mut bytes = [0; HEADER_BYTES];
    header.emit(&mut bytes);
    let mut expected: [u8; HEADER_BYTES] = std::array::from_fn(|index| index as u8);
    expected[..2].copy_from_slice(&[1, 0x13]);
    assert_eq!(bytes, expected);
}

#[test]
fn a_message_of_64_bytes_fits_in_front_of_a_checksum() {
    let header = Header {
        kind: HeaderKind::Data,
        flags: Flags::CRC,
        marked: 0,
        to: 1,
        sequence: 2,
        expected: 3,
        credit: 4,
        sent: 5,
        echo: 6,
    };
    let mut bytes = oracle::emit(&Datagram::Data(header, &[7; 64]));
    assert_eq!(bytes.len(), 32 + 64 + 4);
    assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Data(header, &[7; 64])));
    bytes[40] ^= 1;
    assert!(matches!(Datagram::parse(&bytes), Err(Malformed::Checksum { .. })));
}

#[test]
fn a_header_with_a_checksum_flag_and_no_room_for_it_is_refused() {
    // The last four bytes of the header are its own checksum: the flag alone must not make them count twice.
    let mut bytes = vec![0; HEADER_BYTES - CRC_BYTES];
    bytes[..2].copy_from_slice(&[DATA, Flags::CRC.bits()]);
    crc::seal(&mut bytes);
    let short = Malformed::TooShort { datagram_bytes: 32, needed_bytes: 36 };
    assert_eq!(Datagram::parse(&bytes), Err(short));
}

#[test]
fn flags_that_a_kind_does_not_have_are_refused() {
    for (kind, flags) in
        [(DATA, 32), (DATA, 64), (ACK, Flags::FIN.bits()), (HELLO, 0), (ABORT, 5), (UNKNOWN, 0)]
    {
        let mut bytes = [0; 200];
        bytes[..2].copy_from_slice(&[kind, flags]);
        assert_eq!(Datagram::parse(&bytes), Err(Malformed::Flags { kind, flags }));
    }
}

#[test]
fn ranges_are_apart_and_not_too_many() {
    let parse = |ranges: &[[u8; 4]]| Ranges::parse(&ranges.concat()).map(|ranges| ranges.len());
    assert_eq!(parse(&[[0, 1, 0, 1]; RANGES_MAX]), Ok(RANGES_MAX));
    assert_eq!(parse(&[[0, 1, 0, 1]; RANGES_MAX + 1]), Err(Malformed::RangesLength { bytes: 260 }));
    assert_eq!(parse(&[[0, 1, 0, 1], [0, 0, 0, 1]]), Err(Malformed::EmptyRange { index: 1 }));
    assert_eq!(parse(&[[0, 1, 0, 0]]), Err(Malformed::EmptyRange { index: 0 }));
    assert_eq!(Ranges::parse(&[0, 1, 0]), Err(Malformed::RangesLength { bytes: 3 }));
}

#[test]
fn ranges_that_16_bits_do_not_reach_end_the_list() {
    let mut bytes = Vec::new();
    let emit = |range: std::ops::Range<u64>| Ranges::emit(10, std::iter::once(range), &mut Vec::new());
    assert_eq!(emit(65_545..65_546), 1);
    assert_eq!(emit(65_546..65_547), 0, "too far");
    assert_eq!(Ranges::emit(10, [11..12, 12..13], &mut bytes), 1, "adjoining");
    assert_eq!(emit(9..12), 0, "below expected");
    assert_eq!(emit(12..12), 0, "empty");
    bytes.clear();
    assert_eq!(Ranges::emit(10, [20..90_000, 90_001..90_002], &mut bytes), 1);
    let ranges = Ranges::parse(&bytes).unwrap();
    assert!(ranges.iter(10).eq(std::iter::once(20..20 + 65_535)));
}

#[test]
fn the_answer_to_a_hello_is_a_quarter_of_it() {
    let mut bytes = Vec::new();
    Hello { versions: Versions::HERE, client_id: 1 }.emit(&mut bytes);
    assert_eq!(bytes.len(), 128);
    Cookie { client_id: 1, cookie: [2; COOKIE_BYTES] }.emit(&mut bytes);
    assert_eq!(bytes.len(), 32);
    Refused { versions: Versions::HERE, client_id: 1 }.emit(&mut bytes);
    assert_eq!(bytes.len(), 16);
    Unknown { to: 1 }.emit(&mut bytes);
    assert_eq!(bytes.len(), ENDING_BYTES);
}

#[test]
fn a_short_hello_is_refused() {
    let mut bytes = Vec::new();
    Hello { versions: Versions::HERE, client_id: 1 }.emit(&mut bytes);
    bytes.truncate(HELLO_BYTES_MIN - 1 - CRC_BYTES);
    crc::seal(&mut bytes);
    let short = Malformed::TooShort { datagram_bytes: HELLO_BYTES_MIN - 1, needed_bytes: HELLO_BYTES_MIN };
    assert_eq!(Datagram::parse(&bytes), Err(short));
}

#[test]
fn a_hello_of_the_future_is_read() {
    let mut bytes = Vec::new();
    Hello { versions: Versions { first: 1, last: 9 }, client_id: 1 }.emit(&mut bytes);
    bytes.truncate(bytes.len() - CRC_BYTES);
    bytes.extend_from_slice(b"fields that version 9 added");
    crc::seal(&mut bytes);
    let Ok(Datagram::Hello(hello)) = Datagram::parse(&bytes) else { panic!("not a Hello") };
    assert_eq!(hello.versions.newest_common(Versions::HERE), Some(VERSION));
    assert_eq!(hello.versions.newest_common(Versions { first: 10, last: 11 }), None);
}

#[test]
fn a_connect_has_to_be_as_long_as_it_says() {
    let parameters = Parameters {
        datagram_bytes: 1472,
        max_message_bytes: 1,
        initial_credit: 2,
        first_sequence: 3,
        crc: true,
        stream_key: None,
        placement: Placement::Known,
    };
    let mut bytes = Vec::new();
    Connect { client_id: 1, cookie: [2; COOKIE_BYTES], parameters }.emit(&mut bytes);
    assert_eq!(bytes.len(), 1472);
    bytes.truncate(1200 - CRC_BYTES);
    crc::seal(&mut bytes);
    let unproven = Malformed::Unproven { stated_bytes: 1472, datagram_bytes: 1200 };
    assert_eq!(Datagram::parse(&bytes), Err(unproven));
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_come_back(mut bytes: Vec<u8>, kind in 0u8..12, flags in 0u8..32) {
        oracle::check_round_trip(&bytes);
        if let [first, second, ..] = &mut bytes[..] {
            (*first, *second) = (kind, flags);
        }
        oracle::check_round_trip(&bytes);
    }

    #[test]
    fn data_comes_back(header in header(HeaderKind::Data), payload: Vec<u8>) {
        let bytes = oracle::emit(&Datagram::Data(header, &payload));
        prop_assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Data(header, &payload)));
        oracle::check_round_trip(&bytes);
    }

    #[test]
    fn acks_come_back(header in header(HeaderKind::Ack), gaps in gaps(), expected in 1u64 << 32..1 << 48) {
        let sent = ranges(expected, &gaps);
        let mut bytes = Vec::new();
        prop_assert_eq!(emit_ack(&header, expected, sent.iter().cloned(), &mut bytes), gaps.len());
        let Ok(Datagram::Ack(read, came)) = Datagram::parse(&bytes) else { panic!("not an Ack") };
        prop_assert_eq!(read, header);
        prop_assert_eq!(came.iter(expected).collect::<Vec<_>>(), sent);
        oracle::check_round_trip(&bytes);
    }

    #[test]
    fn rare_kinds_come_back(bytes in rare()) {
        prop_assert!(Datagram::parse(&bytes).is_ok());
        oracle::check_round_trip(&bytes);
    }

    #[test]
    fn a_cut_or_changed_datagram_is_refused(bytes in rare(), at: prop::sample::Index, bit in 0u8..8) {
        let at = at.index(bytes.len());
        prop_assert!(Datagram::parse(&bytes[..at]).is_err());
        let mut changed = bytes.clone();
        changed[at] ^= 1 << bit;
        prop_assert!(Datagram::parse(&changed).is_err());
    }

    #[test]
    fn any_bytes_behind_an_ack_are_refused_or_ascend(bytes: Vec<u8>, expected: u64) {
        let Ok(ranges) = Ranges::parse(&bytes) else { return Ok(()) };
        prop_assert!(ranges.len() <= RANGES_MAX);
        prop_assume!(expected < u64::MAX - (1 << 23));
        let mut end = expected;
        for range in ranges.iter(expected) {
            prop_assert!(range.start > end && range.end > range.start);
            end = range.end;
        }
        prop_assert!(end < expected + (1 << 23));
    }
}
