//! libuv's own tests, which are part of its sources in a crate.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::{ForeignTests, LibraryMode, PartResult, Verdicts, run_in_namespace};
use crate::step::{CommandStep, Failed, repository_root};

/// The crate that holds the sources, as a package that needs nothing else.
const MANIFEST: &str = "[package]
name = \"sources\"
edition = \"2021\"
[lib]
path = \"lib.rs\"
[dependencies]
libuv-sys2 = \"=1.53.1\"
[workspace]
";

const PLACE: &str = "target/libuv";

/// Tests whose names begin so have to do with datagrams, descriptors, processes and waits.
const KINDS: [&str; 4] = ["udp_", "tcp_", "fork_", "poll_"];

#[derive(Debug)]
pub(super) struct LibuvTests {
    program: PathBuf,
    directory: PathBuf,
    tests: Vec<String>,
}

pub(super) fn build_libuv_tests() -> Result<LibuvTests, Failed> {
    let directory = repository_root().join(PLACE);
    let failed = |error: std::io::Error| Failed(format!("{PLACE}: {error}"));
    fs::create_dir_all(&directory).map_err(failed)?;
    fs::write(directory.join("Cargo.toml"), MANIFEST).map_err(failed)?;
    fs::write(directory.join("lib.rs"), "").map_err(failed)?;
    let sources = registry_source_directory(&directory)?;
    let (from, to) = (sources.display().to_string(), directory.join("build").display().to_string());
    let configure = ["-S", &from, "-B", &to, "-DCMAKE_BUILD_TYPE=Debug", "-DBUILD_TESTING=ON"];
    CommandStep::new("configure libuv", "cmake", &configure).captured_output()?;
    let build = ["--build", &to, "--target", "uv_run_tests", "--parallel", "2"];
    CommandStep::new("build libuv's tests", "cmake", &build).captured_output()?;
    let program = directory.join("build/uv_run_tests");
    let list = CommandStep::new("tests of libuv", &program.display().to_string(), &["--list"])
        .with_variable(AS_ROOT, "1");
    let names = list.captured_output()?;
    let is_wanted = |name: &&str| KINDS.iter().any(|kind| name.starts_with(kind));
    let tests = names.lines().map(str::trim).filter(is_wanted).map(str::to_owned).collect();
    Ok(LibuvTests { program, directory, tests })
}

/// Its tests run as root only if this is set.
const AS_ROOT: &str = "UV_RUN_AS_ROOT";

/// The directory of the sources in cargo's registry.
fn registry_source_directory(directory: &Path) -> Result<PathBuf, Failed> {
    #[derive(Deserialize)]
    struct CargoMetadata {
        packages: Vec<CargoPackage>,
    }
    #[derive(Deserialize)]
    struct CargoPackage {
        name: String,
        manifest_path: PathBuf,
    }
    let manifest = directory.join("Cargo.toml").display().to_string();
    let what = ["metadata", "--format-version", "1", "--manifest-path", &manifest];
    let metadata = CommandStep::cargo("sources of libuv", &what).captured_output()?;
    let metadata: CargoMetadata =
        serde_json::from_str(&metadata).map_err(|error| Failed(format!("cargo: {error}")))?;
    let package = metadata.packages.into_iter().find(|package| package.name == "libuv-sys2");
    let package = package.ok_or_else(|| Failed("cargo: has not found the sources of libuv".into()))?;
    Ok(package.manifest_path.with_file_name("libuv"))
}

impl ForeignTests for LibuvTests {
    fn part_names(&self) -> Vec<String> {
        self.tests.clone()
    }

    fn run(&self, name: &str, mode: LibraryMode) -> Result<PartResult, Failed> {
        let output_path = self.directory.join("build").join(format!("said-{name}"));
        let mut command = Command::new(&self.program);
        command.arg(name).current_dir(self.directory.join("build")).env(AS_ROOT, "1");
        let test_run = run_in_namespace(command, mode, &output_path)?;
        let printed = fs::read_to_string(&output_path).unwrap_or_default();
        let is_skipped = printed.contains("# SKIP");
        let verdict = match test_run.status {
            Some(status) if status.success() && is_skipped => "skipped".to_owned(),
            Some(status) if status.success() => "passed".to_owned(),
            Some(status) => status.to_string(),
            None => "it did not end".to_owned(),
        };
        Ok(PartResult { verdicts: Verdicts::from([(name.to_owned(), verdict)]), joined: test_run.joined })
    }
}
