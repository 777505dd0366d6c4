use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::mount::UnmountFlags;
use serde_json::{Value, json};

use crate::guest::Guest;
use crate::guest::meter::{Copies, Meter, Way};
use crate::guest::nfs::Scene;
use crate::guest::reads::{Reads, Seen};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "what Debian's kernel reads through its NFS client from `nocopy serve nfs` over a card is copied nowhere on sending, and no \
             byte of it is returned by a read call of the server; of the same server with --stable every byte is, once",
    on: &[Topology::Igb, Topology::VirtioTaps],
    kernel: Kernel::Newest,
    run,
};

const BYTES: usize = 8 << 20;

/// Of a call of the program that reads: with direct I/O it is what the client asks the server for.
const READ_BYTES: usize = 1 << 20;

/// Of a read, what is copied beside the bytes of the file: the call, the reply's header, what fills up, each counted generously.
const WORDS_BYTES_MAX: u64 = 512;

/// What a client that reads ahead asks for at least.
const CALL_BYTES_MIN: u64 = 256 << 10;

const NAME: &str = "model";

/// How a program reads.
#[derive(Debug, Clone, Copy)]
enum Access {
    /// Through its own page cache.
    Cached,
    /// Past it: each call is a call to the server.
    Direct,
}

fn run(guest: &Guest) -> Result<(), Failure> {
    let scene = Scene::new()?;
    let mut bytes = vec![0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    std::fs::write(scene.exported().join(NAME), &bytes)?;
    let meter = Meter::start()?;
    for is_stable in [false, true] {
        let server = scene.serve(guest.lab(), if is_stable { &["--stable"] } else { &[] })?;
        let reads = Reads::of(server.id())?;
        for access in [Access::Cached, Access::Direct] {
            let mounted = scene.mount(guest.lab())?;
            let before = reads.seen()?;
            let copies = meter.copies(|| is_read(&mounted.path(NAME), access, &bytes))?;
            let seen = reads.seen()?.since(&before);
            check(guest, (is_stable, access), &copies, &seen);
            mounted.unmount(UnmountFlags::empty()).map_err(|(_, error)| error)?;
        }
        check_ledger(&server.end()?, is_stable);
    }
    Ok(())
}

/// Reads the file from its beginning to its end, which must be these bytes.
fn is_read(path: &Path, access: Access, bytes: &[u8]) -> Result<(), Failure> {
    let flags = match access {
        Access::Cached => OFlags::empty(),
        Access::Direct => OFlags::DIRECT,
    };
    let mut file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let (mut room, mut at) = (vec![0; READ_BYTES], 0);
    loop {
        let count = file.read(&mut room)?;
        assert!(bytes.get(at..at + count) == Some(&room[..count]), "the {count} bytes at {at} are not those of the file");
        at += count;
        if count == 0 {
            assert_eq!(at, bytes.len(), "bytes of the file");
            return Ok(());
        }
    }
}

/// Adds a row to the report, and holds it against what is to be.
fn check(guest: &Guest, (is_stable, access): (bool, Access), copies: &Copies, seen: &Seen) {
    let total = BYTES as u64;
    let (copied, returned) = (copies.payload_bytes(Way::Sent), seen.payload_bytes());
    let row = json!({
        "server": if is_stable { "nocopy serve nfs --stable" } else { "nocopy serve nfs" },
        "client": format!("{access:?}").to_lowercase(),
        "bytes": BYTES,
        "copies_per_byte_sent": copied as f64 / BYTES as f64,
        "copied_by": copies.of(Way::Sent),
        "bytes_returned_by_reads": returned,
        "calls_of_server": seen,
    });
    guest.record(&row);
    let words = WORDS_BYTES_MAX * (total / CALL_BYTES_MIN);
    let (of_payload, of_splice) = if is_stable { (total, 0) } else { (0, 2 * total) };
    assert_eq!((returned, seen.spliced_bytes()), (of_payload, of_splice), "{row}");
    assert!((of_payload..=of_payload + words).contains(&copied), "{row}");
    // The instrument sees the client's copy, every time.
    assert!(copies.bytes(Way::Received) >= total, "{row}");
}

/// The server says the same of itself.
fn check_ledger(summary: &Value, is_stable: bool) {
    let total = 2 * BYTES as u64;
    let ledger = &summary["ledger"];
    let told = (ledger["copied_bytes"]["asked for"].as_u64(), ledger["unknown_bytes"].as_u64());
    let wanted = if is_stable { (Some(total), Some(0)) } else { (None, Some(total)) };
    assert_eq!((told, summary["bytes"].as_u64()), (wanted, Some(total)), "{summary}");
}
