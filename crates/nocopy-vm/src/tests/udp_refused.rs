use nocopy::udp::Method;
use nocopy::{Cause, Evidence};

use crate::guest::Guest;
use crate::guest::datagrams::{BYTES, Case, Memory, ZERO_COPY, measure};
use crate::guest::meter::{Direction, Meter};
use crate::guest::sockets::watch;
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "zero-copy sends that the kernel copies after all, because somebody watches the interface or the card may not gather, \
             are copied bytes in the ledger, and zero-copy again afterwards",
    on: &[Topology::Igb, Topology::VirtioTaps],
    kernel: Kernel::Newest,
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    let (meter, left) = (Meter::start()?, guest.lab().left());
    let watcher = watch(left)?;
    for method in ZERO_COPY {
        assert_eq!(refused(guest, &meter, "watched", method)?, BYTES, "{method}");
    }
    drop(watcher);
    left.set_scatter_gather(false)?;
    for method in ZERO_COPY {
        let copied_bytes = refused(guest, &meter, "no scatter-gather", method)?;
        // Once into the kernel, and once more out of a long message: the instrument sees that, too.
        match method {
            Method::ZeroCopy | Method::UringZeroCopy => assert_eq!(copied_bytes, BYTES, "{method}"),
            _ => assert!(copied_bytes >= 2 * BYTES, "{method}: {copied_bytes}"),
        }
    }
    left.set_scatter_gather(true)?;
    let (method, memory, evidence) = (Method::ZeroCopyGso, Memory::Pool, Evidence::ZeroCopy);
    let (ledger, copies) = measure(guest, &meter, &Case { name: "neither", method, memory, evidence })?;
    assert_eq!(
        (ledger.bytes_of(Evidence::ZeroCopy), copies.bytes(Direction::Sent)),
        (BYTES, 0),
        "{ledger}; {copies:?}"
    );
    Ok(())
}

/// Sends zero-copy, with every byte reported as copied; returns how many bytes were.
fn refused(guest: &Guest, meter: &Meter, name: &'static str, method: Method) -> Result<u64, Failure> {
    let cause = Cause::ZeroCopyRefused;
    let case = Case { name, method, memory: Memory::Pool, evidence: Evidence::Copied(cause) };
    let (ledger, copies) = measure(guest, meter, &case)?;
    assert_eq!(ledger.bytes_of(Evidence::Copied(cause)), BYTES, "{method}: {ledger}");
    Ok(copies.bytes(Direction::Sent))
}
