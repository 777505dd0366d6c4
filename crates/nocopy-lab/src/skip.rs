//! Tests that are skipped because the machine lacks something.

use crate::{Builder, Chain, Error, Lab, Missing};

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
        needs: "18,000 descriptors",
        reason: "a build machine may limit processes to fewer; what is skipped is what happens to a profile of more sockets than it has room for",
    },
];

/// Prints `SKIP: needs …` for the running test.
///
/// # Panics
/// If the environment has `CI=true` and `missing` is not in [`ALLOWED_SKIPS`].
pub fn skip(missing: &Missing) {
    let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    match judge(missing, in_ci) {
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

/// A default lab for a test, or `None` after printing what is missing: `let Some(lab) = lab_or_skip() else { return };`
///
/// # Panics
/// When the lab fails for another reason than a missing capability or kernel feature, and on a skip CI does not allow.
pub fn lab_or_skip() -> Option<Lab> {
    Lab::builder().build_or_skip()
}

impl Builder {
    /// [`lab_or_skip`] with these options.
    ///
    /// # Panics
    /// As [`lab_or_skip`].
    pub fn build_or_skip(self) -> Option<Lab> {
        made_or_skip(self.build())
    }
}

impl Chain {
    /// A chain for a test, or `None` after printing what is missing.
    ///
    /// # Panics
    /// As [`lab_or_skip`].
    pub fn new_or_skip() -> Option<Self> {
        made_or_skip(Self::new())
    }
}

fn made_or_skip<T>(made: Result<T, Error>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
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
    fn a_developer_may_skip_anything() {
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
