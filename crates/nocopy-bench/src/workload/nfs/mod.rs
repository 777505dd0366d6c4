//! Files served by NFS: cached reads, calls about files, writes, and the effect of a reader of a cold file on
//! others.
//!
//! Each server is a process on the sender's processor, the client a thread on the receiver's, on the two ends
//! of a veth pair.

mod calls;
mod client;
mod concurrent_load;
mod creates;
mod export;
mod files;
mod owner;
mod readers;
mod reads;
mod server;
mod writable;
mod writes;

use nocopy_lab::Lab;
use nocopy_report::capability;
use nocopy_report::figure::Figure;
use nocopy_report::result::LinkDescription;

use super::{LOOPBACK, Workload};
use crate::Failure;
use crate::baseline::nfs_server;
use crate::bench::Bench;
use crate::plan::BenchPlan;
use crate::stage::{CONGESTION_CONTROL, SitePair, USUAL_MTU_BYTES};
use files::ServedFiles;
pub(crate) use readers::NFS_READ;
pub(crate) use reads::{LONGEST_BYTES, series_of_length};

const NAME: &str = "nfs";

/// More than any processor's own cache.
const CACHED_BYTES: u64 = 64 << 20;

const SKIP_MEMORY: &str = "SKIP: nfs, writes: no directory in memory (tmpfs) with 1 GiB free was found.";
const SKIP_DISK: &str =
    "SKIP: nfs, beside a reader of a cold file: no directory on a disk with 2 GiB free was found.";

/// Files served to a client that reads them.
pub(crate) const NFS: Workload = Workload {
    name: NAME,
    about: "Files served by NFS version 3 to a client that discards what it reads, and writes files",
    methods: &[
        ("pread-writev", "by hand: pread() into a buffer, writev() of header and buffer"),
        ("sendfile", "by hand: the header by send(), the file by sendfile()"),
        ("recv-pwrite", "by hand: recv() into a buffer, pwrite() from there into the file"),
        ("ganesha", "Debian's nfs-ganesha with its VFS module"),
        ("nocopy-stable", "nocopy serve nfs --stable, which copies what is read"),
        ("nocopy", "nocopy serve nfs"),
    ],
    lab_only: Some(LOOPBACK),
    capabilities: capability::FILE_SERVERS,
    notes: &[
        "nfs: sender is the process that serves: its CPU us per megabyte, or ns per reply (of 'ls -l': per file); receiver is the client's \
         thread, which keeps eight calls under way.",
    ],
    skips: skip_notes,
    ..Workload::measured_by(measure)
};

fn skip_notes(_plan: &BenchPlan) -> Vec<String> {
    let disk = (!files::has_disk_directory()).then(|| SKIP_DISK.to_owned());
    let memory = files::find_memory_directory().is_none().then(|| SKIP_MEMORY.to_owned());
    skip_of_ganesha().into_iter().chain(disk).chain(memory).collect()
}

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let testbed = NfsTestbed::new(USUAL_MTU_BYTES, FileSizes::for_all_workloads(bench.plan.quick))?;
    let by = [Figure::BytesPerSecond, Figure::SenderCpuPerMegabyte];
    bench.run_series_for_figures(reads::build_series(&testbed), &by, 60)?;
    bench.run_series_for_figures(writes::build_series(&testbed), &by, 25)?;
    bench.run_series(calls::build_series(&testbed), 40)?;
    bench.run_series(creates::build_series(&testbed), 15)?;
    bench.run_series(concurrent_load::build_series(&testbed), 30)
}

pub(crate) fn skip_of_ganesha() -> Option<String> {
    nfs_server::missing_requirement().map(|missing| format!("SKIP: nfs, ganesha: {missing}."))
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct FileSizes {
    /// The file that is in memory.
    pub cached_bytes: u64,
    /// Files of the long directory.
    pub many: usize,
    /// The file that is dropped from memory.
    pub cold_bytes: u64,
    /// Files of a directory, each with a few bytes.
    pub small: usize,
    /// A file without contents.
    pub long_bytes: u64,
}

impl FileSizes {
    pub(crate) const FILE: Self =
        Self { cached_bytes: CACHED_BYTES, many: 0, cold_bytes: 0, small: 0, long_bytes: 0 };

    fn for_all_workloads(is_quick: bool) -> Self {
        match is_quick {
            true => Self { cached_bytes: 8 << 20, many: 2000, cold_bytes: 16 << 20, ..Self::FILE },
            false => Self { many: 50_000, cold_bytes: 256 << 20, ..Self::FILE },
        }
    }
}

/// A veth pair, and the files that are served over it.
#[derive(Debug)]
pub(crate) struct NfsTestbed {
    stage: SitePair,
    files: ServedFiles,
    link: LinkDescription,
}

impl NfsTestbed {
    pub(crate) fn new(mtu_bytes: u32, contents: FileSizes) -> Result<Self, Failure> {
        let stage = SitePair::in_private_lab(Lab::builder().mtu(mtu_bytes))?.with_congestion_control()?;
        let files = ServedFiles::make(contents).map_err(Failure::step(
            NAME,
            "make the files to serve",
            "free room on the disk",
        ))?;
        let link = LinkDescription {
            link: "veth".into(),
            mtu_bytes,
            congestion_control: CONGESTION_CONTROL.into(),
            source_bytes: Some(contents.cached_bytes as usize),
        };
        Ok(Self { stage, files, link })
    }
}
