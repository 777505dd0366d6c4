//! Frames that the kernel keeps for longer than the peer takes to acknowledge them, as with a card that
//! reports sent frames late.

use std::time::Duration;

use nocopy_lab::patience::{PATIENCE, wait_until};

use super::super::AnyCarrier;
use super::*;
use crate::message::{Endpoint, tests};
use crate::port::Port;

fn carrier(endpoint: &mut Endpoint) -> &mut OverPort {
    let AnyCarrier::Port(port) = &mut endpoint.carrier else { panic!("bound over a port") };
    port
}

#[test]
fn acknowledged_packets_in_the_kernel_are_not_in_flight() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let [mut left, mut right] = [lab.left(), lab.right()].map(|end| {
        let builder = Endpoint::builder().port(Port::builder(end.interface()));
        end.namespace().run(|| builder.bind((end.ipv4(), 0))).unwrap()
    });
    let to_right = tests::connect(&mut left, &mut right);
    left.send_copy_to(b"hello", to_right).unwrap();
    left.flush().unwrap();
    let mut frame = None;
    wait_until("the frame, to be kept as by the kernel", || {
        let carrier = carrier(&mut left);
        carrier.take_back();
        frame = carrier.places.iter_mut().find_map(|place| place.here.take());
        frame.is_some()
    });
    assert_eq!(left.in_flight(), 1);
    wait_until("acknowledged", || {
        right.wait(Duration::ZERO).unwrap();
        left.wait(Duration::ZERO).unwrap();
        left.in_flight() == 0
    });
    left.wait(Duration::ZERO).unwrap();
    assert_eq!((left.in_flight(), carrier(&mut left).in_use()), (0, 1));
    carrier(&mut left).free_acknowledged(frame.unwrap());
    assert_eq!(carrier(&mut left).in_use(), 0);
    assert!(left.drain(PATIENCE).unwrap());
}
