use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nocopy_lab::Lab;
use serde_json::{Value, json};

use crate::guest::Guest;
use crate::guest::nfs::{NfsFixture, output_of};
use crate::guest::nfsd::KernelNfsServer;
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "`nocopy ls`, `cat` and `cp` read from the kernel's own NFS server and write to it, also while it restarts",
    on: &[Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

/// Sizes of files: none, around a page, and around the longest read.
const SIZES: [usize; 6] = [0, 1, 4097, 65_536, (1 << 20) + 3, (3 << 20) + 5];

/// A file that takes long enough to stop the server meanwhile.
const LONG_BYTES: usize = 32 << 20;
/// Copies that are begun until the server stops during one.
const TRIES: usize = 5;

/// Files in one directory.
const NAMES: usize = 24;

fn run(guest: &Guest) -> Result<(), Failure> {
    let start = Instant::now();
    let shown = |what: &str| {
        guest.record_measurement(&json!({ "shown": what, "after_seconds": start.elapsed().as_secs_f64() }));
    };
    let fixture = NfsFixture::writable()?;
    let kernel = KernelNfsServer::start(guest.lab(), &fixture)?;
    let namespace = guest.lab().left().namespace();
    let here = fixture.new_sibling_directory("here")?;
    make_files(&here.join("tree"))?;
    namespace.run(|| {
        let url = |below: &str| {
            let offer = kernel.export;
            format!("nfs://{}:{}/{below}?mountport={}", offer.address, offer.port, offer.mount_port)
        };
        let copied = copy_by_nocopy(&["-r"], &path_text(&here.join("tree")), &url("tree"))?;
        check_complete_copy(&copied)?;
        compare_directories(&here.join("tree"), &fixture.export_path().join("tree"))?;
        shown("a directory is written to the server");
        let copied =
            copy_by_nocopy(&["-r", "--connections", "2"], &url("tree"), &path_text(&here.join("back")))?;
        check_complete_copy(&copied)?;
        compare_directories(&here.join("tree"), &here.join("back"))?;
        shown("the same directory is read from the server");
        let names = String::from_utf8_lossy(&output_of(nocopy_command()?.args(["ls", &url("tree/many")]))?)
            .lines()
            .count();
        assert_eq!(names, NAMES, "names that are listed");
        let longest = SIZES[SIZES.len() - 1];
        let printed = output_of(nocopy_command()?.args(["cat", &url(&format!("tree/{longest}"))]))?;
        assert!(printed == byte_pattern(longest), "{} bytes are printed, or others", printed.len());
        shown("names are listed, and a file is printed");
        let long = byte_pattern(LONG_BYTES);
        fs::write(fixture.export_path().join("long"), &long)?;
        let came = here.join("long");
        copy_during_server_restart(&url("long"), &came, &kernel, guest.lab(), &fixture)?;
        assert!(fs::read(&came)? == long, "the copy has other bytes");
        shown("a copy goes on when the server stopped and started again");
        Ok(())
    })
}

/// Copies a file, with a server that is restarted while a part of it has arrived.
fn copy_during_server_restart(
    url: &str,
    to: &Path,
    kernel: &KernelNfsServer,
    lab: &Lab,
    fixture: &NfsFixture,
) -> Result<(), Failure> {
    let unfinished = to.with_extension("nocopy-part");
    for _ in 0..TRIES {
        let mut copy = nocopy_command()?.args(["cp", url, &path_text(to)]).stdout(Stdio::null()).spawn()?;
        while fs::metadata(&unfinished).map_or(0, |about| about.len()) == 0 && copy.try_wait()?.is_none() {
            thread::sleep(Duration::from_millis(5));
        }
        kernel.stop()?;
        let is_cut = copy.try_wait()?.is_none();
        kernel.start_again(lab, fixture)?;
        let status = copy.wait()?;
        if !status.success() {
            return Err(Failure(format!("the copy ended with {status}")));
        }
        if is_cut {
            return Ok(());
        }
        fs::remove_file(to)?;
    }
    Err(Failure(format!("{TRIES} copies were over before the server stopped")))
}

fn make_files(directory: &Path) -> Result<(), Failure> {
    let many = directory.join("many");
    fs::create_dir_all(&many)?;
    SIZES
        .into_iter()
        .try_for_each(|bytes| fs::write(directory.join(bytes.to_string()), byte_pattern(bytes)))?;
    (0..NAMES).try_for_each(|number| fs::write(many.join(format!("name {number}")), byte_pattern(number)))?;
    Ok(())
}

fn byte_pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// Built beside this program.
fn nocopy_command() -> Result<Command, Failure> {
    Ok(Command::new(std::env::current_exe()?.with_file_name("nocopy")))
}

/// The summary of a copy.
fn copy_by_nocopy(words: &[&str], from: &str, to: &str) -> Result<Value, Failure> {
    let mut command = nocopy_command()?;
    command.arg("cp").args(words).args(["--json", from, to]);
    Ok(serde_json::from_slice(&output_of(&mut command)?)?)
}

fn check_complete_copy(copied: &Value) -> Result<(), Failure> {
    let (files, failed) = (&copied["files"], &copied["failed"]);
    let is_whole = *files == json!(SIZES.len() + NAMES) && *failed == json!([]);
    if is_whole { Ok(()) } else { Err(Failure(format!("not all was copied: {copied}"))) }
}

fn compare_directories(one: &Path, other: &Path) -> Result<(), Failure> {
    output_of(Command::new("diff").arg("-r").args([one, other])).map(drop)
}
