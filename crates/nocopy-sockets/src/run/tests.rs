use super::*;

const TO: Destination = Destination::CONNECTED;
const SHAPE: DatagramShape = DatagramShape { bytes: 1400, destination: TO };

/// Plays a program that sends equal datagrams, one each `gap_ns`; bursts are handed over when they are full.
struct SimulatedSender {
    run: RunDetector,
    queued: usize,
    now_ns: u64,
    eligible: Result<(), BatchingStopCause>,
    joined: u32,
    single: Vec<UnbatchedCause>,
    skipped: Option<u32>,
}

impl SimulatedSender {
    fn new(tuning: BurstTuning) -> Self {
        Self {
            run: RunDetector::new(tuning),
            queued: 0,
            now_ns: 1,
            eligible: Ok(()),
            joined: 0,
            single: Vec::new(),
            skipped: None,
        }
    }

    fn send_datagram(&mut self, shape: DatagramShape, gap_ns: u64) {
        self.now_ns += gap_ns;
        let now_ns = self.now_ns;
        if self.queued > 0 && shape != self.run.shape {
            self.flush_burst(Flush::Changed);
        }
        if self.queued == 0 && self.run.is_epoch_over() {
            self.skipped = self.run.end_epoch(now_ns).1.or(self.skipped);
        }
        let step =
            if self.queued > 0 { RunDecision::Join } else { self.run.decide_datagram(shape, || now_ns) };
        match step {
            RunDecision::Join => {
                (self.queued, self.joined) = (self.queued + 1, self.joined + 1);
                if self.queued == shape.segments_max() {
                    self.flush_burst(Flush::Full);
                }
            }
            RunDecision::SendSingly(plain) => {
                self.single.push(plain);
                self.skipped = self.run.record_send(shape, plain, true, || now_ns).or(self.skipped);
            }
            RunDecision::CheckEligibility => match self.run.record_eligibility(self.eligible, now_ns) {
                Ok(()) => self.send_datagram(shape, 0),
                Err(count) => self.skipped = Some(count),
            },
        }
    }

    fn flush_burst(&mut self, why: Flush) {
        if self.queued > 0 {
            self.skipped = self.run.record_burst(why, self.queued as u32).or(self.skipped);
            self.queued = 0;
        }
    }

    fn send_equal_datagrams(&mut self, count: u32, gap_ns: u64) {
        (0..count).for_each(|_| self.send_datagram(SHAPE, gap_ns));
    }
}

#[test]
fn eight_datagrams_and_one_before_each_burst_are_sent_singly() {
    let mut player = SimulatedSender::new(BurstTuning { always: true, ..BurstTuning::DEFAULT });
    player.send_equal_datagrams(8 + 1 + 46 + 1 + 46, 1000);
    let mut expected = vec![UnbatchedCause::NoRun; 8];
    expected.extend([UnbatchedCause::First, UnbatchedCause::First]);
    assert_eq!((player.single, player.joined), (expected, 92));
}

#[test]
fn slow_datagrams_never_join_and_the_socket_is_skipped() {
    let mut player = SimulatedSender::new(BurstTuning::DEFAULT);
    player.send_equal_datagrams(SENDS_WITHOUT_RUN_MAX - 1, 60_000);
    assert_eq!((player.joined, player.skipped), (0, None));
    player.send_equal_datagrams(20, 60_000);
    assert_eq!((player.joined, player.skipped), (0, Some(BACKOFF_MIN)));
}

#[test]
fn another_size_or_destination_starts_a_new_run() {
    let other = DatagramShape { bytes: 1000, ..SHAPE };
    let mut player = SimulatedSender::new(BurstTuning { always: true, ..BurstTuning::DEFAULT });
    player.send_equal_datagrams(12, 1000);
    assert_eq!((player.joined, player.queued), (3, 3));
    player.send_datagram(other, 1000);
    assert_eq!((player.queued, player.single.last()), (0, Some(&UnbatchedCause::NoRun)));
    (0..8).for_each(|_| player.send_datagram(other, 1000));
    assert_eq!(player.single.last(), Some(&UnbatchedCause::First));
}

#[test]
fn datagrams_too_long_for_a_pair_are_sent_singly() {
    let mut player = SimulatedSender::new(BurstTuning { always: true, ..BurstTuning::DEFAULT });
    for bytes in [0, BURST_BYTES_MAX / 2 + 1, BURST_BYTES_MAX, 70_000] {
        (0..20).for_each(|_| player.send_datagram(DatagramShape { bytes, ..SHAPE }, 100));
    }
    assert!(player.joined == 0 && player.single.iter().all(|&plain| plain == UnbatchedCause::Unfit));
    (0..12).for_each(|_| player.send_datagram(DatagramShape { bytes: BURST_BYTES_MAX / 2, ..SHAPE }, 100));
    assert_eq!(player.joined, 2);
}

#[test]
fn an_ineligible_socket_is_skipped() {
    let mut player = SimulatedSender {
        eligible: Err(BatchingStopCause::Pacing),
        ..SimulatedSender::new(BurstTuning::DEFAULT)
    };
    player.send_equal_datagrams(9, 100);
    assert_eq!((player.joined, player.skipped), (0, Some(BACKOFF_MIN)));
    player.send_equal_datagrams(9, 100);
    assert_eq!(player.skipped, Some(2 * BACKOFF_MIN), "for longer the second time");
}

#[test]
fn a_failed_send_ends_the_run() {
    let mut run = RunDetector::new(BurstTuning { entry: 2, always: true });
    for _ in 0..2 {
        assert_eq!(run.decide_datagram(SHAPE, || 0), RunDecision::SendSingly(UnbatchedCause::NoRun));
        run.record_send(SHAPE, UnbatchedCause::NoRun, true, || 0);
    }
    assert_eq!(run.decide_datagram(SHAPE, || 0), RunDecision::CheckEligibility);
    run.record_eligibility(Ok(()), 0).unwrap();
    assert_eq!(run.decide_datagram(SHAPE, || 0), RunDecision::SendSingly(UnbatchedCause::First));
    run.record_send(SHAPE, UnbatchedCause::First, false, || 0);
    assert_eq!(run.decide_datagram(SHAPE, || 0), RunDecision::SendSingly(UnbatchedCause::NoRun));
}

#[test]
fn short_bursts_by_the_deadline_stop_joining() {
    let mut player = SimulatedSender::new(BurstTuning::DEFAULT);
    player.send_equal_datagrams(9, 100);
    for _ in 0..SHORT_BURSTS_MAX {
        assert_eq!(player.skipped, None);
        player.send_equal_datagrams(3, 100);
        player.flush_burst(Flush::Deadline);
    }
    assert_eq!(player.skipped, Some(BACKOFF_MIN));
}

#[test]
fn refused_sizes_are_sent_singly_and_smaller_ones_join() {
    let mut run = RunDetector::new(BurstTuning { entry: 1, always: true });
    run.record_refusal(1400, false);
    for shape in [SHAPE, DatagramShape { bytes: 1000, ..SHAPE }] {
        let _ = run.decide_datagram(shape, || 0);
        run.record_send(shape, UnbatchedCause::NoRun, true, || 0);
        let step = run.decide_datagram(shape, || 0);
        assert_eq!(step == RunDecision::SendSingly(UnbatchedCause::NoRun), shape.bytes == 1400);
    }
    run.record_refusal(1400, true);
    run.record_send(SHAPE, UnbatchedCause::NoRun, true, || 0);
    assert_eq!(
        run.decide_datagram(DatagramShape { bytes: 1, ..SHAPE }, || 0),
        RunDecision::SendSingly(UnbatchedCause::NoRun)
    );
    run.forget_learned();
    let _ = run.decide_datagram(SHAPE, || 0);
    run.record_send(SHAPE, UnbatchedCause::NoRun, true, || 0);
    assert_eq!(run.decide_datagram(SHAPE, || 0), RunDecision::CheckEligibility);
}

/// Whatever a program sends: only equal datagrams share a burst, none is in two places, and the first of each
/// burst went alone before it.
#[test]
fn random_sends_are_counted_once_and_bursts_follow_a_run() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let tuning = BurstTuning { entry: random.u32(1..10), always: random.bool() };
        let mut player = SimulatedSender::new(tuning);
        let mut sent = 0;
        for _ in 0..2000 {
            let bytes = *random.choice([100, 100, 100, 1400, 40_000].iter()).unwrap();
            let shape = DatagramShape { bytes, ..SHAPE };
            for _ in 0..random.u32(1..40) {
                let before = (player.joined, player.single.len(), player.queued, player.skipped);
                player.send_datagram(shape, random.u64(0..3000));
                if player.skipped.is_some() && player.skipped != before.3 {
                    player.skipped = None;
                    player = SimulatedSender { queued: 0, ..player };
                    let unsent = player.joined + player.single.len() as u32 == before.0 + before.1 as u32;
                    sent += u32::from(!unsent);
                    continue;
                }
                sent += 1;
                assert_eq!(player.joined + player.single.len() as u32, sent, "seed {seed}");
                assert!(player.queued <= shape.segments_max());
                let begins = before.2 == 0 && player.joined > before.0;
                let is_after_one_alone = player.run.equal >= tuning.entry;
                assert!(!begins || is_after_one_alone, "seed {seed}: a burst without a run");
            }
            if random.u8(0..4) == 0 {
                player.flush_burst(
                    *random.choice([Flush::Output, Flush::Deadline, Flush::Wait].iter()).unwrap(),
                );
            }
        }
        assert!(player.joined > 0, "seed {seed}");
    }
}
