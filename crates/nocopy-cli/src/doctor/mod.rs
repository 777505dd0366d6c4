//! `nocopy doctor`: what prevents fast ports on this machine.

mod export;
mod fixes;
mod probed_interface;

use nocopy::integration::probe;

use crate::Failure;
use crate::arguments::DoctorArguments;
use fixes::Fixes;
use nocopy_report::{Outcome, capability, print};
use probed_interface::{ProbedInterface, has_blocking_gate};

pub(crate) fn run(arguments: &DoctorArguments) -> Result<Outcome, Failure> {
    capability::drop_all_but(capability::NETWORK)?;
    let machine = probe::machine();
    let interfaces = match &arguments.interface {
        Some(name) => vec![ProbedInterface::probe_by_name(name)?],
        None => ProbedInterface::probe_all()?,
    };
    capability::drop_all_but(capability::NONE)?;
    let text = match (arguments.fix, &arguments.interface, arguments.json) {
        (true, _, false) => Fixes::for_closed_gates(&machine, &interfaces).shell_script(),
        (true, _, true) => Fixes::for_closed_gates(&machine, &interfaces).to_json(),
        (false, None, false) => export::overview_text(&machine, &interfaces),
        (false, None, true) => export::overview_json(&machine, &interfaces),
        (false, Some(_), false) => export::gates_text(&machine, &interfaces[0]),
        (false, Some(_), true) => export::gates_json(&machine, &interfaces[0]),
    };
    print::print_text(&text)?;
    let is_named_blocked = arguments.interface.is_some() && has_blocking_gate(&interfaces[0].probe.gates);
    Ok(if has_blocking_gate(&machine) || is_named_blocked { Outcome::Negative } else { Outcome::Positive })
}
