//! An asynchronous half has no way to the methods that wait, nor to a half that has them.
use std::time::Duration;

use nocopy::AsyncReceiver;
use nocopy::port::NonblockingQueues;

fn block(mut queues: AsyncReceiver<NonblockingQueues>) {
    queues.receive_timeout(Duration::MAX).ok(); //~ E0599
    queues.receive().ok(); //~ E0599
    queues.set_wait(nocopy::Wait::Spin); //~ E0599
    queues.ports(); //~ E0599
    queues.senders().for_each(|sender| sender.flush().unwrap()); //~ E0599
}

fn main() {
    let queues = nocopy::Port::builder("eth0").open_queues(..).unwrap();
    block(queues.into_async().unwrap());
}
