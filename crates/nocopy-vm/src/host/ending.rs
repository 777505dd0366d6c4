/// How a machine ended that did not end after its tests.
pub(super) enum Ending {
    /// It never booted: no test has run.
    NeverUp(String),
    /// It stopped sending output.
    Silent(String),
    /// Its emulator ran an instruction that the kernel was replacing.
    Mixed(String),
    /// It ended, or could not be followed.
    Early(String),
}

impl Ending {
    /// Why a failure during such an end proves nothing about the test; `None` if it does.
    pub(super) fn excuse(&self) -> Option<&'static str> {
        match self {
            Self::Silent(_) => Some("the machine said nothing more"),
            Self::Mixed(_) => Some("the emulator ran an instruction that the kernel was replacing"),
            Self::NeverUp(_) | Self::Early(_) => None,
        }
    }

    pub(super) fn words(&self) -> &str {
        match self {
            Self::NeverUp(words) | Self::Silent(words) | Self::Mixed(words) | Self::Early(words) => words,
        }
    }
}
