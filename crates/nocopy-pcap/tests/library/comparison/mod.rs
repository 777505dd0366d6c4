//! Debian's own programs, run twice at once on the same traffic: with the system's libpcap, and with ours
//! preloaded.
//!
//! ```text
//!   left: raw sockets ── nc0 ═══ nc1 ──┬─▶ program, the system's libpcap ─▶ directory "system": stdout, stderr, what it wrote
//!                                      └─▶ the same, ours preloaded ──────▶ directory "ours"
//! ```

pub(crate) mod frames;
pub(crate) mod output;
pub(crate) mod program;
pub(crate) mod scratch;

use nocopy_lab::{Lab, Missing, lab_or_skip, skip};

use frames::Wire;
use output::ProgramOutput;
use program::Program;
use rustix::process::Signal;
use scratch::Scratch;

/// The libpcap that a program uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    System,
    Ours,
    /// This library, which takes packets from the host.
    Take,
}

/// The command, and when it is asked to end.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// The name of the case's directories.
    pub(crate) name: &'static str,
    pub(crate) words: Vec<String>,
    /// What the program prints once it captures.
    pub(crate) ready: &'static str,
    pub(crate) end: EndCondition,
    /// The user, if not the one who runs the test.
    pub(crate) user: Option<u32>,
}

/// When a program has seen everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndCondition {
    /// It is asked to end after it has shown this many of the two last frames.
    Shown(usize),
    /// As `Shown`, but Ctrl-C ends it.
    Interrupted(usize),
    Itself,
    /// The program ends by itself after a number of packets; how many more it had received by then depends on
    /// timing.
    Enough,
}

impl Case {
    pub(crate) fn new(name: &'static str, line: &str, ready: &'static str, end: EndCondition) -> Self {
        Self { name, words: words(line), ready, end, user: None }
    }

    /// tcpdump that ends by itself, before it captures anything.
    pub(crate) fn refused(name: &'static str, line: &str) -> Self {
        Self::new(name, &format!("tcpdump {line}"), "", EndCondition::Itself)
    }

    /// tcpdump, which reports when it captures.
    pub(crate) fn tcpdump(name: &'static str, line: &str, end: EndCondition) -> Self {
        Self::new(name, &format!("tcpdump {line}"), "listening on", end)
    }
}

/// Words separated by spaces; text in single quotes is one word.
pub(crate) fn words(line: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    let words = parts.flat_map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().map(String::from).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

pub(crate) struct Fixture {
    pub(crate) lab: Lab,
    pub(crate) scratch: Scratch,
}

pub(crate) struct Pair {
    case: Case,
    system: Program,
    ours: Program,
}

/// Returns `None` after printing what is missing.
pub(crate) fn fixture(name: &str, programs: &[&'static str]) -> Option<Fixture> {
    if let Some(missing) = programs.iter().find(|program| !program::is_there(program)) {
        skip(&Missing::Device(missing));
        return None;
    }
    let lab = lab_or_skip()?;
    Some(Fixture { lab, scratch: Scratch::new(name) })
}

impl Fixture {
    /// Starts them all on the right end, and waits until they capture.
    pub(crate) fn start(&self, cases: Vec<Case>) -> Vec<Pair> {
        let pairs: Vec<Pair> = cases
            .into_iter()
            .map(|case| {
                let [system, ours] = [Library::System, Library::Ours].map(|library| self.run(&case, library));
                Pair { case, system, ours }
            })
            .collect();
        for pair in &pairs {
            pair.system.wait_for(pair.case.ready);
            pair.ours.wait_for(pair.case.ready);
        }
        pairs
    }

    pub(crate) fn run(&self, case: &Case, library: Library) -> Program {
        let name = format!("{}-{library:?}", case.name).to_lowercase();
        Program::start(self.lab.right(), self.scratch.directory(&name), self.scratch.library(), library, case)
    }

    /// Runs it with one library and then with the other, each time on what `send` sends, and compares: for a
    /// library that leaves nothing to the other one. Gives the output of the second.
    pub(crate) fn compare_in_turn(
        &self,
        case: &Case,
        libraries: [Library; 2],
        send: impl Fn(),
    ) -> ProgramOutput {
        let [system, ours] = libraries.map(|library| {
            let program = self.run(case, library);
            program.wait_for(case.ready);
            send();
            if let EndCondition::Shown(count) | EndCondition::Interrupted(count) = case.end {
                program.wait_for_last_frames(count);
            }
            program.end(case.end)
        });
        compare(case.name, &system, &ours);
        ours
    }

    pub(crate) fn wires(&self) -> [Wire; 2] {
        [self.lab.left(), self.lab.right()].map(Wire::open)
    }
}

impl Pair {
    pub(crate) fn name(&self) -> &'static str {
        self.case.name
    }

    /// Waits until both have shown this many of the last frames.
    pub(crate) fn wait_for_last_frames(&self, count: usize) {
        for program in [&self.system, &self.ours] {
            program.wait_for_last_frames(count);
        }
    }

    /// Asks both for their counts, as tcpdump gives them while it runs.
    pub(crate) fn ask_for_counts(&self) {
        for program in [&self.system, &self.ours] {
            program.signal(Signal::USR1);
            program.wait_for("packets captured, ");
        }
    }

    /// Waits until both programs have seen everything, ends them, and compares all that they printed and
    /// wrote; returns the output of the one with this library.
    pub(crate) fn compare(self) -> ProgramOutput {
        let Self { case, system, ours } = self;
        // Wait for both before one of them ends, so that late packets reach both.
        if let EndCondition::Shown(count) | EndCondition::Interrupted(count) = case.end {
            system.wait_for_last_frames(count);
            ours.wait_for_last_frames(count);
        }
        let [system, ours] = [system, ours].map(|program| program.end(case.end));
        compare(case.name, &system, &ours);
        ours
    }
}

/// What two runs of one program printed and wrote.
pub(crate) fn compare(name: &str, system: &ProgramOutput, ours: &ProgramOutput) {
    assert_eq!((system.code, system.signal), (ours.code, ours.signal), "{name}: {system}\n{ours}");
    let files = |output: &ProgramOutput| output.files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(files(system), files(ours), "{name}: {system}\n{ours}");
    for (file, theirs) in &system.files {
        let difference = theirs.difference(&ours.files[file]);
        assert!(difference.is_none(), "{name}: {file}: {}\n{system}\n{ours}", difference.unwrap());
    }
}
