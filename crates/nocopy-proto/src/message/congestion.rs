//! How much may be in flight (docs/protocol.md §9): slow start and congestion avoidance of RFC 5681, in
//! packets, with one reduction per round as in RFC 9002 section 7, and by the share of marked packets as in
//! RFC 8257 (DCTCP), where the network marks.
//!
//! Transmissions are numbered, and a round ends when a packet sent after its start is acknowledged: packets
//! sent before a reduction say nothing about the time after it.

/// RFC 6928.
const INITIAL_WINDOW: usize = 10;
/// RFC 9002 section 7.2, kMinimumWindow.
const MINIMUM_WINDOW: usize = 2;

/// [`Congestion::share`] if all packets are marked.
const ALL: u64 = 1 << 20;
/// The weight of a round in the share is 1/16 (RFC 8257 section 4.2, DCTCP.g).
const GAIN_SHIFT: u32 = 4;

#[derive(Debug)]
pub(super) struct Congestion {
    window: usize,
    /// Below it, slow start.
    threshold: usize,
    /// Packets acknowledged in congestion avoidance since the window last grew.
    growth: usize,
    /// Up to this transmission, losses and marks have already reduced the window.
    paid: u64,
    /// The smoothed share of packets marked by the network, in units of 1/[`ALL`] (RFC 8257's DCTCP.Alpha).
    share: u64,
    round: Round,
}

/// Counts since the round began. A round lasts until something sent in it is acknowledged.
#[derive(Debug, Default)]
struct Round {
    /// The round ends when a later transmission than this one has arrived.
    end: u64,
    packets: usize,
    marked: usize,
    in_flight_most: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Acknowledged {
    /// Packets that were not acknowledged before.
    pub(super) packets: usize,
    /// Packets that reached the peer with marks since the last acknowledgement.
    pub(super) marked: usize,
    /// Packets in flight before it came.
    pub(super) in_flight: usize,
    /// The latest transmission that is known to have arrived.
    pub(super) arrived: u64,
    /// Transmissions so far.
    pub(super) transmissions: u64,
}

impl Congestion {
    pub(super) fn new() -> Self {
        Self {
            window: INITIAL_WINDOW,
            threshold: usize::MAX,
            growth: 0,
            paid: 0,
            share: ALL, // the first mark halves, as a loss would: RFC 8257 section 4.2
            round: Round::default(),
        }
    }

    /// How many packets may be in flight; never below 2.
    #[inline]
    pub(super) fn window(&self) -> usize {
        self.window
    }

    #[inline(always)] // with nearly each packet
    pub(super) fn acknowledged(&mut self, seen: Acknowledged) {
        self.round.packets += seen.packets;
        self.round.marked += seen.marked;
        self.round.in_flight_most = self.round.in_flight_most.max(seen.in_flight);
        if seen.marked > 0 && seen.arrived > self.paid {
            // Rounded up: otherwise a short window would never be reduced.
            self.reduce((self.window as u64 * self.share).div_ceil(2 * ALL) as usize, seen.transmissions);
        } else if seen.arrived > self.paid && self.is_used() {
            self.grow(seen.packets);
        }
        if seen.arrived > self.round.end {
            self.end_round(seen.transmissions);
        }
    }

    /// Packets were lost, the newest of them sent as that transmission.
    pub(super) fn lost(&mut self, newest: u64, transmissions: u64) {
        if newest > self.paid {
            self.reduce(self.window.div_ceil(2), transmissions);
        }
    }

    /// Reduces the window to its minimum because nothing gets through any more (RFC 9002 section 7.6, RFC
    /// 5681 section 3.1). If this happens again before the window has grown, the threshold stays.
    pub(super) fn collapse(&mut self) {
        if self.window > MINIMUM_WINDOW {
            self.threshold = (self.window / 2).max(MINIMUM_WINDOW);
        }
        (self.window, self.growth) = (MINIMUM_WINDOW, 0);
    }

    /// Whether the window limits the sender (RFC 9002 section 7.8). In slow start half of it is enough: it
    /// will soon have doubled, and acknowledgements that arrive together would look like a pause of the
    /// sender.
    #[inline]
    fn is_used(&self) -> bool {
        let most = self.round.in_flight_most;
        most >= self.window || self.window < self.threshold && most >= self.window / 2
    }

    #[inline]
    fn grow(&mut self, packets: usize) {
        let mut packets = packets;
        if self.window < self.threshold {
            let grown = packets.min(self.threshold - self.window);
            self.window += grown;
            packets -= grown;
        }
        self.growth += packets;
        if self.growth >= self.window {
            self.growth -= self.window;
            self.window += 1;
        }
    }

    fn reduce(&mut self, packets: usize, transmissions: u64) {
        self.window = self.window.saturating_sub(packets).max(MINIMUM_WINDOW);
        (self.threshold, self.growth, self.paid) = (self.window, 0, transmissions);
    }

    /// Ends a round: updates the share of marked packets (RFC 8257 section 3.3).
    fn end_round(&mut self, transmissions: u64) {
        let Round { packets, marked, .. } = self.round;
        // Marked duplicates are counted as well, so there can be more.
        let share = match marked {
            0 => 0, // nearly always, and no division
            _ => ALL * marked.min(packets) as u64 / packets.max(1) as u64,
        };
        self.share = self.share - (self.share >> GAIN_SHIFT) + (share >> GAIN_SHIFT);
        self.round = Round { end: transmissions, ..Round::default() };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A sender that always has data, over a path on which everything takes one round.
    struct Sender {
        congestion: Congestion,
        transmissions: u64,
    }

    impl Sender {
        fn new() -> Self {
            Self { congestion: Congestion::new(), transmissions: 0 }
        }

        /// Sends a window; `marked` packets are marked, `in_flight` count as in flight, and `run` are
        /// acknowledged at a time.
        fn round(&mut self, marked: usize, in_flight: usize, run: usize) {
            let (window, before) = (self.congestion.window(), self.transmissions);
            self.transmissions += window as u64;
            let mut done = 0;
            while done < window {
                let packets = run.min(window - done);
                let marked = marked.saturating_sub(done).min(packets);
                done += packets;
                self.congestion.acknowledged(Acknowledged {
                    packets,
                    marked,
                    in_flight,
                    arrived: before + done as u64,
                    transmissions: self.transmissions,
                });
            }
        }

        fn full_round(&mut self, marked: usize) {
            self.round(marked, self.congestion.window(), 1);
        }

        fn lose(&mut self, newest: u64) {
            self.congestion.lost(newest, self.transmissions);
        }
    }

    #[test]
    fn slow_start_doubles_each_round() {
        for run in [1, 3, 16] {
            let mut sender = Sender::new();
            for window in [10, 20, 40, 80] {
                assert_eq!(sender.congestion.window(), window);
                sender.round(0, window, run);
            }
        }
    }

    #[test]
    fn a_loss_halves_once_a_round_then_one_packet_is_added() {
        let mut sender = Sender::new();
        sender.full_round(0);
        sender.full_round(0);
        sender.transmissions += 40;
        let sent = sender.transmissions;
        for newest in sent - 39..=sent {
            sender.lose(newest);
        }
        assert_eq!(sender.congestion.window(), 20);
        for window in [20, 21, 22] {
            assert_eq!(sender.congestion.window(), window);
            sender.full_round(0);
        }
        sender.lose(sender.transmissions);
        assert_eq!(sender.congestion.window(), 11, "the next round's losses count again");
    }

    #[test]
    fn packets_sent_before_a_reduction_do_not_grow_the_window() {
        let mut sender = Sender::new();
        sender.transmissions = 10;
        sender.lose(3);
        let before =
            |arrived| Acknowledged { packets: 1, marked: 1, in_flight: 10, arrived, transmissions: 10 };
        for arrived in 4..=10 {
            sender.congestion.acknowledged(before(arrived));
        }
        assert_eq!(sender.congestion.window(), 5, "nor do its marks count");
    }

    #[test]
    fn does_not_grow_where_it_is_not_used() {
        let mut sender = Sender::new();
        for _ in 0..100 {
            sender.round(0, 4, 1);
        }
        assert_eq!(sender.congestion.window(), 10);
        sender.lose(sender.transmissions);
        for _ in 0..100 {
            sender.round(0, 4, 1);
        }
        assert_eq!(sender.congestion.window(), 5);
    }

    #[test]
    fn a_collapse_restarts_slow_start_to_half_the_window() {
        let mut sender = Sender::new();
        for _ in 0..3 {
            sender.full_round(0);
        }
        sender.congestion.collapse();
        sender.congestion.collapse();
        assert_eq!(sender.congestion.window(), MINIMUM_WINDOW);
        for window in [2, 4, 8, 16, 32, 40, 41] {
            assert_eq!(sender.congestion.window(), window);
            sender.full_round(0);
        }
    }

    #[test]
    fn the_first_mark_halves_and_rare_marks_cost_little() {
        let mut sender = Sender::new();
        sender.full_round(0);
        sender.full_round(1);
        assert_eq!(sender.congestion.window(), 10);
        let mut sender = Sender::new();
        sender.lose(1);
        for _ in 0..200 {
            sender.full_round(0);
        }
        let window = sender.congestion.window();
        sender.full_round(1);
        assert_eq!(sender.congestion.window(), window - 1, "of {window}");
    }

    #[test]
    fn holds_the_queue_of_a_switch_that_marks_short() {
        // A path that holds 100 packets, and marks what comes when 20 more are queued (RFC 8257 section 3.1).
        let (path, mark_at) = (100, 20);
        let mut sender = Sender::new();
        let mut windows = Vec::new();
        for _ in 0..400 {
            let window = sender.congestion.window();
            sender.full_round(window.saturating_sub(path + mark_at));
            windows.push(window);
        }
        let (least, most) = (windows[200..].iter().min().unwrap(), windows[200..].iter().max().unwrap());
        assert!(*least >= path && *most <= path + 2 * mark_at, "{least} to {most}");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Send(u8),
        Acknowledge { packets: u8, marked: u8, back: u8, in_flight: u16 },
        Lose(u8),
        Collapse,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<u8>().prop_map(Step::Send),
            4 => any::<(u8, u8, u8, u16)>().prop_map(|(packets, marked, back, in_flight)| {
                Step::Acknowledge { packets, marked: marked.saturating_sub(200), back, in_flight }
            }),
            2 => any::<u8>().prop_map(Step::Lose),
            1 => Just(Step::Collapse),
        ]
    }

    proptest! {
        #[test]
        fn keeps_its_bounds(steps in prop::collection::vec(step(), 0..200)) {
            let mut congestion = Congestion::new();
            let mut transmissions = 0u64;
            let mut paid = 0;
            for step in steps {
                let before = congestion.window();
                match step {
                    Step::Send(packets) => transmissions += u64::from(packets),
                    Step::Acknowledge { packets, marked, back, in_flight } => {
                        let (packets, marked) = (usize::from(packets), usize::from(marked));
                        let arrived = transmissions.saturating_sub(back.into());
                        let in_flight = usize::from(in_flight);
                        congestion.acknowledged(Acknowledged { packets, marked, in_flight, arrived, transmissions });
                        prop_assert!(congestion.window() <= before + packets.max(1));
                        prop_assert!(congestion.window() >= before || marked > 0 && arrived > paid);
                    }
                    Step::Lose(back) => congestion.lost(transmissions.saturating_sub(back.into()), transmissions),
                    Step::Collapse => congestion.collapse(),
                }
                if congestion.window() < before && !matches!(step, Step::Collapse) {
                    prop_assert!(congestion.window() >= before / 2);
                    prop_assert!(transmissions > paid, "twice in a round");
                    paid = transmissions;
                }
                prop_assert!(congestion.window() >= MINIMUM_WINDOW);
                prop_assert!(congestion.share <= ALL);
            }
        }
    }
}
