use serde_json::json;

use crate::guest::controls::ComparedDirectories;
use crate::guest::{Guest, filesystem};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "what programs expect of a directory (names, links, renaming, attributes, bytes, holes, files past 4 GiB, open files that are \
             removed, two clients, random operations) holds on what Debian's kernel mounts from `nocopy serve nfs --writable`, with default \
             options and, with --soak, with noac,sync, wherever it does from the kernel's own server",
    on: &[Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    let seed = guest.seed();
    let mut controls = ComparedDirectories::new(guest)?;
    let mut checks = 0;
    for check in filesystem::all_checks() {
        controls
            .check_each_directory(check.name, |directory| directory.run_check(check, guest.is_soak(), seed));
        checks += 1;
    }
    guest.record_measurement(&json!({ "checks": checks, "seed": seed.to_string() }));
    controls.finish(guest)
}
