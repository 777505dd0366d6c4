use crate::lab::{LEFT_IPV4, RIGHT_IPV4, new_quiet_namespace, wait_for_carrier};
use crate::missing::require_capabilities;
use crate::netlink::link;
use crate::{End, Error, Interface, Lab, Namespace};

/// Two hosts with a machine between them, for programs that forward:
///
/// ```text
///   left                   middle                    right
///   nc0  10.77.0.1/24 ──── nc1   (no address)   nc2 ──── 10.77.0.2/24  nc3
/// ```
///
/// Nothing is forwarded in the middle unless a program does it. The hosts know each other's hardware address,
/// and compute their checksums themselves, since no device on the path would complete them. Removed with the
/// process, like a [`Lab`].
#[derive(Debug)]
pub struct ThreeNodeLab {
    left: End,
    middle: Namespace,
    right: End,
}

const NAMES: [&str; 4] = ["nc0", "nc1", "nc2", "nc3"];

impl ThreeNodeLab {
    /// The interfaces in the middle: toward the left, and toward the right.
    pub const MIDDLE: [&str; 2] = [NAMES[1], NAMES[2]];

    /// A chain with an MTU of 1500 and one queue.
    ///
    /// # Errors
    /// [`Error::Missing`] names what this machine lacks; other errors come from the kernel.
    pub fn new() -> Result<Self, Error> {
        require_capabilities()?;
        let (options, number) = (Lab::builder(), |number| [0x02, 0x6e, 0x63, 0, 0, number]);
        let plan = |at: usize| options.veth_end_settings(NAMES[at], number(at as u8 + 1));
        let plans: [link::VethEndSettings; 4] = std::array::from_fn(plan);
        let (left, middle, right) = (new_quiet_namespace()?, new_quiet_namespace()?, new_quiet_namespace()?);
        link::create_veth_pair(&left, &plans[0], &middle, &plans[1])?;
        link::create_veth_pair(&middle, &plans[2], &right, &plans[3])?;
        let macs = [plans[0].mac, plans[3].mac];
        let chain = Self {
            left: End::configure(left, NAMES[0], macs[0], LEFT_IPV4, (RIGHT_IPV4, macs[1]))?,
            right: End::configure(right, NAMES[3], macs[1], RIGHT_IPV4, (LEFT_IPV4, macs[0]))?,
            middle,
        };
        for name in Self::MIDDLE {
            let index = chain.middle.run(|| Interface::find(name))?.index;
            link::set_link_up_or_down(&chain.middle, name, index, true)?;
        }
        for end in [&chain.left, &chain.right] {
            end.bring_interface_up()?;
            end.set_tx_checksum(false)?;
        }
        chain.left.wait_for_carrier()?;
        chain.right.wait_for_carrier()?;
        for name in Self::MIDDLE {
            wait_for_carrier(&chain.middle, name)?;
        }
        Ok(chain)
    }

    /// The host `nc0`, 10.77.0.1.
    pub fn left(&self) -> &End {
        &self.left
    }

    /// The namespace with the address [`ThreeNodeLab::MIDDLE`].
    pub fn middle(&self) -> &Namespace {
        &self.middle
    }

    /// The host `nc3`, 10.77.0.2.
    pub fn right(&self) -> &End {
        &self.right
    }
}
