//! Datagrams, sent back with the mark of an answer: marked ones are not answered, so two servers never answer each other.
//!
//! UDP cannot share its port number with messages, which are UDP, too: plain datagrams are served at another port.

use std::io;
use std::net::UdpSocket;

use nocopy::udp;

use super::summary::Served;
use crate::exchange::{MARK, PATIENCE, Waiting, attend};
use nocopy_report::Interrupt;

/// Longer than any datagram.
const BUFFER_BYTES: usize = 64 << 10;

pub(super) fn serve(
    socket: &UdpSocket,
    waiting: Waiting,
    interrupt: &Interrupt,
    served: &mut Served,
) -> io::Result<()> {
    socket.set_nonblocking(!waiting.sleeps_in_calls())?;
    if waiting.sleeps_in_calls() {
        socket.set_read_timeout(Some(PATIENCE))?;
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    while !interrupt.came() {
        let received = match attend(waiting, socket, || socket.recv_from(&mut buffer)) {
            Ok(received) => received,
            // An earlier answer found no receiver; other clients are not affected.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error),
        };
        let Some((bytes, from)) = received else { continue };
        let sent = mark(&mut buffer[..bytes]).and_then(|answer| socket.send_to(answer, from).ok());
        match sent {
            Some(_) => served.answer(bytes),
            None => served.refused += 1,
        }
    }
    Ok(())
}

pub(super) fn serve_over_port(
    socket: udp::Socket,
    waiting: Waiting,
    interrupt: &Interrupt,
    served: &mut Served,
) -> io::Result<()> {
    let (mut receiver, mut sender) = socket.split();
    let mut answer = Vec::with_capacity(BUFFER_BYTES);
    while !interrupt.came() {
        let batch = match waiting {
            Waiting::Spinning => receiver.try_receive()?,
            Waiting::Blocking | Waiting::Adaptive => receiver.receive_timeout(PATIENCE)?,
        };
        let mut is_answered = false;
        for datagram in batch {
            answer.clear();
            answer.extend_from_slice(&datagram);
            let sent = mark(&mut answer).map(|answer| sender.send_copy(answer, datagram.from()));
            match sent {
                Some(Ok(())) => served.answer(answer.len()),
                _ => served.refused += 1,
            }
            is_answered = true;
        }
        if is_answered {
            sender.flush()?;
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
