//! What this process may do.

use nocopy_proto::errno::ErrorCause;

use super::{Gate, GateState};
use crate::sys::{capability, sockets};

pub(super) fn capability_gates() -> impl Iterator<Item = Gate> {
    capability::PORT.iter().map(|(wanted, name)| {
        let held = capability::holds_capability(*wanted);
        Gate::from_condition(name, held, if held { "held" } else { "this process lacks it" })
            .with_fix_unless_open(format!("run as root, or {}", capability::GRANT))
    })
}

pub(super) fn packet_socket_gate() -> Gate {
    const NAME: &str = "packet sockets";
    match sockets::check_packet_socket() {
        Ok(()) => Gate::new(NAME, GateState::Open, "can be made: packet rings work on every interface"),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            Gate::new(NAME, GateState::Closed, "this process lacks CAP_NET_RAW")
                .with_fix_unless_open(format!("run as root, or {}", capability::GRANT))
        }
        Err(error) => {
            Gate::new(NAME, GateState::Closed, format!("this kernel makes none{}", ErrorCause(&error)))
                .with_fix_unless_open("use a kernel built with CONFIG_PACKET")
        }
    }
}
