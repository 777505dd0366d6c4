use super::*;

const TO: Destination = Destination::CONNECTED;
const SHAPE: Shape = Shape { bytes: 1400, destination: TO };

/// Plays a program that sends equal datagrams, one each `gap_ns`; bursts are handed over when they are full.
struct Player {
    run: Run,
    queued: usize,
    now_ns: u64,
    eligible: Result<(), Alone>,
    joined: u32,
    single: Vec<Plain>,
    skipped: Option<u32>,
}

impl Player {
    fn new(tuning: Tuning) -> Self {
        Self {
            run: Run::new(tuning),
            queued: 0,
            now_ns: 1,
            eligible: Ok(()),
            joined: 0,
            single: Vec::new(),
            skipped: None,
        }
    }

    fn send(&mut self, shape: Shape, gap_ns: u64) {
        self.now_ns += gap_ns;
        let now_ns = self.now_ns;
        if self.queued > 0 && shape != self.run.shape {
            self.flush(Flush::Changed);
        }
        if self.queued == 0 && self.run.is_epoch_over() {
            self.skipped = self.run.end_epoch(now_ns).1.or(self.skipped);
        }
        let step = if self.queued > 0 { RunStep::Join } else { self.run.offer(shape, || now_ns) };
        match step {
            RunStep::Join => {
                (self.queued, self.joined) = (self.queued + 1, self.joined + 1);
                if self.queued == shape.segments_max() {
                    self.flush(Flush::Full);
                }
            }
            RunStep::SendSingly(plain) => {
                self.single.push(plain);
                self.skipped = self.run.record_send(shape, plain, true, || now_ns).or(self.skipped);
            }
            RunStep::CheckEligibility => match self.run.record_eligibility(self.eligible, now_ns) {
                Ok(()) => self.send(shape, 0),
                Err(count) => self.skipped = Some(count),
            },
        }
    }

    fn flush(&mut self, why: Flush) {
        if self.queued > 0 {
            self.skipped = self.run.record_burst(why, self.queued as u32).or(self.skipped);
            self.queued = 0;
        }
    }

    fn send_many(&mut self, count: u32, gap_ns: u64) {
        (0..count).for_each(|_| self.send(SHAPE, gap_ns));
    }
}

#[test]
fn eight_are_sent_singly_then_bursts_after_one_more_each() {
    let mut player = Player::new(Tuning { always: true, ..Tuning::DEFAULT });
    player.send_many(8 + 1 + 46 + 1 + 46, 1000);
    let mut expected = vec![Plain::NoRun; 8];
    expected.extend([Plain::First, Plain::First]);
    assert_eq!((player.single, player.joined), (expected, 92));
}

#[test]
fn slow_datagrams_never_join_and_the_socket_is_skipped() {
    let mut player = Player::new(Tuning::DEFAULT);
    player.send_many(SENDS_WITHOUT_RUN_MAX - 1, 60_000);
    assert_eq!((player.joined, player.skipped), (0, None));
    player.send_many(20, 60_000);
    assert_eq!((player.joined, player.skipped), (0, Some(BACKOFF_MIN)));
}

#[test]
fn another_size_or_destination_starts_a_new_run() {
    let other = Shape { bytes: 1000, ..SHAPE };
    let mut player = Player::new(Tuning { always: true, ..Tuning::DEFAULT });
    player.send_many(12, 1000);
    assert_eq!((player.joined, player.queued), (3, 3));
    player.send(other, 1000);
    assert_eq!((player.queued, player.single.last()), (0, Some(&Plain::NoRun)));
    (0..8).for_each(|_| player.send(other, 1000));
    assert_eq!(player.single.last(), Some(&Plain::First));
}

#[test]
fn datagrams_too_long_for_a_pair_are_sent_singly() {
    let mut player = Player::new(Tuning { always: true, ..Tuning::DEFAULT });
    for bytes in [0, BURST_BYTES_MAX / 2 + 1, BURST_BYTES_MAX, 70_000] {
        (0..20).for_each(|_| player.send(Shape { bytes, ..SHAPE }, 100));
    }
    assert!(player.joined == 0 && player.single.iter().all(|&plain| plain == Plain::Unfit));
    (0..12).for_each(|_| player.send(Shape { bytes: BURST_BYTES_MAX / 2, ..SHAPE }, 100));
    assert_eq!(player.joined, 2);
}

#[test]
fn an_ineligible_socket_is_skipped() {
    let mut player = Player { eligible: Err(Alone::Pacing), ..Player::new(Tuning::DEFAULT) };
    player.send_many(9, 100);
    assert_eq!((player.joined, player.skipped), (0, Some(BACKOFF_MIN)));
    player.send_many(9, 100);
    assert_eq!(player.skipped, Some(2 * BACKOFF_MIN), "for longer the second time");
}

#[test]
fn a_failed_send_ends_the_run() {
    let mut run = Run::new(Tuning { entry: 2, always: true });
    for _ in 0..2 {
        assert_eq!(run.offer(SHAPE, || 0), RunStep::SendSingly(Plain::NoRun));
        run.record_send(SHAPE, Plain::NoRun, true, || 0);
    }
    assert_eq!(run.offer(SHAPE, || 0), RunStep::CheckEligibility);
    run.record_eligibility(Ok(()), 0).unwrap();
    assert_eq!(run.offer(SHAPE, || 0), RunStep::SendSingly(Plain::First));
    run.record_send(SHAPE, Plain::First, false, || 0);
    assert_eq!(run.offer(SHAPE, || 0), RunStep::SendSingly(Plain::NoRun));
}

#[test]
fn short_bursts_by_the_deadline_stop_joining() {
    let mut player = Player::new(Tuning::DEFAULT);
    player.send_many(9, 100);
    for _ in 0..SHORT_BURSTS_MAX {
        assert_eq!(player.skipped, None);
        player.send_many(3, 100);
        player.flush(Flush::Deadline);
    }
    assert_eq!(player.skipped, Some(BACKOFF_MIN));
}

#[test]
fn refused_sizes_are_sent_singly_and_smaller_ones_join() {
    let mut run = Run::new(Tuning { entry: 1, always: true });
    run.record_refusal(1400, false);
    for shape in [SHAPE, Shape { bytes: 1000, ..SHAPE }] {
        let _ = run.offer(shape, || 0);
        run.record_send(shape, Plain::NoRun, true, || 0);
        let step = run.offer(shape, || 0);
        assert_eq!(step == RunStep::SendSingly(Plain::NoRun), shape.bytes == 1400);
    }
    run.record_refusal(1400, true);
    run.record_send(SHAPE, Plain::NoRun, true, || 0);
    assert_eq!(run.offer(Shape { bytes: 1, ..SHAPE }, || 0), RunStep::SendSingly(Plain::NoRun));
    run.forget();
    let _ = run.offer(SHAPE, || 0);
    run.record_send(SHAPE, Plain::NoRun, true, || 0);
    assert_eq!(run.offer(SHAPE, || 0), RunStep::CheckEligibility);
}

/// Whatever a program sends: only equal datagrams share a burst, none is in two places, and the first of each
/// burst went alone before it.
#[test]
fn random_programs_lose_and_reorder_nothing() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let tuning = Tuning { entry: random.u32(1..10), always: random.bool() };
        let mut player = Player::new(tuning);
        let mut sent = 0;
        for _ in 0..2000 {
            let bytes = *random.choice([100, 100, 100, 1400, 40_000].iter()).unwrap();
            let shape = Shape { bytes, ..SHAPE };
            for _ in 0..random.u32(1..40) {
                let before = (player.joined, player.single.len(), player.queued, player.skipped);
                player.send(shape, random.u64(0..3000));
                if player.skipped.is_some() && player.skipped != before.3 {
                    player.skipped = None;
                    player = Player { queued: 0, ..player };
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
                player.flush(*random.choice([Flush::Output, Flush::Deadline, Flush::Wait].iter()).unwrap());
            }
        }
        assert!(player.joined > 0, "seed {seed}");
    }
}
