//! Errors on purpose: system calls that fail, and the sentences that come of it.

use std::fmt::Display;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// A system call that fails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    call: libc::c_long,
    errno: i32,
    /// The only value of one argument (counted from 0) with which it fails, or it always does.
    argument: Option<(u8, i32)>,
}

impl Refused {
    pub(crate) fn always(call: libc::c_long, errno: i32) -> Self {
        Self { call, errno, argument: None }
    }

    pub(crate) fn with(call: libc::c_long, errno: i32, argument: (u8, i32)) -> Self {
        Self { call, errno, argument: Some(argument) }
    }

    /// On this thread, for ever.
    fn apply(self) {
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

/// Runs `work` on a thread of its own, where these system calls fail.
pub(crate) fn where_refused<T: Send>(refused: &[Refused], work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refused.iter().copied().for_each(Refused::apply);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Compares errors with the sentences that were expected; reports all that differ at once.
#[derive(Debug, Default)]
pub(crate) struct Sentences(Vec<String>);

impl Sentences {
    /// `…` stands for words that differ between machines.
    pub(crate) fn says<T>(&mut self, tried: Result<T, impl Display>, expected: &str) {
        let said = tried.map_or_else(|error| error.to_string(), |_| "no error".to_owned());
        let is_expected = match expected.split_once('…') {
            Some((start, end)) => {
                said.len() >= start.len() + end.len() && said.starts_with(start) && said.ends_with(end)
            }
            None => said == expected,
        };
        if !is_expected {
            self.0.push(format!("said:     {said}\nexpected: {expected}"));
        }
    }

    pub(crate) fn end(self) {
        assert!(self.0.is_empty(), "\n{}\n", self.0.join("\n"));
    }
}
