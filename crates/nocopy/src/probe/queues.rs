//! The card's queues.

use super::{Gate, State};
use crate::sys::interface::{self, Interface};

pub(super) fn queues(interface: &Interface) -> Gate {
    let found = match interface.rx_queues {
        1 => "1: a port takes everything".to_owned(),
        count => format!("{count}: a port takes one, the others stay with the host"),
    };
    let mut gate = Gate::new("receive queues", State::Open, found);
    if interface.rx_queues > 1 {
        gate.fix =
            Some(format!("'ethtool -L {} combined 1' brings every packet to one port", interface.name));
    }
    gate
}

pub(super) fn card_ring(interface: &Interface) -> Gate {
    match interface::receive_ring(&interface.name) {
        Some((now, max)) => {
            let mut gate = Gate::new("card's receive ring", State::Open, format!("{now} of at most {max}"));
            gate.fix =
                (now < max).then(|| format!("'ethtool -G {} rx {max}' takes longer bursts", interface.name));
            gate
        }
        None => Gate::new("card's receive ring", State::Unknown, "the driver does not say"),
    }
}
