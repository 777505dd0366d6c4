//! The image: the static command and its licences, nothing else. `packaging/Containerfile` unpacks the root
//! that is packed here; no container program is needed to try it.

use std::fs;
use std::path::PathBuf;

use super::roots::{self, CleanRoot};
use super::tarball::{built_file, copy, pack_directory, shared_files, unpack};
use super::{Architecture, Release, release_path};
use crate::gate::Outcome;
use crate::step::{Failed, repository_root};

/// What `podman build` takes: the Containerfile, and a root for each architecture.
fn context_path(name: &str) -> PathBuf {
    release_path("image").join(name)
}

fn root_archive(architecture: Architecture) -> PathBuf {
    context_path(&format!("{}.tar.gz", architecture.debian_name()))
}

/// Packed, so that modes stay as they are wherever the files go.
pub(super) fn pack_roots(release: &Release) -> Result<(), Failed> {
    let _ = fs::remove_dir_all(context_path(""));
    copy(&repository_root().join("packaging/Containerfile"), &context_path("Containerfile"))?;
    for architecture in Architecture::ALL {
        let root = release_path("image-roots").join(architecture.debian_name());
        let _ = fs::remove_dir_all(&root);
        copy(&built_file(&architecture.static_target(), "nocopy"), &root.join("usr/bin/nocopy"))?;
        for name in ["LICENSE-APACHE", "LICENSE-MIT", "LICENSES-OF-CRATES"] {
            let document = format!("share/doc/nocopy/{name}");
            copy(&shared_files().join(&document), &root.join("usr").join(&document))?;
        }
        pack_directory(release, &root, ".", &root_archive(architecture))?;
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
    let unpacked = || {
        let root = roots::empty_directory("image")?;
        unpack(&root_archive(Architecture::native()?), &root, 0)?;
        Ok::<_, Failed>(CleanRoot::at("image", &root))
    };
    let root = match unpacked() {
        Ok(root) => root,
        Err(failed) => return failed.into(),
    };
    let tries = COMMANDS.iter().map(|(capabilities, command)| {
        let words: Vec<&str> = ["/usr/bin/nocopy"].into_iter().chain(command.split(' ')).collect();
        root.run_with_capabilities(capabilities, &words)
    });
    tries.fold(Outcome::default(), Outcome::merged_with)
}
