//! Packages of suites the machine itself does not use.
//!
//! The machine's own sources say which mirror, which key and which options; only the suite is exchanged, in a
//! private list with a private state directory. The machine's own sources and lists are left alone. Kernels
//! are always Debian's: Ubuntu, whose own sources do not name its archive, has its keys in a package.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Error;
use crate::failure::last_lines;
use crate::topology::Architecture;

/// Where Debian's suites are, for a machine that is not Debian.
const DEBIAN_ARCHIVE: &str = "http://deb.debian.org/debian";

/// Debian's keys, and the package of Ubuntu that brings them.
pub(crate) const DEBIAN_KEYS: (&str, &str) =
    ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring");

/// The distribution that the suites belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PackageArchive {
    /// The suite of the host's release, for programs that are installed on it.
    Own,
    /// Debian's, for kernels.
    Debian,
}

/// A system whose packages the lab knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Distribution {
    Debian,
    Ubuntu,
}

/// The system and release that this machine runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SystemRelease {
    pub(crate) system: Distribution,
    /// Such as `bookworm`.
    pub(crate) codename: String,
}

/// One suite, which apt uses inside a directory of the lab.
pub(crate) struct PackageSuite {
    name: String,
    architecture: Architecture,
    directory: PathBuf,
}

impl PackageSuite {
    /// Fetches the suite's package lists into `directory`, those of `other_suite` (the machine's own release)
    /// too when its packages may be needed to install one of this suite.
    pub(crate) fn fetch(
        archive: PackageArchive,
        name: &str,
        other_suite: Option<&str>,
        architecture: Architecture,
        directory: &Path,
    ) -> Result<Self, Error> {
        let suite = Self { name: name.to_owned(), architecture, directory: directory.to_owned() };
        for part in ["sources.list.d", "lists/partial", "cache/archives/partial"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).map_err(Error::for_file(path))?;
        }
        let mut source = host_release()?.apt_source(archive)?;
        if architecture != Architecture::Amd64 {
            source = source.without_architectures();
        }
        let suites: Vec<&str> = other_suite.into_iter().chain([name]).collect();
        source.write_to(&directory.join("sources.list.d"), &suites)?;
        eprintln!("vm: list the packages of {name}");
        let mut update = suite.apt_command("apt-get");
        update.args(["update", "-qq", "--error-on=any"]);
        run_command(&format!("listing the packages of {name}"), &mut update)?;
        Ok(suite)
    }

    /// What a package of this suite depends on, by name, alternatives left out.
    pub(crate) fn dependencies(&self, package: &str) -> Result<Vec<String>, Error> {
        let mut show = self.apt_command("apt-cache");
        show.args(["show", "--no-all-versions", package]);
        let missing = || Error::NoPackage { package: package.to_owned(), suite: self.name.clone() };
        let record = run_command("reading a package's record", &mut show).map_err(|_| missing())?;
        let depends = record.lines().find_map(|line| line.strip_prefix("Depends: "));
        let names = depends.unwrap_or_default().split(", ").filter_map(|name| name.split(' ').next());
        Ok(names.map(str::to_owned).collect())
    }

    /// These packages and the libraries that they need, except the C library, which comes with the linker.
    pub(crate) fn with_libraries(&self, packages: &[&str]) -> Result<Vec<String>, Error> {
        let mut all: Vec<String> = packages.iter().map(|&package| package.to_owned()).collect();
        let mut next = 0;
        while let Some(package) = all.get(next) {
            for library in self.dependencies(package)? {
                let is_library = library.starts_with("lib") || library.starts_with("zlib");
                let is_of_linker = ["libc6", "libgcc-s1"].contains(&library.as_str());
                if is_library && !is_of_linker && !all.contains(&library) {
                    all.push(library);
                }
            }
            next += 1;
        }
        Ok(all)
    }

    pub(crate) fn unpack(&self, packages: &[String], root: &Path) -> Result<(), Error> {
        let place = self.directory.join("packages");
        fs::create_dir_all(&place).map_err(Error::for_file(&place))?;
        eprintln!("vm: download {}", packages.join(", "));
        let mut download = self.apt_command("apt-get");
        download.args(["download", "-qq"]).args(packages).current_dir(&place);
        run_command("downloading packages", &mut download)?;
        for entry in fs::read_dir(&place).map_err(Error::for_file(&place))? {
            let path = entry.map_err(Error::for_file(&place))?.path();
            run_command(
                "unpacking a package",
                Command::new("dpkg-deb").arg("--extract").arg(&path).arg(root),
            )?;
        }
        Ok(())
    }

    pub(crate) fn install(&self, packages: &[&str]) -> Result<(), Error> {
        eprintln!("vm: install {}", packages.join(", "));
        let mut install = self.apt_command("apt-get");
        install.args(["install", "-y", "-qq", "--no-install-recommends", "-t", &self.name]).args(packages);
        install.env("DEBIAN_FRONTEND", "noninteractive");
        run_command(&format!("installing {}", packages.join(", ")), &mut install).map(drop)
    }

    /// An apt command that sees this suite only.
    fn apt_command(&self, program: &str) -> Command {
        let place = |part: &str| self.directory.join(part).into_os_string();
        let mut command = Command::new(program);
        for (option, value) in [
            ("Dir::Etc::sourcelist", OsStr::new("/dev/null").to_owned()),
            ("Dir::Etc::sourceparts", place("sources.list.d")),
            ("Dir::State::lists", place("lists")),
            ("Dir::Cache", place("cache")),
            ("Acquire::Languages", "none".into()),
            ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".into()),
            // Into a directory that only root may read.
            ("APT::Sandbox::User", "root".into()),
            ("DPkg::Lock::Timeout", "300".into()),
        ] {
            let mut setting = std::ffi::OsString::from(option);
            setting.push("=");
            setting.push(value);
            command.arg("-o").arg(setting);
        }
        if self.architecture != Architecture::Amd64 {
            for option in ["APT::Architecture", "APT::Architectures"] {
                command.arg("-o").arg(format!("{option}={}", self.architecture.name()));
            }
        }
        command
    }
}

pub(crate) fn host_release() -> Result<SystemRelease, Error> {
    let path = "/etc/os-release";
    let text =
        fs::read_to_string(path).map_err(|_| Error::OtherSystem { found: "an unknown system".into() })?;
    SystemRelease::parse_os_release(&text, std::env::consts::ARCH)
}

impl SystemRelease {
    fn parse_os_release(text: &str, architecture: &str) -> Result<Self, Error> {
        let field = |name: &str| {
            text.lines().find_map(|line| {
                Some(line.strip_prefix(name)?.strip_prefix('=')?.trim_matches('"').to_owned())
            })
        };
        let system = match field("ID").as_deref() {
            Some("debian") => Some(Distribution::Debian),
            Some("ubuntu") => Some(Distribution::Ubuntu),
            _ => None,
        };
        match (system, field("VERSION_CODENAME"), architecture) {
            (Some(system), Some(codename), "x86_64") => Ok(Self { system, codename }),
            _ => {
                let name = field("PRETTY_NAME").or_else(|| field("ID"));
                let name = name.unwrap_or_else(|| "an unknown system".into());
                Err(Error::OtherSystem { found: format!("{name} on {architecture}") })
            }
        }
    }

    /// The suite with the release's newest packages, and the one that it is an addition to.
    pub(crate) fn suites(&self) -> (String, Option<&str>) {
        match self.system {
            Distribution::Debian => (self.codename.clone(), None),
            Distribution::Ubuntu => (format!("{}-updates", self.codename), Some(&self.codename)),
        }
    }

    /// The words of an entry in the sources of apt, all but the suite.
    fn apt_source(&self, archive: PackageArchive) -> Result<AptSource, Error> {
        let components = match (archive, self.system) {
            (_, Distribution::Debian) => "main",
            (PackageArchive::Own, Distribution::Ubuntu) => "main universe",
            (PackageArchive::Debian, Distribution::Ubuntu) => return Ok(AptSource::debian_archive()),
        };
        let source = host_source(&self.codename, components)?;
        source.ok_or_else(|| Error::NoSource { codename: self.codename.clone() })
    }
}

/// An entry of apt's sources, in either of its two formats.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AptSource {
    /// `deb [options] URI suite component…`: the text before and after the suite.
    Line { before: String, components: String },
    /// A paragraph of fields, without `Suites`.
    Paragraph(String),
}

impl AptSource {
    fn write_to(&self, directory: &Path, suites: &[&str]) -> Result<(), Error> {
        let (name, text) = match self {
            Self::Line { before, components } => {
                let line = |suite: &&str| format!("{before} {suite} {components}\n");
                ("private.list", suites.iter().map(line).collect::<String>())
            }
            Self::Paragraph(fields) => ("private.sources", format!("{fields}Suites: {}\n", suites.join(" "))),
        };
        let path = directory.join(name);
        fs::write(&path, text).map_err(Error::for_file(path))
    }

    /// Without a restriction to architectures of the machine.
    fn without_architectures(self) -> Self {
        match self {
            Self::Line { before, components } => {
                let parts = before.split_once('[').zip(before.split_once(']'));
                let Some(((start, _), (options, address))) = parts else {
                    return Self::Line { before, components };
                };
                let options = options[start.len() + 1..].split_whitespace();
                let kept: Vec<&str> = options.filter(|option| !option.starts_with("arch=")).collect();
                let (start, address) = (start.trim_end(), address.trim_start());
                let before = match &kept[..] {
                    [] => format!("{start} {address}"),
                    kept => format!("{start} [{}] {address}", kept.join(" ")),
                };
                Self::Line { before, components }
            }
            Self::Paragraph(fields) => {
                let is_limit = |line: &&str| line.to_ascii_lowercase().starts_with("architectures:");
                let kept = fields.lines().filter(|line| !is_limit(line));
                Self::Paragraph(kept.map(|line| format!("{line}\n")).collect())
            }
        }
    }

    /// Debian's archive, for machines whose own sources do not have it.
    fn debian_archive() -> Self {
        let (keys, _) = DEBIAN_KEYS;
        Self::Paragraph(format!(
            "Types: deb\nURIs: {DEBIAN_ARCHIVE}\nComponents: main\nSigned-By: {keys}\nArchitectures: amd64\n"
        ))
    }

    fn parse_list(text: &str, codename: &str, components: &str) -> Option<Self> {
        text.lines().find_map(|line| {
            let line = line.split('#').next()?.trim();
            let rest = line.strip_prefix("deb ")?.trim_start();
            let options = if rest.starts_with('[') { rest.find(']')? + 1 } else { 0 };
            let (options, rest) = rest.split_at(options);
            let mut words = rest.split_whitespace();
            let (uri, suite) = (words.next()?, words.next()?);
            let found = suite == codename && words.any(|word| word == "main");
            let before =
                if options.is_empty() { format!("deb {uri}") } else { format!("deb {options} {uri}") };
            found.then(|| Self::Line { before, components: components.into() })
        })
    }

    fn parse_paragraphs(text: &str, codename: &str, components: &str) -> Option<Self> {
        // There may be a comment between the fields of a paragraph; an empty line ends it.
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        lines.split(|line| line.trim().is_empty()).find_map(|paragraph| {
            let has = |field: &str, word: &str| {
                paragraph.iter().any(|line| {
                    let value = line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case(field));
                    value.is_some_and(|(_, value)| value.split_whitespace().any(|found| found == word))
                })
            };
            if !has("Types", "deb")
                || !has("Suites", codename)
                || !has("Components", "main")
                || has("Enabled", "no")
            {
                return None;
            }
            let replaced = ["suites:", "types:", "components:"];
            let kept = paragraph.iter().filter(|line| {
                let line = line.to_ascii_lowercase();
                !replaced.iter().any(|field| line.starts_with(field))
            });
            let kept: String = kept.map(|line| format!("{line}\n")).collect();
            Some(Self::Paragraph(format!("Types: deb\nComponents: {components}\n{kept}")))
        })
    }
}

/// The machine's own entry for its release.
fn host_source(codename: &str, components: &str) -> Result<Option<AptSource>, Error> {
    let directory = Path::new("/etc/apt/sources.list.d");
    let mut paths = vec![PathBuf::from("/etc/apt/sources.list")];
    if directory.exists() {
        for entry in fs::read_dir(directory).map_err(Error::for_file(directory))? {
            paths.push(entry.map_err(Error::for_file(directory))?.path());
        }
    }
    paths.retain(|path| path.exists());
    for path in paths {
        let parse = match path.extension().and_then(OsStr::to_str) {
            Some("list") => AptSource::parse_list,
            Some("sources") => AptSource::parse_paragraphs,
            _ => continue,
        };
        let text = fs::read_to_string(&path).map_err(Error::for_file(&path))?;
        if let Some(source) = parse(&text, codename, components) {
            return Ok(Some(source));
        }
    }
    Ok(None)
}

/// Runs a command until it ends, and returns its output.
pub(crate) fn run_command(what: &str, command: &mut Command) -> Result<String, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|source| Error::Start { program, source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(Error::Command {
        what: what.to_owned(),
        command: format!("{command:?}"),
        status: output.status,
        words: last_lines(text.trim(), 5).join("; "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_is_shown_with_its_output() {
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo no disk >&2; exit 3"]);
        assert_eq!(
            run_command("installing qemu", &mut failing).unwrap_err().to_string(),
            "installing qemu: failed (exit status: 3); '\"sh\" \"-c\" \"echo no disk >&2; exit 3\"' printed: no disk; run it by hand to see more"
        );
    }

    #[test]
    fn a_sources_list_line_yields_mirror_and_options() {
        let text = "# deb http://old.example/debian bookworm main\n\
                    deb http://s.example/debian-security bookworm-security main\n\
                    deb [signed-by=/k.gpg arch=amd64] http://m.example/debian bookworm main contrib # ours\n";
        let source = AptSource::parse_list(text, "bookworm", "main").unwrap();
        let before = "deb [signed-by=/k.gpg arch=amd64] http://m.example/debian".to_owned();
        assert_eq!(source, AptSource::Line { before, components: "main".into() });
        assert_eq!(AptSource::parse_list(text, "trixie", "main"), None);
    }

    #[test]
    fn a_sources_paragraph_keeps_all_fields_but_suites() {
        let text = "Types: deb deb-src\n# an old address\nURIs: http://m.example/debian\n\
                    Suites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By: /k.gpg\n\n\
                    Types: deb\nURIs: http://s.example/debian\nSuites: bookworm-security\nComponents: main\n";
        let AptSource::Paragraph(fields) = AptSource::parse_paragraphs(text, "bookworm", "main").unwrap()
        else {
            panic!()
        };
        assert_eq!(
            fields,
            "Types: deb\nComponents: main\nURIs: http://m.example/debian\nSigned-By: /k.gpg\n"
        );
        let disabled = text.replacen("Types:", "Enabled: no\nTypes:", 1);
        assert_eq!(AptSource::parse_paragraphs(&disabled, "bookworm", "main"), None);
    }

    #[test]
    fn architecture_restrictions_are_removed_from_apt_sources() {
        for (before, after) in [
            ("deb http://m.example/debian", "deb http://m.example/debian"),
            ("deb [arch=amd64] http://m.example/debian", "deb http://m.example/debian"),
            (
                "deb [signed-by=/k.gpg arch=amd64] http://m.example/debian",
                "deb [signed-by=/k.gpg] http://m.example/debian",
            ),
        ] {
            let line = |before: &str| AptSource::Line { before: before.into(), components: "main".into() };
            assert_eq!(line(before).without_architectures(), line(after));
        }
        let fields = "Types: deb\nURIs: http://m.example/debian\nArchitectures: amd64\nSigned-By: /k.gpg\n";
        let AptSource::Paragraph(fields) = AptSource::Paragraph(fields.into()).without_architectures() else {
            panic!()
        };
        assert_eq!(fields, "Types: deb\nURIs: http://m.example/debian\nSigned-By: /k.gpg\n");
    }

    #[test]
    fn ubuntu_hosts_use_ubuntu_programs_and_debian_kernels() {
        let text = "Types: deb\nURIs: http://archive.example/ubuntu/\nSuites: noble noble-updates noble-backports\n\
                    Components: main universe restricted multiverse\nSigned-By: /u.gpg\n";
        let AptSource::Paragraph(fields) =
            AptSource::parse_paragraphs(text, "noble", "main universe").unwrap()
        else {
            panic!()
        };
        assert_eq!(
            fields,
            "Types: deb\nComponents: main universe\nURIs: http://archive.example/ubuntu/\nSigned-By: /u.gpg\n"
        );
        let noble = SystemRelease { system: Distribution::Ubuntu, codename: "noble".into() };
        assert_eq!(noble.suites(), ("noble-updates".into(), Some("noble")));
        let AptSource::Paragraph(kernels) = noble.apt_source(PackageArchive::Debian).unwrap() else {
            panic!()
        };
        assert!(kernels.contains(DEBIAN_ARCHIVE) && kernels.contains(DEBIAN_KEYS.0), "{kernels}");
    }

    #[test]
    fn unsupported_systems_are_named_and_refused() {
        let release = |text, architecture| SystemRelease::parse_os_release(text, architecture);
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        let known = release(debian, "x86_64").unwrap();
        assert_eq!(known, SystemRelease { system: Distribution::Debian, codename: "bookworm".into() });
        let ubuntu = "NAME=\"Ubuntu\"\nVERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n";
        assert_eq!(release(ubuntu, "x86_64").unwrap().system, Distribution::Ubuntu);
        let fedora =
            "NAME=\"Fedora Linux\"\nID=fedora\nVERSION_CODENAME=\"\"\nPRETTY_NAME=\"Fedora Linux 42\"\n";
        for (text, architecture, named) in [
            (fedora, "x86_64", "Fedora Linux 42 on x86_64"),
            (debian, "aarch64", "Debian GNU/Linux 12 (bookworm) on aarch64"),
            ("", "x86_64", "an unknown system on x86_64"),
        ] {
            let error = release(text, architecture).unwrap_err();
            assert!(error.is_unsupported_machine() && error.to_string().contains(named), "{error}");
        }
    }
}
