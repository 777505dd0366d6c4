//! The zero-copy sockets of 2000: a TCP stream, datagrams of 8 KiB, and files read by NFS, over frames of
//! 9,000 bytes; counted, and datagrams and files checked, where they arrive.

use nocopy_report::capability;

use super::{keep_trials, run_series_as};
use crate::Failure;
use crate::bench::Bench;
use crate::datagram::DatagramSpec;
use crate::stage::LONG_MTU_BYTES;
use crate::workload::{LOOPBACK, Workload, nfs, tcp, udp_send};

const NAME: &str = "zero-copy-sockets";

const DATAGRAM_BYTES: usize = 8 << 10;

/// TCP and UDP from prepared memory of the program, NFS from the file cache.
pub(crate) const SOCKETS: Workload = Workload {
    name: NAME,
    about: "2000: TCP and UDP from the pages that the program has filled, NFS from those of the file cache",
    methods: &[
        ("plain", "send() of a stream"),
        ("zerocopy", "the library's socket or stream with MSG_ZEROCOPY"),
        ("socket", "send() of a datagram a call"),
        ("zerocopy-gso", "the library's socket with MSG_ZEROCOPY, a burst of datagrams a call"),
        ("auto", "the library's socket or stream, which chooses the method by measurement"),
        ("pread-writev", "files by NFS, by hand: pread() into a buffer, writev() of header and buffer"),
        ("ganesha", "files by Debian's nfs-ganesha with its VFS module"),
        ("nocopy", "files by nocopy serve nfs"),
    ],
    lab_only: Some(LOOPBACK),
    capabilities: capability::FILE_SERVERS,
    skips: |_| nfs::skip_of_ganesha().into_iter().collect(),
    ..Workload::measured_by(measure)
};

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let pair = tcp::TcpTestbed::over_veth(LONG_MTU_BYTES)?;
    let methods = ["plain", "zerocopy", "auto"].map(|method| (method, None));
    run_series_as(NAME, bench, vec![keep_trials(tcp::send::owned_buffer_series(&pair), &methods)], 12)?;
    let checked = udp_send::checked_testbed(udp_send::private_site_pair(LONG_MTU_BYTES)?)?;
    let methods = ["socket", "zerocopy", "zerocopy-gso", "auto"].map(|method| (method, None));
    let datagrams = udp_send::burst_series(&checked, DatagramSpec::in_bursts(DATAGRAM_BYTES));
    run_series_as(NAME, bench, vec![keep_trials(datagrams, &methods)], 12)?;
    let files = nfs::NfsTestbed::new(LONG_MTU_BYTES, nfs::FileSizes::FILE)?;
    let methods = ["pread-writev", "ganesha", "nocopy"].map(|method| (method, None));
    run_series_as(
        NAME,
        bench,
        vec![keep_trials(nfs::series_of_length(&files, nfs::LONGEST_BYTES), &methods)],
        12,
    )
}
