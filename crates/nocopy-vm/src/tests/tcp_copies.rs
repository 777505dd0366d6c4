use nocopy::integration::PublishedMethod;
use nocopy::tcp::Method;
use nocopy::{Cause, Evidence};

use crate::guest::Guest;
use crate::guest::datagrams::BufferOrigin;
use crate::guest::meter::{CopyMeter, Direction};
use crate::guest::sockets::open_packet_socket;
use crate::guest::streams::{BYTES, StreamSendCase, measure_published_copies, measure_stream_copies};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "what a TCP socket sends zero-copy over a card arrives intact at an ordinary socket, and the ledger's word for it, byte \
             for byte, is what the instrument inside the kernel counts: no copy, where plain sends show one, and one where somebody \
             watches the interface",
    on: &[Topology::Igb, Topology::VirtioTaps],
    kernels: &[Kernel::Newest],
    run,
};

const ZERO_COPY: [Method; 2] = [Method::ZeroCopy, Method::UringZeroCopy];

fn run(guest: &Guest) -> Result<(), Failure> {
    let meter = CopyMeter::start()?;
    let memories = [("pool", BufferOrigin::Pool), ("own memory", BufferOrigin::Foreign)];
    for (name, memory) in memories {
        let (method, evidence) = (Method::Plain, Evidence::Copied(Cause::SocketCall));
        let (ledger, copies) =
            measure_stream_copies(guest, &meter, &StreamSendCase { name, method, memory, evidence })?;
        let copied_bytes =
            (ledger.bytes_of(Evidence::Copied(Cause::SocketCall)), copies.payload_bytes(Direction::Sent));
        assert_eq!(copied_bytes, (BYTES, BYTES), "{method}, {name}: {ledger}; {copies:?}");
    }
    for method in ZERO_COPY {
        for (name, memory) in memories {
            let evidence = Evidence::ZeroCopy;
            let (ledger, copies) =
                measure_stream_copies(guest, &meter, &StreamSendCase { name, method, memory, evidence })?;
            let moved_and_copied_bytes =
                (ledger.bytes_of(Evidence::ZeroCopy), copies.payload_bytes(Direction::Sent));
            assert_eq!(moved_and_copied_bytes, (BYTES, 0), "{method}, {name}: {ledger}; {copies:?}");
        }
    }
    for method in PublishedMethod::ALL {
        let (ledger, copies) = measure_published_copies(guest, &meter, method)?;
        let copied_bytes = if method == PublishedMethod::Copy { BYTES } else { 0 };
        assert_eq!(copies.payload_bytes(Direction::Sent), copied_bytes, "{method}: {ledger}; {copies:?}");
        // There are no completions for data sent by reference.
        assert_eq!(ledger.bytes_of(Evidence::ZeroCopy), 0, "{method}: {ledger}");
    }
    let _watcher = open_packet_socket(guest.lab().left())?;
    for method in ZERO_COPY {
        let (name, memory, cause) = ("watched", BufferOrigin::Pool, Cause::ZeroCopyRefused);
        let case = StreamSendCase { name, method, memory, evidence: Evidence::Copied(cause) };
        let (ledger, copies) = measure_stream_copies(guest, &meter, &case)?;
        // The kernel copies a packet that it sends again, as it does on a slow machine, once more.
        let is_copied = ledger.bytes_of(Evidence::Copied(cause)) == BYTES
            && copies.copied_bytes(Direction::Sent) >= BYTES;
        assert!(is_copied, "{method}: {ledger}; {copies:?}");
    }
    Ok(())
}
