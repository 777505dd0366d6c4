//! The version of the running kernel.

/// A kernel release, major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

impl std::fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl KernelVersion {
    /// The running kernel, or `None` if its release is not of the form `major.minor…`.
    pub fn running() -> Option<Self> {
        Self::parse(rustix::system::uname().release().to_str().ok()?)
    }

    fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some(Self(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_of_distributions_are_parsed() {
        assert_eq!(KernelVersion::parse("6.18.44-cloud-amd64"), Some(KernelVersion(6, 18)));
        assert_eq!(KernelVersion::parse("5.9"), Some(KernelVersion(5, 9)));
        assert_eq!(KernelVersion::parse("6.1+deb"), Some(KernelVersion(6, 1)));
        assert_eq!(KernelVersion::parse("weird"), None);
        assert!(KernelVersion(5, 19) < KernelVersion(6, 1));
    }
}
