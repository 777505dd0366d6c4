//! Requirements of the tests: detection, installation, names.

use std::fs;
use std::path::Path;

use crate::gate::Outcome;
use crate::step::{CommandStep, Failed, is_root, run_all};

/// A program that the tests or this one start, a header for compiling, or another file by its path.
struct Program {
    name: &'static str,
    /// The option that tests whether the program is present; empty for a file.
    question: &'static str,
    /// One package or more.
    apt: &'static str,
    dnf: &'static str,
    purpose: Purpose,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    UnitTests,
    Tests,
    Instructions,
    VmLab,
    Bpf,
    Checks,
    Aarch64,
    Aarch64Lab,
    Newcomer,
    Machines,
    SlowDisk,
}

impl Purpose {
    const fn text(self) -> &'static str {
        match self {
            Self::UnitTests => "unit tests of the library",
            Self::Tests => "tests",
            Self::Instructions => "instruction guards",
            Self::VmLab => "VM lab (installs it by itself)",
            Self::Bpf => "building and checking BPF objects (else skipped)",
            Self::Checks => "formatting and lints",
            Self::Aarch64 => "nightly suite aarch64",
            Self::Aarch64Lab => "nightly suite aarch64 (installs it by itself)",
            Self::Newcomer => "nightly suite newcomer",
            Self::Machines => "nightly suite machines",
            Self::SlowDisk => "nightly suite slow-disk",
        }
    }

    /// Whether the gate works without it: not every system has a package of that compiler.
    const fn is_optional(self) -> bool {
        matches!(
            self,
            Self::Bpf | Self::Aarch64 | Self::Aarch64Lab | Self::Newcomer | Self::Machines | Self::SlowDisk
        )
    }
}

const fn program(
    name: &'static str,
    question: &'static str,
    [apt, dnf]: [&'static str; 2],
    purpose: Purpose,
) -> Program {
    Program { name, question, apt, dnf, purpose }
}

/// The BPF compiler has one version, since another writes another object: the one of Debian 12.
pub(crate) const CLANG: &str = "clang-14";
pub(crate) const STRIP: &str = "llvm-strip-14";

pub(crate) const AARCH64_LINKER: &str = "aarch64-linux-gnu-gcc";

/// The directory of C headers: some of the requirements are libraries.
const HEADERS: &str = "/usr/include";

/// For programs that are a part of the Rust toolchain, and in no package.
const RUSTUP: [&str; 2] = ["", ""];

const PROGRAMS: &[Program] = &[
    program("strace", "--version", ["strace", "strace"], Purpose::SlowDisk),
    program("rustfmt", "--version", RUSTUP, Purpose::Checks),
    program("cargo-clippy", "--version", RUSTUP, Purpose::Checks),
    // The linker of Rust programs, and the compilers of the programs that run on nocopy-pcap.
    program("gcc", "--version", ["gcc", "gcc"], Purpose::UnitTests),
    program("g++", "--version", ["g++", "gcc-c++"], Purpose::UnitTests),
    program("ip", "-V", ["iproute2", "iproute"], Purpose::UnitTests),
    program("tc", "-V", ["iproute2", "iproute-tc"], Purpose::UnitTests),
    // Its package includes libpcap, which compiles filters.
    program("tcpdump", "--version", ["tcpdump", "tcpdump"], Purpose::UnitTests),
    program("git", "--version", ["git", "git"], Purpose::Tests),
    program("tshark", "--version", ["tshark", "wireshark-cli"], Purpose::Tests),
    program("dumpcap", "--version", ["wireshark-common", "wireshark-cli"], Purpose::Tests),
    program("ngrep", "-V", ["ngrep", "ngrep"], Purpose::Tests),
    program("nmap", "--version", ["nmap", "nmap"], Purpose::Tests),
    // Programs that send datagrams: one as users write it, and a well-known one.
    program("python3", "--version", ["python3", "python3"], Purpose::Tests),
    program("nuttcp", "-V", ["nuttcp", "nuttcp"], Purpose::Tests),
    program("nfs-cp", "--help", ["libnfs-utils", "libnfs-utils"], Purpose::Tests),
    // For a program of the bench, which gcc compiles.
    program("nfsc/libnfs.h", "", ["libnfs-dev", "libnfs-devel"], Purpose::Tests),
    // Includes the packages that it needs to serve a directory. The bench compares with it.
    program(
        "ganesha.nfsd",
        "-v",
        ["nfs-ganesha nfs-ganesha-vfs rpcbind", "nfs-ganesha nfs-ganesha-vfs rpcbind"],
        Purpose::Tests,
    ),
    program("valgrind", "--version", ["valgrind", "valgrind"], Purpose::Instructions),
    program(CLANG, "--version", ["clang-14", "clang"], Purpose::Bpf),
    program(STRIP, "--version", ["llvm-14", "llvm"], Purpose::Bpf),
    program("qemu-system-x86_64", "--version", ["qemu-system-x86", "qemu-system-x86-core"], Purpose::VmLab),
    program(
        AARCH64_LINKER,
        "--version",
        ["gcc-aarch64-linux-gnu libc6-dev-arm64-cross", "gcc-aarch64-linux-gnu"],
        Purpose::Aarch64,
    ),
    program(
        "qemu-system-aarch64",
        "--version",
        ["qemu-system-arm", "qemu-system-aarch64-core"],
        Purpose::Aarch64Lab,
    ),
    program("debootstrap", "--version", ["debootstrap", "debootstrap"], Purpose::Newcomer),
    program("/usr/share/i18n/locales/de_DE", "", ["locales", "glibc-locale-source"], Purpose::Machines),
];

impl Program {
    fn is_there(&self) -> bool {
        if self.question.is_empty() {
            return Path::new(HEADERS).join(self.name).exists(); // an absolute path replaces the directory
        }
        CommandStep::new(self.name, self.name, &[self.question]).succeeds_quietly()
    }
}

/// Whether tests can have network namespaces of their own. A container's root may lack the capability.
pub(crate) fn has_namespaces() -> bool {
    nocopy_lab::Namespace::with_loopback().is_ok()
}

/// Installs the programs that unit tests start, as a step of the gate.
pub(crate) fn programs_for_unit_tests() -> Outcome {
    installed(Purpose::UnitTests)
}

/// Installs the programs that any test starts, as a step of the gate.
pub(crate) fn programs_for_tests() -> Outcome {
    programs_for_unit_tests().then(|| installed(Purpose::Tests))
}

pub(crate) fn aarch64_compiler() -> Outcome {
    installed(Purpose::Aarch64)
}

/// Installs the installer of a bare Debian.
pub(crate) fn debian_installer() -> Outcome {
    installed(Purpose::Newcomer)
}

/// Installs the sources of locales.
pub(crate) fn locales() -> Outcome {
    installed(Purpose::Machines)
}

/// Installs strace.
pub(crate) fn system_call_tracer() -> Outcome {
    installed(Purpose::SlowDisk)
}

/// Installs valgrind.
pub(crate) fn valgrind() -> Outcome {
    installed(Purpose::Instructions)
}

fn installed(purpose: Purpose) -> Outcome {
    match install_missing(purpose) {
        Err(failed) if !is_root() || !has_apt() => Outcome::unavailable(purpose.text(), failed.to_string()),
        done => done.into(),
    }
}

/// Installs the BPF compiler; returns false if this system has no package of that version.
pub(crate) fn install_bpf_compiler() -> Result<bool, Failed> {
    if missing(Purpose::Bpf).is_empty() {
        return Ok(true);
    }
    if !is_root() || !has_apt() {
        return Ok(false);
    }
    CommandStep::new("list packages", "apt-get", &["update", "-qq"]).run()?;
    let is_packaged =
        CommandStep::new("look for the compiler", "apt-cache", &["show", CLANG]).succeeds_quietly();
    if !is_packaged {
        return Ok(false);
    }
    install_missing(Purpose::Bpf).map(|()| true)
}

fn missing(purpose: Purpose) -> Vec<&'static Program> {
    PROGRAMS.iter().filter(|program| program.purpose == purpose && !program.is_there()).collect()
}

fn install_missing(purpose: Purpose) -> Result<(), Failed> {
    let missing = missing(purpose);
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|program| program.name).collect();
    let mut packages: Vec<&str> = missing.iter().flat_map(|program| program.apt.split(' ')).collect();
    packages.dedup();
    if !is_root() || !has_apt() {
        let lines = install_lines(&missing);
        return Err(Failed(format!("missing for the {}: {}; {lines}", purpose.text(), names.join(", "))));
    }
    run_all(&[
        CommandStep::new("list packages", "apt-get", &["update", "-qq"]),
        CommandStep::new(
            &format!("install {}", packages.join(" ")),
            "apt-get",
            &[&["install", "-y", "-qq", "--no-install-recommends"], &packages[..]].concat(),
        )
        .with("DEBIAN_FRONTEND", "noninteractive"),
    ])
}

pub(crate) fn has_apt() -> bool {
    CommandStep::new("apt-get", "apt-get", &["--version"]).succeeds_quietly()
}

fn install_lines(missing: &[&Program]) -> String {
    let line = |of: fn(&Program) -> &'static str| {
        let mut packages: Vec<&str> = missing.iter().map(|program| of(program)).collect();
        packages.sort_unstable();
        packages.dedup();
        packages.join(" ")
    };
    let (apt, dnf) = (line(|program| program.apt), line(|program| program.dnf));
    format!("as root: 'apt-get install {apt}' (Debian, Ubuntu) or 'dnf install {dnf}' (Fedora)")
}

/// Prints which requirements of the tests are installed; returns false if one is missing.
pub(crate) fn doctor() -> bool {
    println!("{:<22} {:<8} needed for", "what", "there");
    let row = |what: &str, there: bool, purpose: &str| {
        println!("{what:<22} {:<8} {purpose}", if there { "yes" } else { "NO" });
        there
    };
    let mut all = row("root", is_root(), "tests that make network namespaces, AF_XDP, BPF, the VM lab");
    all &= row("Linux 5.19", kernel_is_at_least(5, 19), "the bench; newer features are asked for one by one");
    all &= row("BTF", Path::new("/sys/kernel/btf/vmlinux").exists(), "nocopy profile and its tests");
    let mut absent: Vec<&Program> = Vec::new();
    for program in PROGRAMS {
        if !row(program.name, program.is_there(), program.purpose.text()) {
            absent.push(program);
        }
    }
    if absent.iter().any(|program| program.purpose == Purpose::Checks) {
        println!("\ninstall parts of the toolchain: 'rustup component add rustfmt clippy'");
    }
    absent.retain(|program| !program.purpose.is_optional());
    let packaged: Vec<&Program> = absent.iter().copied().filter(|program| !program.apt.is_empty()).collect();
    if !packaged.is_empty() {
        println!("\ninstall what is missing, {}", install_lines(&packaged));
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
