//! Programs into which nothing is preloaded.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nocopy::filter::{self, CompileError};
use nocopy_lab::PreloadLibrary;
use nocopy_proto::distribution::libpcap_install_command;
use rustix::fs::{Access, access, getxattr};
use rustix::process::{getegid, geteuid, getuid};

use super::executable::{self, CLibrary, Executable};

const SET_USER: u32 = libc::S_ISUID;
const SET_GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;

/// The program of a command, and what can be found out before it runs.
#[derive(Debug)]
pub(super) struct CommandProgram {
    name: String,
    path: Option<PathBuf>,
    /// `None` for unreadable files.
    executable: Option<Executable>,
    /// Of a script, as it names it; path and executable are the interpreter's, if that is found.
    interpreter: Option<PathBuf>,
}

/// Why nothing can be preloaded into a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PreloadObstacle {
    pub(super) text: String,
    /// Whether the library would end the program: musl's loader ends one whose preloaded library it cannot
    /// load.
    pub(super) is_fatal: bool,
}

impl CommandProgram {
    pub(super) fn inspect(word: &OsStr) -> Self {
        let variable = std::env::var_os("PATH");
        let path = find_in_path(word, variable.as_deref());
        let interpreter = path.as_deref().and_then(script_interpreter);
        let path = interpreter.as_deref().and_then(|word| find_in_path(word, variable.as_deref())).or(path);
        let executable = path.as_deref().and_then(|path| Executable::read_elf(path).ok().flatten());
        let interpreter = interpreter.map(PathBuf::from);
        Self { name: word.to_string_lossy().into_owned(), path, executable, interpreter }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Why a library for this C library cannot be preloaded.
    pub(super) fn preload_obstacle(
        &self,
        which: PreloadLibrary,
        library: Option<CLibrary>,
    ) -> Option<PreloadObstacle> {
        let what = match &self.interpreter {
            Some(path) => format!("its interpreter {}", path.display()),
            None => "the program".into(),
        };
        let executable = self.executable.as_ref();
        let other = executable.and_then(Executable::c_library).zip(library).filter(|(its, ours)| its != ours);
        let linked = match which {
            PreloadLibrary::Pcap => "libpcap",
            PreloadLibrary::Sockets => "the C library",
        };
        let why = self.privilege_obstacle().map(str::to_owned).or_else(|| match (executable?, other) {
            (executable, _) if executable.loader.is_none() => {
                Some(format!("{what} is statically linked; use a build that loads {linked}"))
            }
            (executable, _) if !executable.is_native() => Some(format!(
                "{what} is for another architecture ({}) than the library; use one for this architecture",
                executable.processor_name()
            )),
            (_, Some((its, ours))) => {
                let (its, ours) = (its.name(), ours.name());
                Some(format!(
                    "{what} is for {its}, the library for {ours}; name a library that was built for {its} with --library"
                ))
            }
            _ => None,
        })?;
        let text = format!("{}: nothing can be preloaded into it; {why}", self.name);
        Some(PreloadObstacle { text, is_fatal: other.is_some() })
    }

    /// What to install if the program needs libpcap, and there is none. A statically linked nocopy cannot ask
    /// the loader for it; then the library that is preloaded reports it at the first filter.
    pub(super) fn missing_libpcap_warning(&self) -> Option<String> {
        let needs_it = self.executable.as_ref().is_some_and(Executable::needs_libpcap)
            && !cfg!(target_feature = "crt-static");
        match needs_it.then(|| filter::compile("ip")) {
            Some(Err(CompileError::NoLibrary { .. })) => Some(format!(
                "{}: needs libpcap, which this system lacks; nocopy compiles filters and reads files by it, too; install it ({})",
                self.name,
                libpcap_install_command(|path| std::fs::read_to_string(path).ok())
            )),
            _ => None,
        }
    }

    /// The loader or the interpreter that the program asks for, if that is not there: the kernel says of such
    /// a program that it does not exist.
    pub(super) fn missing_loader(&self) -> Option<&Path> {
        let loader =
            self.executable.as_ref().and_then(|executable| executable.loader.as_deref()).map(Path::new);
        self.interpreter.as_deref().into_iter().chain(loader).find(|path| !path.exists())
    }

    /// Whether the program would get privileges when it is started: the loader preloads no library into such
    /// a process. Returns the error text.
    fn privilege_obstacle(&self) -> Option<&'static str> {
        let path = self.path.as_deref()?;
        let metadata = path.metadata().ok()?;
        let sets = |bits| metadata.mode() & bits == bits;
        let other_user = sets(SET_USER) && metadata.uid() != geteuid().as_raw();
        let other_group = sets(SET_GROUP) && metadata.gid() != getegid().as_raw();
        if other_user || other_group {
            return Some(
                "the loader preloads nothing into set-user-ID and set-group-ID programs; run 'nocopy run' as the user that it becomes",
            );
        }
        let has_capabilities = getxattr(path, "security.capability", &mut [0; 64]).is_ok();
        (has_capabilities && !getuid().is_root())
            .then_some("the loader preloads nothing into files with capabilities; run 'nocopy run' as root")
    }

    /// Why no socket may have been counted, once it has ended without any.
    pub(super) fn no_sockets_note(&self) -> String {
        format!(
            "{}: no UDP socket was reported; the program sent no datagram by functions of the C library (programs in Go, io_uring and raw \
             system calls do not use them), or closed the descriptors that it inherited; see docs/run.md",
            self.name
        )
    }

    /// Why no handle may have been opened, once it has ended without any.
    pub(super) fn no_handles_note(&self) -> String {
        let own = self
            .executable
            .as_ref()
            .filter(|executable| self.interpreter.is_none() && !executable.needs_libpcap());
        let why = match own {
            Some(_) => {
                "the program does not load libpcap: it may be built in, or another program captures that does not load the library; see \
                 docs/run.md"
            }
            None => {
                "the program opened none, or closed the descriptors that it inherited and is in another network namespace; see docs/run.md"
            }
        };
        format!("{}: no capture handle was reported; {why}", self.name)
    }
}

/// Finds a command as execvp(3) does.
fn find_in_path(word: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if word.as_bytes().contains(&b'/') {
        return Some(word.into());
    }
    let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
    std::env::split_paths(path).map(|directory| directory.join(word)).find(|file| is_executable(file))
}

/// The interpreter of a script, as execve(2) and env(1) find it.
fn script_interpreter(path: &Path) -> Option<OsString> {
    let mut line = Vec::new();
    BufReader::new(executable::open_regular_file(path).ok()?).take(256).read_until(b'\n', &mut line).ok()?;
    let mut words = line.strip_prefix(b"#!")?.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let first = words.next()?;
    let word = match first.ends_with(b"/env") {
        true => words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?,
        false => first,
    };
    Some(OsStr::from_bytes(word).into())
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn programs_are_found_by_path() {
        let path = Some(OsStr::new("/nowhere:/usr/bin:/bin"));
        assert_eq!(find_in_path(OsStr::new("env"), path), Some("/usr/bin/env".into()));
        assert_eq!(find_in_path(OsStr::new("no-such-program"), path), None);
        assert_eq!(find_in_path(OsStr::new("./here"), path), Some("./here".into()));
    }

    fn obstacle_text(program: &CommandProgram, which: PreloadLibrary) -> Option<String> {
        program.preload_obstacle(which, Some(CLibrary::Glibc)).map(|obstacle| obstacle.text)
    }

    #[test]
    fn a_plain_program_has_no_obstacle() {
        assert_eq!(obstacle_text(&CommandProgram::inspect(OsStr::new("env")), PreloadLibrary::Sockets), None);
        assert_eq!(
            obstacle_text(&CommandProgram::inspect(OsStr::new("no-such-program")), PreloadLibrary::Sockets),
            None
        );
    }

    #[test]
    fn obstacles_name_cause_and_action() {
        let own = Executable::read_elf(Path::new("/proc/self/exe")).unwrap().unwrap();
        let with = |loader: Option<&str>, interpreter: Option<&str>| {
            let mut executable = own.clone();
            executable.loader = loader.map(str::to_owned);
            let interpreter = interpreter.map(PathBuf::from);
            CommandProgram { name: "tool".into(), path: None, executable: Some(executable), interpreter }
        };
        let program = with(None, None);
        assert_eq!(
            obstacle_text(&program, PreloadLibrary::Sockets).unwrap(),
            "tool: nothing can be preloaded into it; the program is statically linked; use a build that loads the C library"
        );
        assert!(
            obstacle_text(&program, PreloadLibrary::Pcap)
                .unwrap()
                .ends_with("use a build that loads libpcap")
        );
        assert!(
            program
                .no_handles_note()
                .starts_with("tool: no capture handle was reported; the program does not load")
        );
        let script = with(None, Some("/bin/shell"));
        assert!(
            obstacle_text(&script, PreloadLibrary::Pcap)
                .unwrap()
                .contains("its interpreter /bin/shell is statically linked")
        );
        assert_eq!(script.missing_loader(), Some(Path::new("/bin/shell")));
        assert!(script.no_handles_note().contains("the program opened none"));
        let musl = with(Some("/lib/ld-musl-nowhere.so.1"), None);
        let refused = musl.preload_obstacle(PreloadLibrary::Pcap, Some(CLibrary::Glibc)).unwrap();
        assert!(
            refused.is_fatal && musl.preload_obstacle(PreloadLibrary::Pcap, Some(CLibrary::Musl)).is_none()
        );
        assert!(
            refused.text.ends_with(
                "the program is for musl, the library for glibc; name a library that was built for musl with --library"
            ),
            "{refused:?}"
        );
        assert_eq!(musl.missing_loader(), Some(Path::new("/lib/ld-musl-nowhere.so.1")));
        assert_eq!(with(None, None).missing_loader(), None);
    }

    #[test]
    fn a_fifo_as_program_or_interpreter_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        // The path of an interpreter has no blank, but that of temporary files may.
        let opened = std::fs::File::open(&directory).unwrap();
        let fifo = PathBuf::from(format!("/proc/self/fd/{}/fifo", opened.as_raw_fd()));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::fs::write(&script, format!("#!{}\n", fifo.display())).unwrap();
        for (path, interpreter) in [(&fifo, None), (&script, Some(fifo.clone()))] {
            let program = CommandProgram::inspect(path.as_os_str());
            assert_eq!((program.executable, program.interpreter), (None, interpreter));
        }
    }

    #[test]
    fn the_interpreter_of_a_script_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("script");
        for (line, word) in [
            ("#!/bin/sh\n", Some("/bin/sh")),
            ("#! /usr/bin/env python3\nprint()", Some("python3")),
            ("#!/usr/bin/env -S A=1 perl -w\n", Some("perl")),
            ("#!/bin/busybox sh", Some("/bin/busybox")),
            ("#!\n", None),
            ("echo\n", None),
            ("", None),
        ] {
            std::fs::write(&path, line).unwrap();
            assert_eq!(script_interpreter(&path).as_deref(), word.map(OsStr::new), "{line:?}");
        }
        assert_eq!(script_interpreter(Path::new("/proc/self/exe")), None);
    }
}
