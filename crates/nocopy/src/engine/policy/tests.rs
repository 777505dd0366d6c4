//! The policy on a simulated machine: measured costs, with noise, drift and interruptions, on a virtual
//! clock.

use std::collections::VecDeque;
use std::fmt;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Gso,
    ZerocopyGso,
    UringZerocopy,
    Sendmmsg,
    Socket,
}

use Method::{Gso, Sendmmsg, Socket, UringZerocopy, ZerocopyGso};

const BATCHES: [Method; 5] = [Gso, ZerocopyGso, UringZerocopy, Sendmmsg, Socket];
const SINGLES: [Method; 5] = [Socket, Sendmmsg, UringZerocopy, ZerocopyGso, Gso];

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Gso => "gso",
            ZerocopyGso => "zerocopy-gso",
            UringZerocopy => "uring-zerocopy",
            Sendmmsg => "sendmmsg",
            Socket => "socket",
        };
        f.write_str(name)
    }
}

/// Cost of a datagram in ns by each method, in the order of [`BATCHES`].
type MethodCosts = [f64; 5];

/// A destination: costs, and whether zero-copy sends to it are copied.
#[derive(Debug, Clone, Copy)]
struct DestinationCosts {
    costs: MethodCosts,
    copied: bool,
}

/// Measured on a veth pair, with 64, 1400 and 8192 bytes: super-packets are delivered whole.
const OFFLOAD: [MethodCosts; 3] = [
    [13.0, 18.0, 807.0, 692.0, 863.0],
    [51.0, 32.0, 804.0, 721.0, 884.0],
    [306.0, 198.0, 775.0, 825.0, 976.0],
];
/// Every datagram becomes a packet of its own.
const SEGMENTED: [MethodCosts; 3] = [
    [259.0, 318.0, 902.0, 738.0, 891.0],
    [341.0, 359.0, 913.0, 805.0, 970.0],
    [796.0, 745.0, 1120.0, 1071.0, 1280.0],
];
/// A receiver reads them.
const DELIVERED: [MethodCosts; 3] = [
    [468.0, 525.0, 1725.0, 1426.0, 1557.0],
    [506.0, 706.0, 1845.0, 1561.0, 1707.0],
    [1148.0, 1629.0, 2679.0, 2183.0, 2367.0],
];
const BYTES: [u32; 3] = [64, 1400, 8192];
/// The largest counts for one GSO call.
const COUNTS: [u32; 3] = [64, 44, 7];

const fn remote_costs(costs: MethodCosts) -> DestinationCosts {
    DestinationCosts { costs, copied: false }
}

const fn local_costs(costs: MethodCosts) -> DestinationCosts {
    DestinationCosts { costs, copied: true }
}

fn destination_cases() -> Vec<(String, DestinationCosts, Work)> {
    let route = |sink: &str, size: usize| match sink {
        "offload" => remote_costs(OFFLOAD[size]),
        "segmented" => remote_costs(SEGMENTED[size]),
        _ => local_costs(DELIVERED[size]),
    };
    let of_sink = |sink: &'static str| {
        (0..3).map(move |size| {
            let work = Work { destination: 0, bytes: BYTES[size], count: COUNTS[size] };
            (format!("{sink} {}", BYTES[size]), route(sink, size), work)
        })
    };
    ["offload", "segmented", "delivered"].into_iter().flat_map(of_sink).collect()
}

/// A sending machine that is shared with others: the cost of calls varies by 20 % (standard deviation), its
/// speed changes by 2x twice a second, and it is interrupted for 50 us every 4 ms.
struct SimulatedMachine {
    random: u64,
    now_ns: f64,
    noise: f64,
    drift: f64,
    /// Completions under way, with the number of the call before which they arrive.
    completions: VecDeque<(u64, Work, Method, bool)>,
    calls: [u64; 5],
    /// The cost of the calls; below, the cost if the best method had been used.
    spent_ns: f64,
    best_ns: f64,
}

const LAG: u64 = 8;

/// The caller's cost of two clock reads, and of choosing.
const CLOCK_NS: f64 = 50.0;
const CHOOSE_NS: f64 = 10.0;

impl SimulatedMachine {
    fn new(seed: u64) -> Self {
        Self {
            random: seed,
            now_ns: 0.0,
            noise: 0.2,
            drift: 2.0,
            completions: VecDeque::new(),
            calls: [0; 5],
            spent_ns: 0.0,
            best_ns: 0.0,
        }
    }

    /// Uniform in 0..1 (splitmix64).
    fn next_uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn speed_factor(&self) -> f64 {
        let swing = (self.now_ns / 0.5e9 * std::f64::consts::TAU).sin();
        self.drift.powf(swing / 2.0)
    }

    /// One flush: the policy chooses, the clock advances by the cost, the policy records it.
    fn simulate_flush(&mut self, policy: &mut Policy<Method>, route: DestinationCosts, work: Work) -> Method {
        let choice = policy.choose(work);
        let method = BATCHES.iter().position(|&one| one == choice.method).expect("a candidate");
        let scale = f64::from(work.count) * self.speed_factor();
        let each_ns = route.costs[method];
        let noise = 1.0 + self.noise * 12_f64.sqrt() * (self.next_uniform() - 0.5);
        let mut ns = each_ns * scale * noise;
        let best = route.costs.into_iter().fold(f64::INFINITY, f64::min) * scale;
        // Interruptions hit calls in proportion to their length, also those of the best method.
        let interrupted = if self.noise > 0.0 && self.next_uniform() < ns / 4e6 { 50e3 } else { 0.0 };
        ns += interrupted;
        self.best_ns += best * if self.noise > 0.0 { 1.0 + 50e3 / 4e6 } else { 1.0 };
        let overhead = CHOOSE_NS + if choice.measured { CLOCK_NS } else { 0.0 };
        self.spent_ns += ns + overhead;
        self.now_ns += ns + overhead;
        self.calls[method] += 1;
        if choice.measured {
            policy.record(choice, work, Duration::from_nanos(ns as u64));
        }
        if matches!(choice.method, ZerocopyGso | UringZerocopy) {
            let due = self.calls.iter().sum::<u64>() + LAG;
            self.completions.push_back((due, work, choice.method, route.copied));
        }
        self.deliver_completions(policy);
        choice.method
    }

    fn deliver_completions(&mut self, policy: &mut Policy<Method>) {
        let calls: u64 = self.calls.iter().sum();
        while self.completions.front().is_some_and(|first| first.0 <= calls) {
            let (_, work, method, copied) = self.completions.pop_front().expect("not empty");
            policy.record_completion(
                work.destination,
                method,
                work.bytes,
                copied,
                Some(Duration::from_micros(80)),
            );
        }
    }

    fn run_for(&mut self, policy: &mut Policy<Method>, route: DestinationCosts, work: Work, ns: f64) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.simulate_flush(policy, route, work);
        }
    }

    /// Cost over that of the best method, since the last call of this.
    fn take_cost_over_best(&mut self) -> f64 {
        let ratio = self.spent_ns / self.best_ns;
        (self.spent_ns, self.best_ns) = (0.0, 0.0);
        ratio
    }
}

fn switch_count(policy: &Policy<Method>) -> u32 {
    policy.explain().classes.iter().map(|class| class.switches).sum()
}

/// How often a test is repeated with other random numbers: `all` times in a release build, a fifth of that in
/// a debug build.
const fn repetitions(all: u64) -> u64 {
    if cfg!(debug_assertions) { all.div_ceil(5) } else { all }
}

#[test]
fn costs_stay_within_3_percent_of_the_best_method() {
    for seed in 0..repetitions(4) {
        for (name, route, work) in destination_cases() {
            let (mut machine, mut policy) =
                (SimulatedMachine::new(seed), Policy::new(&BATCHES).with_single_methods(&SINGLES));
            machine.run_for(&mut policy, route, work, 0.3e9);
            let settled = switch_count(&policy);
            machine.run_for(&mut policy, route, work, 0.7e9);
            let over = machine.take_cost_over_best();
            assert!(over < 1.03, "{name}, seed {seed}: {over}\n{}", policy.explain());
            assert!(
                settled <= 3 && switch_count(&policy) <= settled + 1,
                "{name}, seed {seed}\n{}",
                policy.explain()
            );
        }
    }
}

/// A bench makes a socket for each round of some 80 ms, so only the start counts.
#[test]
fn short_runs_spend_little_on_exploring() {
    for (name, route, work) in destination_cases() {
        let rounds: Vec<f64> = (0..repetitions(20))
            .map(|seed| {
                let (mut machine, mut policy) =
                    (SimulatedMachine::new(seed), Policy::new(&BATCHES).with_single_methods(&SINGLES));
                machine.run_for(&mut policy, route, work, 80e6);
                machine.take_cost_over_best()
            })
            .collect();
        let mean = rounds.iter().sum::<f64>() / rounds.len() as f64;
        assert!(mean < 1.03, "{name}: {mean} {rounds:?}");
    }
}

#[test]
fn the_best_method_is_in_use_within_10_ms() {
    for seed in 0..repetitions(20) {
        for (sink, best) in [
            (remote_costs(OFFLOAD[1]), ZerocopyGso),
            (remote_costs(SEGMENTED[1]), Gso),
            (local_costs(DELIVERED[1]), Gso),
        ] {
            let (mut machine, mut policy) =
                (SimulatedMachine::new(seed), Policy::new(&BATCHES).with_single_methods(&SINGLES));
            let work = Work { destination: 0, bytes: 1400, count: 44 };
            machine.run_for(&mut policy, sink, work, 10e6);
            assert_eq!(policy.explain().classes[0].method, best, "seed {seed}\n{}", policy.explain());
        }
    }
}

/// The preference is wrong: the method tried last is the best.
#[test]
fn a_wrong_preference_is_corrected_within_10_ms() {
    let (mut machine, mut policy) =
        (SimulatedMachine::new(1), Policy::new(&[Socket, Sendmmsg, UringZerocopy, Gso]));
    let work = Work { destination: 0, bytes: 64, count: 64 };
    machine.run_for(&mut policy, remote_costs(OFFLOAD[0]), work, 10e6);
    assert_eq!(policy.explain().classes[0].method, Gso, "{}", policy.explain());
}

#[test]
fn single_datagrams_cost_no_more_than_the_plain_call() {
    for (name, route, work) in destination_cases() {
        // One datagram per call: GSO and sendmmsg are the plain call with more work, and zero-copy pins
        // pages.
        let plain = route.costs[4];
        let costs = [plain * 1.02, plain * 1.17, plain * 1.08, plain * 1.01, plain];
        let work = Work { count: 1, ..work };
        let (mut machine, mut policy) =
            (SimulatedMachine::new(3), Policy::new(&BATCHES).with_single_methods(&SINGLES));
        machine.run_for(&mut policy, DestinationCosts { costs, ..route }, work, 0.4e9);
        let over = machine.take_cost_over_best();
        assert!(over < 1.0 / 0.97, "{name}: {over}\n{}", policy.explain());
        assert_eq!(policy.explain().classes[0].method, Socket, "{name}");
    }
}

#[test]
fn equal_costs_keep_the_plain_call() {
    let (mut machine, mut policy) =
        (SimulatedMachine::new(5), Policy::new(&BATCHES).with_single_methods(&SINGLES));
    machine.run_for(
        &mut policy,
        remote_costs([880.0; 5]),
        Work { destination: 0, bytes: 1400, count: 1 },
        1e9,
    );
    assert_eq!(
        (policy.explain().classes[0].method, switch_count(&policy)),
        (Socket, 0),
        "{}",
        policy.explain()
    );
}

#[test]
fn the_method_follows_a_change_of_costs() {
    const SEEDS: u64 = 10;
    let routes = [
        (remote_costs(OFFLOAD[1]), Some(ZerocopyGso)),
        (local_costs(DELIVERED[1]), Some(Gso)),
        (remote_costs(OFFLOAD[1]), Some(ZerocopyGso)),
        // Nothing is copied, so only the cost counts, which differs by 5 %.
        (remote_costs(SEGMENTED[1]), None),
        (remote_costs(OFFLOAD[1]), Some(ZerocopyGso)),
    ];
    let mut over = [0.0; 5];
    for seed in 0..SEEDS {
        let work = Work { destination: 0, bytes: 1400, count: 44 };
        let (mut machine, mut policy) =
            (SimulatedMachine::new(seed), Policy::new(&BATCHES).with_single_methods(&SINGLES));
        for ((route, best), over) in routes.into_iter().zip(&mut over) {
            machine.run_for(&mut policy, route, work, 50e6);
            machine.take_cost_over_best();
            machine.run_for(&mut policy, route, work, 0.5e9);
            *over += machine.take_cost_over_best() / SEEDS as f64;
            let explained = policy.explain();
            assert!(best.is_none_or(|best| explained.classes[0].method == best), "seed {seed}\n{explained}");
        }
    }
    assert!(over.iter().all(|over| *over < 1.03), "{over:?}");
}

#[test]
fn copied_completions_exclude_zero_copy() {
    // By its cost alone zero-copy would win, as it does if the copy is made on another processor.
    let route = DestinationCosts { costs: [51.0, 32.0, 804.0, 721.0, 884.0], copied: true };
    let work = Work { destination: 0, bytes: 1400, count: 44 };
    let (mut machine, mut policy) = (SimulatedMachine::new(1), Policy::new(&[ZerocopyGso, Gso, Socket]));
    let calls =
        (0..1000).position(|_| machine.simulate_flush(&mut policy, route, work) == Gso).expect("gave way");
    assert!(calls as u64 <= LAG + 3, "after {calls} calls");
    machine.run_for(&mut policy, route, work, 1e9);
    let share = machine.calls[1] as f64 / machine.calls[0] as f64;
    assert!(share < 0.01, "{:?}\n{}", machine.calls, policy.explain());
    assert!(machine.calls[1] > calls as u64, "never tried again: a route may change");
    let before = machine.calls[1];
    machine.run_for(&mut policy, route, work, 2e9);
    let tries = machine.calls[1] - before;
    assert!(tries <= 8, "{tries} calls in two seconds: each wait is twice as long as the last");
    assert!(policy.explain().to_string().contains("completions say copied"));
}

#[test]
fn completions_of_other_classes_do_not_exclude_a_method() {
    let (mut machine, mut policy) = (SimulatedMachine::new(1), Policy::new(&[ZerocopyGso, Gso]));
    let work = Work { destination: 0, bytes: 8192, count: 7 };
    machine.simulate_flush(&mut policy, remote_costs(OFFLOAD[2]), work);
    for _ in 0..100 {
        policy.record_completion(0, ZerocopyGso, 64, true, None);
        policy.record_completion(1, ZerocopyGso, 8192, true, None);
        policy.record_completion(0, Socket, 8192, true, None);
    }
    assert_eq!(policy.explain().classes[0].method, ZerocopyGso);
    (0..3).for_each(|_| policy.record_completion(0, ZerocopyGso, 8192, true, None));
    assert_eq!(policy.explain().classes[0].method, Gso);
}

#[test]
fn a_refused_method_is_excluded_for_its_class() {
    let mut policy = Policy::new(&[ZerocopyGso, Gso]);
    let works = [(0, 8192), (0, 64), (1, 8192)];
    let works = works.map(|(destination, bytes)| Work { destination, bytes, count: 7 });
    assert_eq!(works.map(|work| policy.choose(work).method), [ZerocopyGso; 3]);
    policy.record_refusal(0, ZerocopyGso, 8192);
    assert_eq!(works.map(|work| policy.choose(work).method), [Gso, ZerocopyGso, ZerocopyGso]);
    // Refusals of calls that were already under way do not prolong the wait.
    (0..100).for_each(|_| policy.record_refusal(0, ZerocopyGso, 8192));
    let mut machine = SimulatedMachine::new(1);
    machine.drift = 1.0;
    while machine.calls[1] == 0 {
        machine.simulate_flush(&mut policy, remote_costs(OFFLOAD[2]), works[0]);
    }
    assert!((80e6..150e6).contains(&machine.now_ns), "{}\n{}", machine.now_ns, policy.explain());
}

#[test]
fn single_units_use_their_own_list_of_methods() {
    let work = Work { destination: 0, bytes: 4096, count: 1 };
    assert_eq!(Policy::new(&[Gso, Socket]).choose(work).method, Gso);
    assert_eq!(Policy::new(&[Gso, Socket]).with_single_methods(&[Socket]).choose(work).method, Socket);
}

#[test]
fn a_pinned_method_stays_when_its_completions_say_copied() {
    let mut policy = Policy::pinned(ZerocopyGso);
    let work = Work { destination: 0, bytes: 1400, count: 44 };
    for _ in 0..1000 {
        let choice = policy.choose(work);
        assert_eq!(choice.method, ZerocopyGso);
        policy.record(choice, work, Duration::from_micros(1));
        policy.record_completion(0, ZerocopyGso, 1400, true, None);
    }
    assert!(policy.explain().to_string().starts_with("chosen by the user"), "{}", policy.explain());
}

#[test]
fn excluded_methods_are_never_chosen() {
    let why = ExclusionReason::Unavailable("io_uring is disabled by kernel.io_uring_disabled");
    let (mut machine, mut policy) =
        (SimulatedMachine::new(2), Policy::new(&BATCHES).with_single_methods(&SINGLES));
    let work = Work { destination: 0, bytes: 8192, count: 7 };
    assert!(policy.rule_out(UringZerocopy, why));
    machine.run_for(&mut policy, remote_costs(OFFLOAD[2]), work, 50e6);
    assert_eq!(machine.calls[2], 0);
    // The method in use is replaced at once.
    assert_eq!(policy.explain().classes[0].method, ZerocopyGso);
    assert!(policy.rule_out(ZerocopyGso, ExclusionReason::Unavailable("ENOPROTOOPT")));
    let before = machine.calls[1];
    machine.run_for(&mut policy, remote_costs(OFFLOAD[2]), work, 50e6);
    assert_eq!((machine.calls[1], policy.explain().classes[0].method), (before, Gso));
    let text = policy.explain().to_string();
    assert!(
        text.contains("uring-zerocopy is ruled out: io_uring is disabled by kernel.io_uring_disabled"),
        "{text}"
    );
}

#[test]
fn a_repeated_temporary_exclusion_lasts_twice_as_long() {
    let (mut machine, mut policy) = (SimulatedMachine::new(2), Policy::new(&[Gso, ZerocopyGso]));
    let work = Work { destination: 0, bytes: 8192, count: 7 };
    let excluded =
        |machine: &mut SimulatedMachine, policy: &mut Policy<Method>| {
            assert!(policy.rule_out(
                ZerocopyGso,
                ExclusionReason::Temporary("ENOBUFS: net.core.optmem_max is exhausted")
            ));
            let (from, calls) = (machine.now_ns, machine.calls[1]);
            while machine.calls[1] == calls {
                machine.simulate_flush(policy, remote_costs(OFFLOAD[2]), work);
            }
            machine.now_ns - from
        };
    machine.run_for(&mut policy, remote_costs(OFFLOAD[2]), work, 50e6);
    let first = excluded(&mut machine, &mut policy);
    let second = excluded(&mut machine, &mut policy);
    assert!((80e6..150e6).contains(&first) && (160e6..300e6).contains(&second), "{first} {second}");
    machine.run_for(&mut policy, remote_costs(OFFLOAD[2]), work, 50e6);
    assert_eq!(policy.explain().classes[0].method, ZerocopyGso, "it wins again\n{}", policy.explain());
}

#[test]
fn the_last_method_is_used_when_all_are_ruled_out() {
    let mut policy = Policy::new(&[Gso, Socket]);
    let work = Work { destination: 0, bytes: 64, count: 8 };
    assert_eq!(policy.choose(work).method, Gso);
    assert!(policy.rule_out(Gso, ExclusionReason::Unavailable("no")));
    assert!(!policy.rule_out(Socket, ExclusionReason::Unavailable("no")));
    assert_eq!(policy.choose(work).method, Socket);
    assert_eq!(policy.choose(Work { destination: 1, ..work }).method, Socket);
}

#[test]
fn a_method_whose_calls_fail_is_excluded() {
    let mut policy = Policy::new(&[Socket, Gso]);
    let work = Work { destination: 0, bytes: 1400, count: 44 };
    let mut failed = 0;
    for _ in 0..100_000 {
        let choice = policy.choose(work);
        match choice.method {
            Socket => policy.record(choice, work, Duration::from_micros(40)),
            _ => failed += 1,
        }
    }
    assert!((1..500).contains(&failed), "{failed}\n{}", policy.explain());
    assert!(policy.explain().to_string().contains("could not be measured"));
}

#[test]
fn each_destination_gets_its_own_best_method() {
    let (mut machine, mut policy) =
        (SimulatedMachine::new(4), Policy::new(&BATCHES).with_single_methods(&SINGLES));
    for _ in 0..100_000 {
        for (destination, route) in
            [remote_costs(OFFLOAD[1]), local_costs(DELIVERED[1]), remote_costs(SEGMENTED[1])]
                .into_iter()
                .enumerate()
        {
            let work = Work { destination: destination as u32, bytes: 1400, count: 44 };
            machine.simulate_flush(&mut policy, route, work);
        }
    }
    let chosen: Vec<Method> = policy.explain().classes.iter().map(|class| class.method).collect();
    assert_eq!(chosen, [ZerocopyGso, Gso, Gso], "{}", policy.explain());
    assert!(machine.take_cost_over_best() < 1.02, "{}", policy.explain());
}

#[test]
fn exploring_costs_under_3_percent_with_thousands_of_peers() {
    // One datagram each: the methods cost about the same. Batches: as measured.
    let single = remote_costs([990.0, 1130.0, 1050.0, 980.0, 970.0]);
    for (count, route) in [(1, single), (8, remote_costs(SEGMENTED[1])), (8, local_costs(DELIVERED[1]))] {
        let (mut machine, mut policy) =
            (SimulatedMachine::new(4), Policy::new(&BATCHES).with_single_methods(&SINGLES));
        for _ in 0..40 {
            for destination in 0..5000 {
                machine.simulate_flush(&mut policy, route, Work { destination, bytes: 1400, count });
            }
        }
        let over = machine.take_cost_over_best();
        assert!(over < 1.03, "{count}: {over} {:?}", machine.calls);
        assert!(policy.explain().classes.len() <= 257);
    }
}

/// Each measured call costs its caller two clock reads.
#[test]
fn few_calls_are_measured_in_the_long_run() {
    let mut policy = Policy::new(&BATCHES).with_single_methods(&SINGLES);
    let (mut machine, work) = (SimulatedMachine::new(1), Work { destination: 0, bytes: 1400, count: 1 });
    machine.drift = 1.0;
    machine.run_for(&mut policy, remote_costs([990.0, 1130.0, 1050.0, 980.0, 970.0]), work, 1e9);
    let measured = (0..31_000).filter(|_| {
        let choice = policy.choose(work);
        policy.record(choice, work, Duration::from_nanos(970));
        choice.measured
    });
    assert!((1000..1500).contains(&measured.count()), "{}", policy.explain());
}

#[test]
fn the_explanation_names_causes_and_costs() {
    let (mut machine, mut policy) =
        (SimulatedMachine::new(1), Policy::new(&BATCHES).with_single_methods(&[Socket]));
    policy.rule_out(UringZerocopy, ExclusionReason::Unavailable("kernel.io_uring_disabled is 2"));
    let work = Work { destination: 0, bytes: 1400, count: 44 };
    (machine.noise, machine.drift) = (0.0, 1.0);
    machine.run_for(&mut policy, local_costs(DELIVERED[1]), work, 20e6);
    machine.run_for(
        &mut policy,
        local_costs(DELIVERED[1]),
        Work { destination: 3, bytes: 64, count: 1 },
        1e6,
    );
    let text = policy.explain().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("chosen by measurement; exploring took "), "{text}");
    let expected = [
        "uring-zerocopy is ruled out: kernel.io_uring_disabled is 2",
        "destination 0, 513 to 1472 bytes, 17 or more a flush: gso, 506 ns a datagram",
    ];
    assert_eq!(lines[1..3], expected);
    assert!(lines[3].starts_with("  zerocopy-gso: "), "{text}");
    let expected = [
        "  uring-zerocopy: ruled out, kernel.io_uring_disabled is 2",
        "  sendmmsg: much slower, 3.08 times the cost in 3 pairs",
        "  socket: much slower, 3.37 times the cost in 1 pair",
        "destination 3, 0 to 128 bytes, 1 a flush: socket, 1707 ns a datagram",
    ];
    assert_eq!(lines[4..], expected);
}

#[test]
fn an_explanation_omits_empty_times() {
    let mut policy = Policy::new(&BATCHES).with_single_methods(&[Socket]);
    assert_eq!(policy.explain().to_string(), "chosen by measurement");
    let mut machine = SimulatedMachine::new(1);
    machine.run_for(
        &mut policy,
        local_costs(DELIVERED[1]),
        Work { destination: 0, bytes: 1400, count: 44 },
        20e6,
    );
    let mut explained = policy.explain();
    explained.sent = Duration::from_nanos(708_900);
    explained.classes[0].others[0].held = Some(Duration::from_millis(2));
    let text = explained.to_string();
    assert!(text.lines().next().unwrap().ends_with(" % of 709 us spent sending"), "{text}");
    assert!(text.contains(", buffers held for 2.00 ms") && !text.contains("for 0"), "{text}");
}

#[test]
#[should_panic(expected = "a policy needs a method")]
fn a_policy_without_candidates_panics() {
    let _ = Policy::<Method>::new(&[]);
}

/// No call is cheaper than 600 ns, as in reality.
fn any_costs_and_count() -> impl Strategy<Value = (MethodCosts, u32)> {
    (1_u32..64).prop_flat_map(|count| {
        let least = (600.0 / f64::from(count)).max(10.0);
        (proptest::array::uniform5(least..2000.0), Just(count))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: repetitions(40) as u32, max_shrink_iters: 30, ..ProptestConfig::default() })]

    /// With calls of up to 128 us, a second has few of them. Of 400 cases all but one were within 3 %, that
    /// one at 3.4 %: the limit leaves room for bad luck, because the seeds are new each time.
    #[test]
    fn random_costs_stay_near_the_best_method(
        (costs, count) in any_costs_and_count(),
        order in Just(BATCHES.to_vec()).prop_shuffle(),
        seed: u64,
    ) {
        let (mut machine, mut policy) = (SimulatedMachine::new(seed), Policy::new(&order));
        machine.noise = 0.1;
        machine.run_for(&mut policy, remote_costs(costs), Work { destination: 0, bytes: 1400, count }, 1e9);
        let over = machine.take_cost_over_best();
        prop_assert!(over < 1.06, "{over} {:?}\n{}", machine.calls, policy.explain());
    }

    /// In any order of calls only candidates are chosen, and none that is ruled out while another is left.
    #[test]
    fn random_operations_never_choose_a_ruled_out_method(operations in proptest::collection::vec((0_u8..8, 0_u32..600, 0_u32..70_000, 0_u32..80, 0_usize..5), 1..2000)) {
        let mut policy = Policy::new(&BATCHES).with_single_methods(&SINGLES);
        let mut out = Vec::new();
        let mut choices = Vec::new();
        for (operation, destination, bytes, count, method) in operations {
            let work = Work { destination, bytes, count };
            match operation {
                0 if destination == 0 => policy.forget_all(),
                1 => policy.record_completion(destination, BATCHES[method], bytes, count % 2 == 0, Some(Duration::from_nanos(u64::from(bytes)))),
                2 if count == 0 => {
                    let left = policy.rule_out(BATCHES[method], ExclusionReason::Unavailable("no"));
                    out.push(BATCHES[method]);
                    prop_assert_eq!(left, BATCHES.iter().any(|one| !out.contains(one)));
                }
                4 if count < 8 => policy.record_refusal(destination, BATCHES[method], bytes),
                3 => for (choice, work) in choices.drain(..) {
                    policy.record(choice, work, Duration::from_nanos(u64::from(count) * 1000));
                },
                _ => {
                    let choice = policy.choose(work);
                    let left = BATCHES.iter().any(|one| !out.contains(one));
                    prop_assert!(!left || !out.contains(&choice.method));
                    choices.push((choice, work));
                }
            }
        }
        prop_assert!(!policy.explain().to_string().contains("NaN"));
    }
}

#[cfg(feature = "tracing")]
mod events {
    use super::*;
    use crate::events::recorder::{RecordedEvent, events_of};

    const WORK: Work = Work { destination: 3, bytes: 1400, count: 44 };

    fn send(policy: &mut Policy<Method>, calls: u32, cost_us: impl Fn(Method) -> u64) {
        for _ in 0..calls {
            let choice = policy.choose(WORK);
            policy.record(choice, WORK, Duration::from_micros(cost_us(choice.method)));
        }
    }

    /// The event says of the method in use what the explanation does.
    fn assert_as_explained(event: &RecordedEvent, policy: &Policy<Method>) {
        let explained = policy.explain().to_string();
        for words in [
            format!("{}: {},", event.field("work"), event.field("method")),
            format!("\n  {}", event.field("reason")),
        ] {
            assert!(explained.contains(&words), "{words:?}\n{explained}");
        }
        assert_eq!((event.message(), event.field("half")), ("method changed", "udp sender"));
    }

    #[test]
    fn a_change_of_method_is_one_event() {
        let mut policy = Policy::new(&[Socket, Gso]);
        policy.report_as(Half::UdpSender);
        let faster = |method| if method == Gso { 10 } else { 60 };
        let mut changed = Vec::new();
        let mut calls = 0;
        while switch_count(&policy) == 0 {
            assert!(changed.is_empty() && calls < 10_000, "{changed:?}");
            changed = events_of(|| send(&mut policy, 1, faster));
            calls += 1;
        }
        let [event] = &changed[..] else { panic!("{changed:?}") };
        assert_eq!(event.field("method"), "gso");
        assert_as_explained(event, &policy);
        let others = events_of(|| send(&mut policy, 10_000, faster));
        assert!(others.is_empty() && switch_count(&policy) == 1, "{others:?}");
    }

    #[test]
    fn a_method_ruled_out_is_one_event_for_each_reason() {
        let mut policy = Policy::new(&[Gso, Socket]);
        policy.report_as(Half::UdpSender);
        send(&mut policy, 1, |_| 10);
        let events = events_of(|| {
            policy.rule_out_for_enobufs(Gso);
        });
        let [ruled_out, changed] = &events[..] else { panic!("{events:?}") };
        assert_as_explained(changed, &policy);
        let line = format!("gso is ruled out: {}", ruled_out.field("reason"));
        assert_eq!((ruled_out.message(), ruled_out.field("method")), ("method ruled out", "gso"));
        assert!(policy.explain().to_string().contains(&line), "{line}\n{}", policy.explain());
        for (why, count) in [(NO_MEMORY, 0), ("others send on the socket", 1)] {
            let reason =
                if count == 0 { ExclusionReason::Temporary(why) } else { ExclusionReason::Unavailable(why) };
            let events = events_of(|| {
                for _ in 0..1000 {
                    policy.rule_out(Gso, reason);
                }
            });
            assert_eq!(events.len(), count, "{events:?}");
        }
    }

    #[test]
    fn a_method_that_is_forgotten_is_one_event() {
        let mut policy = Policy::new(&[Socket, Gso]);
        policy.report_as(Half::UdpSender);
        send(&mut policy, 10_000, |method| if method == Gso { 10 } else { 60 });
        assert_eq!(switch_count(&policy), 1, "{}", policy.explain());
        let forgotten = events_of(|| (0..2).for_each(|_| policy.forget_all()));
        let [event] = &forgotten[..] else { panic!("{forgotten:?}") };
        let fields = (event.message(), event.field("method"), event.field("reason"));
        assert_eq!(fields, ("method changed", "socket", "gso: not tried yet"));
        let others = events_of(|| send(&mut policy, 1, |_| 10));
        assert!(others.is_empty(), "{others:?}");
        let explained = policy.explain().to_string();
        assert!(explained.contains(&format!("{}: socket,", event.field("work"))), "{explained}");
    }

    #[test]
    fn completions_that_change_the_method_are_one_event() {
        let mut policy = Policy::new(&[ZerocopyGso, Socket]);
        policy.report_as(Half::UdpSender);
        send(&mut policy, 1, |_| 10);
        let copied = |policy: &mut Policy<Method>| {
            policy.record_completion(WORK.destination, ZerocopyGso, WORK.bytes, true, None);
        };
        let events = events_of(|| (0..1000).for_each(|_| copied(&mut policy)));
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_as_explained(event, &policy);
        assert!(event.field("reason").contains("completions say copied"), "{event:?}");
    }
}
