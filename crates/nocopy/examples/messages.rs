//! Requests and responses between two addresses: `messages ADDRESS` answers, `messages ADDRESS PEER [COUNT]`
//! asks.

use std::error::Error;
use std::time::{Duration, Instant};

use nocopy::message::{Endpoint, Event, Kind};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: messages ADDRESS [PEER [COUNT]]")?;
    let endpoint = Endpoint::bind(address)?;
    println!("{}: bound", endpoint.local_addr());
    match arguments.next() {
        None => answer(endpoint),
        Some(peer) => ask(endpoint, peer.parse()?, arguments.next().map_or(Ok(1000), |count| count.parse())?),
    }
}

/// Answers every request with its own content until a peer has sent its last.
fn answer(mut endpoint: Endpoint) -> Result<(), Box<dyn Error>> {
    loop {
        while let Some(event) = endpoint.poll_event() {
            println!("{event:?}");
            if matches!(event, Event::Finished(_)) {
                endpoint.close(Duration::from_secs(5))?;
                return Ok(());
            }
        }
        // None: an event, or a signal.
        let Some(request) = endpoint.receive()? else { continue };
        if let Kind::Request(call) = request.kind() {
            let (peer, mut text) = (request.peer(), request.to_vec());
            drop(request); // its packet is free again
            text.reverse();
            endpoint.respond(text, peer, call)?;
        }
    }
}

fn ask(mut endpoint: Endpoint, to: std::net::SocketAddr, count: u32) -> Result<(), Box<dyn Error>> {
    let peer = endpoint.connect(to, Duration::from_secs(5))?;
    let began = Instant::now();
    for number in 0..count {
        let request = format!("request {number}");
        let response = endpoint.call(request.clone().into_bytes(), peer, Duration::from_secs(5))?;
        if !response.to_vec().iter().rev().eq(request.as_bytes()) {
            return Err("another response than to this request".into());
        }
    }
    println!("{count} responses, {:?} each: {}", began.elapsed() / count.max(1), endpoint.ledger());
    endpoint.close(Duration::from_secs(5))?;
    Ok(())
}
