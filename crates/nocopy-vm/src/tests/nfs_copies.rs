use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::mount::UnmountFlags;
use serde_json::{Value, json};

use crate::guest::Guest;
use crate::guest::meter::{CopyCounts, CopyMeter, Direction};
use crate::guest::nfs::{NOBODY, NfsFixture};
use crate::guest::reads::{CallTotals, ReadCallCounter};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "Debian's kernel reads a file by NFS from `nocopy serve nfs` over a card: the kernel copies no byte of it on sending, and no \
             read call of the server returns one; with --stable every byte is copied once and returned once",
    on: &[Topology::Igb, Topology::VirtioTaps],
    kernels: &[Kernel::Newest],
    run,
};

const BYTES: usize = 8 << 20;

/// Bytes of each read(2) by the program. With direct I/O the client asks the server for as many.
const READ_BYTES: usize = 1 << 20;

/// Copied with each read beside the bytes of the file, at most: the client's call, the reply's header, its
/// padding.
const OTHER_BYTES_MAX: u64 = 512;

/// How often a file is read from one server: again if not all of its calls were counted.
const TIMES_MAX: u64 = 10;

/// The least length of the client's reads, including read-ahead.
const CALL_BYTES_MIN: u64 = 256 << 10;

const NAME: &str = "model";

#[derive(Debug, Clone, Copy)]
enum CacheMode {
    /// Through its own page cache.
    Cached,
    /// Without it: the client asks the server at every call.
    Direct,
}

fn run(guest: &Guest) -> Result<(), Failure> {
    let fixture = NfsFixture::new()?;
    let mut bytes = vec![0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let path = fixture.export_path().join(NAME);
    std::fs::write(&path, &bytes)?;
    // For its user's files the server asks cachestat(2) what is in memory; for others it reads a byte at both
    // ends.
    chown(&path, Some(NOBODY), Some(NOBODY))?;
    let meter = CopyMeter::start()?;
    for is_stable in [false, true] {
        let server = fixture.start_server(guest.lab(), if is_stable { &["--stable"] } else { &[] })?;
        let reads = ReadCallCounter::for_process(server.process_id())?;
        let mut times = 0;
        for access in [CacheMode::Cached, CacheMode::Direct] {
            loop {
                times += 1;
                let mounted = fixture.mount_export(guest.lab())?;
                let before = reads.totals()?;
                let copies = meter.measure_copies(|| read_whole(&mounted.path(NAME), access, &bytes))?;
                let totals = reads.totals()?.since(&before);
                mounted.unmount(UnmountFlags::empty()).map_err(|(_, error)| error)?;
                if totals.missed == 0 {
                    check_copies(guest, (is_stable, access), &copies, &totals);
                    break;
                }
                if times == TIMES_MAX {
                    return Err(Failure(format!("{} calls ended without being counted", totals.missed)));
                }
            }
        }
        check_ledger(&server.stop()?, is_stable, times);
    }
    Ok(())
}

fn read_whole(path: &Path, access: CacheMode, bytes: &[u8]) -> Result<(), Failure> {
    let flags = match access {
        CacheMode::Cached => OFlags::empty(),
        CacheMode::Direct => OFlags::DIRECT,
    };
    let mut file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let (mut room, mut at) = (vec![0; READ_BYTES], 0);
    loop {
        let count = file.read(&mut room)?;
        assert!(
            bytes.get(at..at + count) == Some(&room[..count]),
            "the {count} bytes at {at} are not those of the file"
        );
        at += count;
        if count == 0 {
            assert_eq!(at, bytes.len(), "bytes of the file");
            return Ok(());
        }
    }
}

/// Adds a row to the report, and checks it.
fn check_copies(
    guest: &Guest,
    (is_stable, access): (bool, CacheMode),
    copies: &CopyCounts,
    totals: &CallTotals,
) {
    let total = BYTES as u64;
    let (copied, returned) = (copies.payload_bytes(Direction::Sent), totals.payload_bytes());
    let row = json!({
        "server": if is_stable { "nocopy serve nfs --stable" } else { "nocopy serve nfs" },
        "client": format!("{access:?}").to_lowercase(),
        "bytes": BYTES,
        "copies_per_byte_sent": copied as f64 / BYTES as f64,
        "copied_by": copies.of_direction(Direction::Sent),
        "bytes_returned_by_reads": returned,
        "calls_of_server": totals,
    });
    guest.record_measurement(&row);
    let other_bytes = OTHER_BYTES_MAX * (total / CALL_BYTES_MIN);
    let (of_payload, of_splice) = if is_stable { (total, 0) } else { (0, 2 * total) };
    assert_eq!((returned, totals.spliced_bytes()), (of_payload, of_splice), "{row}");
    assert!((of_payload..=of_payload + other_bytes).contains(&copied), "{row}");
    // The client's own copy shows that the meter sees these packets.
    assert!(copies.copied_bytes(Direction::Received) >= total, "{row}");
}

/// Checks that the server's own summary has the same figures.
fn check_ledger(summary: &Value, is_stable: bool, times: u64) {
    let total = times * BYTES as u64;
    let evidence = &summary["evidence"];
    let reported = (evidence["copied_bytes"]["stable"].as_u64(), evidence["unknown_bytes"].as_u64());
    let wanted = if is_stable { (Some(total), Some(0)) } else { (None, Some(total)) };
    assert_eq!((reported, summary["bytes"].as_u64()), (wanted, Some(total)), "{summary}");
}
