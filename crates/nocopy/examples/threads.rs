//! A server whose threads share one endpoint, `threads ADDRESS`: each answers what it takes, and computes the
//! answer without the others waiting.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use nocopy::message::{Endpoint, Event, Kind, Message};
use rustix::event::{PollFd, PollFlags, poll};

const THREADS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::bind(std::env::args().nth(1).ok_or("usage: threads ADDRESS")?)?;
    println!("{}: bound", endpoint.local_addr());
    let descriptor = endpoint.as_fd().try_clone_to_owned()?;
    let endpoint = Mutex::new(endpoint);
    thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| scope.spawn(|| serve(&endpoint, &descriptor)));
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    Ok(())
}

fn lock(endpoint: &Mutex<Endpoint>) -> MutexGuard<'_, Endpoint> {
    endpoint.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Until a peer has sent its last.
fn serve(endpoint: &Mutex<Endpoint>, descriptor: &OwnedFd) -> io::Result<()> {
    loop {
        let mut locked = lock(endpoint);
        if let Some(Event::Finished(_)) = locked.poll_event() {
            std::process::exit(0);
        }
        let message = locked.try_receive()?.map(Message::take); // owned, so the mutex can be given up
        // Before each end of a lock: if something else waits, the descriptor becomes readable for the others.
        let is_ready = locked.arm()?;
        drop(locked);
        if let Some(message) = message {
            if let Kind::Request(call) = message.kind() {
                let mut answer = message.to_vec();
                answer.reverse();
                let mut locked = lock(endpoint);
                locked.respond(answer, message.peer(), call)?;
                locked.flush()?;
                locked.arm()?;
            }
        } else if !is_ready {
            poll(&mut [PollFd::new(descriptor, PollFlags::IN)], None)?;
        }
    }
}
