use serde_json::json;

use crate::guest::controls::Controls;
use crate::guest::{Guest, filesystem};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "what programs expect of a directory (names, links, renaming, attributes, bytes, holes, files past 4 GiB, open files that are \
             removed, two clients, random operations) holds on what Debian's kernel mounts from `nocopy serve nfs --writable`, with default \
             options and, with --soak, with noac,sync, wherever it does from the kernel's own server",
    on: &[Topology::Virtio],
    kernel: Kernel::Newest,
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    let seed = guest.seed();
    let mut controls = Controls::new(guest)?;
    let mut checks = 0;
    for check in filesystem::all() {
        controls.check(check.name, |directory| directory.failure_of(check, guest.soak(), seed));
        checks += 1;
    }
    guest.record(&json!({ "checks": checks, "seed": seed.to_string() }));
    controls.end(guest)
}
