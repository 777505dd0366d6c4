//! The archive with the static binary: unpacked anywhere, or over `/usr/local`, it is installed.
//!
//! ```text
//! nocopy-VERSION-TARGET/bin/nocopy                 static, runs on every Linux of this architecture
//!                      /lib/nocopy/*.so            what 'nocopy run' preloads, for glibc 2.28 or newer
//!                      /share/man, bash-completion, zsh, fish
//!                      /share/doc/nocopy           README, licences
//! ```

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::roots::{self, CleanRoot, CleanRoots};
use super::{Architecture, Release, release_path, tools};
use crate::gate::Outcome;
use crate::newcomer::{TUTORIALS, tutorial_script};
use crate::step::{CommandStep, Failed, repository_root, write_file};

/// The profile of Cargo.toml with which everything is built that is released.
pub(super) const PROFILE: &str = "dist";

/// The oldest glibc for which programs are linked: that of Debian 10 and RHEL 8.
pub(super) const GLIBC: &str = "2.28";

/// The libraries of `nocopy run`, with their crates.
pub(super) const LIBRARIES: [[&str; 2]; 2] =
    [["nocopy-pcap", "libnocopy_pcap.so"], ["nocopy-sockets", "libnocopy_sockets.so"]];

/// Completions: the shell, and where its files are below `share`.
const COMPLETIONS: [[&str; 2]; 3] = [
    ["bash", "bash-completion/completions/nocopy"],
    ["zsh", "zsh/site-functions/_nocopy"],
    ["fish", "fish/vendor_completions.d/nocopy.fish"],
];

/// What is copied from the repository into `share/doc/nocopy`.
const DOCUMENTS: [&str; 5] = ["README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Files that all architectures share, laid out as below `/usr`.
pub(super) fn shared_files() -> PathBuf {
    release_path("shared")
}

pub(super) fn archive_name(release: &Release, architecture: Architecture) -> String {
    format!("nocopy-{}-{}", release.version, architecture.static_target())
}

fn archive_path(release: &Release, architecture: Architecture) -> PathBuf {
    release_path(format!("{}.tar.gz", archive_name(release, architecture)))
}

/// A file that was built for a target.
pub(super) fn built_file(target: &str, name: &str) -> PathBuf {
    repository_root().join("target").join(target).join(PROFILE).join(name)
}

pub(super) fn build_all(release: &Release) -> Result<(), Failed> {
    build_programs(release)?;
    write_shared_files()?;
    Architecture::ALL.into_iter().try_for_each(|architecture| pack(release, architecture))
}

/// Builds the static command; and the command and the libraries for glibc; each for all architectures by one
/// call, because linking takes longest, and a program's one processor. Both are linked by zig, for the static
/// command since its `memcpy` is as fast as glibc's: musl's takes 60 ns for 16 bytes on x86_64.
fn build_programs(release: &Release) -> Result<(), Failed> {
    let options = ["zigbuild", "--locked", "--profile", PROFILE, "--package", "nocopy-cli"];
    let build = |name: &str, packages: &[&str], target: &dyn Fn(Architecture) -> String| {
        let targets = Architecture::ALL.map(target);
        let targets = targets.each_ref().map(|target| ["--target", target]).concat();
        build_step(release, name, &[&options[..], packages, &targets].concat()).run()
    };
    build("static command", &[], &Architecture::static_target)?;
    let libraries = LIBRARIES.map(|[package, _]| ["--package", package]).concat();
    let glibc_target = |architecture: Architecture| format!("{}.{GLIBC}", architecture.glibc_target());
    build("command and libraries for glibc", &libraries, &glibc_target)
}

fn build_step(release: &Release, name: &str, arguments: &[&str]) -> CommandStep {
    with_release_variables(CommandStep::cargo(name, arguments), release)
}

/// A build whose results do not depend on where the sources and crates are.
pub(super) fn with_release_variables(step: CommandStep, release: &Release) -> CommandStep {
    let home = PathBuf::from(env::var_os("HOME").unwrap_or_default());
    let crates = env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let all = [remap(&repository_root(), "/nocopy"), remap(&crates, "/cargo"), "-Cstrip=symbols".to_owned()];
    let all = all.join(" ");
    let step = step
        .with_variable("SOURCE_DATE_EPOCH", &release.epoch)
        .with_variable("PATH", &tools::path_variable());
    Architecture::ALL.into_iter().fold(step, |step, architecture| {
        let unwinder = tools::unwinder_path(architecture);
        let with_glibc = format!("{all} -Clink-arg={}", unwinder.display());
        step.with_variable(&flags_variable(&architecture.static_target()), &all)
            .with_variable(&flags_variable(&architecture.glibc_target()), &with_glibc)
    })
}

/// The variable with a target's flags for the compiler.
fn flags_variable(target: &str) -> String {
    format!("CARGO_TARGET_{}_RUSTFLAGS", target.to_uppercase().replace('-', "_"))
}

/// Man pages and completions, made by the command itself; documents; the licences of all crates.
fn write_shared_files() -> Result<(), Failed> {
    let share = shared_files().join("share");
    let _ = fs::remove_dir_all(&share);
    let command = built_file(&Architecture::native()?.static_target(), "nocopy").display().to_string();
    let manual = share.join("man/man1").display().to_string();
    CommandStep::new("man pages", &command, &["man", "--output", &manual]).run()?;
    for [shell, file] in COMPLETIONS {
        let text = CommandStep::new(file, &command, &["completions", shell]).captured_output()?;
        write_file(&share.join(file), text)?;
    }
    let documents = share.join("doc/nocopy");
    for name in DOCUMENTS {
        write_file(&documents.join(name), read(&repository_root().join(name))?)?;
    }
    write_file(&documents.join("LICENSES-OF-CRATES"), licences_of_crates("crates/nocopy-cli")?)
}

/// The licences of all crates that are built into one.
pub(super) fn licences_of_crates(directory: &str) -> Result<String, Failed> {
    let packaging = |name: &str| repository_root().join("packaging").join(name).display().to_string();
    let (configuration, template) = (packaging("about.toml"), packaging("about.hbs"));
    let manifest = repository_root().join(directory).join("Cargo.toml").display().to_string();
    let what = ["about", "generate", "--locked", "--offline", "--fail"];
    let what = [&what[..], &["--config", &configuration, "--manifest-path", &manifest, &template]].concat();
    CommandStep::cargo("licences of all crates", &what)
        .with_variable("PATH", &tools::path_variable())
        .captured_output()
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failed> {
    fs::read(path).map_err(|error| Failed(format!("{}: {error}", path.display())))
}

/// Copies a file or a directory with everything in it.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), Failed> {
    let directory = to.parent().expect("a path below another");
    fs::create_dir_all(directory).map_err(|error| Failed(format!("{}: {error}", directory.display())))?;
    let [from, to] = [from, to].map(|path| path.display().to_string());
    CommandStep::new(&format!("copy {from}"), "cp", &["--recursive", "--no-target-directory", &from, &to])
        .run()
}

fn pack(release: &Release, architecture: Architecture) -> Result<(), Failed> {
    let name = archive_name(release, architecture);
    let tree = release_path("archives").join(&name);
    let _ = fs::remove_dir_all(&tree);
    copy(&built_file(&architecture.static_target(), "nocopy"), &tree.join("bin/nocopy"))?;
    for [_, library] in LIBRARIES {
        let built = built_file(&architecture.glibc_target(), library);
        copy(&built, &tree.join("lib/nocopy").join(library))?;
    }
    copy(&shared_files().join("share"), &tree.join("share"))?;
    pack_directory(release, &release_path("archives"), &name, &archive_path(release, architecture))
}

/// Packs a directory that is in another one, so that equal content gives an equal file.
pub(super) fn pack_directory(
    release: &Release,
    above: &Path,
    name: &str,
    archive: &Path,
) -> Result<(), Failed> {
    let [above, archive] = [above, archive].map(|path| path.display().to_string());
    let time = format!("--mtime=@{}", release.epoch);
    let same = ["--sort=name", "--format=ustar", "--owner=0", "--group=0", "--numeric-owner"];
    let modes = ["--mode=u=rwX,go=rX", "--use-compress-program=gzip --no-name --best"];
    let what = [&["--create", "--file", &archive, "--directory", &above, &time], &same[..], &modes, &[name]];
    CommandStep::new(&format!("pack {archive}"), "tar", &what.concat()).run()
}

/// Unpacks an archive into a directory, without the topmost directories of its paths.
pub(super) fn unpack(archive: &Path, into: &Path, topmost: usize) -> Result<(), Failed> {
    fs::create_dir_all(into).map_err(|error| Failed(format!("{}: {error}", into.display())))?;
    let [archive, into] = [archive, into].map(|path| path.display().to_string());
    let topmost = format!("--strip-components={topmost}");
    let what = ["--extract", "--file", &archive, "--directory", &into, &topmost];
    CommandStep::new(&format!("unpack {archive}"), "tar", &what).run()
}

/// Runs the static binary in roots of Debian and in one that has nothing else.
pub(super) fn try_in_clean_roots(release: &Release, roots: &CleanRoots) -> Outcome {
    let tries = || {
        let unpacked = roots::empty_directory("unpacked")?;
        for architecture in Architecture::ALL {
            unpack(&archive_path(release, architecture), &unpacked.join(architecture.name()), 1)?;
        }
        Ok(unpacked)
    };
    let unpacked = match tries() {
        Ok(unpacked) => unpacked,
        Err(failed) => return Failed::into(failed),
    };
    let (native, mut outcome) = (unpacked.join(env::consts::ARCH), Outcome::default());
    for debian in &roots.debian {
        let debian = debian.with_files(&native);
        outcome = outcome.merged_with(debian.run_script("archive.sh"));
        for name in TUTORIALS {
            outcome = outcome.merged_with(follow_tutorial(&debian, name));
        }
    }
    // Its root is what was unpacked: no shell, no /dev, no other file.
    for words in ["--version", "man record", "bench --rounds 1 --window 50ms", "sniff lo --count 3"] {
        let words: Vec<&str> = ["/bin/nocopy"].into_iter().chain(words.split(' ')).collect();
        outcome = outcome.merged_with(CleanRoot::at("empty", &native).run(&words));
    }
    let foreign = Architecture::ALL.into_iter().filter(|each| !each.is_native());
    foreign.fold(outcome, |outcome, each| outcome.merged_with(try_emulated(&unpacked, each)))
}

/// A tutorial as it is written, with the command of `/files`.
fn follow_tutorial(debian: &CleanRoot, name: &str) -> Outcome {
    match tutorial_script(name, "/files/bin") {
        Ok(lines) => debian.run_lines(&format!("tutorial '{name}'"), &lines),
        Err(failed) => failed.into(),
    }
}

/// What needs no feature of the kernel, by the user-mode emulator.
fn try_emulated(unpacked: &Path, architecture: Architecture) -> Outcome {
    let emulator = architecture.emulator();
    let command = unpacked.join(architecture.name()).join("bin/nocopy").display().to_string();
    let expected = format!("nocopy {}", env!("CARGO_PKG_VERSION"));
    let tries = || {
        let run = |words: &[&str]| {
            let what = [&[&command[..]], words].concat();
            CommandStep::new(&format!("{} {}", architecture.name(), words.join(" ")), &emulator, &what)
                .captured_output()
        };
        let version = run(&["--version"])?;
        if version.trim() != expected {
            return Err(Failed(format!("{}: '{version}' is not '{expected}'", architecture.name())));
        }
        if run(&["man", "record"])?.as_bytes()
            != read(&shared_files().join("share/man/man1/nocopy-record.1"))?
        {
            return Err(Failed(format!("{}: it prints another man page", architecture.name())));
        }
        run(&["bench", "--explain"]).map(drop)
    };
    tries().into()
}
