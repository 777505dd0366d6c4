//! Datagrams, sent back with the mark of an answer: marked ones are not answered, so two servers never answer
//! each other.
//!
//! UDP cannot share its port number with messages, which are UDP, too: plain datagrams are served at another
//! port.

use std::io;

use nocopy::udp;
use nocopy_proto::errno::is_passing;

use super::summary::Served;
use crate::exchange::{MARK, PATIENCE, WaitMode, unless_down};
use nocopy_report::Interrupt;

/// Longer than any datagram.
const BUFFER_BYTES: usize = 64 << 10;

pub(super) fn serve(
    socket: udp::Socket,
    waiting: WaitMode,
    interrupt: &Interrupt,
    served: &mut Served,
) -> io::Result<()> {
    // A socket over a port has one address.
    let is_wildcard = socket.local_address()?.ip().is_unspecified();
    let (mut receiver, mut sender) = socket.split();
    let mut answer = Vec::with_capacity(BUFFER_BYTES);
    while !interrupt.was_interrupted() {
        let batch = match waiting {
            WaitMode::Spinning => receiver.try_receive(),
            WaitMode::Blocking | WaitMode::Adaptive => receiver.receive_timeout(PATIENCE),
        };
        let Some(batch) = unless_down(batch)? else { continue };
        let mut is_answered = false;
        for datagram in batch {
            answer.clear();
            answer.extend_from_slice(&datagram);
            let local = datagram.local().filter(|_| is_wildcard);
            let (from, marked) = (datagram.from(), mark(&mut answer));
            let sent = marked.map(|marked| crate::answer::answer(&mut sender, marked, from, local));
            match sent {
                Some(Ok(())) => served.answer(answer.len()),
                Some(Err(error)) => served.refuse(&error),
                None => served.refused += 1,
            }
            is_answered = true;
        }
        if is_answered {
            // Answers over a port whose interface is down wait there.
            sender.flush().or_else(|error| if is_passing(&error) { Ok(()) } else { Err(error) })?;
        }
    }
    Ok(())
}

/// The answer to a datagram, unless it is marked.
fn mark(datagram: &mut [u8]) -> Option<&[u8]> {
    let first = datagram.first_mut().filter(|first| **first & MARK == 0)?;
    *first |= MARK;
    Some(datagram)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_not_answered() {
        let mut datagram = *b"ask";
        let mut answer = mark(&mut datagram).unwrap().to_vec();
        assert_eq!(answer, [b'a' | MARK, b's', b'k']);
        assert_eq!((mark(&mut answer), mark(&mut [])), (None, None));
    }
}
