use nocopy::udp::Method;
use nocopy::{Cause, Evidence};

use crate::guest::Guest;
use crate::guest::datagrams::{BYTES, BufferOrigin, SendCase, ZERO_COPY, measure_datagram_copies};
use crate::guest::meter::{CopyMeter, Direction};
use crate::guest::sockets::open_packet_socket;
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "zero-copy sends that the kernel copies after all, because somebody watches the interface or the card may not gather, \
             are copied bytes in the ledger, and zero-copy again afterwards",
    on: &[Topology::Igb, Topology::VirtioTaps],
    kernels: &[Kernel::Newest],
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    let (meter, left) = (CopyMeter::start()?, guest.lab().left());
    let watcher = open_packet_socket(left)?;
    for method in ZERO_COPY {
        assert_eq!(measure_refused_zero_copy(guest, &meter, "watched", method)?, BYTES, "{method}");
    }
    drop(watcher);
    left.set_scatter_gather(false)?;
    for method in ZERO_COPY {
        let copied_bytes = measure_refused_zero_copy(guest, &meter, "no scatter-gather", method)?;
        // Once into the kernel, and once more out of a long message: the instrument sees that, too.
        match method {
            Method::ZeroCopy | Method::UringZeroCopy => assert_eq!(copied_bytes, BYTES, "{method}"),
            _ => assert!(copied_bytes >= 2 * BYTES, "{method}: {copied_bytes}"),
        }
    }
    left.set_scatter_gather(true)?;
    let (method, memory, evidence) = (Method::ZeroCopyGso, BufferOrigin::Pool, Evidence::ZeroCopy);
    let (ledger, copies) =
        measure_datagram_copies(guest, &meter, &SendCase { name: "neither", method, memory, evidence })?;
    assert_eq!(
        (ledger.bytes_of(Evidence::ZeroCopy), copies.copied_bytes(Direction::Sent)),
        (BYTES, 0),
        "{ledger}; {copies:?}"
    );
    Ok(())
}

/// Sends zero-copy, with every byte reported as copied; returns how many bytes were.
fn measure_refused_zero_copy(
    guest: &Guest,
    meter: &CopyMeter,
    name: &'static str,
    method: Method,
) -> Result<u64, Failure> {
    let cause = Cause::ZeroCopyRefused;
    let case = SendCase { name, method, memory: BufferOrigin::Pool, evidence: Evidence::Copied(cause) };
    let (ledger, copies) = measure_datagram_copies(guest, meter, &case)?;
    assert_eq!(ledger.bytes_of(Evidence::Copied(cause)), BYTES, "{method}: {ledger}");
    Ok(copies.copied_bytes(Direction::Sent))
}
