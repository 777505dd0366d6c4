use crate::guest::{Guest, sockets};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "the interfaces are the driver's, wired to each other, and the kernel's own sockets reach across",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    // That they are the driver's is how the guest found them: by sysfs, before they were given to the lab.
    sockets::check_udp_both_ways(guest.lab())?;
    for end in guest.ends() {
        assert!(end.has_carrier()?);
    }
    Ok(())
}
