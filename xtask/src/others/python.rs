//! Debian's package of Python's own tests.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::test_run::last_output_lines;
use super::{ForeignTests, LibraryMode, PartResult, Verdicts, run_in_namespace};
use crate::packages::UnpackedPackages;
use crate::step::{Failed, repository_root};

/// Test modules about descriptors, processes and waits; the long ones first.
const MODULES: &[&str] = &[
    "test_asyncio.test_events",
    "test_asyncio.test_subprocess",
    "test_asyncio.test_sslproto",
    "test_socket",
    "test_asyncio.test_base_events",
    "test_asyncio.test_buffered_proto",
    "test_asyncio.test_sendfile",
    "test_asyncio.test_server",
    "test_asyncio.test_sock_lowlevel",
    "test_asyncio.test_ssl",
    "test_asyncio.test_streams",
    "test_asyncio.test_unix_events",
    "test_asyncio.test_selector_events",
    "test_select",
    "test_selectors",
    "test_poll",
    "test_epoll",
    "test_socketserver",
    "test_asyncore",
    "test_subprocess",
    "test_fork1",
    "test_ssl",
];

/// Tests that wait for ever where virtual sockets lead to a hypervisor and not back.
const LEFT_OUT: &str = "VSOCK";

const PACKAGES: &[&str] =
    &["python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libpython3.11-testsuite"];

#[derive(Debug)]
pub(super) struct PythonTests {
    unpacked: UnpackedPackages,
    directory: PathBuf,
}

pub(super) fn install_python_tests() -> Result<PythonTests, Failed> {
    let unpacked = UnpackedPackages::fetch("python", PACKAGES.iter().copied())?;
    let directory = repository_root().join("target/python/run");
    let failed = |error| Failed(format!("{}: {error}", directory.display()));
    fs::create_dir_all(&directory).map_err(failed)?;
    fs::write(directory.join("verdicts.py"), include_str!("verdicts.py")).map_err(failed)?;
    Ok(PythonTests { unpacked, directory })
}

impl ForeignTests for PythonTests {
    fn part_names(&self) -> Vec<String> {
        MODULES.iter().map(|module| format!("test.{module}")).collect()
    }

    fn run(&self, name: &str, mode: LibraryMode) -> Result<PartResult, Failed> {
        let [file, output_path] =
            ["verdicts", "said"].map(|what| self.directory.join(format!("{what}-{name}")));
        let _ = fs::remove_file(&file);
        let mut command = Command::new(self.unpacked.path("usr/bin/python3.11"));
        command.arg("verdicts.py").arg(&file).args([name, LEFT_OUT]).current_dir(&self.directory);
        command.envs(self.unpacked.environment_variables());
        let test_run = run_in_namespace(command, mode, &output_path)?;
        let written = fs::read_to_string(&file).unwrap_or_default();
        let verdicts: Verdicts = written.lines().filter_map(parse_verdict).collect();
        match test_run.status {
            Some(status) if status.success() && !verdicts.is_empty() => {
                Ok(PartResult { verdicts, joined: test_run.joined })
            }
            status => Err(Failed(format!(
                "{name} ({mode:?}): ended with {status:?}\n{}",
                last_output_lines(&output_path)
            ))),
        }
    }
}

/// `test.test_socket.Class.test_name passed`
fn parse_verdict(line: &str) -> Option<(String, String)> {
    let (name, verdict) = line.split_once(' ')?;
    Some((name.to_owned(), verdict.to_owned()))
}
