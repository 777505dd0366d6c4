//! Shared by the tests of messages.

mod absent;

use std::time::Duration;

use nocopy_lab::patience::wait_until;

use super::{Builder, Endpoint, Event, Peer};

/// Two endpoints, the left one connected to the right one, which learns of its peer with the first message.
pub(super) fn connected(builders: [Builder; 2]) -> (Endpoint, Peer, Endpoint) {
    let bind = |builder: Builder| builder.bind("127.0.0.1:0").unwrap();
    let [mut left, mut right] = builders.map(bind);
    let to_right = connect(&mut left, &mut right);
    (left, to_right, right)
}

pub(super) fn connect(left: &mut Endpoint, right: &mut Endpoint) -> Peer {
    let to_right = left.start_connect(right.local_addr()).unwrap();
    wait_until("a connection", || {
        left.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        matches!(left.poll_event(), Some(Event::Connected(..)))
    });
    to_right
}
