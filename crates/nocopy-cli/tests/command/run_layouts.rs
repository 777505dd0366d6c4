//! `nocopy run` where other distributions have their files: the files of this machine in such places, in a
//! directory that is entered by chroot(1).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run::{ObservedCommand, lossy_text, output_within_patience, parse_json_after_text, send_until};

/// Where a distribution has its files.
struct DistributionLayout {
    os_release: &'static str,
    /// Links in the root directory, and what they are links to.
    links: &'static [(&'static str, &'static str)],
    /// The directories of the C library, of libpcap, and of this project's libraries.
    libraries: &'static str,
    libpcap: &'static str,
    nocopy: &'static str,
    /// The name of libpcap.
    name: &'static [u8; 15],
    /// What installs it.
    install: &'static str,
}

const DEBIANS: &[u8; 15] = b"libpcap.so.0.8\0";
const OTHERS: &[u8; 15] = b"libpcap.so.1\0\0\0";

const LAYOUTS: [DistributionLayout; 4] = [
    DistributionLayout {
        os_release: "ID=fedora\n",
        links: &[("lib64", "usr/lib64"), ("lib", "usr/lib"), ("bin", "usr/bin")],
        libraries: "usr/lib64",
        libpcap: "usr/lib64",
        nocopy: "usr/lib64/nocopy",
        name: OTHERS,
        install: "dnf install libpcap",
    },
    DistributionLayout {
        os_release: "ID=\"manjaro\"\nID_LIKE=\"arch\"\n",
        links: &[("lib64", "usr/lib"), ("lib", "usr/lib"), ("usr/lib64", "lib"), ("bin", "usr/bin")],
        libraries: "usr/lib",
        libpcap: "usr/lib",
        nocopy: "usr/lib/nocopy",
        name: OTHERS,
        install: "pacman -S libpcap",
    },
    // Not merged: libraries in /lib64, and others in /usr/lib64.
    DistributionLayout {
        os_release: "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n",
        links: &[],
        libraries: "lib64",
        libpcap: "usr/lib64",
        nocopy: "usr/local/lib/nocopy",
        name: OTHERS,
        install: "zypper install libpcap1",
    },
    DistributionLayout {
        os_release: "ID=raspbian\nID_LIKE=debian\n",
        links: &[],
        libraries: "lib",
        libpcap: "usr/lib",
        nocopy: "usr/lib/nocopy",
        name: DEBIANS,
        install: "apt install libpcap0.8",
    },
];

struct RootDirectory(tempfile::TempDir);

impl RootDirectory {
    /// With the C library and what nocopy and its libraries need. `None` if a tool is missing here.
    fn new(layout: &DistributionLayout) -> Option<Self> {
        let root = Self(tempfile::tempdir().unwrap());
        for (link, target) in layout.links {
            let link = root.path(link);
            fs::create_dir_all(link.with_file_name(target)).unwrap();
            symlink(target, link).unwrap();
        }
        ["etc", "proc", "dev", "tmp", "usr/bin"]
            .iter()
            .for_each(|name| fs::create_dir_all(root.path(name)).unwrap());
        fs::write(root.path("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n").unwrap();
        fs::write(root.path("etc/group"), "root:x:0:\n").unwrap();
        fs::write(root.path("etc/os-release"), layout.os_release).unwrap();
        fs::write(root.path("etc/ld.so.conf"), format!("/{}\n/{}\n", layout.libraries, layout.libpcap))
            .unwrap();
        let nocopy = Path::new(env!("CARGO_BIN_EXE_nocopy"));
        hard_link_file(nocopy, &root.path("usr/bin/nocopy"));
        root.add_with_libraries(nocopy, &root.path("usr/bin/nocopy"), layout)?;
        for name in ["libnocopy_pcap.so", "libnocopy_sockets.so"] {
            let library = std::env::current_exe().unwrap().with_file_name(name);
            let at = root.path(layout.nocopy).join(name);
            hard_link_file(&library, &at);
            root.add_with_libraries(&library, &at, layout)?;
        }
        Some(root)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name.trim_start_matches('/'))
    }

    /// Adds a program or a library, and the libraries that it needs, but for libpcap.
    fn add_with_libraries(&self, file: &Path, at: &Path, layout: &DistributionLayout) -> Option<()> {
        copy_file_if_missing(file, at);
        for (name, path) in needed_libraries(file)? {
            match name.strip_prefix('/') {
                Some(loader) => copy_file_if_missing(&path, &self.path(loader)),
                None if name.starts_with("libpcap.so") => {}
                None => copy_file_if_missing(&path, &self.path(layout.libraries).join(name)),
            }
        }
        Some(())
    }

    /// Adds tcpdump and libpcap, both with this name of libpcap in them. Returns where libpcap is.
    fn add_tcpdump(&self, layout: &DistributionLayout) -> Option<PathBuf> {
        let tcpdump = Path::new("/usr/bin/tcpdump");
        let (_, libpcap) =
            needed_libraries(tcpdump)?.into_iter().find(|(name, _)| name.starts_with("libpcap.so"))?;
        let name = std::str::from_utf8(layout.name).unwrap().trim_end_matches('\0');
        let at = self.path(layout.libpcap).join(name);
        for (file, at) in [(tcpdump, &self.path("usr/bin/tcpdump")), (&libpcap, &at)] {
            self.add_with_libraries(file, at, layout)?;
            replace_bytes_in_file(at, DEBIANS, layout.name);
        }
        Some(at)
    }

    /// `nocopy run` in this directory.
    fn nocopy_run_command(&self, options: &[&str], words: &[&str]) -> Command {
        let script =
            "mount --rbind /proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && exec chroot \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(self.0.path());
        command.args(["/usr/bin/nocopy", "run"]).args(options).arg("--").args(words);
        command.env("PATH", std::env::var("PATH").unwrap() + ":/usr/bin:/usr/sbin:/sbin");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Lets the loader find the libraries outside Debian's directories.
    fn run_ldconfig(&self) -> Option<()> {
        let ldconfig =
            ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|path| Path::new(path).exists())?;
        Command::new(ldconfig).arg("-r").arg(self.0.path()).status().ok()?.success().then_some(())
    }
}

/// A copy with content of its own, which may be changed.
fn copy_file_if_missing(file: &Path, at: &Path) {
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    if !at.exists() {
        fs::copy(file, at).unwrap_or_else(|error| panic!("{} to {}: {error}", file.display(), at.display()));
    }
}

/// Without a copy of a large file, if it is on the same disk.
fn hard_link_file(file: &Path, at: &Path) {
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    let _ = fs::hard_link(file, at);
}

/// The libraries that a file needs, by name, and its loader, by its path: as ldd(1) says.
fn needed_libraries(file: &Path) -> Option<Vec<(String, PathBuf)>> {
    let output = Command::new("ldd").arg(file).output().ok()?;
    let text = String::from_utf8(output.stdout).unwrap();
    let found = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        match words.next()? {
            "=>" => Some((name.to_owned(), PathBuf::from(words.next()?))),
            _ if name.starts_with('/') => Some((name.to_owned(), PathBuf::from(name))),
            _ => None,
        }
    });
    Some(found.collect())
}

/// Replaces bytes of a file; there must be some.
fn replace_bytes_in_file(file: &Path, before: &[u8], after: &[u8]) {
    let mut bytes = fs::read(file).unwrap();
    let places = bytes.windows(before.len()).enumerate().filter(|(_, window)| *window == before);
    let places: Vec<_> = places.map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "{}", file.display());
    places.into_iter().for_each(|at| bytes[at..][..after.len()].copy_from_slice(after));
    fs::write(file, bytes).unwrap();
}

fn skip_tools() {
    nocopy_lab::skip(&nocopy_lab::Missing::Device("ldd, ldconfig and tcpdump"));
}

#[test]
fn run_works_in_layouts_of_distributions_or_names_the_package() {
    for layout in &LAYOUTS {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let right = lab.right();
        let Some(root) = RootDirectory::new(layout) else { return skip_tools() };
        let Some(libpcap) = root.add_tcpdump(layout) else { return skip_tools() };
        let Some(()) = root.run_ldconfig() else { return skip_tools() };
        let words =
            ["tcpdump", "-Z", "root", "-nn", "-l", "-c", "3", "-i", right.interface(), "udp port 9000"];
        let mut running =
            ObservedCommand::start_in_namespace_of(right, root.nocopy_run_command(&["--json"], &words));
        running.expect_error_line("listening on");
        send_until(&lab, || running.child.try_wait().unwrap().is_some());
        let (status, printed, said) = running.wait_for_end();
        assert_eq!((status.code(), printed.lines().count()), (Some(0), 3), "{}{said}", layout.os_release);
        let handle = &parse_json_after_text(&said)["handles"][0];
        assert_eq!((&handle["library"], &handle["filter"]), (&"nocopy".into(), &"socket".into()), "{said}");

        fs::remove_file(libpcap).unwrap();
        let without = output_within_patience(root.nocopy_run_command(&[], &["tcpdump", "--version"]));
        let said = lossy_text(&without.stderr);
        assert_eq!(without.status.code(), Some(127), "{}{said}", layout.os_release);
        assert!(said.contains(&format!("install it ('{}')", layout.install)), "{said}");
    }
}

/// musl's loader ends a program whose preloaded library is for another C library.
#[test]
fn programs_for_another_c_library_run_without_the_library() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let layout = &LAYOUTS[3];
    let Some(root) = RootDirectory::new(layout) else { return skip_tools() };
    let env = root.path("usr/bin/env");
    let Some(()) = root.add_with_libraries(Path::new("/usr/bin/env"), &env, layout) else {
        return skip_tools();
    };
    let (loader, musl) = match std::env::consts::ARCH {
        "aarch64" => ("/lib/ld-linux-aarch64.so.1\0", "/lib/ld-musl-aarch64.so.1\0"),
        _ => ("/lib64/ld-linux-x86-64.so.2\0", "/lib/ld-musl-x86_64.so.1\0"),
    };
    replace_bytes_in_file(&env, loader.as_bytes(), musl.as_bytes());
    let Some(()) = root.run_ldconfig() else { return skip_tools() };
    let run = |options: &[&str]| {
        let output = lab
            .right()
            .namespace()
            .run(|| output_within_patience(root.nocopy_run_command(options, &["/usr/bin/env"])));
        (output.status.code(), lossy_text(&output.stdout), lossy_text(&output.stderr))
    };
    let (code, _, said) = run(&[]);
    assert_eq!(code, Some(126), "{said}");
    assert!(said.contains("cannot be run; /lib/ld-musl-") && said.contains("is not there"), "{said}");
    let own = |path: &str| root.path(path.trim_end_matches('\0'));
    fs::copy(own(loader), own(musl)).unwrap();
    for options in [&[][..], &["--batch-udp"]] {
        let (code, printed, said) = run(options);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("the program is for musl, the library for glibc"), "{said}");
        assert!(printed.contains("PATH=") && !printed.contains("LD_PRELOAD"), "{printed}");
    }
}

#[test]
fn programs_for_another_processor_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    copy_file_if_missing(Path::new("/usr/bin/true"), &program);
    let mut bytes = fs::read(&program).unwrap();
    (bytes[18], bytes[19]) = (22, 0); // its machine: s390x
    fs::write(&program, bytes).unwrap();
    let output = output_within_patience(crate::run::nocopy_run_command(&[], &[program.to_str().unwrap()]));
    let said = lossy_text(&output.stderr);
    assert_eq!(output.status.code(), Some(126), "{said}");
    assert!(said.contains("is for another architecture (s390x) than the library"), "{said}");
}
