//! The client as a half: it fulfils the contract of all halves, and uses their names for its other methods.
#![allow(missing_docs)]

#[macro_use]
#[path = "../../nocopy/tests/contract/halves.rs"]
mod halves;

use std::error::Error;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nocopy::{BufferMut, Explanation, Ledger, Rejected, Stats, Wait};
use nocopy_nfs::client::{Client, FilePosition, FilledBuffer, Ticket};

const TIME: Duration = Duration::from_secs(1);

// A box leads to the client, as the halves that wait lead to what has the trait.
receives! {
    files: Box<Client>,
}

/// Receives into given memory, and returns it.
#[expect(dead_code, reason = "it is enough that it compiles")]
fn check_post_signatures(client: &mut Client, place: FilePosition) -> Result<(), Box<dyn Error>> {
    let buffer: BufferMut = client.buffer().ok_or("all buffers are in use")?;
    let posted: Result<Ticket, Rejected<BufferMut>> = client.post(buffer, place);
    posted?;
    let _: usize = client.in_flight();
    let _: bool = client.try_flush()?;
    if let Some(FilledBuffer { buffer, .. }) = client.receive()? {
        client.recycle(buffer);
    }
    Ok(())
}
