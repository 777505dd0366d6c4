//! Tests that are skipped because the machine lacks something.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{Builder, Error, Lab, Missing, ThreeNodeLab};

/// A skip that continuous integration accepts, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllowedSkip {
    /// The missing thing, by [`Missing::name`].
    pub needs: &'static str,
    /// Why this test is not needed there.
    pub reason: &'static str,
}

/// Every skip that continuous integration accepts. Anything else that skips there is a failure,
/// because a suite that silently skips everything looks exactly like one that passes.
pub const ALLOWED_SKIPS: &[AllowedSkip] = &[
    AllowedSkip {
        needs: "an interface with zero-copy XDP",
        reason: "no card of the build machines has it; the VM lab covers it with emulated igb and virtio-net",
    },
    AllowedSkip {
        needs: "AF_XDP sockets of other processes (CONFIG_XDP_SOCKETS_DIAG)",
        reason: "kernels of build machines may be built without; those of the VM lab have it",
    },
    AllowedSkip {
        needs: "loop devices and mkfs.ext4",
        reason: "containers have none; elsewhere build machines have them",
    },
    AllowedSkip {
        needs: "a loop device that nobody else takes",
        reason: "another program of the machine may take the device that a test has just freed",
    },
    AllowedSkip { needs: "overlayfs", reason: "kernels of build machines may be built without" },
    AllowedSkip {
        needs: "casefold of ext4 (CONFIG_UNICODE)",
        reason: "kernels of build machines may be built without",
    },
    AllowedSkip {
        needs: "18,000 descriptors",
        reason: "a build machine may limit processes to fewer; what is skipped is what happens to a profile of more sockets than it has room for",
    },
];

/// The environment variable with what a run of tests takes away from them on purpose, separated by
/// semicolons: skips for want of it are allowed.
pub const REMOVED: &str = "NOCOPY_TEST_WITHOUT";

const IO_URING: &str = "io_uring";
const IPV6: &str = "IPv6";
const DESCRIPTORS: &str = "1,024 descriptors";

/// Prints `SKIP: needs …` for the running test.
///
/// # Panics
/// If the environment has `CI=true`, and `missing` is neither in [`ALLOWED_SKIPS`] nor [taken
/// away](REMOVED).
pub fn skip(missing: &Missing) {
    let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    let taken_away = std::env::var(REMOVED).unwrap_or_default();
    match judge(missing, in_ci && !taken_away.split(';').any(|name| name == missing.name())) {
        Ok(line) => eprintln!("{line}"),
        Err(line) => panic!("{line}"),
    }
}

fn judge(missing: &Missing, in_ci: bool) -> Result<String, String> {
    let allowed = ALLOWED_SKIPS.iter().find(|skip| skip.needs == missing.name());
    match (in_ci, allowed) {
        (false, _) => Ok(format!("SKIP: {missing}")),
        (true, Some(skip)) => Ok(format!("SKIP: needs {}: allowed: {}", skip.needs, skip.reason)),
        (true, None) => Err(format!(
            "a skip that CI does not allow: {missing}; or list it with its reason in nocopy_lab::ALLOWED_SKIPS"
        )),
    }
}

/// Whether the kernel lets this process use io_uring. Sandboxes of containers often refuse it.
pub fn has_io_uring() -> bool {
    io_uring::IoUring::new(2).is_ok()
}

/// As [`has_io_uring`]; if not, prints that it is missing.
///
/// # Panics
/// As [`skip`].
pub fn io_uring_or_skip() -> bool {
    skip_if_missing(has_io_uring(), &Missing::Kernel(IO_URING))
}

/// The values; where io_uring is refused, without those that need it. What is missing is printed at the end
/// of the iteration, after a loop has asserted the rest.
///
/// # Panics
/// As [`skip`].
pub fn without_refused_io_uring<T>(
    values: impl IntoIterator<Item = T>,
    needs_io_uring: impl Fn(&T) -> bool,
) -> impl Iterator<Item = T> {
    without_values_needing(IO_URING, has_io_uring(), values, needs_io_uring)
}

/// The values; where no IPv6 socket can be bound, without those that need one. What is missing is printed at
/// the end of the iteration.
///
/// # Panics
/// As [`skip`].
pub fn without_missing_ipv6<T>(
    values: impl IntoIterator<Item = T>,
    needs_ipv6: impl Fn(&T) -> bool,
) -> impl Iterator<Item = T> {
    without_values_needing(IPV6, has_ipv6(), values, needs_ipv6)
}

/// As [`without_missing_ipv6`], but only where the kernel has no IPv6 at all: it can be enabled for an
/// interface of a lab.
///
/// # Panics
/// As [`skip`].
pub fn without_missing_ipv6_sockets<T>(
    values: impl IntoIterator<Item = T>,
    needs_ipv6: impl Fn(&T) -> bool,
) -> impl Iterator<Item = T> {
    without_values_needing(IPV6, has_ipv6_sockets(), values, needs_ipv6)
}

fn skip_if_missing(is_there: bool, missing: &Missing) -> bool {
    if !is_there {
        skip(missing);
    }
    is_there
}

fn without_values_needing<T>(
    feature: &'static str,
    is_there: bool,
    values: impl IntoIterator<Item = T>,
    needs_it: impl Fn(&T) -> bool,
) -> impl Iterator<Item = T> {
    let mut values: Vec<T> = values.into_iter().collect();
    let is_some_left_out = !is_there && values.iter().any(&needs_it);
    values.retain(|value| is_there || !needs_it(value));
    let end = std::iter::from_fn(move || {
        if is_some_left_out {
            skip(&Missing::Kernel(feature));
        }
        None
    });
    values.into_iter().chain(end)
}

/// Whether this process may have 1,024 descriptors, to which its limit is raised; otherwise prints that they
/// are missing.
///
/// # Panics
/// As [`skip`].
pub fn descriptors_or_skip() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let is_enough = limit.current.is_none_or(|current| current >= 1024);
    let raised = Rlimit { current: Some(1024), maximum: limit.maximum };
    skip_if_missing(
        is_enough || setrlimit(Resource::Nofile, raised).is_ok(),
        &Missing::Capability(DESCRIPTORS),
    )
}

/// Whether IPv6 sockets can be bound to the loopback interface.
pub fn has_ipv6() -> bool {
    std::net::UdpSocket::bind("[::1]:0").is_ok()
}

/// As [`has_ipv6`]; if not, prints that it is missing.
///
/// # Panics
/// As [`skip`].
pub fn ipv6_or_skip() -> bool {
    skip_if_missing(has_ipv6(), &Missing::Kernel(IPV6))
}

/// Whether the kernel has IPv6 sockets, even if no interface has an IPv6 address.
pub fn has_ipv6_sockets() -> bool {
    std::net::UdpSocket::bind("[::]:0").is_ok()
}

/// As [`has_ipv6_sockets`]; if not, prints that IPv6 is missing.
///
/// # Panics
/// As [`skip`].
pub fn ipv6_sockets_or_skip() -> bool {
    skip_if_missing(has_ipv6_sockets(), &Missing::Kernel(IPV6))
}

/// A default lab for a test, or `None` after printing what is missing: `let Some(lab) = lab_or_skip() else {
/// return };`
///
/// # Panics
/// When the lab fails for another reason than a missing capability or kernel feature, and on a skip CI does
/// not allow.
pub fn lab_or_skip() -> Option<Lab> {
    Lab::builder().build_or_skip()
}

impl Builder {
    /// [`lab_or_skip`] with these options.
    ///
    /// # Panics
    /// As [`lab_or_skip`].
    pub fn build_or_skip(self) -> Option<Lab> {
        result_or_skip(self.build())
    }
}

impl ThreeNodeLab {
    /// A chain for a test, or `None` after printing what is missing.
    ///
    /// # Panics
    /// As [`lab_or_skip`].
    pub fn new_or_skip() -> Option<Self> {
        result_or_skip(Self::new())
    }
}

fn result_or_skip<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(result) => Some(result),
        Err(Error::Missing(missing)) => {
            skip(&missing);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNLISTED: Missing = Missing::Capability("CAP_NET_ADMIN");

    #[test]
    fn outside_ci_every_skip_is_allowed() {
        assert!(judge(&UNLISTED, false).unwrap().starts_with("SKIP: needs CAP_NET_ADMIN"));
    }

    #[test]
    fn ci_refuses_a_skip_that_is_not_listed() {
        assert!(judge(&UNLISTED, true).unwrap_err().contains("CAP_NET_ADMIN"));
    }

    #[test]
    fn ci_prints_the_reason_of_a_listed_skip() {
        for skip in ALLOWED_SKIPS {
            assert!(!skip.reason.is_empty());
            assert!(judge(&Missing::Device(skip.needs), true).unwrap().contains(skip.reason));
        }
    }
}
