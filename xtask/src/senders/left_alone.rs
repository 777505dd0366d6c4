//! The nightly suite `left-alone`: what the library of `nocopy run --batch-udp` costs programs whose
//! datagrams it leaves alone, in instructions.
//!
//! Callgrind counts the instructions that a program executes in user space, and how many of them lie in the
//! library: exactly those that the program would not execute without it. Each program is counted with two
//! loads, and the difference leaves out its start.
//!
//! What the kernel executes cannot be counted here. It is the same with the library and without, and far more
//! than what is counted: so the share of all instructions is smaller than the one in the table.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use super::programs::{FFMPEG_RAW, REDIS, SenderProgram, UNBOUND};
use super::{DOCUMENT, WorkingDirectory};
use crate::gate::Outcome;
use crate::instructions::PROFILE;
use crate::machine;
use crate::others::{create_socket_counters_file, read_socket_counters};
use crate::packages::UnpackedPackages;
use crate::step::{CommandStep, Failed};
use crate::suite;
use crate::tables::write_table;

const NAME: &str = "left-alone";

const LIBRARY: &str = "libnocopy_sockets.so";

/// The largest cost of the library, as a share of the program's own instructions.
const MORE_MAX: f64 = 0.02;

struct MeasuredProgram {
    program: &'static SenderProgram,
    unit: &'static str,
    loads: [u32; 2],
    /// Whether each unit of the load is one request; otherwise the library has counted the datagrams.
    is_of_requests: bool,
}

const GUESTS: &[MeasuredProgram] = &[
    MeasuredProgram { program: &UNBOUND, unit: "answer", loads: [6400, 19_200], is_of_requests: false },
    MeasuredProgram { program: &FFMPEG_RAW, unit: "datagram", loads: [2, 10], is_of_requests: false },
    MeasuredProgram { program: &REDIS, unit: "answer", loads: [20_000, 60_000], is_of_requests: true },
];

/// Packages that are unpacked beside those of the programs.
const FURTHER_PACKAGES: &[&str] =
    &["redis-server", "python3.11-minimal", "libpython3.11-stdlib", "libpython3.11-minimal", "socat"];

pub(crate) fn measure_cost_of_unhandled_calls() -> Outcome {
    if !machine::has_apt() {
        return Outcome::unavailable(NAME, "apt-get, for the programs that are measured");
    }
    machine::install_valgrind().then(|| {
        build_and_fetch_packages().map_or_else(Outcome::from, |unpacked| measure_all_programs(&unpacked))
    })
}

fn build_and_fetch_packages() -> Result<UnpackedPackages, Failed> {
    let build = ["build", "--profile", PROFILE, "--package", "nocopy-sockets"];
    CommandStep::cargo("build the library that joins datagrams", &build).run()?;
    let programs = GUESTS.iter().map(|guest| guest.program.package);
    UnpackedPackages::fetch(NAME, programs.chain(FURTHER_PACKAGES.iter().copied()))
}

fn measure_all_programs(unpacked: &UnpackedPackages) -> Outcome {
    let mut outcome = Outcome::default();
    let mut table =
        "| program | for each | instructions in user space | in the library |\n|---|---|---|---|\n"
            .to_owned();
    for guest in GUESTS {
        eprintln!("xtask: {}", guest.program.name);
        outcome = outcome.merged_with(match cost_per_unit(unpacked, guest) {
            Ok(cost) => {
                eprint!("{}", cost.table_row(guest));
                table += &cost.table_row(guest);
                cost.judge(guest)
            }
            Err(Failed(text)) => Outcome::failed(guest.program.name, text),
        });
    }
    outcome.checked_if_good(|| write_table(DOCUMENT, "nightly left-alone", &table))
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct InstructionCost {
    /// Without those in the library.
    instructions: f64,
    in_library: f64,
}

impl InstructionCost {
    fn library_share(self) -> f64 {
        self.in_library / self.instructions
    }

    fn table_row(self, guest: &MeasuredProgram) -> String {
        let MeasuredProgram { program, unit, .. } = guest;
        let percent = 100.0 * self.library_share();
        let (all, more) = (self.instructions, self.in_library);
        format!("| {} | {unit} | {all:.0} | {more:.0} ({percent:.2} %) |\n", program.name)
    }

    fn judge(self, guest: &MeasuredProgram) -> Outcome {
        if self.library_share() <= MORE_MAX {
            return Outcome::passed();
        }
        let most = 100.0 * MORE_MAX;
        Outcome::failed(guest.program.name, format!("more than {most} %: {}", self.table_row(guest)))
    }
}

fn cost_per_unit(unpacked: &UnpackedPackages, guest: &MeasuredProgram) -> Result<InstructionCost, Failed> {
    let [few, many] = [
        count_instructions(unpacked, guest, guest.loads[0])?,
        count_instructions(unpacked, guest, guest.loads[1])?,
    ];
    let units = (many.units - few.units) as f64;
    let per_unit = |of: fn(&CountedRun) -> u64| (of(&many) as f64 - of(&few) as f64) / units;
    let in_library = per_unit(|counted| counted.instructions.in_library);
    Ok(InstructionCost {
        instructions: per_unit(|counted| counted.instructions.all) - in_library,
        in_library,
    })
}

struct CountedRun {
    units: u64,
    instructions: InstructionCounts,
}

fn count_instructions(
    unpacked: &UnpackedPackages,
    guest: &MeasuredProgram,
    load: u32,
) -> Result<CountedRun, Failed> {
    let MeasuredProgram { program, .. } = guest;
    let failed = |what: &str| Failed(format!("{}: {what}", program.name));
    let working = WorkingDirectory::make(program)?;
    let report = create_socket_counters_file().map_err(|error| failed(&error.to_string()))?;
    let inode = report.metadata().map_err(|error| failed(&error.to_string()))?.ino();
    let found = working.directory.join("callgrind");
    let under = format!("valgrind --quiet --tool=callgrind --callgrind-out-file={}", found.display());
    let library = suite::preloadable(&suite::built_program(PROFILE, LIBRARY))?.display().to_string();
    let report_at = format!("{}:{inode}", report.as_raw_fd());
    let for_all = [("count", load.to_string())];
    let of_sender = [("under", under), ("LD_PRELOAD", library), ("NOCOPY_BATCH_REPORT", report_at)];
    working.run_program(unpacked, program, &for_all, &of_sender)?;
    let said = read_socket_counters(&report);
    let joined: u64 = said.sockets.iter().map(|socket| socket.joined).sum();
    let alone: u64 = said.sockets.iter().flat_map(|socket| &socket.plain).map(|(_, count)| count).sum();
    if said.programs == 0 || joined > 0 {
        return Err(failed(&format!(
            "{} programs with the library, {joined} datagrams joined",
            said.programs
        )));
    }
    let units = if guest.is_of_requests { load.into() } else { alone };
    let text = fs::read_to_string(&found).map_err(|error| failed(&format!("callgrind: {error}")))?;
    let instructions = InstructionCounts::parse_callgrind(&text)
        .ok_or_else(|| failed("callgrind wrote another kind of file"))?;
    Ok(CountedRun { units, instructions })
}

/// Instructions of a whole program, and those of them in the library.
#[derive(Debug, Default, PartialEq, Eq)]
struct InstructionCounts {
    all: u64,
    in_library: u64,
}

impl InstructionCounts {
    /// Adds up a file of callgrind: lines `ob=(2) /lib/x.so` and later `ob=(2)` say which object the costs
    /// after them are of; a cost is the second number of a line; the line after one that begins with `calls=`
    /// is of the function that is called, which is counted by itself.
    fn parse_callgrind(text: &str) -> Option<Self> {
        let mut found = Self::default();
        let (mut is_library, mut ours) = (false, None);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some((key, object)) = line.split_once("ob=").filter(|(key, _)| ["", "c"].contains(key)) {
                let (number, name) = object.split_once(' ').unwrap_or((object, ""));
                if name.ends_with(LIBRARY) {
                    ours = Some(number);
                }
                if key.is_empty() {
                    is_library = ours == Some(number);
                }
            } else if line.starts_with("calls=") {
                lines.next()?;
            } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
                let cost: u64 = line.split(' ').nth(1)?.parse().ok()?;
                found.all += cost;
                found.in_library += if is_library { cost } else { 0 };
            }
        }
        (found.all > 0).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "version: 1\nevents: Ir\n\nob=(1) /usr/sbin/unbound\nfl=(1) a.c\nfn=(1) main\n16 100\ncob=(2) /x/libnocopy_sockets.so\n\
        cfn=(2) sendto\ncalls=3 0\n+2 4000\n* 7\n\nob=(2)\nfn=(2)\n0 20\ncob=(3) /lib/libc.so.6\ncfn=(3)\ncalls=3 0\n0 3900\n-1 5\n\n\
        ob=(3)\nfn=(3)\n0 3900\n\ntotals: 4032\n";

    #[test]
    fn instructions_of_the_library_are_separated() {
        assert_eq!(
            InstructionCounts::parse_callgrind(FILE),
            Some(InstructionCounts { all: 4032, in_library: 25 })
        );
        assert_eq!(InstructionCounts::parse_callgrind("nothing\n"), None);
    }

    #[test]
    fn a_library_share_of_two_percent_is_allowed() {
        let guest = &GUESTS[0];
        let cost = |in_library| InstructionCost { instructions: 1000.0, in_library };
        assert!(cost(20.0).judge(guest).is_good() && !cost(21.0).judge(guest).is_good());
        assert_eq!(cost(5.0).table_row(guest), "| unbound, local data | answer | 1000 | 5 (0.50 %) |\n");
    }
}
