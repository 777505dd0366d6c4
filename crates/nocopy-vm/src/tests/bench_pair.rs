use std::io;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;
use nocopy_lab::Namespace;
use serde_json::json;

use crate::guest::Guest;
use crate::guest::patience::wait_until;
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "`nocopy bench --pair` on two cards that are cabled to each other: it finds the cable; killed at random moments it leaves them as they were (twice; \
             20 times with --soak); its table names driver and modes and has every row (with --soak)",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const KILLS: u32 = 2;
const KILLS_SOAK: u32 = 20;

/// Moving two igb, whose links take seconds to come up, and the first trials.
const LIFE_MS_MAX: u64 = 12_000;

const SETUP: &str = "
    ip link set nc0 mtu 1400; ip link set nc1 mtu 1600
    ip link set nc0 up; ip link set nc1 up
    ip address add 10.9.0.1/24 dev nc0; ip address add 10.9.0.2/24 dev nc1
    ip route add 10.9.1.0/24 via 10.9.0.1 dev nc1";

const QUERIES: &str = "ip -details link; ip address; ip route show table all; ip -6 route show table all";

fn run(guest: &Guest) -> Result<(), Failure> {
    let network = Namespace::new_with_loopback()?;
    guest.ends().into_iter().try_for_each(|end| end.move_to(&network))?;
    run_to_success(&network, Command::new("sh").args(["-ec", SETUP]))?;
    let before = settled_description(&network)?;
    check_cable(&network)?;
    let seed = guest.seed();
    let mut random = Rng::with_seed(seed);
    let kills = if guest.is_soak() { KILLS_SOAK } else { KILLS };
    for kill in 0..kills {
        let life = Duration::from_millis(random.u64(..LIFE_MS_MAX));
        let mut bench = bench_command(&[])?;
        // The process that puts the cards back has the same standard error, and ends last.
        let mut bench = network.run(|| bench.stdout(Stdio::null()).stderr(Stdio::piped()).spawn())?;
        sleep(life);
        bench.kill()?;
        let output = bench.wait_with_output()?;
        assert_same(
            &before,
            &settled_description(&network)?,
            &format!("kill {kill} after {life:?}"),
            &output,
        );
    }
    if guest.is_soak() {
        let mut bench = bench_command(&["--rounds", "1"])?;
        let output = network.run(|| bench.output())?;
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        // Status 1: a row has no figure, because an emulated machine was too slow for it.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}: {table}", output.status);
        assert_same(&before, &settled_description(&network)?, "after a table", &output);
        let driver = format!("| driver | {} |", guest.topology().driver());
        for words in [&driver, "| modes | xdp zero-copy, xdp copy native, ", "| capture, 64 B, full rate | "]
        {
            assert!(table.contains(words), "{words}: {table}");
        }
        guest.record_measurement(&json!({ "table": table }));
    }
    guest.record_measurement(&json!({ "seed": seed.to_string(), "kills": kills }));
    Ok(())
}

/// The frame that finds out whether this is one cable passes the cards' filters: after it, the bench asks.
fn check_cable(network: &Namespace) -> Result<(), Failure> {
    let output = network.run(|| pair_command()?.output())?;
    let said = String::from_utf8_lossy(&output.stderr);
    match said.contains("this was not confirmed") {
        true => Ok(()),
        false => Err(Failure(format!("not asked: {said}"))),
    }
}

/// The command, built beside this program.
fn pair_command() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?.with_file_name("nocopy"));
    command.args(["bench", "--pair", "nc0", "nc1"]).stdin(Stdio::null());
    Ok(command)
}

fn bench_command(options: &[&str]) -> Result<Command, Failure> {
    let mut command = pair_command()?;
    command.arg("--yes").args(options);
    Ok(command)
}

fn run_to_success(network: &Namespace, command: &mut Command) -> Result<Output, Failure> {
    let output = network.run(|| command.output())?;
    match output.status.success() {
        true => Ok(output),
        false => {
            let text = [&output.stdout[..], &output.stderr].concat();
            Err(Failure(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&text))))
        }
    }
}

/// The network once its links are up, and addresses are no longer tried.
fn settled_description(network: &Namespace) -> Result<Vec<String>, Failure> {
    let describe = || {
        let output = run_to_success(network, Command::new("sh").args(["-ec", QUERIES]))?;
        Ok::<_, Failure>(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    wait_until("the links are up", || {
        let text = describe()?;
        Ok(!["tentative", "linkdown", "NO-CARRIER"].iter().any(|word| text.contains(word)))
    })?;
    let mut lines: Vec<_> = describe()?.lines().map(|line| line.trim().to_owned()).collect();
    lines.sort_unstable(); // the order of addresses is not kept
    Ok(lines)
}

fn assert_same(before: &[String], after: &[String], when: &str, output: &Output) {
    let only_in = |one: &[String], other: &[String]| {
        one.iter().filter(|line| !other.contains(line)).cloned().collect::<Vec<_>>().join("\n")
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        before == after,
        "{when}: gone:\n{}\nnew:\n{}\n{said}",
        only_in(before, after),
        only_in(after, before)
    );
}
