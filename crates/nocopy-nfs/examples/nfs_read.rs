//! Sums the bytes of a file on an NFS server, read from the socket straight into a few buffers, and copied
//! nowhere else.
//!
//! ```text
//! cargo run --example nfs_read -p nocopy-nfs -- nfs://HOST/PATH
//! ```
#![allow(clippy::disallowed_macros)] // an example may print

use std::error::Error;

use nocopy::Pool;
use nocopy_nfs::client::{Client, FilePosition, Url};

fn main() -> Result<(), Box<dyn Error>> {
    let url: Url = std::env::args().nth(1).ok_or("give an address: nfs://HOST/PATH")?.parse()?;
    let (mut client, below) = Client::connect(&url)?;
    let found = client.walk(&below)?;
    let (file, bytes) = (found.file, found.attributes.size);

    let pool = Pool::new(16, 1 << 20)?; // all the memory there is, however long the file
    let mut offset = 0;
    let (mut sum, mut read) = (0_u64, 0_u64);
    loop {
        // Posted: the file's bytes are written there, and the buffer is not ours until they have arrived.
        while offset < bytes {
            let Some(buffer) = pool.take() else { break };
            let length = buffer.capacity() as u64;
            client.post(buffer, FilePosition { file, offset })?;
            offset += length;
        }
        // Replies arrive in any order, which does not matter for a sum.
        let Some(filled) = client.receive()? else { break };
        let (buffer, _) = filled.into_result()?;
        sum += buffer.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        read += buffer.len() as u64;
    }
    println!("{read} bytes, sum {sum}");
    println!("{}", client.ledger()); // copied once: by the kernel, out of the socket
    Ok(())
}
