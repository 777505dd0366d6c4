/// How a machine ended that did not end after its tests.
pub(super) enum MachineFailure {
    /// It never booted: no test has run.
    NeverUp(String),
    /// Its kernel complained while it booted: no test has run, and what the tests would say about such a
    /// kernel proves nothing.
    Unsound(String),
    /// It stopped sending output.
    Silent(String),
    /// Its emulator ran an instruction that the kernel was replacing.
    Mixed(String),
    /// It ended, or could not be followed.
    Early(String),
}

impl MachineFailure {
    /// Why a failure during such an end proves nothing about the test; `None` if it does.
    pub(super) fn excuse(&self) -> Option<&'static str> {
        match self {
            Self::Silent(_) => Some("the machine said nothing more"),
            Self::Mixed(_) => Some("the emulator ran an instruction that the kernel was replacing"),
            Self::NeverUp(_) | Self::Unsound(_) | Self::Early(_) => None,
        }
    }

    /// Whether the machine ended before its first test, so that starting it again hides nothing about the
    /// tests.
    pub(super) fn is_before_tests(&self) -> bool {
        matches!(self, Self::NeverUp(_) | Self::Unsound(_))
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::NeverUp(words)
            | Self::Unsound(words)
            | Self::Silent(words)
            | Self::Mixed(words)
            | Self::Early(words) => words,
        }
    }
}
