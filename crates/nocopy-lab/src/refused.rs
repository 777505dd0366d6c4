//! Errors on purpose: system calls that fail, and the sentences that follow from it. With the feature
//! `refused`.

use std::fmt;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// A system call that fails. As text, for another process: `CALL ERRNO`, or `CALL ERRNO ARGUMENT VALUE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    call: i64,
    errno: i32,
    argument: Option<(u8, i32)>,
}

impl Refused {
    /// With any arguments.
    pub const fn always(call: i64, errno: i32) -> Self {
        Self { call, errno, argument: None }
    }

    /// With one value of one argument, which is counted from 0.
    pub const fn with(call: i64, errno: i32, argument: (u8, i32)) -> Self {
        Self { call, errno, argument: Some(argument) }
    }

    /// Reads the text; `None` if it is another one.
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.split(' ').map(|number| number.parse::<i32>().ok()).collect::<Option<Vec<_>>>()?;
        match numbers[..] {
            [call, errno] => Some(Self::always(call.into(), errno)),
            [call, errno, index, value] => {
                Some(Self::with(call.into(), errno, (index.try_into().ok()?, value)))
            }
            _ => None,
        }
    }

    /// Makes it fail on this thread, and in what this thread starts, until they end.
    ///
    /// # Panics
    /// The kernel refuses the filter, or has none for this architecture.
    pub fn install_filter(self) {
        let conditions = self.argument.map(|(index, value)| {
            let length = SeccompCmpArgLen::Dword;
            SeccompCondition::new(index, length, SeccompCmpOp::Eq, value.cast_unsigned().into()).unwrap()
        });
        let rules = conditions.map(|condition| SeccompRule::new(vec![condition]).unwrap()).into_iter();
        let refused = SeccompAction::Errno(self.errno.cast_unsigned());
        let here = std::env::consts::ARCH.try_into().unwrap();
        let rules = [(self.call, rules.collect())].into();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, here).unwrap();
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.call, self.errno)?;
        self.argument.iter().try_for_each(|(index, value)| write!(f, " {index} {value}"))
    }
}

/// Runs `work` on a thread of its own, where these system calls fail.
///
/// # Panics
/// As [`Refused::install_filter`], or if `work` panics.
pub fn with_refused_calls<T: Send>(refused: &[Refused], work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refused.iter().copied().for_each(Refused::install_filter);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether it is the expected sentence, in which `…` stands for words that differ between machines.
pub fn matches_sentence(text: &str, expected: &str) -> bool {
    match expected.split_once('…') {
        Some((start, end)) => {
            text.len() >= start.len() + end.len() && text.starts_with(start) && text.ends_with(end)
        }
        None => text == expected,
    }
}
