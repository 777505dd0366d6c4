use nocopy::udp::Method;
use nocopy::{Cause, Evidence};

use crate::guest::Guest;
use crate::guest::datagrams::{BYTES, BufferOrigin, SendCase, ZERO_COPY, measure_datagram_copies};
use crate::guest::meter::{CopyMeter, Direction};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "what a UDP socket sends zero-copy over a card arrives intact at an ordinary socket, and the ledger's word for it, byte \
             for byte, is what the instrument inside the kernel counts: no copy, where plain sends show one",
    on: &[Topology::Igb, Topology::VirtioTaps],
    kernels: &[Kernel::Newest],
    run,
};

fn run(guest: &Guest) -> Result<(), Failure> {
    let meter = CopyMeter::start()?;
    let (name, memory) = ("pool", BufferOrigin::Pool);
    for method in [Method::Socket, Method::Gso] {
        let evidence = Evidence::Copied(Cause::SocketCall);
        let (ledger, copies) =
            measure_datagram_copies(guest, &meter, &SendCase { name, method, memory, evidence })?;
        let copied_bytes =
            (ledger.bytes_of(Evidence::Copied(Cause::SocketCall)), copies.copied_bytes(Direction::Sent));
        assert_eq!(copied_bytes, (BYTES, BYTES), "{method}: {ledger}; {copies:?}");
    }
    for method in ZERO_COPY {
        for (name, memory) in [(name, memory), ("own memory", BufferOrigin::Foreign)] {
            let evidence = Evidence::ZeroCopy;
            let (ledger, copies) =
                measure_datagram_copies(guest, &meter, &SendCase { name, method, memory, evidence })?;
            let moved_and_copied_bytes =
                (ledger.bytes_of(Evidence::ZeroCopy), copies.copied_bytes(Direction::Sent));
            assert_eq!(moved_and_copied_bytes, (BYTES, 0), "{method}, {name}: {ledger}; {copies:?}");
        }
    }
    Ok(())
}
