//! Files of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The path of a file that is removed with the test.
pub(crate) struct ScratchFile(PathBuf);

impl ScratchFile {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // Made by cargo on the building machine, which may be another one.
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(directory).unwrap();
        Self(directory.join(format!("{name}-{process}-{number}")))
    }

    pub(crate) fn with_content(name: &str, content: impl AsRef<[u8]>) -> Self {
        let file = Self::new(name);
        fs::write(&file.0, content).unwrap();
        file
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
