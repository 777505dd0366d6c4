//! `nocopy doctor`: what prevents fast ports on this machine.

mod export;
mod fixes;
mod probed_interface;

use nocopy::integration::probe;

use crate::Failure;
use crate::arguments::DoctorArguments;
use fixes::Fixes;
use nocopy_report::{Outcome, capability, print};
use probed_interface::{ProbedInterface, is_blocked};

pub(crate) fn run(arguments: &DoctorArguments) -> Result<Outcome, Failure> {
    capability::drop_all_but(capability::NETWORK)?;
    let machine = probe::machine();
    let interfaces = match &arguments.interface {
        Some(name) => vec![ProbedInterface::by_name(name)?],
        None => ProbedInterface::all()?,
    };
    capability::drop_all_but(capability::NONE)?;
    let text = match (arguments.fix, &arguments.interface, arguments.json) {
        (true, _, false) => Fixes::of(&machine, &interfaces).script(),
        (true, _, true) => Fixes::of(&machine, &interfaces).json(),
        (false, None, false) => export::overview(&machine, &interfaces),
        (false, None, true) => export::overview_json(&machine, &interfaces),
        (false, Some(_), false) => export::gates(&machine, &interfaces[0]),
        (false, Some(_), true) => export::gates_json(&machine, &interfaces[0]),
    };
    print::text(&text)?;
    let is_named_blocked = arguments.interface.is_some() && is_blocked(&interfaces[0].probe.gates);
    Ok(if is_blocked(&machine) || is_named_blocked { Outcome::Negative } else { Outcome::Positive })
}
