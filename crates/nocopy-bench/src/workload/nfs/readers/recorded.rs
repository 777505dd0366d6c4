//! Records replies of a server in a file, to be sent again from memory.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};

use super::Fixture;
use crate::workload::nfs::client::{IN_FLIGHT_MAX, Reads};
use crate::workload::nfs::export::Export;
use crate::workload::nfs::files::CACHED;
use crate::workload::nfs::reads::open;
use crate::workload::nfs::server::{RECORDED, Server, ServerKind};

/// Records reads of the whole file with a given length; returns the files for the replaying server.
pub(super) fn record(fixture: &Fixture<'_>, bytes: usize) -> io::Result<Export> {
    let (testbed, files) = (fixture.testbed, &fixture.testbed.files);
    let scratch = files.scratch().join(format!("replies-of-{bytes}"));
    let export = Export { scratch, ..files.export() };
    if export.scratch.exists() {
        return Ok(export);
    }
    fs::create_dir(&export.scratch)?;
    let server = Server::start(testbed, ServerKind::Nocopy)?;
    testbed.stage.receiver.run(|| {
        let (client, file) = open(&files.export(), &server, ServerKind::Nocopy, CACHED)?;
        let mut reads = Reads::new(client, file, files.contents.cached_bytes, bytes as u32);
        let mut replies = BufWriter::new(File::create_new(export.scratch.join(RECORDED))?);
        let (mut asked, all) = (0, files.contents.cached_bytes / bytes as u64);
        while asked < all || reads.in_flight() > 0 {
            while asked < all && reads.in_flight() < IN_FLIGHT_MAX {
                reads.send_read()?;
                asked += 1;
            }
            reads.receive_raw_reply(&mut replies)?;
        }
        replies.flush()
    })?;
    Ok(export)
}
