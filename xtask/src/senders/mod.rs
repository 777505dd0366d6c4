//! The nightly suite `senders`: in which runs real programs send their datagrams. It writes
//! docs/senders.jsonl and the table of docs/run.md.
//!
//! Each program runs at one end of a veth pair between two network namespaces, with a load that ends by
//! itself, and with a library that notes its datagrams (`watch.c`). Tracing each call by ptrace would make
//! the gaps longer than those that are to be measured.

mod left_alone;
mod programs;
mod runs;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use nocopy_lab::Lab;

use crate::gate::Outcome;
use crate::machine;
use crate::packages::UnpackedPackages;
use crate::started::{RunningProgram, wait_for_port};
use crate::step::{CommandStep, Failed, repository_root};
use crate::suite;
pub(crate) use left_alone::measure_cost_of_unhandled_calls;
use programs::{LinkEnd, SenderProgram};
use runs::SendRecord;
use table::SenderRow;

/// The directory for all generated files, below the repository's.
const DIRECTORY: &str = "target/senders";

pub(crate) const RESULTS: &str = "docs/senders.jsonl";
pub(crate) const DOCUMENT: &str = "docs/run.md";

/// The least number of datagrams of a process in the table.
const DATAGRAMS_MIN: u64 = 50;

pub(crate) fn measure_senders() -> Outcome {
    if !machine::has_apt() {
        return Outcome::unavailable("senders", "apt-get, for the programs that are measured");
    }
    fetch_packages_and_build_watch().map_or_else(Outcome::from, |bench| bench.measure_all_programs())
}

/// Everything that programs need to run.
struct SenderBench {
    unpacked: UnpackedPackages,
    watch: PathBuf,
}

fn fetch_packages_and_build_watch() -> Result<SenderBench, Failed> {
    let packages = programs::ALL.iter().map(|program| program.package);
    let packages = packages.chain(programs::FURTHER_PACKAGES.iter().copied());
    let unpacked = UnpackedPackages::fetch("senders", packages)?;
    let watch = repository_root().join(DIRECTORY).join("libwatch.so");
    let path = watch.display().to_string();
    let options = ["-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", &path];
    let source = ["xtask/src/senders/watch.c"];
    CommandStep::new("compile the library that watches", "cc", &[&options[..], &source[..]].concat())
        .run()?;
    Ok(SenderBench { unpacked, watch })
}

impl SenderBench {
    fn measure_all_programs(&self) -> Outcome {
        let mut rows = Vec::new();
        let mut outcome = Outcome::default();
        for program in programs::ALL {
            eprintln!("xtask: {}", program.name);
            outcome = outcome.merged_with(match self.measure_program(program) {
                Ok(mut found) => {
                    rows.append(&mut found);
                    Outcome::passed()
                }
                Err(Failed(text)) => Outcome::failed(program.name, text),
            });
        }
        outcome.checked_if_good(|| table::write_results(&rows))
    }

    fn measure_program(&self, program: &SenderProgram) -> Result<Vec<SenderRow>, Failed> {
        let working = WorkingDirectory::make(program)?;
        let (watch, events) = (suite::preloadable(&self.watch)?, &working.events);
        let variables = [("LD_PRELOAD", &watch), ("NOCOPY_WATCH", events)];
        let variables = variables.map(|(name, path)| (name, path.display().to_string()));
        working.run_program(&self.unpacked, program, &[], &variables)?;
        self.table_rows(program, working.sent_by_processes()?)
    }

    fn table_rows(&self, program: &SenderProgram, sent: Vec<SendRecord>) -> Result<Vec<SenderRow>, Failed> {
        let version = self.unpacked.package_version(program.package)?;
        let rows: Vec<SenderRow> = sent
            .into_iter()
            .filter(|sent| sent.datagrams >= DATAGRAMS_MIN)
            .map(|sent| SenderRow {
                program: program.name,
                package: program.package,
                version: version.clone(),
                sent,
            })
            .collect();
        match rows.is_empty() {
            true => Err(Failed(format!("{}: sent fewer than {DATAGRAMS_MIN} datagrams", program.name))),
            false => Ok(rows),
        }
    }
}

/// The working directory of a program, and the directory of records of what it sent.
struct WorkingDirectory {
    directory: PathBuf,
    events: PathBuf,
}

impl WorkingDirectory {
    fn make(program: &SenderProgram) -> Result<Self, Failed> {
        let name = program.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let directory = repository_root().join(DIRECTORY).join("run").join(name);
        let events = directory.join("events");
        let failed = |error: std::io::Error| Failed(format!("{}: {error}", directory.display()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&events).map_err(failed)?;
        let queries = include_str!("queries.py");
        fs::write(directory.join("queries.py"), queries).map_err(failed)?;
        Ok(Self { directory, events })
    }

    /// Runs a program with its load to its end, in a network of its own. `variables` are for all, `of_sender`
    /// for what is measured alone.
    fn run_program(
        &self,
        unpacked: &UnpackedPackages,
        program: &SenderProgram,
        variables: &[(&'static str, String)],
        of_sender: &[(&'static str, String)],
    ) -> Result<(), Failed> {
        let lab = Lab::new().map_err(|error| Failed(error.to_string()))?;
        let (left, right) = (lab.left().ipv4().to_string(), lab.right().ipv4().to_string());
        let library = unpacked.library_directory().display().to_string();
        let mut all = unpacked.environment_variables();
        all.extend([("left", left), ("right", right), ("lib", library)]);
        all.extend_from_slice(variables);
        let start = |end, line, of_it: &[(&'static str, String)]| {
            let namespace =
                if end == LinkEnd::Left { lab.left().namespace() } else { lab.right().namespace() };
            RunningProgram::start(namespace, &self.directory, &[&all, of_it].concat(), line)
        };
        start(LinkEnd::Left, program.before, &[])?.wait_for_success()?;
        let receiver = match program.receiver {
            "" => None,
            line => Some(start(LinkEnd::Right, line, &[])?),
        };
        if let (Some(port), Some(receiver)) = (program.ports[0], &receiver) {
            wait_for_port(lab.right().namespace(), port, receiver)?;
        }
        let mut sender = start(LinkEnd::Left, program.sender, of_sender)?;
        match program.load {
            None => sender.wait_for_success()?,
            Some((end, load)) => {
                if let Some(port) = program.ports[1].filter(|port| *port > 0) {
                    wait_for_port(lab.left().namespace(), port, &sender)?;
                }
                start(end, load, &[])?.wait_for_success()?;
                sender.stop();
            }
        }
        Ok(())
    }

    /// What each process sent, the process that sent most first.
    fn sent_by_processes(&self) -> Result<Vec<SendRecord>, Failed> {
        let failed = |path: &Path| Failed(format!("{}: not a whole file of watch.c", path.display()));
        let read = |entry: std::io::Result<fs::DirEntry>| {
            let path = entry.map_err(|_| failed(&self.events))?.path();
            fs::read(&path).ok().and_then(|bytes| SendRecord::parse(&bytes)).ok_or_else(|| failed(&path))
        };
        let entries = fs::read_dir(&self.events).map_err(|_| failed(&self.events))?;
        let mut all = entries.map(read).collect::<Result<Vec<SendRecord>, _>>()?;
        all.sort_by_key(|sent| std::cmp::Reverse(sent.datagrams));
        let _ = fs::remove_dir_all(&self.events); // 9 MB a process, if all is noted
        Ok(all)
    }
}
