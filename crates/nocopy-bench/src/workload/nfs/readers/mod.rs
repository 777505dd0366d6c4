//! `nfs-read`: programs that read by NFS, against the same server: this library's client and one on libnfs.
//! The server runs on the sender's processor, the program, a process of its own, on the receiver's.

mod copies;
mod process;
mod reads;
mod recorded;

use std::path::PathBuf;

use nocopy_report::capability;
use nocopy_report::figure::Figure;
use nocopy_report::result::Evidence;

use super::server::RunningServer;
use super::{CACHED_BYTES, FileSizes, NfsTestbed, files};
use crate::Failure;
use crate::baseline::nfs_client::libnfs;
use crate::bench::Bench;
use crate::plan::BenchPlan;
use crate::stage::USUAL_MTU_BYTES;
use crate::workload::{LOOPBACK, Workload};

const NAME: &str = "nfs-read";

/// Ratios of both are taken from the same rounds.
const BY: [Figure; 2] = [Figure::BytesPerSecond, Figure::ReceiverCpuPerMegabyte];

const SKIP_LIBNFS: &str =
    "SKIP: nfs-read, libnfs: not installed: 'apt install libnfs-dev gcc' or what your system calls them.";
const SKIP_MEMORY: &str =
    "SKIP: nfs-read, copies of small files: no directory in memory (tmpfs) with 1 GiB free was found.";
const SKIP_DISK: &str = "SKIP: nfs-read, a long copy: no directory on a disk with 6 GiB free was found.";

pub(crate) const NFS_READ: Workload = Workload {
    name: NAME,
    about: "Programs that read files by NFS: this library's client, one on libnfs, and a loop of recv()",
    methods: &[
        ("recv", "the limit: a loop of recv() of recorded replies, which are sent from memory"),
        (
            "by-hand",
            "the limit of this server: calls made beforehand, and a loop of recv() that only counts what comes",
        ),
        ("libnfs", "a C program on the asynchronous calls of Debian's libnfs"),
        ("nocopy", "nocopy_nfs::client; of copies 'nocopy cp'"),
    ],
    lab_only: Some(LOOPBACK),
    capabilities: capability::FILE_SERVERS, // to start the server as another user, as root
    notes: &[
        "nfs-read: sender is the server's process, 'nocopy serve nfs'; receiver is that of the program, with all that the kernel does in its name. \
         MiB: the most memory that the program had. 16 reads are in flight, of all connections together.",
    ],
    skips: skip_notes,
    ..Workload::measured_by(measure)
};

fn skip_notes(_plan: &BenchPlan) -> Vec<String> {
    let libnfs = (!libnfs::is_installed()).then_some(SKIP_LIBNFS);
    let memory = files::find_memory_directory().is_none().then_some(SKIP_MEMORY);
    let disk = (!files::has_disk_room(copies::ROOM_BYTES)).then_some(SKIP_DISK);
    [libnfs, memory, disk].into_iter().flatten().map(str::to_owned).collect()
}

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let testbed = NfsTestbed::new(USUAL_MTU_BYTES, file_sizes(bench.plan.quick))?;
    let fixture = ReaderFixture::new(&testbed)?;
    bench.run_series_for_figures(reads::build_series(&fixture), &BY, 60)?;
    bench.run_series(copies::small_files_series(&fixture), 20)?;
    // One round suffices for the memory it needs.
    bench.run_series_for_figures(copies::long_file_series(&fixture), &BY, 1)
}

fn file_sizes(is_quick: bool) -> FileSizes {
    let (small, long_bytes) = if is_quick { (1000, 1 << 30) } else { (10_000, 4 << 30) };
    FileSizes { cached_bytes: CACHED_BYTES, small, long_bytes, ..FileSizes::FILE }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReaderKind {
    Recv,
    ByHand,
    Libnfs,
    Nocopy,
}

impl ReaderKind {
    fn method_name(self) -> &'static str {
        match self {
            Self::Recv => "recv",
            Self::ByHand => "by-hand",
            Self::Libnfs => "libnfs",
            Self::Nocopy => "nocopy",
        }
    }
}

/// The served files, and the program on libnfs, if it could be built.
#[derive(Debug)]
struct ReaderFixture<'a> {
    testbed: &'a NfsTestbed,
    libnfs: Option<PathBuf>,
    evidence_of_libnfs: Evidence,
}

impl<'a> ReaderFixture<'a> {
    fn new(testbed: &'a NfsTestbed) -> Result<Self, Failure> {
        let build = || {
            libnfs::is_installed()
                .then(|| libnfs::build_program(&testbed.files.scratch_directory()))
                .transpose()
        };
        let libnfs = build().map_err(reader_failure(ReaderKind::Libnfs))?;
        let evidence_of_libnfs = Evidence::copied(format!(
            "libnfs {}: by the kernel, out of the socket into memory that the library takes for each reply and frees behind its callback",
            libnfs::version()
        ));
        Ok(Self { testbed, libnfs, evidence_of_libnfs })
    }

    fn nfs_url(&self, server: &RunningServer, name: &str) -> String {
        let (address, mount_port) = (server.address, server.mount_address.port());
        let path = self.testbed.files.exported_path(name);
        let (ip, port, path) = (address.ip(), address.port(), path.display());
        format!("nfs://{ip}{path}?nfsport={port}&mountport={mount_port}")
    }
}

fn reader_failure(reader: ReaderKind) -> impl FnOnce(std::io::Error) -> Failure {
    Failure::step(reader.method_name(), "read files by NFS", "start it by itself, and look at what it prints")
}
