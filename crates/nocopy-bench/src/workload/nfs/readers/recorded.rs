//! Records replies of a server in a file, to be sent again from memory.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};

use super::Scene;
use crate::workload::nfs::client::{Reads, UNDER_WAY};
use crate::workload::nfs::exported::Exported;
use crate::workload::nfs::files::CACHED;
use crate::workload::nfs::reads::open;
use crate::workload::nfs::server::{RECORDED, Server, Way};

/// Records reads of the whole file with a given length; returns the files for the replaying server.
pub(super) fn record(scene: &Scene<'_>, bytes: usize) -> io::Result<Exported> {
    let (place, files) = (scene.place, &scene.place.files);
    let scratch = files.scratch().join(format!("replies-of-{bytes}"));
    let exported = Exported { scratch, ..files.exported() };
    if exported.scratch.exists() {
        return Ok(exported);
    }
    fs::create_dir(&exported.scratch)?;
    let server = Server::start(place, Way::Nocopy)?;
    place.stage.receiver.run(|| {
        let (client, file) = open(&files.exported(), &server, Way::Nocopy, CACHED)?;
        let mut reads = Reads::new(client, file, files.contents.cached_bytes, bytes as u32);
        let mut replies = BufWriter::new(File::create_new(exported.scratch.join(RECORDED))?);
        let (mut asked, all) = (0, files.contents.cached_bytes / bytes as u64);
        while asked < all || reads.under_way() > 0 {
            while asked < all && reads.under_way() < UNDER_WAY {
                reads.ask()?;
                asked += 1;
            }
            reads.take_whole(&mut replies)?;
        }
        replies.flush()
    })?;
    Ok(exported)
}
