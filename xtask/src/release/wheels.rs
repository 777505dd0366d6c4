//! Wheels of the Python module, one for each architecture, and the archive of its sources: what PyPI has.

use std::path::PathBuf;

use super::tarball::{GLIBC, PROFILE, licences_of_crates, with_release_variables};
use super::{Architecture, FILES, Release, release_path, tools};
use crate::python_module::CRATE;
use crate::step::{CommandStep, Failed, repository_root, write_file};

/// What a wheel's name says about the system: from which glibc on it runs, as `manylinux_2_28`.
fn system_name() -> String {
    format!("manylinux_{}", GLIBC.replace('.', "_"))
}

pub(super) fn wheel_path(release: &Release, architecture: Architecture) -> PathBuf {
    let (system, architecture) = (system_name(), architecture.name());
    release_path(format!("nocopy-{}-cp311-abi3-{system}_{architecture}.whl", release.version))
}

pub(super) fn sources_path(release: &Release) -> PathBuf {
    release_path(format!("nocopy-{}.tar.gz", release.version))
}

pub(super) fn build_all(release: &Release) -> Result<(), Failed> {
    // Beside the licences that pyproject.toml names, with which it goes into the wheels.
    let licences = repository_root().join(CRATE).join("LICENSES-OF-CRATES");
    write_file(&licences, licences_of_crates(CRATE)?)?;
    let manifest = format!("{CRATE}/Cargo.toml");
    let common = ["--manifest-path", &manifest, "--out", FILES];
    for architecture in Architecture::ALL {
        let (target, system) = (architecture.glibc_target(), system_name());
        let built = ["build", "--locked", "--profile", PROFILE, "--zig", "--target", &target];
        let named = ["--compatibility", &system];
        let name = format!("wheel for {}", architecture.name());
        maturin_step(release, &name, &[&built[..], &named, &common].concat()).run()?;
    }
    maturin_step(release, "sources of the module", &[&["sdist"][..], &common].concat()).run()
}

fn maturin_step(release: &Release, name: &str, arguments: &[&str]) -> CommandStep {
    with_release_variables(CommandStep::new(name, &tools::python_program("maturin"), arguments), release)
}
