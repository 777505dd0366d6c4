//! What this process may do.

use nocopy_proto::errno::ErrorCause;

use super::{Gate, GateState};
use crate::sys::{capability, sockets};

pub(super) fn capabilities() -> impl Iterator<Item = Gate> {
    capability::PORT.iter().map(|(wanted, name)| {
        let held = capability::holds(*wanted);
        Gate::of(name, held, if held { "held" } else { "this process lacks it" })
            .or_fix(format!("run as root, or {}", capability::GRANT))
    })
}

pub(super) fn packet_sockets() -> Gate {
    const NAME: &str = "packet sockets";
    match sockets::packet() {
        Ok(()) => Gate::new(NAME, GateState::Open, "can be made: packet rings work on every interface"),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            Gate::new(NAME, GateState::Closed, "this process lacks CAP_NET_RAW")
                .or_fix(format!("run as root, or {}", capability::GRANT))
        }
        Err(error) => {
            Gate::new(NAME, GateState::Closed, format!("this kernel makes none{}", ErrorCause(&error)))
                .or_fix("use a kernel built with CONFIG_PACKET")
        }
    }
}
