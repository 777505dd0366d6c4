//! Programs into which nothing is preloaded.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, getxattr};
use rustix::process::{getegid, geteuid, getuid};

use super::executable::Executable;
use super::kind::Kind;

const SET_USER: u32 = libc::S_ISUID;
const SET_GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;

/// The program of a command, and what can be found out before it runs.
#[derive(Debug)]
pub(super) struct Program {
    name: String,
    path: Option<PathBuf>,
    /// `None` for scripts, and unreadable files.
    executable: Option<Executable>,
}

impl Program {
    pub(super) fn look_at(word: &OsStr) -> Self {
        let path = find(word, std::env::var_os("PATH").as_deref());
        let executable = path.as_deref().and_then(|path| Executable::read(path).ok().flatten());
        Self { name: word.to_string_lossy().into_owned(), path, executable }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn obstacle(&self, kind: Kind) -> Option<String> {
        let why = self.privileges().or_else(|| {
            let executable = self.executable.as_ref()?;
            match executable {
                _ if !executable.has_loader => Some(match kind {
                    Kind::Pcap => "the program is statically linked; use a build that loads libpcap.so.0.8",
                    Kind::Sockets => "the program is statically linked; use a build that loads the C library",
                }),
                _ if !executable.is_native() => Some(
                    "the program is for another architecture than the library; use one for this architecture",
                ),
                _ => None,
            }
        })?;
        Some(format!("{}: nothing can be preloaded into it; {why}", self.name))
    }

    /// Whether the program would get privileges when it is started: the loader preloads no library into such a process. Returns the error text.
    fn privileges(&self) -> Option<&'static str> {
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
    pub(super) fn silence_of_sockets(&self) -> String {
        format!(
            "{}: no UDP socket was reported; the program sent no datagram by functions of the C library (programs in Go, io_uring and raw \
             system calls do not use them), or closed the descriptors that it inherited; see docs/run.md",
            self.name
        )
    }

    /// Why no handle may have been opened, once it has ended without any.
    pub(super) fn silence(&self) -> String {
        let own = self.executable.as_ref().filter(|executable| !executable.needs_libpcap());
        let why = match own {
            Some(_) => {
                "the program does not load libpcap.so.0.8: libpcap may be built in, or another program captures that does not load the \
                 library; see docs/run.md"
            }
            None => {
                "the program opened none, or closed the descriptors that it inherited and is in another network namespace; see docs/run.md"
            }
        };
        format!("{}: no capture handle was reported; {why}", self.name)
    }
}

/// Finds a command as execvp(3) does.
fn find(word: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if word.as_bytes().contains(&b'/') {
        return Some(word.into());
    }
    let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
    std::env::split_paths(path).map(|directory| directory.join(word)).find(|file| is_executable(file))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_the_shell_finds_them() {
        let path = Some(OsStr::new("/nowhere:/usr/bin:/bin"));
        assert_eq!(find(OsStr::new("env"), path), Some("/usr/bin/env".into()));
        assert_eq!(find(OsStr::new("no-such-program"), path), None);
        assert_eq!(find(OsStr::new("./here"), path), Some("./here".into()));
    }

    #[test]
    fn a_plain_program_has_no_obstacle() {
        assert_eq!(Program::look_at(OsStr::new("env")).obstacle(Kind::Sockets), None);
        assert_eq!(Program::look_at(OsStr::new("no-such-program")).obstacle(Kind::Sockets), None);
    }

    #[test]
    fn an_obstacle_says_what_failed_and_what_to_do() {
        let mut loaderless = Executable::read(Path::new("/proc/self/exe")).unwrap().unwrap();
        loaderless.has_loader = false;
        let program = Program { name: "tool".into(), path: None, executable: Some(loaderless) };
        assert_eq!(
            program.obstacle(Kind::Sockets).unwrap(),
            "tool: nothing can be preloaded into it; the program is statically linked; use a build that loads the C library"
        );
        assert!(program.obstacle(Kind::Pcap).unwrap().ends_with("use a build that loads libpcap.so.0.8"));
        assert!(program.silence().starts_with("tool: no capture handle was reported; the program does"));
    }
}
