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

use frames::FrameSender;
use output::ProgramOutput;
use program::RunningProgram;
use rustix::process::Signal;
use scratch::ScratchDirectory;

/// The libpcap that a program uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LibraryKind {
    System,
    Ours,
    /// This library, which takes packets from the host.
    Take,
}

/// The command, and when it is asked to end.
#[derive(Debug, Clone)]
pub(crate) struct ProgramCase {
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

impl ProgramCase {
    pub(crate) fn new(name: &'static str, line: &str, ready: &'static str, end: EndCondition) -> Self {
        Self { name, words: split_words(line), ready, end, user: None }
    }

    /// tcpdump that ends by itself, before it captures anything.
    pub(crate) fn tcpdump_ending_itself(name: &'static str, line: &str) -> Self {
        Self::new(name, &format!("tcpdump {line}"), "", EndCondition::Itself)
    }

    /// tcpdump, which reports when it captures.
    pub(crate) fn capturing_tcpdump(name: &'static str, line: &str, end: EndCondition) -> Self {
        Self::new(name, &format!("tcpdump {line}"), "listening on", end)
    }
}

/// Words separated by spaces; text in single quotes is one word.
pub(crate) fn split_words(line: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    let words = parts.flat_map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().map(String::from).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

pub(crate) struct ComparisonFixture {
    pub(crate) lab: Lab,
    pub(crate) scratch: ScratchDirectory,
}

pub(crate) struct ProgramPair {
    case: ProgramCase,
    system: RunningProgram,
    ours: RunningProgram,
}

/// Returns `None` after printing what is missing.
pub(crate) fn fixture_or_skip(name: &str, programs: &[&'static str]) -> Option<ComparisonFixture> {
    if let Some(missing) = programs.iter().find(|program| !program::is_on_path(program)) {
        skip(&Missing::Device(missing));
        return None;
    }
    let lab = lab_or_skip()?;
    Some(ComparisonFixture { lab, scratch: ScratchDirectory::new(name) })
}

impl ComparisonFixture {
    /// Starts them all on the right end, and waits until they capture.
    pub(crate) fn start_pairs(&self, cases: Vec<ProgramCase>) -> Vec<ProgramPair> {
        let pairs: Vec<ProgramPair> = cases
            .into_iter()
            .map(|case| {
                let [system, ours] = [LibraryKind::System, LibraryKind::Ours]
                    .map(|library| self.start_program(&case, library));
                ProgramPair { case, system, ours }
            })
            .collect();
        for pair in &pairs {
            pair.system.wait_for_output(pair.case.ready);
            pair.ours.wait_for_output(pair.case.ready);
        }
        pairs
    }

    pub(crate) fn start_program(&self, case: &ProgramCase, library: LibraryKind) -> RunningProgram {
        let name = format!("{}-{library:?}", case.name).to_lowercase();
        RunningProgram::start(
            self.lab.right(),
            self.scratch.create_subdirectory(&name),
            self.scratch.copy_of_library(),
            library,
            case,
        )
    }

    /// Runs it with one library and then with the other, each time on what `send` sends, and compares: for a
    /// library that leaves nothing to the other one. Gives the output of the second.
    pub(crate) fn compare_in_turn(
        &self,
        case: &ProgramCase,
        libraries: [LibraryKind; 2],
        send: impl Fn(),
    ) -> ProgramOutput {
        let [system, ours] = libraries.map(|library| {
            let program = self.start_program(case, library);
            program.wait_for_output(case.ready);
            send();
            if let EndCondition::Shown(count) | EndCondition::Interrupted(count) = case.end {
                program.wait_for_last_frames(count);
            }
            program.end_and_read_output(case.end)
        });
        assert_same_output(case.name, &system, &ours);
        ours
    }

    pub(crate) fn frame_senders(&self) -> [FrameSender; 2] {
        [self.lab.left(), self.lab.right()].map(FrameSender::open)
    }
}

impl ProgramPair {
    pub(crate) fn case_name(&self) -> &'static str {
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
            program.send_signal(Signal::USR1);
            program.wait_for_output("packets captured, ");
        }
    }

    /// Waits until both programs have seen everything, ends them, and compares all that they printed and
    /// wrote; returns the output of the one with this library.
    pub(crate) fn end_and_compare(self) -> ProgramOutput {
        let Self { case, system, ours } = self;
        // Wait for both before one of them ends, so that late packets reach both.
        if let EndCondition::Shown(count) | EndCondition::Interrupted(count) = case.end {
            system.wait_for_last_frames(count);
            ours.wait_for_last_frames(count);
        }
        let [system, ours] = [system, ours].map(|program| program.end_and_read_output(case.end));
        assert_same_output(case.name, &system, &ours);
        ours
    }
}

/// What two runs of one program printed and wrote.
pub(crate) fn assert_same_output(name: &str, system: &ProgramOutput, ours: &ProgramOutput) {
    assert_eq!((system.code, system.signal), (ours.code, ours.signal), "{name}: {system}\n{ours}");
    let files = |output: &ProgramOutput| output.files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(files(system), files(ours), "{name}: {system}\n{ours}");
    for (file, theirs) in &system.files {
        let difference = theirs.first_difference(&ours.files[file]);
        assert!(difference.is_none(), "{name}: {file}: {}\n{system}\n{ours}", difference.unwrap());
    }
}
