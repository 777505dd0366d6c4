//! `nocopy recv`: receives from a host, and reports what is missing.

mod output;
mod tcp;
mod udp;

use std::net::SocketAddr;
use std::time::Duration;

use crate::Failure;
use crate::arguments::RecvArguments;
use crate::endpoint::Scheme;
use nocopy_report::Interrupt;
use nocopy_report::{Outcome, print};

/// Default for how long a sender may be silent: it sends several times a second.
const IDLE: Duration = Duration::from_secs(10);

pub fn run(arguments: &RecvArguments) -> Result<Outcome, Failure> {
    let interrupt = Interrupt::listen()?;
    match arguments.address().scheme() {
        Scheme::Udp => udp::run(arguments, interrupt),
        Scheme::Tcp => tcp::run(arguments, interrupt),
        Scheme::Message | Scheme::Xdp => unreachable!("the command line knows the others only"),
    }
}

/// Prints the address and, unless senders were named, a warning that any host may be the sender.
fn announce(arguments: &RecvArguments, address: SocketAddr) {
    print::say(format_args!("nocopy: receiving at {}://{address}", arguments.address().scheme().name()));
    if arguments.from.is_empty() {
        print::say("nocopy: data is accepted from any sender; use --from ADDRESS to restrict it");
    }
}
