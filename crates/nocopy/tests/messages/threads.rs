//! Threads that share an endpoint by a mutex, as in `examples/threads.rs`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::common::PATIENCE;
use crate::common::message::{any, connect};
use nocopy::message::{Builder, Endpoint, Event, Message};
use nocopy_lab::patience::wait_until;

/// Threads of the endpoint.
const THREADS: usize = 3;
const ROUNDS: usize = 300;

fn silent() -> Builder {
    Endpoint::builder().keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE)
}

/// Waits until the descriptor is readable, with the mutex given up.
fn sleep(descriptor: &OwnedFd) {
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&patience)).unwrap();
    assert!(ready > 0, "something waits, and the descriptor does not say so");
}

/// The next message, for this thread alone.
fn take(endpoint: &Mutex<Endpoint>, descriptor: &OwnedFd) -> Vec<u8> {
    loop {
        let mut locked = endpoint.lock().unwrap();
        let message = locked.try_receive().unwrap().map(Message::take);
        let is_ready = locked.arm().unwrap();
        drop(locked);
        match message {
            Some(message) => return message.to_vec(),
            None if is_ready => {}
            None => sleep(descriptor),
        }
    }
}

/// Messages of one datagram: the thread that takes the first has taken the others from the kernel, too, and
/// goes on only when other threads have them.
#[test]
fn messages_that_came_together_reach_threads_that_sleep() {
    let (mut left, mut right) = (silent().bind(any(0)).unwrap(), silent().bind(any(0)).unwrap());
    let (to_right, _) = connect(&mut left, &mut right);
    let descriptor = right.as_fd().try_clone_to_owned().unwrap();
    let (right, taken) = (Mutex::new(right), AtomicUsize::new(0));
    thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| {
            scope.spawn(|| {
                (1..=ROUNDS).for_each(|round| {
                    assert_eq!(take(&right, &descriptor), round.to_be_bytes());
                    taken.fetch_add(1, SeqCst);
                    wait_until("the others have theirs", || taken.load(SeqCst) >= round * THREADS);
                });
            })
        });
        for round in 1..=ROUNDS {
            for _ in 0..THREADS {
                left.send_copy_to(&round.to_be_bytes(), to_right).unwrap();
            }
            left.flush().unwrap();
            wait_until("each thread has one", || {
                assert!(left.try_receive().unwrap().is_none());
                taken.load(SeqCst) >= round * THREADS || threads.iter().any(|thread| thread.is_finished())
            });
        }
    });
}

/// A thread that sends takes what came from the kernel, too, and the thread that sleeps is told.
#[test]
fn what_a_sending_thread_finds_reaches_one_that_sleeps() {
    let (mut left, mut right) = (silent().bind(any(0)).unwrap(), silent().bind(any(0)).unwrap());
    let (to_right, to_left) = connect(&mut left, &mut right);
    let descriptor = right.as_fd().try_clone_to_owned().unwrap();
    let right = Mutex::new(right);
    thread::scope(|scope| {
        let mut locked = right.lock().unwrap();
        let sleeper = scope.spawn(|| {
            sleep(&descriptor);
            take(&right, &descriptor)
        });
        left.send_copy_to(b"message", to_right).unwrap();
        left.flush().unwrap();
        wait_until("it is there, and was taken from the kernel", || {
            locked.send_copy_to(b"sent", to_left).unwrap();
            locked.flush().unwrap();
            locked.arm().unwrap()
        });
        assert!(!matches!(locked.poll_event(), Some(Event::Lost(..))));
        drop(locked);
        assert_eq!(sleeper.join().unwrap(), b"message");
    });
}
