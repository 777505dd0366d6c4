//! Records replies of a server in a file, to be sent again from memory.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};

use super::ReaderFixture;
use crate::workload::nfs::client::{FileReader, IN_FLIGHT_MAX};
use crate::workload::nfs::export::Export;
use crate::workload::nfs::files::CACHED;
use crate::workload::nfs::reads::open_client;
use crate::workload::nfs::server::{RECORDED, RunningServer, ServerKind};

/// Records reads of the whole file with a given length; returns the files for the replaying server.
pub(super) fn record_replies(fixture: &ReaderFixture<'_>, bytes: usize) -> io::Result<Export> {
    let (testbed, files) = (fixture.testbed, &fixture.testbed.files);
    let scratch = files.scratch_directory().join(format!("replies-of-{bytes}"));
    let export = Export { scratch, ..files.export() };
    if export.scratch.exists() {
        return Ok(export);
    }
    fs::create_dir(&export.scratch)?;
    let server = RunningServer::start(testbed, ServerKind::Nocopy)?;
    testbed.stage.receiver.run(|| {
        let (client, file) = open_client(&files.export(), &server, ServerKind::Nocopy, CACHED)?;
        let mut reads = FileReader::new(client, file, files.contents.cached_bytes, bytes as u32);
        let mut replies = BufWriter::new(File::create_new(export.scratch.join(RECORDED))?);
        let (mut asked, all) = (0, files.contents.cached_bytes / bytes as u64);
        while asked < all || reads.reads_in_flight() > 0 {
            while asked < all && reads.reads_in_flight() < IN_FLIGHT_MAX {
                reads.send_read()?;
                asked += 1;
            }
            reads.receive_raw_reply(&mut replies)?;
        }
        replies.flush()
    })?;
    Ok(export)
}
