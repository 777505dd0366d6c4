use nocopy::udp::Method;
use nocopy::{Cause, Evidence};

use crate::guest::Guest;
use crate::guest::datagrams::{BYTES, Case, Memory, ZERO_COPY, measure};
use crate::guest::meter::{Direction, Meter};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "what a UDP socket sends zero-copy over a card arrives intact at an ordinary socket, and the ledger's word for it, byte \
             for byte, is what the instrument inside the kernel counts: no copy, where plain sends show one",
    on: &[Topology::Igb, Topology::VirtioTaps],
    kernel: Kernel::Newest,
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    let meter = Meter::start()?;
    let (name, memory) = ("pool", Memory::Pool);
    for method in [Method::Socket, Method::Gso] {
        let evidence = Evidence::Copied(Cause::SocketCall);
        let (ledger, copies) = measure(guest, &meter, &Case { name, method, memory, evidence })?;
        let copied_bytes =
            (ledger.bytes_of(Evidence::Copied(Cause::SocketCall)), copies.bytes(Direction::Sent));
        assert_eq!(copied_bytes, (BYTES, BYTES), "{method}: {ledger}; {copies:?}");
    }
    for method in ZERO_COPY {
        for (name, memory) in [(name, memory), ("own memory", Memory::Foreign)] {
            let evidence = Evidence::ZeroCopy;
            let (ledger, copies) = measure(guest, &meter, &Case { name, method, memory, evidence })?;
            let moved_and_copied_bytes = (ledger.bytes_of(Evidence::ZeroCopy), copies.bytes(Direction::Sent));
            assert_eq!(moved_and_copied_bytes, (BYTES, 0), "{method}, {name}: {ledger}; {copies:?}");
        }
    }
    Ok(())
}
