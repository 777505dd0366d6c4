//! Any call to the core of an NFS server, of a small directory: no panic, and one whole record as its answer.

#![cfg_attr(fuzzing, no_main)]

use std::sync::{Arc, LazyLock};

use nocopy_nfs::export::Export;
use nocopy_nfs::server::core::{Core, oracle};

static CORE: LazyLock<(tempfile::TempDir, Core)> = LazyLock::new(|| {
    let around = tempfile::tempdir().expect("a directory for the export");
    let exported = around.path().join("exported");
    std::fs::create_dir_all(exported.join("below")).expect("a directory in it");
    std::fs::write(exported.join("file"), b"content").expect("a file in it");
    let export = Export::open(&exported, Some(&around.path().join("state"))).expect("it can be exported");
    (around, Core::new(Arc::new(export), Vec::new(), nocopy_nfs::wire::nfs3::PORT))
});

nocopy_fuzz::target!(|bytes: &[u8]| oracle::check(&CORE.1, bytes));
