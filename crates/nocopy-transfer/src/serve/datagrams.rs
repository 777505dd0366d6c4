//! Datagrams, sent back with the mark of an answer: marked ones are not answered, so two servers never answer
//! each other.
//!
//! UDP cannot share its port number with messages, which are UDP, too: plain datagrams are served at another
//! port.

use std::io;

use nocopy::udp;
use nocopy_proto::errno::is_transient;

use super::summary::ServiceCounters;
use crate::exchange::{MARK, PATIENCE, WaitMode, none_while_interface_down};
use nocopy_report::Interrupt;

/// Longer than any datagram.
const BUFFER_BYTES: usize = 64 << 10;

pub(super) fn serve_datagrams(
    socket: udp::Socket,
    waiting: WaitMode,
    interrupt: &Interrupt,
    served: &mut ServiceCounters,
) -> io::Result<()> {
    // A socket over a port has one address.
    let is_wildcard = socket.local_addr()?.ip().is_unspecified();
    let (mut receiver, mut sender) = socket.split();
    let mut answer = Vec::with_capacity(BUFFER_BYTES);
    while !interrupt.was_interrupted() {
        let batch = match waiting {
            WaitMode::Spinning => receiver.try_receive(),
            WaitMode::Blocking | WaitMode::Adaptive => receiver.receive_timeout(PATIENCE),
        };
        let Some(batch) = none_while_interface_down(batch)? else { continue };
        let mut is_answered = false;
        for datagram in batch {
            answer.clear();
            answer.extend_from_slice(&datagram);
            let metadata = Some(datagram.metadata()).filter(|_| is_wildcard);
            let (from, marked) = (datagram.source(), mark_as_answer(&mut answer));
            let sent = marked.map(|marked| crate::answer::send_answer(&mut sender, marked, from, metadata));
            match sent {
                Some(Ok(())) => served.count_answer(answer.len()),
                Some(Err(error)) => served.count_refused(&error),
                None => served.refused += 1,
            }
            is_answered = true;
        }
        if is_answered {
            // Answers over a port whose interface is down wait there.
            sender.flush().or_else(|error| if is_transient(&error) { Ok(()) } else { Err(error) })?;
        }
    }
    Ok(())
}

/// The answer to a datagram, unless it is marked.
fn mark_as_answer(datagram: &mut [u8]) -> Option<&[u8]> {
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
        let mut answer = mark_as_answer(&mut datagram).unwrap().to_vec();
        assert_eq!(answer, [b'a' | MARK, b's', b'k']);
        assert_eq!((mark_as_answer(&mut answer), mark_as_answer(&mut [])), (None, None));
    }
}
