//! The receiver's side of a run: it counts what arrives, and answers probes with reports.
//!
//! The receiver only replies, so it cannot be made to send more than arrived. It does not change its last
//! report, so both ends print the same numbers. That report states how many datagrams it covers, so datagrams
//! after the end of a shortened run are not counted as lost.

use std::net::SocketAddr;
use std::time::Duration;

use super::datagram::{Datagram, Probe, ReceivedCounts, Report, SentCounts};
use super::report::RunCounts;
use super::sender_run::SILENCE_NS;
use super::wire::{CONTROL_BYTES, DataPacket, ParseError};
use crate::arrivals::{SequenceClass, SequenceWindow};

/// How many numbers are remembered. Networks reorder by a few milliseconds at most; this many datagrams
/// arrive in 6 ms at 10 M/s.
const WINDOW: u64 = 1 << 16;

/// More bytes than a datagram can have.
const DATAGRAM_BYTES_MAX: u64 = 1 << 16;

/// After the sender is done, missing datagrams count as lost when nothing has arrived for this long.
const SETTLE_NS: u64 = 100_000_000;

/// How long to wait for the sender's acknowledgement of the last report: the sender sends another probe if
/// the report was lost.
const LINGER_NS: u64 = 1_000_000_000;

/// The longest wait for a sender that neither sends an acknowledgement nor becomes silent: no report reaches
/// it, so it gives up on its own.
const LINGER_NS_MAX: u64 = SILENCE_NS + LINGER_NS;

/// Receives one run: the first that a sender begins.
#[derive(Debug)]
pub(crate) struct ReceiverRun {
    wants_checksums: bool,
    idle_ns: u64,
    foreign: u64,
    run: Option<BegunRun>,
}

#[derive(Debug)]
struct BegunRun {
    id: u64,
    peer: SocketAddr,
    verify: bool,
    arrivals: SequenceWindow,
    received: ReceivedCounts,
    /// The sender's counts, once it is done.
    sent: Option<SentCounts>,
    last_datagram_ns: u64,
    /// When data last arrived, or the end was first announced.
    data_ns: u64,
    /// Final counts, which do not change.
    closed: Option<FinalCount>,
    acknowledged: bool,
    received_bytes: u64,
    reported_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct FinalCount {
    at_ns: u64,
    /// How many datagrams the sender had sent by then.
    expected: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HandledDatagram<'a> {
    /// Data, for the first time.
    Data(DataPacket<'a>),
    /// A probe, with the report to send.
    Report([u8; CONTROL_BYTES]),
    /// Counted, without further use.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiverPhase {
    Waiting,
    Running,
    /// The sender has the counts, or had enough time to ask for them.
    Over,
    Silent,
}

impl ReceiverRun {
    pub(crate) fn new(wants_checksums: bool, idle: Duration) -> Self {
        let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        Self { wants_checksums, idle_ns, foreign: 0, run: None }
    }

    /// Handles a datagram that arrived at `now_ns`; times never go back.
    pub(crate) fn handle_datagram<'a>(
        &mut self,
        from: SocketAddr,
        bytes: &'a [u8],
        now_ns: u64,
    ) -> HandledDatagram<'a> {
        let datagram = Datagram::parse(bytes);
        // A probe that begins and ends a run is an old one, for an earlier receiver.
        if let (None, Ok(Datagram::Probe(probe @ Probe { last: false, acknowledgement: false, .. }))) =
            (&self.run, &datagram)
        {
            self.run = Some(BegunRun::new(probe, from, self.wants_checksums, now_ns));
        }
        let id = match datagram {
            Ok(Datagram::Data(DataPacket { run, .. }) | Datagram::Probe(Probe { run, .. })) => Some(run),
            Err(ParseError::Corrupt { run }) => Some(run),
            Ok(Datagram::Report(_)) | Err(ParseError::Foreign) => None,
        };
        let Some(run) = self.run.as_mut().filter(|run| id == Some(run.id) && run.peer == from) else {
            self.foreign += 1;
            return HandledDatagram::Nothing;
        };
        run.last_datagram_ns = now_ns;
        run.received_bytes += bytes.len() as u64;
        match datagram {
            Ok(Datagram::Probe(probe)) => {
                run.answer_probe(&probe, now_ns).map_or(HandledDatagram::Nothing, HandledDatagram::Report)
            }
            Ok(Datagram::Data(data)) if run.count_data(&data, now_ns) => HandledDatagram::Data(data),
            Err(_) if run.closed.is_none() => {
                run.received.corrupt += 1;
                HandledDatagram::Nothing
            }
            _ => HandledDatagram::Nothing,
        }
    }

    /// Stops counting. Returns a datagram that reports this to the sender, once and only if the sender has
    /// sent more bytes than were counted; the sender also gets it in reply to each probe.
    pub(crate) fn stop_counting(&mut self, now_ns: u64) -> Option<(SocketAddr, [u8; CONTROL_BYTES])> {
        let run = self.run.as_mut().filter(|run| run.closed.is_none())?;
        run.stop_counting(now_ns);
        let affordable = run.received_bytes >= run.reported_bytes + CONTROL_BYTES as u64;
        affordable.then(|| (run.peer, run.emit_report()))
    }

    pub(crate) fn phase(&self, now_ns: u64) -> ReceiverPhase {
        let Some(run) = &self.run else { return ReceiverPhase::Waiting };
        let silent_ns = now_ns.saturating_sub(run.last_datagram_ns);
        let is_left = |closed: FinalCount| {
            silent_ns >= LINGER_NS || now_ns.saturating_sub(closed.at_ns) >= LINGER_NS_MAX
        };
        if run.acknowledged || run.closed.is_some_and(is_left) {
            ReceiverPhase::Over
        } else if silent_ns >= self.idle_ns {
            ReceiverPhase::Silent
        } else {
            ReceiverPhase::Running
        }
    }

    /// Notes how many datagrams the kernel has dropped so far, of any sender.
    pub(crate) fn record_kernel_drops(&mut self, dropped: u64) {
        if let Some(run) = self.run.as_mut().filter(|run| run.closed.is_none()) {
            run.received.kernel_dropped = dropped;
        }
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.run.as_ref().map(|run| run.peer)
    }

    /// The counts, once a run has begun.
    pub(crate) fn run_counts(&self) -> Option<RunCounts> {
        self.run.as_ref().map(|run| RunCounts {
            received: run.received,
            expected: run.expected_datagrams(),
            sent: run.sent,
            is_whole: run.sent.is_some_and(|sent| sent.datagrams == run.expected_datagrams()),
            is_final: run.closed.is_some(),
        })
    }

    pub(crate) fn has_checksums(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.verify)
    }

    /// Datagrams that belong to no run here: of other programs, other senders, earlier runs.
    pub(crate) fn foreign_datagrams(&self) -> u64 {
        self.foreign
    }
}

impl BegunRun {
    fn new(probe: &Probe, peer: SocketAddr, wants_checksums: bool, now_ns: u64) -> Self {
        Self {
            id: probe.run,
            peer,
            verify: probe.verify || wants_checksums,
            arrivals: SequenceWindow::new(u64::BITS, WINDOW, 0),
            received: ReceivedCounts::default(),
            sent: None,
            last_datagram_ns: now_ns,
            data_ns: now_ns,
            closed: None,
            acknowledged: false,
            received_bytes: 0,
            reported_bytes: 0,
        }
    }

    /// Whether these are new data.
    fn count_data(&mut self, data: &DataPacket, now_ns: u64) -> bool {
        if self.closed.is_some() {
            return false;
        }
        self.data_ns = now_ns;
        if self.verify && data.checksum.is_none() || !self.is_plausible(data) {
            self.received.corrupt += 1;
            return false;
        }
        let received = &mut self.received;
        match self.arrivals.classify_and_record(data.number) {
            SequenceClass::Ahead { .. } => {}
            SequenceClass::Late => received.reordered += 1,
            SequenceClass::Again => {
                received.duplicate += 1;
                return false;
            }
            SequenceClass::Stale => {
                received.stale += 1;
                return false;
            }
        }
        received.datagrams += 1;
        received.bytes += data.bytes.len() as u64;
        received.checksum = received.checksum.wrapping_add(data.checksum.unwrap_or(0).into());
        true
    }

    /// Whether such data may exist: the bytes before them must fit into that many datagrams, and they must
    /// end before the end that the sender has announced.
    fn is_plausible(&self, data: &DataPacket) -> bool {
        let end = data.offset + data.bytes.len() as u64; // places are below 2^62
        data.offset <= data.number.saturating_mul(DATAGRAM_BYTES_MAX)
            && self.sent.is_none_or(|sent| data.number < sent.datagrams && end <= sent.bytes)
    }

    fn answer_probe(&mut self, probe: &Probe, now_ns: u64) -> Option<[u8; CONTROL_BYTES]> {
        if probe.acknowledgement {
            self.acknowledged = self.closed.is_some();
            return None;
        }
        if probe.last && self.sent.is_none() {
            self.sent = Some(probe.sent);
            self.data_ns = now_ns;
        }
        if let Some(sent) = self.sent {
            let is_quiet = now_ns.saturating_sub(self.data_ns) >= SETTLE_NS;
            if is_quiet || self.received.datagrams >= sent.datagrams {
                self.stop_counting(now_ns);
            }
        }
        Some(self.emit_report())
    }

    fn stop_counting(&mut self, at_ns: u64) {
        let expected = self.expected_datagrams();
        self.closed.get_or_insert(FinalCount { at_ns, expected });
    }

    /// The number of expected datagrams: all that were sent, or, until that is known, those up to the last
    /// received.
    fn expected_datagrams(&self) -> u64 {
        match (self.closed, self.sent) {
            (Some(closed), _) => closed.expected,
            (None, Some(sent)) => sent.datagrams,
            (None, None) => self.arrivals.next_expected(),
        }
    }

    fn emit_report(&mut self) -> [u8; CONTROL_BYTES] {
        self.reported_bytes += CONTROL_BYTES as u64;
        let (received, last) = (self.received, self.closed.is_some());
        Report { run: self.id, expected: self.expected_datagrams(), received, last, verify: self.verify }
            .emit()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::{HEADER_BYTES, emit_data};
    use super::*;

    const IDLE: Duration = Duration::from_secs(10);

    fn peer_addr(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn probe_bytes(run: u64, last: Option<SentCounts>) -> [u8; CONTROL_BYTES] {
        let sent = last.unwrap_or_default();
        Probe { run, sent, last: last.is_some(), acknowledgement: false, verify: false }.emit()
    }

    fn data_bytes(run: u64, number: u64, bytes: &[u8]) -> Vec<u8> {
        let mut datagram = [&[0; HEADER_BYTES], bytes].concat();
        emit_data(&mut datagram, run, number, number.saturating_mul(3), true);
        datagram
    }

    fn expect_report(handled: HandledDatagram) -> Report {
        let HandledDatagram::Report(bytes) = handled else { panic!("no report: {handled:?}") };
        let Ok(Datagram::Report(report)) = Datagram::parse(&bytes) else { panic!("not a report") };
        report
    }

    fn received_counts(receiving: &ReceiverRun) -> ReceivedCounts {
        receiving.run_counts().map_or_else(ReceivedCounts::default, |run_counts| run_counts.received)
    }

    fn started_run() -> ReceiverRun {
        let mut receiving = ReceiverRun::new(false, IDLE);
        assert_eq!(receiving.phase(u64::MAX), ReceiverPhase::Waiting);
        assert!(!expect_report(receiving.handle_datagram(peer_addr(1), &probe_bytes(7, None), 0)).last);
        receiving
    }

    #[test]
    fn received_datagrams_are_counted_and_reported_at_the_end() {
        let mut receiving = started_run();
        for number in [0, 1, 3, 2, 3] {
            receiving.handle_datagram(peer_addr(1), &data_bytes(7, number, b"abc"), 0);
        }
        let mut damaged = data_bytes(7, 5, b"abc");
        damaged[41] ^= 4;
        assert_eq!(receiving.handle_datagram(peer_addr(1), &damaged, 0), HandledDatagram::Nothing);
        let sent = SentCounts { datagrams: 6, bytes: 18, checksum: 0 };
        let last = |receiving: &mut ReceiverRun, now_ns| {
            expect_report(receiving.handle_datagram(peer_addr(1), &probe_bytes(7, Some(sent)), now_ns))
        };
        assert!(!last(&mut receiving, 5).last, "more may be on its way");
        receiving.handle_datagram(peer_addr(1), &data_bytes(7, 4, b"abc"), 9);
        assert!(!last(&mut receiving, SETTLE_NS + 8).last);
        let reply = last(&mut receiving, SETTLE_NS + 9);
        let received = reply.received;
        assert!(reply.last);
        assert_eq!((received.datagrams, received.bytes), (5, 15));
        assert_eq!((received.reordered, received.duplicate, received.corrupt), (1, 1, 1));
        let run_counts = receiving.run_counts().unwrap();
        assert_eq!(
            (run_counts.lost_datagrams(), run_counts.sent, run_counts.is_final),
            (1, Some(sent), true)
        );
        receiving.handle_datagram(peer_addr(1), &data_bytes(7, 5, b"abc"), SETTLE_NS + 10);
        assert_eq!(last(&mut receiving, SETTLE_NS + 11), reply, "what was told does not change");
        assert_eq!(receiving.phase(SETTLE_NS + 12), ReceiverPhase::Running);
        let acknowledgement = Probe { run: 7, sent, last: true, acknowledgement: true, verify: false }.emit();
        assert_eq!(
            receiving.handle_datagram(peer_addr(1), &acknowledgement, SETTLE_NS + 13),
            HandledDatagram::Nothing
        );
        assert_eq!(receiving.phase(SETTLE_NS + 14), ReceiverPhase::Over);
    }

    #[test]
    fn a_complete_run_ends_after_the_linger_time() {
        let mut receiving = started_run();
        receiving.handle_datagram(peer_addr(1), &data_bytes(7, 0, b"abc"), 1);
        let sent = SentCounts { datagrams: 1, bytes: 3, checksum: 0 };
        assert!(expect_report(receiving.handle_datagram(peer_addr(1), &probe_bytes(7, Some(sent)), 2)).last);
        assert_eq!(receiving.phase(LINGER_NS + 1), ReceiverPhase::Running, "the report may be lost");
        assert_eq!(receiving.phase(LINGER_NS + 2), ReceiverPhase::Over);
    }

    #[test]
    fn foreign_datagrams_are_neither_counted_nor_answered() {
        let mut receiving = started_run();
        for (from, bytes) in [
            (peer_addr(2), data_bytes(7, 0, b"abc")),
            (peer_addr(1), data_bytes(8, 0, b"abc")),
            (peer_addr(2), probe_bytes(9, None).to_vec()),
            (peer_addr(1), b"hello".to_vec()),
            (
                peer_addr(1),
                Report {
                    run: 7,
                    expected: 0,
                    received: ReceivedCounts::default(),
                    last: true,
                    verify: false,
                }
                .emit()
                .to_vec(),
            ),
        ] {
            assert_eq!(receiving.handle_datagram(from, &bytes, 1), HandledDatagram::Nothing);
        }
        assert_eq!(
            (receiving.foreign_datagrams(), received_counts(&receiving)),
            (5, ReceivedCounts::default())
        );
        assert_eq!(
            receiving.phase(10_000_000_000),
            ReceiverPhase::Silent,
            "they do not keep it waiting either"
        );
    }

    #[test]
    fn closing_early_informs_the_sender_once() {
        let mut receiving = started_run();
        assert_eq!(receiving.stop_counting(0), None, "it has answered with all that came");
        let mut receiving = started_run();
        receiving.handle_datagram(peer_addr(1), &data_bytes(7, 0, &[0; 64]), 1);
        let (to, reply) = receiving.stop_counting(1).unwrap();
        assert_eq!((to, expect_report(HandledDatagram::Report(reply)).last), (peer_addr(1), true));
        assert_eq!(receiving.stop_counting(1), None, "once");
        receiving.handle_datagram(peer_addr(1), &data_bytes(7, 1, &[0; 64]), 2);
        assert_eq!(received_counts(&receiving).datagrams, 1);
        assert!(expect_report(receiving.handle_datagram(peer_addr(1), &probe_bytes(7, None), 3)).last);
    }

    /// A receiver that has enough informs its sender; later datagrams do not change the counts.
    #[test]
    fn datagrams_after_an_early_end_do_not_count_as_lost() {
        let mut receiving = started_run();
        for number in [0, 2] {
            receiving.handle_datagram(peer_addr(1), &data_bytes(7, number, &[0; 64]), 1);
        }
        let (_, reply) = receiving.stop_counting(1).unwrap();
        assert_eq!(expect_report(HandledDatagram::Report(reply)).expected, 3);
        let sent = SentCounts { datagrams: 100, bytes: 6400, checksum: 0 };
        assert_eq!(
            expect_report(receiving.handle_datagram(peer_addr(1), &probe_bytes(7, Some(sent)), 2)).expected,
            3
        );
        let run_counts = receiving.run_counts().unwrap();
        assert_eq!(
            (run_counts.lost_datagrams(), run_counts.is_whole, run_counts.sent),
            (1, false, Some(sent))
        );
    }

    #[test]
    fn data_at_impossible_offsets_are_corrupt() {
        let mut receiving = started_run();
        let data_at = |number, offset, bytes: &[u8]| {
            let mut datagram = [&[0; HEADER_BYTES], bytes].concat();
            emit_data(&mut datagram, 7, number, offset, true);
            datagram
        };
        receiving.handle_datagram(peer_addr(1), &data_at(1, 2 << 16, b"x"), 1);
        assert_eq!(
            (received_counts(&receiving).corrupt, received_counts(&receiving).datagrams),
            (1, 0),
            "behind one"
        );
        receiving.handle_datagram(peer_addr(1), &data_at(1, 1 << 16, b"x"), 1);
        let sent = SentCounts { datagrams: 3, bytes: 100_000, checksum: 0 };
        receiving.handle_datagram(peer_addr(1), &probe_bytes(7, Some(sent)), 2);
        for (number, offset) in [(2, 99_998), (3, 70_000)] {
            receiving.handle_datagram(peer_addr(1), &data_at(number, offset, b"end"), 3);
        }
        assert_eq!(
            (received_counts(&receiving).corrupt, received_counts(&receiving).datagrams),
            (3, 1),
            "past the end"
        );
        receiving.handle_datagram(peer_addr(1), &data_at(2, 99_997, b"end"), 4);
        assert_eq!((received_counts(&receiving).corrupt, received_counts(&receiving).datagrams), (3, 2));
    }

    /// No report reaches the sender.
    #[test]
    fn an_endless_sender_is_abandoned() {
        let mut receiving = started_run();
        receiving.stop_counting(0);
        for number in 0..LINGER_NS_MAX / 100_000_000 {
            let now_ns = 100_000_000 * number;
            assert_eq!(receiving.phase(now_ns), ReceiverPhase::Running);
            receiving.handle_datagram(peer_addr(1), &data_bytes(7, number, b"abc"), now_ns);
        }
        assert_eq!(receiving.phase(LINGER_NS_MAX), ReceiverPhase::Over);
    }

    #[test]
    fn final_datagrams_of_an_earlier_run_start_no_run() {
        let acknowledgement =
            Probe { run: 7, sent: SentCounts::default(), last: false, acknowledgement: true, verify: false }
                .emit();
        let mut receiving = ReceiverRun::new(false, IDLE);
        for bytes in [acknowledgement, probe_bytes(7, Some(SentCounts::default()))] {
            assert_eq!(receiving.handle_datagram(peer_addr(1), &bytes, 0), HandledDatagram::Nothing);
        }
        assert_eq!((receiving.phase(1), receiving.foreign_datagrams()), (ReceiverPhase::Waiting, 2));
        assert!(!expect_report(receiving.handle_datagram(peer_addr(2), &probe_bytes(8, None), 2)).last);
    }

    #[test]
    fn data_without_a_requested_checksum_is_corrupt() {
        let mut receiving = ReceiverRun::new(true, IDLE);
        assert!(
            expect_report(receiving.handle_datagram(peer_addr(1), &probe_bytes(7, None), 0)).verify,
            "the sender is asked for them"
        );
        let mut bare = [0; HEADER_BYTES + 3];
        emit_data(&mut bare, 7, 0, 0, false);
        assert_eq!(receiving.handle_datagram(peer_addr(1), &bare, 1), HandledDatagram::Nothing);
        assert_eq!((received_counts(&receiving).corrupt, received_counts(&receiving).datagrams), (1, 0));
    }

    /// Possible input: probes, data, damage, acknowledgement, and other bytes, of two runs and two senders.
    fn any_datagram() -> impl Strategy<Value = Vec<u8>> {
        let run = 7..9_u64;
        prop_oneof![
            (run.clone(), 0..80_u64, 0..80_usize).prop_map(|(run, number, bytes)| data_bytes(
                run,
                number,
                &vec![1; bytes]
            )),
            (run.clone(), any::<u64>()).prop_map(|(run, number)| data_bytes(run, number, b"")),
            (run.clone(), proptest::option::of(0..80_u64)).prop_map(|(run, last)| {
                probe_bytes(run, last.map(|datagrams| SentCounts { datagrams, ..SentCounts::default() }))
                    .to_vec()
            }),
            run.prop_map(|run| {
                Probe { run, sent: SentCounts::default(), last: true, acknowledgement: true, verify: false }
                    .emit()
                    .to_vec()
            }),
            proptest::collection::vec(any::<u8>(), 0..120),
        ]
    }

    proptest! {
        /// With any input: no address is sent more bytes or datagrams than it has sent; the counts match the
        /// data passed on; the last report never changes.
        #[test]
        fn reports_never_exceed_received_bytes_and_counts_add_up(
            all in proptest::collection::vec((any_datagram(), 1..3_u16, 0..200_000_000_u64), 0..100),
            close_at in 0..200_usize,
        ) {
            let mut receiving = ReceiverRun::new(false, IDLE);
            let (mut now_ns, mut received_bytes, mut reported_bytes) = (0, [0_usize; 3], [0_usize; 3]);
            let (mut delivered, mut last): (_, Option<(ReceivedCounts, u64)>) = (0, None);
            for (index, (bytes, port, passed_ns)) in all.iter().enumerate() {
                now_ns += passed_ns;
                let from = peer_addr(*port);
                received_bytes[usize::from(*port)] += bytes.len();
                match receiving.handle_datagram(from, bytes, now_ns) {
                    HandledDatagram::Data(_) => delivered += 1,
                    HandledDatagram::Report(answered) => {
                        prop_assert!(answered.len() <= bytes.len());
                        reported_bytes[usize::from(*port)] += answered.len();
                        let reply = expect_report(HandledDatagram::Report(answered));
                        prop_assert!(last.is_none_or(|last| last == (reply.received, reply.expected)));
                        last = last.or(reply.last.then_some((reply.received, reply.expected)));
                    }
                    HandledDatagram::Nothing => {}
                }
                if index == close_at && let Some((to, reply)) = receiving.stop_counting(now_ns) {
                    reported_bytes[usize::from(to.port())] += reply.len();
                }
                let mut pairs = reported_bytes.iter().zip(&received_bytes);
                prop_assert!(pairs.all(|(answered, received)| answered <= received));
                prop_assert_eq!(received_counts(&receiving).datagrams, delivered);
            }
        }
    }
}
