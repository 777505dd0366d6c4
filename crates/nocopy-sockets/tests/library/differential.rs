//! Random programs, with the library and without: the same bytes in the same order, the same results and
//! errors, the same end.

use crate::common::{CompiledProgram, RunMode, receive_arrived, receiver_bound_to, run_command, utf8_text};

/// Programs: one run of each for every tuning, and one without.
const PROGRAMS: u64 = 12;

/// The library joins all equal datagrams, without a deadline, with a short one and with a long one; at last,
/// the defaults.
const TUNINGS: [&str; 4] =
    ["entry=1,always,deadline=0", "entry=1,always,deadline=5", "entry=2,always,deadline=100", ""];

#[derive(Debug, PartialEq, Eq)]
struct ProgramResult {
    datagrams: Vec<Vec<u8>>,
    stdout: String,
    status: std::process::ExitStatus,
}

fn run_program(program: &CompiledProgram, seed: u64, run_mode: RunMode<'_>) -> (ProgramResult, u64) {
    // An IPv6 socket takes what is sent by IPv4, too. Without IPv6, the program's IPv6 calls fail in the same
    // way each time.
    let all_addresses = if nocopy_lab::has_ipv6_sockets() { "[::]:0" } else { "0.0.0.0:0" };
    let (socket, address) = receiver_bound_to(all_addresses);
    let mut command = program.command();
    command.args([address.port().to_string(), seed.to_string()]);
    let (output, sockets) = run_command(command, run_mode);
    let stdout = utf8_text(&output.stdout) + &utf8_text(&output.stderr);
    let joined = sockets.sockets.iter().map(|socket| socket.joined).sum();
    (ProgramResult { datagrams: receive_arrived(&socket), stdout, status: output.status }, joined)
}

#[test]
fn random_programs_behave_the_same_with_the_library() {
    let first = std::env::var("NOCOPY_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let program = CompiledProgram::compile("random");
    for seed in (0..PROGRAMS).map(|at| u64::wrapping_add(first, at)) {
        let (plain, _) = run_program(&program, seed, RunMode::Plain);
        assert!(!plain.datagrams.is_empty());
        for tuning in TUNINGS {
            let (ours, joined) = run_program(&program, seed, RunMode::Preloaded(tuning));
            let what = format!("seed {seed}, '{tuning}'");
            assert!(joined > 0 || tuning.is_empty(), "{what}: nothing joined");
            assert_eq!((&ours.stdout, ours.status), (&plain.stdout, plain.status), "{what}");
            let differs = ours.datagrams.iter().zip(&plain.datagrams).position(|(one, other)| one != other);
            let lengths = (ours.datagrams.len(), plain.datagrams.len());
            assert!(
                differs.is_none() && lengths.0 == lengths.1,
                "{what}: differs at {differs:?}, {lengths:?}"
            );
        }
    }
}
