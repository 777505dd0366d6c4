//! An asynchronous half has no way to the methods that wait.
use std::time::Duration;

use nocopy::AsyncReceiver;
use nocopy::capture::NonblockingCapture;

fn block(mut capture: AsyncReceiver<NonblockingCapture>) {
    capture.receive_timeout(Duration::MAX).ok(); //~ E0599
    capture.receive().ok(); //~ E0599
    capture.set_wait(nocopy::Wait::Spin); //~ E0599
}

fn main() {
    block(nocopy::Capture::open("eth0").unwrap().into_async().unwrap());
}
