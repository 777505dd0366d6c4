//! The command in a sandbox that refuses some system calls, as those of containers do.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

const REFUSED: &str = "NOCOPY_REFUSED";
const ARGUMENTS: &str = "NOCOPY_SANDBOXED";

/// A system call that fails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) call: libc::c_long,
    pub(crate) errno: i32,
    /// The only value of one argument (counted from 0) with which it fails, or it always does.
    pub(crate) argument: Option<(u8, i32)>,
}

impl Refused {
    pub(crate) const fn always(call: libc::c_long, errno: i32) -> Self {
        Self { call, errno, argument: None }
    }

    pub(crate) const fn with(call: libc::c_long, errno: i32, argument: (u8, i32)) -> Self {
        Self { call, errno, argument: Some(argument) }
    }

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

    fn to_text(self) -> String {
        let (index, value) = self.argument.unwrap_or((u8::MAX, 0));
        format!("{} {} {index} {value}", self.call, self.errno)
    }

    fn parse(text: &str) -> Self {
        let numbers: Vec<i32> = text.split(' ').map(|number| number.parse().unwrap()).collect();
        let argument = (u8::try_from(numbers[2]).unwrap(), numbers[3]);
        let argument = Some(argument).filter(|(index, _)| *index != u8::MAX);
        Self { call: numbers[0].into(), errno: numbers[1], argument }
    }
}

/// `nocopy` in a sandbox; its standard output begins with a line of the test runner.
pub(crate) fn nocopy(refused: &[Refused], arguments: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "sandbox::sandboxed", "--ignored", "--nocapture"]);
    let refused: Vec<_> = refused.iter().map(|refused| refused.to_text()).collect();
    command.env(REFUSED, refused.join(",")).env(ARGUMENTS, arguments.join("\n"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
#[ignore = "the sandbox that another test starts"]
fn sandboxed() {
    let [refused, arguments] =
        [REFUSED, ARGUMENTS].map(|name| std::env::var(name).expect("started by another test"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_nocopy"));
    command.args(arguments.lines());
    refused.split(',').map(Refused::parse).for_each(Refused::apply);
    panic!("{}", command.exec());
}
