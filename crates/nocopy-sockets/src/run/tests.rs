use super::*;

const TO: Destination = Destination::CONNECTED;
const SHAPE: Shape = Shape { bytes: 1400, destination: TO };

/// Plays a program that sends equal datagrams, one each `gap_ns`; bursts are handed over when they are full.
struct Player {
    run: Run,
    queued: usize,
    now_ns: u64,
    fit: Result<(), Alone>,
    joined: u32,
    alone: Vec<Plain>,
    left: Option<u32>,
}

impl Player {
    fn new(tuning: Tuning) -> Self {
        Self {
            run: Run::new(tuning),
            queued: 0,
            now_ns: 1,
            fit: Ok(()),
            joined: 0,
            alone: Vec::new(),
            left: None,
        }
    }

    fn send(&mut self, shape: Shape, gap_ns: u64) {
        self.now_ns += gap_ns;
        let now_ns = self.now_ns;
        if self.queued > 0 && shape != self.run.shape {
            self.flush(Flush::Changed);
        }
        if self.queued == 0 && self.run.is_due() {
            self.left = self.run.turn(now_ns).1.or(self.left);
        }
        let step = if self.queued > 0 { Step::Join } else { self.run.offer(shape, || now_ns) };
        match step {
            Step::Join => {
                (self.queued, self.joined) = (self.queued + 1, self.joined + 1);
                if self.queued == shape.segments_max() {
                    self.flush(Flush::Full);
                }
            }
            Step::Alone(plain) => {
                self.alone.push(plain);
                self.left = self.run.sent(shape, plain, true, || now_ns).or(self.left);
            }
            Step::Examine => match self.run.examined(self.fit, now_ns) {
                Ok(()) => self.send(shape, 0),
                Err(count) => self.left = Some(count),
            },
        }
    }

    fn flush(&mut self, why: Flush) {
        if self.queued > 0 {
            self.left = self.run.flushed(why, self.queued as u32).or(self.left);
            self.queued = 0;
        }
    }

    fn send_many(&mut self, count: u32, gap_ns: u64) {
        (0..count).for_each(|_| self.send(SHAPE, gap_ns));
    }
}

#[test]
fn eight_go_alone_and_then_bursts_each_after_one_more() {
    let mut player = Player::new(Tuning { always: true, ..Tuning::USUAL });
    player.send_many(8 + 1 + 46 + 1 + 46, 1000);
    let mut expected = vec![Plain::NoRun; 8];
    expected.extend([Plain::First, Plain::First]);
    assert_eq!((player.alone, player.joined), (expected, 92));
}

#[test]
fn slow_datagrams_never_join_and_the_socket_is_left_alone() {
    let mut player = Player::new(Tuning::USUAL);
    player.send_many(PATIENCE - 1, 60_000);
    assert_eq!((player.joined, player.left), (0, None));
    player.send_many(20, 60_000);
    assert_eq!((player.joined, player.left), (0, Some(LEFT_ALONE)));
}

#[test]
fn another_size_or_destination_begins_anew() {
    let other = Shape { bytes: 1000, ..SHAPE };
    let mut player = Player::new(Tuning { always: true, ..Tuning::USUAL });
    player.send_many(12, 1000);
    assert_eq!((player.joined, player.queued), (3, 3));
    player.send(other, 1000);
    assert_eq!((player.queued, player.alone.last()), (0, Some(&Plain::NoRun)));
    (0..8).for_each(|_| player.send(other, 1000));
    assert_eq!(player.alone.last(), Some(&Plain::First));
}

#[test]
fn datagrams_of_which_two_are_too_many_for_a_burst_go_alone() {
    let mut player = Player::new(Tuning { always: true, ..Tuning::USUAL });
    for bytes in [0, BURST_BYTES_MAX / 2 + 1, BURST_BYTES_MAX, 70_000] {
        (0..20).for_each(|_| player.send(Shape { bytes, ..SHAPE }, 100));
    }
    assert!(player.joined == 0 && player.alone.iter().all(|&plain| plain == Plain::Unfit));
    (0..12).for_each(|_| player.send(Shape { bytes: BURST_BYTES_MAX / 2, ..SHAPE }, 100));
    assert_eq!(player.joined, 2);
}

#[test]
fn a_socket_unfit_for_bursts_is_left_alone() {
    let mut player = Player { fit: Err(Alone::Pacing), ..Player::new(Tuning::USUAL) };
    player.send_many(9, 100);
    assert_eq!((player.joined, player.left), (0, Some(LEFT_ALONE)));
    player.send_many(9, 100);
    assert_eq!(player.left, Some(2 * LEFT_ALONE), "for longer the second time");
}

#[test]
fn a_failed_send_ends_the_run() {
    let mut run = Run::new(Tuning { entry: 2, always: true });
    for _ in 0..2 {
        assert_eq!(run.offer(SHAPE, || 0), Step::Alone(Plain::NoRun));
        run.sent(SHAPE, Plain::NoRun, true, || 0);
    }
    assert_eq!(run.offer(SHAPE, || 0), Step::Examine);
    run.examined(Ok(()), 0).unwrap();
    assert_eq!(run.offer(SHAPE, || 0), Step::Alone(Plain::First));
    run.sent(SHAPE, Plain::First, false, || 0);
    assert_eq!(run.offer(SHAPE, || 0), Step::Alone(Plain::NoRun));
}

#[test]
fn bursts_that_the_deadline_ends_early_make_it_stop() {
    let mut player = Player::new(Tuning::USUAL);
    player.send_many(9, 100);
    for _ in 0..SHORT_BURSTS_MAX {
        assert_eq!(player.left, None);
        player.send_many(3, 100);
        player.flush(Flush::Deadline);
    }
    assert_eq!(player.left, Some(LEFT_ALONE));
}

#[test]
fn a_refused_size_stays_plain_and_smaller_ones_do_not() {
    let mut run = Run::new(Tuning { entry: 1, always: true });
    run.refused(1400, false);
    for shape in [SHAPE, Shape { bytes: 1000, ..SHAPE }] {
        let _ = run.offer(shape, || 0);
        run.sent(shape, Plain::NoRun, true, || 0);
        let step = run.offer(shape, || 0);
        assert_eq!(step == Step::Alone(Plain::NoRun), shape.bytes == 1400);
    }
    run.refused(1400, true);
    run.sent(SHAPE, Plain::NoRun, true, || 0);
    assert_eq!(run.offer(Shape { bytes: 1, ..SHAPE }, || 0), Step::Alone(Plain::NoRun));
    run.forget();
    let _ = run.offer(SHAPE, || 0);
    run.sent(SHAPE, Plain::NoRun, true, || 0);
    assert_eq!(run.offer(SHAPE, || 0), Step::Examine);
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
                let before = (player.joined, player.alone.len(), player.queued, player.left);
                player.send(shape, random.u64(0..3000));
                if player.left.is_some() && player.left != before.3 {
                    player.left = None;
                    player = Player { queued: 0, ..player };
                    let unsent = player.joined + player.alone.len() as u32 == before.0 + before.1 as u32;
                    sent += u32::from(!unsent);
                    continue;
                }
                sent += 1;
                assert_eq!(player.joined + player.alone.len() as u32, sent, "seed {seed}");
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
