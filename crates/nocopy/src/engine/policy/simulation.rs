//! Machines made up from a seed, with moods that change: what choosing costs against always taking the
//! cheapest method.

use super::*;

const METHODS: [u8; 5] = [0, 1, 2, 3, 4];

/// Costs of each method in one mood: of a call, and of a unit, in ns.
type CostRegime = [(f64, f64); 5];

struct SimulatedMachine {
    random: u64,
    now_ns: f64,
    methods: usize,
    moods: [CostRegime; 2],
    /// When the mood changes next, and how often it did.
    change_ns: f64,
    mood: usize,
    /// One method is slow, by a factor, for so many calls.
    slow: (usize, f64, u32),
    calls: [u32; 5],
    work: Work,
    best_ns: f64,
    lost_ns: f64,
}

const MACHINES: u64 = 300;
/// Those of them that run for more than the first calls.
const LONG: u64 = 40;

/// The spread of a call's time, of its mean.
const NOISE: f64 = 0.3;
/// What the two reads of the clock cost that a measured call needs.
const CLOCKS_NS: f64 = 50.0;

impl SimulatedMachine {
    fn new(seed: u64) -> Self {
        let mut machine = Self {
            random: seed.wrapping_mul(7919).wrapping_add(1),
            now_ns: 0.0,
            methods: 2,
            moods: [[(0.0, 0.0); 5]; 2],
            change_ns: 0.0,
            mood: 0,
            slow: (0, 1.0, 0),
            calls: [0; 5],
            work: Work { destination: 0, bytes: 1400, count: 1 },
            best_ns: 0.0,
            lost_ns: 0.0,
        };
        machine.methods = 2 + machine.random_below(4);
        machine.work.count = machine.random_below(64) as u32 + 1;
        let (call, unit) =
            (machine.log_uniform_between(600.0, 4000.0), machine.log_uniform_between(30.0, 1000.0));
        let mut moods = machine.moods;
        for mood in &mut moods {
            for cost in mood.iter_mut() {
                *cost = (
                    call * machine.log_uniform_between(0.5, 4.0),
                    unit * machine.log_uniform_between(0.3, 3.0),
                );
            }
        }
        machine.moods = moods;
        machine.slow = (
            machine.random_below(machine.methods),
            machine.log_uniform_between(2.0, 6.0),
            machine.random_below(17) as u32,
        );
        machine.change_ns = machine.log_uniform_between(1e9, 4e9);
        machine
    }

    fn next_uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn log_uniform_between(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.next_uniform())
    }

    fn random_below(&mut self, end: usize) -> usize {
        (self.next_uniform() * end as f64) as usize
    }

    fn cost_ns(&self, method: usize) -> f64 {
        let (call, unit) = self.moods[self.mood][method];
        call + unit * f64::from(self.work.count)
    }

    fn best_cost_ns(&self) -> f64 {
        (0..self.methods).map(|one| self.cost_ns(one)).fold(f64::INFINITY, f64::min)
    }

    fn run_until(&mut self, policy: &mut Policy<u8>, end_ns: f64) {
        while self.now_ns < end_ns {
            self.simulate_call(policy);
        }
    }

    /// One call: the clock advances by its cost.
    fn simulate_call(&mut self, policy: &mut Policy<u8>) {
        if self.now_ns >= self.change_ns {
            self.mood ^= 1;
            self.change_ns = self.now_ns + self.log_uniform_between(1e9, 4e9);
        }
        let choice = policy.choose(self.work);
        let method = usize::from(choice.method);
        let mut fair = self.cost_ns(method);
        if method == self.slow.0 && self.calls[method] < self.slow.2 {
            fair *= self.slow.1;
        }
        self.calls[method] += 1;
        let noise = 1.0 + NOISE * 12_f64.sqrt() * (self.next_uniform() - 0.5);
        let stall =
            if self.next_uniform() < fair / 4e6 { self.log_uniform_between(20e3, 300e3) } else { 0.0 };
        let ns = fair * noise + stall;
        let clocks = if choice.measured { CLOCKS_NS } else { 0.0 };
        if choice.measured {
            policy.record(choice, self.work, Duration::from_nanos(ns as u64));
        }
        self.best_ns += self.best_cost_ns();
        self.lost_ns += fair - self.best_cost_ns() + clocks;
        self.now_ns += ns + clocks;
    }

    fn take_lost_share(&mut self) -> f64 {
        let lost = self.lost_ns / self.best_ns;
        (self.lost_ns, self.best_ns) = (0.0, 0.0);
        lost
    }
}

/// What share of the time was lost, of all machines.
#[derive(Default)]
struct LossShares(Vec<f64>);

impl LossShares {
    /// Fails if the mean or the worst but a twentieth is above.
    fn assert_at_most(mut self, what: &str, mean_max: f64, most_max: f64) {
        self.0.sort_by(f64::total_cmp);
        let mean = self.0.iter().sum::<f64>() / self.0.len() as f64;
        let most = self.0[self.0.len() * 95 / 100];
        let text = format!("{what}: {mean:.4} in the mean, {most:.4} for all but a twentieth");
        println!("{text}");
        assert!(mean <= mean_max && most <= most_max, "{text}");
    }
}

/// Time lost against always taking the cheapest method.
#[test]
fn choosing_loses_little_time_on_simulated_machines() {
    let [mut first, mut all, mut afterwards, mut recovered] = [(); 4].map(|()| LossShares::default());
    for seed in 0..MACHINES {
        let mut machine = SimulatedMachine::new(seed);
        let mut policy = Policy::new(&METHODS[..machine.methods]);
        (0..2000).for_each(|_| machine.simulate_call(&mut policy));
        let early = (machine.lost_ns, machine.best_ns);
        first.0.push(machine.take_lost_share());
        if seed >= LONG {
            continue;
        }
        let before = policy.explain();
        (2000..100_000).for_each(|_| machine.simulate_call(&mut policy));
        all.0.push((machine.lost_ns + early.0) / (machine.best_ns + early.1));
        let after = policy.explain();
        let explored = after.explored - before.explored;
        afterwards.0.push(explored.as_secs_f64() / (after.sent - before.sent).as_secs_f64());
        for _ in 0..2 {
            machine.run_until(&mut policy, machine.change_ns);
            machine.run_until(&mut policy, machine.now_ns + 200e6);
            machine.take_lost_share();
            machine.run_until(&mut policy, machine.now_ns + 200e6);
            recovered.0.push(machine.take_lost_share());
        }
    }
    first.assert_at_most("the first 2,000 calls", 0.10, 0.40);
    all.assert_at_most("100,000 calls", 0.03, 0.07);
    afterwards.assert_at_most("explored after the first 2,000", 0.01, 0.01);
    recovered.assert_at_most("200 ms after a change of mood", 0.01, 0.03);
}
