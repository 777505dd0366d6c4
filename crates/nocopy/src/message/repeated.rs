//! Calls for interfaces in other languages, which wait in short steps or by an event loop of their own: each
//! is repeated until it has an outcome. Not part of the API.

use std::io;
use std::time::{Duration, Instant};

use nocopy_proto::message::{Kind, LostReason, Peer};

use super::{Endpoint, Error, Message, NonblockingEndpoint};

impl Endpoint {
    /// Waits for the response to a [request](NonblockingEndpoint::request) for `timeout` at most, as
    /// [`call`](Self::call) does. `None` if it has not come yet.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    #[doc(hidden)]
    pub fn response_timeout(
        &mut self,
        call: u32,
        from: Peer,
        timeout: Duration,
    ) -> Result<Option<Message<'_>>, Error> {
        self.response_by((from, Kind::Response(call)), Instant::now().checked_add(timeout))
    }
}

impl NonblockingEndpoint {
    /// Returns the response to a [request](Self::request) if it has come, and prepares for a wait on the
    /// descriptor otherwise, as [`arm`](Self::arm) does.
    ///
    /// # Errors
    /// As [`Endpoint::call`].
    #[doc(hidden)]
    pub fn arm_for_response(&mut self, call: u32, from: Peer) -> Result<Option<Message<'_>>, Error> {
        let wanted = (from, Kind::Response(call));
        let look = |endpoint: &mut Self| match endpoint.find_response(wanted) {
            Ok(None) => endpoint.is_gone(from).then_some(Err(Error::Lost)),
            found => found.transpose(),
        };
        let next = self.arm_until(look)?.transpose()?;
        Ok(next.map(|next| self.read(next)))
    }

    /// Returns how the attempt to [connect](Self::start_connect) to a peer has ended, and prepares for a wait
    /// on the descriptor if it has not. The event that says so is removed.
    ///
    /// # Errors
    /// As [`arm`](Self::arm).
    #[doc(hidden)]
    pub fn arm_for_outcome(&mut self, peer: Peer) -> io::Result<Option<Result<(), LostReason>>> {
        self.arm_until(|endpoint| endpoint.outcome_of(peer))
    }

    /// Finishes all connections, as [`Endpoint::close`] does: true when the peers have acknowledged
    /// everything. Prepares for a wait on the descriptor otherwise.
    ///
    /// # Errors
    /// As [`arm`](Self::arm).
    #[doc(hidden)]
    pub fn arm_for_finish(&mut self) -> io::Result<bool> {
        Ok(self.arm_until(|endpoint| endpoint.finish_each().then_some(()))?.is_some())
    }
}

#[cfg(test)]
mod tests {
    use nocopy_lab::patience::{PATIENCE, wait_until};

    use super::*;
    use crate::message::{Event, tests};

    fn connected() -> (Endpoint, Peer, Endpoint) {
        let silent = Endpoint::builder().keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE);
        tests::connected([silent.clone(), silent])
    }

    #[test]
    fn a_connection_attempt_that_is_refused_has_an_outcome() {
        let mut left = Endpoint::bind("127.0.0.1:0").unwrap();
        let mut right = Endpoint::builder().accept(false).bind("127.0.0.1:0").unwrap();
        let peer = left.start_connect(right.local_addr()).unwrap();
        let mut outcome = None;
        wait_until("an outcome", || {
            assert!(right.try_receive().unwrap().is_none());
            outcome = left.arm_for_outcome(peer).unwrap();
            outcome.is_some()
        });
        assert!(matches!(outcome, Some(Err(LostReason::Full))), "{outcome:?}");
        assert!(left.poll_event().is_none(), "its event was removed");
    }

    /// The response is returned, not the message that came before it, and waiting for it can be repeated.
    #[test]
    fn a_response_is_found_behind_another_message() {
        for by_event_loop in [false, true] {
            let (mut left, to_right, mut right) = connected();
            let call = left.request(b"question".to_vec(), to_right).unwrap();
            left.flush().unwrap();
            assert!(left.response_timeout(call, to_right, Duration::ZERO).unwrap().is_none());
            wait_until("the request", || {
                let Some(message) = right.try_receive().unwrap() else { return false };
                let (from, Kind::Request(asked)) = (message.peer(), message.kind()) else {
                    panic!("{message:?}")
                };
                drop(message);
                right.send_copy_to(b"something else", from).unwrap();
                right.respond(b"answer".to_vec(), from, asked).unwrap();
                right.flush().unwrap();
                true
            });
            wait_until("the response", || {
                let response = match by_event_loop {
                    true => left.arm_for_response(call, to_right).unwrap(),
                    false => left.response_timeout(call, to_right, Duration::from_millis(1)).unwrap(),
                };
                let Some(response) = response else { return false };
                assert_eq!((response.kind(), response.to_vec()), (Kind::Response(call), b"answer".to_vec()));
                true
            });
            assert_eq!(left.try_receive().unwrap().unwrap().to_vec(), b"something else");
        }
    }

    #[test]
    fn a_call_to_a_lost_peer_ends() {
        let (mut left, to_right, right) = connected();
        let call = left.request(b"question".to_vec(), to_right).unwrap();
        left.flush().unwrap();
        drop(right);
        let mut ended = None;
        wait_until("its end", || {
            ended = left.arm_for_response(call, to_right).err();
            ended.is_some()
        });
        assert!(matches!(ended, Some(Error::Lost)), "{ended:?}");
    }

    #[test]
    fn finished_when_the_peer_has_everything() {
        let (mut left, to_right, mut right) = connected();
        left.send_copy_to(b"the last one", to_right).unwrap();
        assert!(!left.arm_for_finish().unwrap());
        let mut received = 0;
        wait_until("the end", || {
            received += right.try_receive().unwrap().map_or(0, |message| message.len());
            left.arm_for_finish().unwrap()
        });
        wait_until("the event", || {
            received += right.try_receive().unwrap().map_or(0, |message| message.len());
            std::iter::from_fn(|| right.poll_event()).any(|event| matches!(event, Event::Finished(_)))
        });
        assert_eq!(received, 12);
    }
}
