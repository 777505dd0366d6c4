//! Any call to the core of an NFS server, of a small directory: no panic, and one whole record as its answer.
//! And two clients with a disk that fails: what they read is what they wrote, and they are told what may be
//! lost.

#![cfg_attr(fuzzing, no_main)]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use nocopy_lab::refused::{Refused, with_refused_calls};
use nocopy_nfs::export::Export;
use nocopy_nfs::server::core::{Core, oracle};
use tempfile::TempDir;

/// A directory with an empty one to export.
fn root() -> TempDir {
    let root = tempfile::tempdir().expect("a directory for the export");
    std::fs::create_dir(root.path().join("exported")).expect("a directory in it");
    root
}

fn core(root: &Path) -> Core {
    let export = Export::open(&root.join("exported"), Some(&root.join("state")));
    Core::new(Arc::new(export.expect("it can be exported")), Vec::new(), nocopy_nfs::wire::nfs3::PORT)
}

static CORE: LazyLock<(TempDir, Core)> = LazyLock::new(|| {
    let root = root();
    let exported = root.path().join("exported");
    std::fs::create_dir(exported.join("below")).expect("a directory in it");
    std::fs::write(exported.join("file"), b"content").expect("a file in it");
    let core = core(root.path());
    (root, core)
});

fn check(bytes: &[u8]) {
    oracle::check_server_core(&CORE.1, bytes);
    let root = root();
    oracle::clients::run_clients(&core(root.path()).writable(true), bytes, &|disk, work| {
        let refused: Vec<_> =
            disk.failing_system_calls().iter().map(|(call, errno)| Refused::always(*call, *errno)).collect();
        with_refused_calls(&refused, work);
    });
}

nocopy_fuzz::target!(|bytes: &[u8]| check(bytes));
