//! Requirements of the tests: detection, installation, names.

use std::fs;
use std::path::Path;

use crate::gate::Outcome;
use crate::step::{CommandStep, Failed, is_run_as_root, run_steps};

/// A program that the tests or this one start, a header for compiling, or another file by its path.
struct RequiredProgram {
    name: &'static str,
    /// The option that tests whether the program is present; empty for a file.
    question: &'static str,
    /// One package or more.
    apt: &'static str,
    dnf: &'static str,
    purpose: ProgramPurpose,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgramPurpose {
    UnitTests,
    Tests,
    Instructions,
    VmLab,
    Bpf,
    Checks,
    Aarch64,
    Aarch64Lab,
    Newcomer,
    Python,
    Release,
    Workflows,
    Machines,
    SlowDisk,
}

impl ProgramPurpose {
    const fn description(self) -> &'static str {
        match self {
            Self::UnitTests => "unit tests of the library",
            Self::Tests => "tests",
            Self::Instructions => "instruction guards",
            Self::VmLab => "VM lab (installs it by itself)",
            Self::Bpf => "building and checking BPF objects (else skipped)",
            Self::Checks => "formatting and lints",
            Self::Aarch64 => "nightly suite aarch64",
            Self::Aarch64Lab => "nightly suite aarch64 (installs it by itself)",
            Self::Newcomer => "nightly suites newcomer and release",
            Self::Python => "the Python module (else skipped), nightly suites wheel and release",
            Self::Release => "nightly suite release",
            Self::Workflows => "nightly suite workflows",
            Self::Machines => "nightly suite machines",
            Self::SlowDisk => "nightly suite slow-disk",
        }
    }

    /// Whether the gate works without it: not every system has a package of that compiler.
    const fn is_optional(self) -> bool {
        matches!(
            self,
            Self::Bpf
                | Self::Aarch64
                | Self::Aarch64Lab
                | Self::Newcomer
                | Self::Python
                | Self::Release
                | Self::Workflows
                | Self::Machines
                | Self::SlowDisk
        )
    }
}

const fn required_program(
    name: &'static str,
    question: &'static str,
    [apt, dnf]: [&'static str; 2],
    purpose: ProgramPurpose,
) -> RequiredProgram {
    RequiredProgram { name, question, apt, dnf, purpose }
}

/// The BPF compiler has one version, since another writes another object: the one of Debian 12.
pub(crate) const CLANG: &str = "clang-14";
pub(crate) const STRIP: &str = "llvm-strip-14";

pub(crate) const AARCH64_LINKER: &str = "aarch64-linux-gnu-gcc";

/// The directory of C headers: some of the requirements are libraries.
const HEADERS: &str = "/usr/include";

/// For programs that are a part of the Rust toolchain, and in no package.
const RUSTUP: [&str; 2] = ["", ""];

const PROGRAMS: &[RequiredProgram] = &[
    required_program("strace", "--version", ["strace", "strace"], ProgramPurpose::SlowDisk),
    required_program("rustfmt", "--version", RUSTUP, ProgramPurpose::Checks),
    required_program("cargo-clippy", "--version", RUSTUP, ProgramPurpose::Checks),
    // The linker of Rust programs, and the compilers of the programs that run on nocopy-pcap.
    required_program("gcc", "--version", ["gcc", "gcc"], ProgramPurpose::UnitTests),
    required_program("g++", "--version", ["g++", "gcc-c++"], ProgramPurpose::UnitTests),
    required_program("ip", "-V", ["iproute2", "iproute"], ProgramPurpose::UnitTests),
    required_program("tc", "-V", ["iproute2", "iproute-tc"], ProgramPurpose::UnitTests),
    // Its package includes libpcap, which compiles filters.
    required_program("tcpdump", "--version", ["tcpdump", "tcpdump"], ProgramPurpose::UnitTests),
    required_program("nft", "-v", ["nftables", "nftables"], ProgramPurpose::Tests),
    required_program("git", "--version", ["git", "git"], ProgramPurpose::Tests),
    required_program("tshark", "--version", ["tshark", "wireshark-cli"], ProgramPurpose::Tests),
    required_program("dumpcap", "--version", ["wireshark-common", "wireshark-cli"], ProgramPurpose::Tests),
    required_program("ngrep", "-V", ["ngrep", "ngrep"], ProgramPurpose::Tests),
    required_program("nmap", "--version", ["nmap", "nmap"], ProgramPurpose::Tests),
    // Programs that send datagrams: one as users write it, and a well-known one.
    required_program("python3", "--version", ["python3", "python3"], ProgramPurpose::Tests),
    required_program("nuttcp", "-V", ["nuttcp", "nuttcp"], ProgramPurpose::Tests),
    required_program("nfs-cp", "--help", ["libnfs-utils", "libnfs-utils"], ProgramPurpose::Tests),
    // For a program of the bench, which gcc compiles.
    required_program("nfsc/libnfs.h", "", ["libnfs-dev", "libnfs-devel"], ProgramPurpose::Tests),
    // Includes the packages that it needs to serve a directory. The bench compares with it.
    required_program(
        "ganesha.nfsd",
        "-v",
        ["nfs-ganesha nfs-ganesha-vfs rpcbind", "nfs-ganesha nfs-ganesha-vfs rpcbind"],
        ProgramPurpose::Tests,
    ),
    required_program("valgrind", "--version", ["valgrind", "valgrind"], ProgramPurpose::Instructions),
    required_program(CLANG, "--version", ["clang-14", "clang"], ProgramPurpose::Bpf),
    required_program(STRIP, "--version", ["llvm-14", "llvm"], ProgramPurpose::Bpf),
    required_program(
        "qemu-system-x86_64",
        "--version",
        ["qemu-system-x86", "qemu-system-x86-core"],
        ProgramPurpose::VmLab,
    ),
    required_program(
        AARCH64_LINKER,
        "--version",
        ["gcc-aarch64-linux-gnu libc6-dev-arm64-cross", "gcc-aarch64-linux-gnu"],
        ProgramPurpose::Aarch64,
    ),
    required_program(
        "qemu-system-aarch64",
        "--version",
        ["qemu-system-arm", "qemu-system-aarch64-core"],
        ProgramPurpose::Aarch64Lab,
    ),
    required_program("debootstrap", "--version", ["debootstrap", "debootstrap"], ProgramPurpose::Newcomer),
    required_program("lintian", "--version", ["lintian", "lintian"], ProgramPurpose::Release),
    // With what makes a directory for Python packages: Debian has it in a package of its own.
    required_program("python3", "-cimport ensurepip", ["python3-venv", "python3"], ProgramPurpose::Python),
    required_program("dpkg-scanpackages", "--version", ["dpkg-dev", "dpkg-dev"], ProgramPurpose::Release),
    required_program("systemd-analyze", "--version", ["systemd", "systemd"], ProgramPurpose::Release),
    // In the package that runs programs of other architectures: one of the two is this machine's own.
    required_program(
        "qemu-aarch64-static",
        "--version",
        ["qemu-user-static", "qemu-user-static"],
        ProgramPurpose::Release,
    ),
    // Builds actionlint.
    required_program("go", "version", ["golang-go", "golang"], ProgramPurpose::Workflows),
    required_program(
        "/usr/share/i18n/locales/de_DE",
        "",
        ["locales", "glibc-locale-source"],
        ProgramPurpose::Machines,
    ),
];

impl RequiredProgram {
    fn is_installed(&self) -> bool {
        if self.question.is_empty() {
            return Path::new(HEADERS).join(self.name).exists(); // an absolute path replaces the directory
        }
        CommandStep::new(self.name, self.name, &[self.question]).succeeds_quietly()
    }
}

/// Whether tests can have network namespaces of their own. A container's root may lack the capability.
pub(crate) fn can_create_namespaces() -> bool {
    nocopy_lab::Namespace::new_with_loopback().is_ok()
}

/// Installs the programs that unit tests start, as a step of the gate.
pub(crate) fn install_programs_for_unit_tests() -> Outcome {
    install_for_purpose(ProgramPurpose::UnitTests)
}

/// Installs the programs that any test starts, as a step of the gate.
pub(crate) fn install_programs_for_tests() -> Outcome {
    install_programs_for_unit_tests().then(|| install_for_purpose(ProgramPurpose::Tests))
}

pub(crate) fn install_aarch64_compiler() -> Outcome {
    install_for_purpose(ProgramPurpose::Aarch64)
}

/// Installs the installer of a bare Debian.
pub(crate) fn install_debian_installer() -> Outcome {
    install_for_purpose(ProgramPurpose::Newcomer)
}

/// Installs what judges and tries packages.
pub(crate) fn install_release_programs() -> Outcome {
    install_debian_installer()
        .then(|| install_for_purpose(ProgramPurpose::Release))
        .then(install_python_environments)
}

/// Installs what makes directories for Python packages.
pub(crate) fn install_python_environments() -> Outcome {
    install_for_purpose(ProgramPurpose::Python)
}

/// Installs Go.
pub(crate) fn install_go() -> Outcome {
    install_for_purpose(ProgramPurpose::Workflows)
}

/// Installs the sources of locales.
pub(crate) fn install_locales() -> Outcome {
    install_for_purpose(ProgramPurpose::Machines)
}

/// Installs strace.
pub(crate) fn install_strace() -> Outcome {
    install_for_purpose(ProgramPurpose::SlowDisk)
}

/// Installs valgrind.
pub(crate) fn install_valgrind() -> Outcome {
    install_for_purpose(ProgramPurpose::Instructions)
}

fn install_for_purpose(purpose: ProgramPurpose) -> Outcome {
    match install_missing(purpose) {
        Err(failed) if !is_run_as_root() || !has_apt() => {
            Outcome::unavailable(purpose.description(), failed.to_string())
        }
        done => done.into(),
    }
}

/// Installs the BPF compiler; returns false if this system has no package of that version.
pub(crate) fn install_bpf_compiler() -> Result<bool, Failed> {
    if missing_programs(ProgramPurpose::Bpf).is_empty() {
        return Ok(true);
    }
    if !is_run_as_root() || !has_apt() {
        return Ok(false);
    }
    CommandStep::new("list packages", "apt-get", &["update", "-qq"]).run()?;
    let is_packaged =
        CommandStep::new("look for the compiler", "apt-cache", &["show", CLANG]).succeeds_quietly();
    if !is_packaged {
        return Ok(false);
    }
    install_missing(ProgramPurpose::Bpf).map(|()| true)
}

fn missing_programs(purpose: ProgramPurpose) -> Vec<&'static RequiredProgram> {
    PROGRAMS.iter().filter(|program| program.purpose == purpose && !program.is_installed()).collect()
}

fn install_missing(purpose: ProgramPurpose) -> Result<(), Failed> {
    let missing = missing_programs(purpose);
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|program| program.name).collect();
    let mut packages: Vec<&str> = missing.iter().flat_map(|program| program.apt.split(' ')).collect();
    packages.dedup();
    if !is_run_as_root() || !has_apt() {
        let lines = install_commands(&missing);
        return Err(Failed(format!(
            "missing for the {}: {}; {lines}",
            purpose.description(),
            names.join(", ")
        )));
    }
    run_steps(&[
        CommandStep::new("list packages", "apt-get", &["update", "-qq"]),
        CommandStep::new(
            &format!("install {}", packages.join(" ")),
            "apt-get",
            &[&["install", "-y", "-qq", "--no-install-recommends"], &packages[..]].concat(),
        )
        .with_variable("DEBIAN_FRONTEND", "noninteractive"),
    ])
}

pub(crate) fn has_apt() -> bool {
    CommandStep::new("apt-get", "apt-get", &["--version"]).succeeds_quietly()
}

fn install_commands(missing: &[&RequiredProgram]) -> String {
    let line = |of: fn(&RequiredProgram) -> &'static str| {
        let mut packages: Vec<&str> = missing.iter().map(|program| of(program)).collect();
        packages.sort_unstable();
        packages.dedup();
        packages.join(" ")
    };
    let (apt, dnf) = (line(|program| program.apt), line(|program| program.dnf));
    format!("as root: 'apt-get install {apt}' (Debian, Ubuntu) or 'dnf install {dnf}' (Fedora)")
}

/// Prints which requirements of the tests are installed; returns false if one is missing.
pub(crate) fn print_requirements() -> bool {
    println!("{:<22} {:<8} needed for", "what", "there");
    let row = |what: &str, there: bool, purpose: &str| {
        println!("{what:<22} {:<8} {purpose}", if there { "yes" } else { "NO" });
        there
    };
    let mut all =
        row("root", is_run_as_root(), "tests that make network namespaces, AF_XDP, BPF, the VM lab");
    all &= row("Linux 5.19", kernel_is_at_least(5, 19), "the bench; newer features are asked for one by one");
    all &= row("BTF", Path::new("/sys/kernel/btf/vmlinux").exists(), "nocopy profile and its tests");
    let mut absent: Vec<&RequiredProgram> = Vec::new();
    for program in PROGRAMS {
        if !row(program.name, program.is_installed(), program.purpose.description()) {
            absent.push(program);
        }
    }
    if absent.iter().any(|program| program.purpose == ProgramPurpose::Checks) {
        println!("\ninstall parts of the toolchain: 'rustup component add rustfmt clippy'");
    }
    absent.retain(|program| !program.purpose.is_optional());
    let packaged: Vec<&RequiredProgram> =
        absent.iter().copied().filter(|program| !program.apt.is_empty()).collect();
    if !packaged.is_empty() {
        println!("\ninstall what is missing, {}", install_commands(&packaged));
        println!("('cargo xtask test' installs it by itself as root, where there is apt-get)");
    }
    if !has_apt() {
        println!("\nno apt-get: the VM lab is skipped here, since its kernels are Debian's packages");
    }
    all && absent.is_empty()
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}
