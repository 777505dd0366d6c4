//! The image: the static command and its licences, nothing else. `packaging/Containerfile` copies the file
//! lists that are made here; no container program is needed to try them.

use std::fs;
use std::path::PathBuf;

use super::roots::CleanRoot;
use super::tarball::{built_file, copy, shared_files};
use super::{Architecture, release_path};
use crate::gate::Outcome;
use crate::step::{Failed, repository_root};

/// Where the image's context is: the Containerfile, and a directory for each architecture.
fn image_path(name: &str) -> PathBuf {
    release_path("image").join(name)
}

pub(super) fn write_file_lists() -> Result<(), Failed> {
    let _ = fs::remove_dir_all(release_path("image"));
    copy(&repository_root().join("packaging/Containerfile"), &image_path("Containerfile"))?;
    for architecture in Architecture::ALL {
        let root = image_path(architecture.debian_name());
        copy(&built_file(&architecture.static_target(), "nocopy"), &root.join("usr/bin/nocopy"))?;
        for name in ["LICENSE-APACHE", "LICENSE-MIT", "LICENSES-OF-CRATES"] {
            let document = format!("share/doc/nocopy/{name}");
            copy(&shared_files().join(&document), &root.join("usr").join(&document))?;
        }
    }
    Ok(())
}

/// Commands with exactly the capabilities that docs/privileges.md names for `podman run`.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["CAP_NET_RAW"], "sniff lo --count 3"),
    (&["CAP_NET_RAW"], "record lo --count 3 -o /recorded.pcapng"),
    (&["CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF"], "send nc0 --count 3"),
    (
        &["CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF", "CAP_SYS_ADMIN", "CAP_IPC_LOCK"],
        "bench --rounds 1 --window 50ms",
    ),
];

pub(super) fn try_in_empty_root() -> Outcome {
    let native = match Architecture::native() {
        Ok(native) => native,
        Err(failed) => return failed.into(),
    };
    let root = CleanRoot::at("image", &image_path(native.debian_name()));
    let tries = COMMANDS.iter().map(|(capabilities, command)| {
        let words: Vec<&str> = ["/usr/bin/nocopy"].into_iter().chain(command.split(' ')).collect();
        root.run_with_capabilities(capabilities, &words)
    });
    tries.fold(Outcome::default(), Outcome::merged_with)
}
