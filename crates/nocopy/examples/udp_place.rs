//! Receives numbered datagrams, as `udp_send` sends them, into chunks of rows: `udp_place ADDRESS [CHUNKS]`

use std::error::Error;
use std::time::Duration;

use nocopy::udp::{Field, PlacedChunk, Placing, Socket};

/// A datagram: its number in 8 bytes, then a row.
const ROW_BYTES: usize = 1392;
const ROWS: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: udp_place ADDRESS [CHUNKS]")?;
    let count: usize = arguments.next().map_or(Ok(usize::MAX), |count| count.parse())?;

    let socket = Socket::builder().receive_buffer(4 << 20).bind(address)?;
    println!("{}: receiving", socket.local_addr()?);
    let placing = Placing::by_number(Field::big_endian(0, 8)).shape(ROWS, ROW_BYTES).ring(8);
    let mut receiver = socket.split().0.place(placing)?;
    let mut received = 0;
    while received < count {
        if let Some(chunk) = receiver.receive_timeout(Duration::from_secs(1))? {
            received += 1;
            print(&chunk);
            continue; // the chunk is dropped, and its memory is used again
        }
        // The sender pauses: what has arrived, although rows are missing.
        while let Some(chunk) = receiver.finish() {
            received += 1;
            print(&chunk);
        }
    }
    println!("{}\n{}\n{}", receiver.stats(), receiver.ledger(), receiver.explain());
    Ok(())
}

fn print(chunk: &PlacedChunk) {
    let missing = chunk.present().iter().filter(|present| !**present).count();
    let sum: u64 = chunk.rows().flatten().flatten().map(|byte| u64::from(*byte)).sum();
    println!("rows from {}: {} filled, {missing} missing, sum {sum}", chunk.first(), chunk.filled());
}
