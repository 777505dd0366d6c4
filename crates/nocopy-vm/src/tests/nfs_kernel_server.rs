use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use crate::guest::Guest;
use crate::guest::nfs::{Scene, output_of};
use crate::guest::nfsd::KernelServer;
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "`nocopy ls`, `cat` and `cp` read from the kernel's own NFS server and write to it",
    on: &[Topology::Virtio],
    kernel: Kernel::Newest,
    run,
};

/// Sizes of files: none, around a page, and around the longest read.
const SIZES: [usize; 6] = [0, 1, 4097, 65_536, (1 << 20) + 3, (3 << 20) + 5];

/// In one directory.
const NAMES: usize = 24;

fn run(guest: &Guest) -> Result<(), Failure> {
    let start = Instant::now();
    let shown = |what: &str| {
        guest.record(&json!({ "shown": what, "after_seconds": start.elapsed().as_secs_f64() }));
    };
    let scene = Scene::writable()?;
    let kernel = KernelServer::start(guest.lab(), &scene)?;
    let namespace = guest.lab().left().namespace();
    let here = scene.beside("here")?;
    fill(&here.join("tree"))?;
    namespace.run(|| {
        let url = |below: &str| {
            let offer = kernel.offer;
            format!("nfs://{}:{}/{below}?mountport={}", offer.address, offer.port, offer.mount_port)
        };
        let copied = copy(&["-r"], &text(&here.join("tree")), &url("tree"))?;
        is_whole(&copied)?;
        same(&here.join("tree"), &scene.exported().join("tree"))?;
        shown("a directory is written to the server");
        let copied = copy(&["-r", "--connections", "2"], &url("tree"), &text(&here.join("back")))?;
        is_whole(&copied)?;
        same(&here.join("tree"), &here.join("back"))?;
        shown("the same directory is read from the server");
        let names =
            String::from_utf8_lossy(&output_of(nocopy()?.args(["ls", &url("tree/many")]))?).lines().count();
        assert_eq!(names, NAMES, "names that are listed");
        let longest = SIZES[SIZES.len() - 1];
        let printed = output_of(nocopy()?.args(["cat", &url(&format!("tree/{longest}"))]))?;
        assert!(printed == pattern(longest), "{} bytes are printed, or others", printed.len());
        shown("names are listed, and a file is printed");
        Ok(())
    })
}

fn fill(directory: &Path) -> Result<(), Failure> {
    let many = directory.join("many");
    fs::create_dir_all(&many)?;
    SIZES.into_iter().try_for_each(|bytes| fs::write(directory.join(bytes.to_string()), pattern(bytes)))?;
    (0..NAMES).try_for_each(|number| fs::write(many.join(format!("name {number}")), pattern(number)))?;
    Ok(())
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Built beside this program.
fn nocopy() -> Result<Command, Failure> {
    Ok(Command::new(std::env::current_exe()?.with_file_name("nocopy")))
}

/// The summary of a copy.
fn copy(words: &[&str], from: &str, to: &str) -> Result<Value, Failure> {
    let mut command = nocopy()?;
    command.arg("cp").args(words).args(["--json", from, to]);
    Ok(serde_json::from_slice(&output_of(&mut command)?)?)
}

fn is_whole(copied: &Value) -> Result<(), Failure> {
    let (files, failed) = (&copied["files"], &copied["failed"]);
    let is_whole = *files == json!(SIZES.len() + NAMES) && *failed == json!([]);
    if is_whole { Ok(()) } else { Err(Failure(format!("not all was copied: {copied}"))) }
}

fn same(one: &Path, other: &Path) -> Result<(), Failure> {
    output_of(Command::new("diff").arg("-r").args([one, other])).map(drop)
}
