//! The user for whom a call is made. The kernel decides what that user may do: the thread that makes the call
//! acts as the user meanwhile (setfsuid(2), setfsgid(2), and setgroups(2) for this thread only).

use nocopy_proto::errno::ErrorCause;
use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::os::fd::AsRawFd;
use std::panic::resume_unwind;
use std::thread;

use nix::unistd::{Gid as NixGid, Uid as NixUid, setfsgid, setfsuid};
use rustix::fs::{Access, AtFlags, CWD, MemfdFlags, Mode, accessat, fchmod, memfd_create};
use rustix::io::Errno;
use rustix::process::{Gid, geteuid};
use rustix::thread::set_thread_groups;

use super::descriptor_path;
use crate::wire::nfs3::Status;
use crate::wire::rpc::GROUPS_MAX;

/// The user and the group without special rights: root of a client, and calls without a user.
const NOBODY: u32 = 65_534;

/// The user and the group of callers that may be any program. Another number than nobody's, whose files are
/// those of a client's root; distributions and systemd keep this number free, and it exists wherever nobody
/// does.
const UNTRUSTED: u32 = 65_533;

/// An invalid user or group, for which setfsuid(2) changes nothing.
const NONE: u32 = u32::MAX;

/// The user for whom a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Caller {
    /// The user of this process.
    Server,
    User(User),
}

/// A user, with a main group and additional groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct User {
    user: u32,
    group: u32,
    groups: [u32; GROUPS_MAX],
    group_count: usize,
}

impl User {
    pub const NOBODY: Self = Self::with_own_group(NOBODY);
    /// Of a call from a port that any program can use, whatever user it names.
    pub const UNTRUSTED: Self = Self::with_own_group(UNTRUSTED);

    /// A user with a group of the same number, and no others.
    const fn with_own_group(number: u32) -> Self {
        Self { user: number, group: number, groups: [0; GROUPS_MAX], group_count: 0 }
    }

    /// Maps root and invalid numbers to nobody; root stays root if `is_root_trusted`. Only the first
    /// [`GROUPS_MAX`] groups count.
    pub fn new(user: u32, group: u32, groups: &[u32], is_root_trusted: bool) -> Self {
        let squashed =
            |number| if number == NONE || (number == 0 && !is_root_trusted) { NOBODY } else { number };
        if squashed(user) != user {
            return Self::NOBODY;
        }
        let mut new = Self { user, group: squashed(group), ..Self::NOBODY };
        for (slot, group) in new.groups.iter_mut().zip(groups) {
            *slot = squashed(*group);
            new.group_count += 1;
        }
        new
    }

    pub(super) fn is_user_id(&self, user: u32) -> bool {
        self.user == user
    }

    fn groups(&self) -> &[u32] {
        &self.groups[..self.group_count]
    }
}

impl Caller {
    /// Whether new files of this caller belong to that user.
    pub(super) fn is_user_id(&self, user: u32) -> bool {
        match self {
            Self::Server => geteuid().as_raw() == user,
            Self::User(caller) => caller.is_user_id(user),
        }
    }

    /// Makes system calls for this caller. Errors: errors of `action`; [`Status::ServerFault`]: this process
    /// cannot act as that user.
    pub(super) fn act_as<T>(&self, action: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
        let Self::User(user) = self else { return action() };
        let _acting = ImpersonationGuard::begin(user)?;
        action()
    }

    /// Checks that this process, as root, can make calls for other users with no more than the rights of
    /// these.
    ///
    /// # Errors
    /// See [`ImpersonationError`].
    pub fn check_impersonation() -> Result<(), ImpersonationError> {
        let check = |user| {
            Self::User(user).act_as(|| Ok(())).map_err(|_| ImpersonationError::Rights)?;
            check_kernel_decides_access(&Self::User(user))
                .map_err(|error| ImpersonationError::Access(error.into()))
        };
        let check = || [User::NOBODY, User::UNTRUSTED].into_iter().try_for_each(check);
        // On a thread that ends, because it has the groups of these users from then on.
        thread::scope(|scope| scope.spawn(check).join().unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

/// Why this process cannot make calls for other users.
#[derive(Debug, thiserror::Error)]
pub enum ImpersonationError {
    #[error(
        "serve nfs: refused; this is root without the right to act as other users (CAP_SETUID, CAP_SETGID, and a user namespace that has the users {UNTRUSTED} and {NOBODY}), so every client would act as root; start it with that right, or as the user that owns the files \
         ('setpriv --reuid USER --regid GROUP --clear-groups nocopy serve nfs ...')"
    )]
    Rights,
    #[error("serve nfs: refused; the kernel does not say what other users may do with a file{cause}; every client could act as root; use Linux 5.8 or newer, and a sandbox (seccomp) that permits faccessat2(2), or start it as the user that owns the files", cause = ErrorCause(.0))]
    Access(#[source] io::Error),
}

/// Whether the user as whom this thread acts may access the file of a link below /proc; see [`check_access`].
pub(super) fn may_access(link: &CStr, access: Access) -> rustix::io::Result<()> {
    accessat(CWD, link, access, AtFlags::EACCESS)
}

/// Checks, with a file of this process, that the kernel decides what another user may do. Without
/// faccessat2(2), rustix and the C library use faccessat(2), which decides for the real user: for root, who
/// may do everything.
fn check_kernel_decides_access(caller: &Caller) -> rustix::io::Result<()> {
    let file = memfd_create(c"nocopy: access", MemfdFlags::CLOEXEC)?;
    let link = descriptor_path(file.as_raw_fd());
    let may = |mode| {
        fchmod(&file, mode)?;
        // The error of the kernel is the result here, not a failure.
        caller.act_as(|| Ok(may_access(&link, Access::READ_OK))).unwrap_or(Err(Errno::PERM))
    };
    // The group of the file is the last user's, whose groups this thread still has.
    may(Mode::RGRP | Mode::ROTH)?;
    match may(Mode::empty()) {
        Err(Errno::ACCESS) => Ok(()),
        Err(error) => Err(error),
        Ok(()) => Err(Errno::NOSYS),
    }
}

thread_local! {
    /// The user whose groups this thread has. They stay until another user's are needed: the server itself
    /// needs none, and each change costs a microsecond or two.
    static GROUPS: Cell<Option<User>> = const { Cell::new(None) };
}

/// While it exists, this thread has the rights of a user. Drop restores the thread's own.
struct ImpersonationGuard {
    previous_user: NixUid,
}

impl ImpersonationGuard {
    fn begin(user: &User) -> Result<Self, Status> {
        let has_groups = |known: User| (known.group, known.groups()) == (user.group, user.groups());
        if !GROUPS.get().is_some_and(has_groups) {
            GROUPS.set(None);
            set_groups(user)?;
            GROUPS.set(Some(*user));
        }
        let number = NixUid::from_raw(user.user);
        let acting = Self { previous_user: setfsuid(number) };
        // setfsuid(2) returns only the previous user: a second call shows whether the first succeeded.
        if setfsuid(number) == number { Ok(acting) } else { Err(Status::ServerFault) }
    }
}

fn set_groups(user: &User) -> Result<(), Status> {
    let mut groups = [Gid::ROOT; GROUPS_MAX];
    for (slot, group) in groups.iter_mut().zip(user.groups()) {
        *slot = Gid::from_raw(*group);
    }
    set_thread_groups(&groups[..user.group_count]).map_err(|_| Status::ServerFault)?;
    let group = NixGid::from_raw(user.group);
    setfsgid(group);
    if setfsgid(group) == group { Ok(()) } else { Err(Status::ServerFault) }
}

impl Drop for ImpersonationGuard {
    fn drop(&mut self) {
        setfsuid(self.previous_user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_invalid_users_are_squashed() {
        for user in [0, NONE] {
            assert_eq!(User::new(user, 5, &[6], false), User::NOBODY);
        }
        assert_eq!(User::new(NONE, 5, &[6], true), User::NOBODY);
        let user = User::new(7, 0, &[0, 8, NONE], false);
        assert_eq!((user.user, user.group, user.groups()), (7, NOBODY, &[NOBODY, 8, NOBODY][..]));
        let root = User::new(0, 0, &[0, 8], true);
        assert_eq!((root.user, root.group, root.groups()), (0, 0, &[0, 8][..]));
    }

    #[test]
    fn groups_above_the_limit_are_ignored() {
        let user = User::new(7, 7, &[9; 40], false);
        assert_eq!(user.groups(), [9; GROUPS_MAX]);
    }
}
