//! `nocopy recv`: what a host sends, and what is known of what did not come.

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

/// How long a sender may be silent unless told: it is heard several times a second.
const IDLE: Duration = Duration::from_secs(10);

pub fn run(arguments: &RecvArguments) -> Result<Outcome, Failure> {
    let interrupt = Interrupt::listen()?;
    match arguments.address().scheme() {
        Scheme::Udp => udp::run(arguments, interrupt),
        Scheme::Tcp => tcp::run(arguments, interrupt),
        Scheme::Message | Scheme::Xdp => unreachable!("the command line knows the others only"),
    }
}

/// Says where it receives, and unless senders were named, that any host may be the sender.
fn announce(arguments: &RecvArguments, address: SocketAddr) {
    print::say(format_args!("nocopy: receiving at {}://{address}", arguments.address().scheme().name()));
    if arguments.from.is_empty() {
        print::say("nocopy: data is accepted from any sender; use --from ADDRESS to restrict it");
    }
}
