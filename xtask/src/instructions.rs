//! Instructions per packet and per message, by callgrind: exact, and the same on a noisy machine as on a
//! quiet one.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use crate::gate::Outcome;
use crate::machine;
use crate::step::{CommandStep, Failed};
use crate::suite::{self, map_in_parallel, processor_count};

/// The profile in the workspace's manifest that the loops are built by.
pub(crate) const PROFILE: &str = "counted";

/// Each is measured twice, with these numbers of batches; the difference leaves out the start-up.
const BATCHES: [u32; 2] = [100, 300];
const BATCH_PACKETS: u32 = 64;

/// Two loops that are compared: mostly the library, and a loop by hand that does the same checks; of those
/// that forward, one that would finish checksums, and one that would not.
struct LoopComparison {
    judged: &'static str,
    control: &'static str,
    /// Above this multiple the command fails.
    ratio_max: f64,
}

const ROWS: &[LoopComparison] = &[
    LoopComparison { judged: "receive-library", control: "receive-checked", ratio_max: 1.05 },
    LoopComparison { judged: "send-library", control: "send-checked", ratio_max: 1.05 },
    LoopComparison { judged: "forward-library", control: "forward-blindly", ratio_max: 1.15 },
    LoopComparison { judged: "forward-looking", control: "forward-blindly", ratio_max: 1.15 },
];

/// Loops that are shown and not judged.
const SHOWN: &[&str] = &["receive-trusting", "send-trusting", "send-library-frames", "forward-finishing"];

/// Loops that are only shown: the least work for messages, without anything that makes them reliable.
const MESSAGES_SHOWN: &[&str] = &["message-alone-by-hand", "message-packed-by-hand"];

/// Loops over messages of 64 bytes, and how many instructions one may cost, sent and received: with others in
/// its packet, received together or one by one, and as the only one, where it pays for all that a packet
/// costs at both ends; the same with each question to another of 10,000 peers, where the answer is
/// acknowledged by a packet of its own.
const MESSAGES: &[(&str, f64)] = &[
    ("message-packed", 350.0),
    ("message-packed-single", 715.0),
    ("message-alone", 2000.0),
    ("message-many-peers", 2400.0),
    ("message-few-peers", 2400.0),
];

/// A message to one of 10,000 peers against one to one of 10: connections that rest may cost no more than
/// this multiple. In the time of the loops, answers are acknowledged by packets of their own in both.
const PEERS: LoopComparison =
    LoopComparison { judged: "message-many-peers", control: "message-few-peers", ratio_max: 1.2 };

/// Calls of the sockets, and how many instructions one may cost from taking its buffer until that is free
/// again: a datagram, four short ones that are flushed together, 44 that the kernel cuts, and a TCP write of
/// 64 KiB.
const SOCKETS: &[(&str, f64)] = &[
    ("datagram-alone", 385.0),
    ("datagram-group", 2950.0),
    ("datagram-burst", 450.0),
    ("tcp-write", 1210.0),
];

/// Calls that the library of `nocopy run --batch-udp` leaves alone, and how many instructions more they may
/// cost with it. A plain `sendto` takes about 1 us, thousands of instructions, nearly all of them in the
/// kernel, where they cannot be counted here.
const LEFT_ALONE: &[(&str, f64)] =
    &[("send-alone", 40.0), ("write-file", 22.0), ("receive-nothing", 8.0), ("open-close", 166.0)];

const PRELOADED: &str = "libnocopy_sockets.so";

pub(crate) fn check_instruction_counts() -> Outcome {
    machine::install_valgrind().then(|| count_and_compare().into())
}

fn count_and_compare() -> Result<(), Failed> {
    let what = ["build", "--profile", PROFILE, "--package", "nocopy-loops", "--package", "nocopy-sockets"];
    CommandStep::cargo("build the loops", &what).run()?;
    let rings = ROWS.iter().flat_map(|row| [row.judged, row.control]).chain(SHOWN.iter().copied());
    let messages = MESSAGES.iter().map(|&(name, _)| name).chain(MESSAGES_SHOWN.iter().copied());
    let loops = rings.map(|name| ("ring_loop", name)).chain(messages.map(|name| ("message_loop", name)));
    let loops = loops.chain(SOCKETS.iter().map(|&(name, _)| ("socket_loop", name)));
    let counts = count_loop_instructions(&loops.collect::<Vec<_>>(), None)?;
    let mut slow = print_and_list_exceeded(&counts);
    slow.extend(compare_unhandled_calls()?);
    if slow.is_empty() {
        Ok(())
    } else {
        Err(Failed(format!("more instructions than allowed: {}", slow.join(", "))))
    }
}

/// Prints the counts; returns the loops that exceed their limit.
fn print_and_list_exceeded(counts: &HashMap<&str, f64>) -> Vec<&'static str> {
    let mut slow = Vec::new();
    println!("{:<20} {:>20}", "loop", "instructions/packet");
    for row in ROWS {
        let (library, by_hand) = (counts[row.judged], counts[row.control]);
        let ratio = library / by_hand;
        println!("{:<20} {library:>20.1}", row.judged);
        println!(
            "{:<20} {by_hand:>20.1}   library = {ratio:.3} x this, at most {:.2}",
            row.control, row.ratio_max
        );
        if ratio > row.ratio_max {
            slow.push(row.judged);
        }
    }
    for name in SHOWN {
        println!("{name:<20} {:>20.1}", counts[name]);
    }
    for (limits, heading) in [(SOCKETS, "instructions/call"), (MESSAGES, "instructions/message")] {
        println!("{:<20} {heading:>20}", "loop");
        for &(name, most) in limits {
            let instructions = counts[name];
            println!("{name:<24} {instructions:>16.1}   at most {most:.0}");
            if instructions > most {
                slow.push(name);
            }
        }
    }
    let ratio = counts[PEERS.judged] / counts[PEERS.control];
    println!("10,000 peers cost {ratio:.3} x what 10 do, at most {:.2}", PEERS.ratio_max);
    if ratio > PEERS.ratio_max {
        slow.push("10,000 peers against 10");
    }
    for name in MESSAGES_SHOWN {
        println!("{name:<24} {:>16.1}", counts[name]);
    }
    slow
}

/// Prints the cost of calls that the library does not handle; returns those that exceed their limit.
fn compare_unhandled_calls() -> Result<Vec<&'static str>, Failed> {
    let loops: Vec<_> = LEFT_ALONE.iter().map(|&(name, _)| ("call_loop", name)).collect();
    let library = suite::preloadable(&suite::built_program(PROFILE, PRELOADED))?;
    let (plain, preloaded) =
        (count_loop_instructions(&loops, None)?, count_loop_instructions(&loops, Some(&library))?);
    let mut slow = Vec::new();
    println!("{:<20} {:>20}", "call left alone", "instructions/call");
    for &(name, most) in LEFT_ALONE {
        let (without, more) = (plain[name], preloaded[name] - plain[name]);
        println!("{name:<20} {without:>20.1}   + {more:.1} with {PRELOADED}, at most {most:.0}");
        if more > most {
            slow.push(name);
        }
    }
    Ok(slow)
}

/// Instructions per packet inside the functions that each loop names `measured_*`; counted side by side,
/// since what else runs does not change them.
fn count_loop_instructions<'a>(
    loops: &[(&str, &'a str)],
    preloaded: Option<&Path>,
) -> Result<HashMap<&'a str, f64>, Failed> {
    let of_loop = |&(program, name)| BATCHES.map(|batches| (program, name, batches));
    let runs: Vec<(&str, &str, u32)> = loops.iter().flat_map(of_loop).collect();
    let counts = map_in_parallel(processor_count(), &runs, |&(program, name, batches)| {
        count_with_callgrind(&suite::built_program(PROFILE, program), name, batches, preloaded)
    });
    let counts = counts.into_iter().collect::<Result<Vec<f64>, Failed>>()?;
    let packets = f64::from((BATCHES[1] - BATCHES[0]) * BATCH_PACKETS);
    let per_packet =
        |(&(_, name), counts): (&(&str, &'a str), &[f64])| (name, (counts[1] - counts[0]) / packets);
    Ok(loops.iter().zip(counts.chunks_exact(BATCHES.len())).map(per_packet).collect())
}

fn count_with_callgrind(
    program: &Path,
    name: &str,
    batches: u32,
    preloaded: Option<&Path>,
) -> Result<f64, Failed> {
    let failed = |error: &str| Failed(format!("valgrind {name}: {error}"));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    valgrind.arg("--toggle-collect=*measured_*");
    if name.starts_with("send-library") {
        // Called inside the measured function, but not counted: the memory port's stand-in for the kernel.
        valgrind.arg("--toggle-collect=*MemoryBackend*transmit*");
    }
    if let Some(library) = preloaded {
        valgrind.env("LD_PRELOAD", library);
    }
    let output = valgrind
        .arg(program)
        .args([name, &batches.to_string()])
        .output()
        .map_err(|error| failed(&error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("Collected :"));
    let figure = line.and_then(|line| line.rsplit(' ').next()).and_then(|figure| figure.parse().ok());
    figure.filter(|_| output.status.success()).ok_or_else(|| failed(&text))
}
