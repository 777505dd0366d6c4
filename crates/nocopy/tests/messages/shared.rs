//! One endpoint used by several threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use crate::common::PATIENCE;
use crate::common::message::{any, connect, pattern};
use nocopy::Reason;
use nocopy::message::{Builder, Endpoint, Event, Message, Peer, Shared};
use nocopy::port::Wait;
use nocopy_lab::patience::wait_until;

/// Threads of an endpoint that send, and as many that receive.
const THREADS: usize = 3;
/// Messages of each thread.
const MESSAGES: usize = 700;
const STOP: &[u8] = b"stop";

fn bind(set: impl FnOnce(Builder) -> Builder) -> Endpoint {
    set(Endpoint::builder()).bind(any(0)).expect("bound")
}

fn pair(wait: Wait) -> [(Shared, Peer); 2] {
    let mut ends = [0; 2].map(|_| bind(|builder| builder.wait(wait)));
    let [left, right] = &mut ends;
    let (to_right, to_left) = connect(left, right);
    let [left, right] = ends.map(Shared::from);
    [(left, to_right), (right, to_left)]
}

/// The text of a message, which depends on its thread and number.
fn text(thread: usize, number: usize) -> Vec<u8> {
    let numbers = [thread as u8, (number >> 8) as u8, number as u8];
    [&numbers[..], &pattern(number, number % 61 * 40)].concat()
}

/// Sends a message, and waits while there is no room; returns how often there was none.
fn send(endpoint: &Shared, message: &[u8], to: Peer, refusals: &AtomicUsize) {
    let mut endpoint = endpoint.lock();
    while let Err(reason) = endpoint.send_copy_to(message, to) {
        assert!(matches!(reason, Reason::Full), "{reason}");
        refusals.fetch_add(1, SeqCst);
        assert!(endpoint.wait(PATIENCE).unwrap(), "not told of room: {:?}", endpoint.peer_stats(to));
    }
    endpoint.flush().unwrap();
}

/// The messages that come to this thread, up to one that says stop.
fn receive(endpoint: &Shared) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    loop {
        let message = endpoint.lock().receive().unwrap().map(Message::take);
        match message.map(|message| message.to_vec()) {
            Some(text) if text == STOP => return received,
            Some(text) => received.push(text),
            None => {
                while let Some(event) = endpoint.lock().poll_event() {
                    assert!(!matches!(event, Event::Lost(..)), "{event:?}");
                }
            }
        }
    }
}

/// Proves that each message comes once, and to each thread in order, from whatever thread it was sent.
fn assert_each_came_once(threads: Vec<Vec<Vec<u8>>>) {
    let mut seen = HashMap::new();
    for received in threads {
        let mut last = [None; THREADS];
        for text in received {
            let (thread, number) = (usize::from(text[0]), usize::from(text[1]) << 8 | usize::from(text[2]));
            assert!(text == self::text(thread, number), "{thread} {number}");
            assert!(last[thread] < Some(number), "{number} behind {:?}", last[thread]);
            last[thread] = Some(number);
            *seen.entry((thread, number)).or_insert(0) += 1;
        }
    }
    assert_eq!(seen.len(), THREADS * MESSAGES);
    assert!(seen.values().all(|times| *times == 1));
}

#[test]
fn threads_that_send_and_receive_miss_nothing() {
    for wait in [Wait::Interrupt, Wait::Spin, Wait::Adaptive { spin: Duration::from_micros(20) }] {
        let ends = pair(wait);
        let refusals = AtomicUsize::new(0);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for (end, _) in &ends {
                scope.spawn(|| {
                    while !is_over.load(SeqCst) {
                        end.lock().arm().unwrap();
                        thread::sleep(Duration::from_micros(50));
                    }
                });
            }
            let senders: Vec<_> = (0..2 * THREADS)
                .map(|sender| {
                    let ((end, to), refusals) = (&ends[sender % 2], &refusals);
                    scope.spawn(move || {
                        (0..MESSAGES).for_each(|number| send(end, &text(sender / 2, number), *to, refusals))
                    })
                })
                .collect();
            // No thread reads yet, so the room is usually used up at some time.
            wait_until("a sender without room, or without messages", || {
                refusals.load(SeqCst) > 0 || senders.iter().all(ScopedJoinHandle::is_finished)
            });
            let receivers = ends.each_ref().map(|(end, _)| -> Vec<ScopedJoinHandle<'_, _>> {
                (0..THREADS).map(|_| scope.spawn(|| receive(end))).collect()
            });
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            for (end, to) in &ends {
                (0..THREADS).for_each(|_| send(end, STOP, *to, &refusals));
            }
            for receivers in receivers {
                assert_each_came_once(receivers.into_iter().map(|thread| thread.join().unwrap()).collect());
            }
            is_over.store(true, SeqCst);
        });
    }
}

#[test]
fn an_event_ends_all_waits() {
    let server = Shared::from(bind(|builder| builder));
    let address = server.lock().local_addr();
    let over = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..2 * THREADS {
            let (server, over) = (&server, &over);
            scope.spawn(move || {
                let mut endpoint = server.lock();
                match number % 2 {
                    0 => assert!(endpoint.receive_timeout(PATIENCE).unwrap().is_none()),
                    _ => assert!(endpoint.wait(PATIENCE).unwrap()),
                }
                over.fetch_add(1, SeqCst);
            });
        }
        // An event may arrive before all of them wait. Once none waits, no thread works at the server.
        let mut clients = Vec::new();
        wait_until("all of them", || {
            let mut client = bind(|builder| builder);
            client.start_connect(address).unwrap();
            clients.push(client);
            for client in &mut clients {
                client.wait(Duration::from_millis(1)).unwrap();
            }
            over.load(SeqCst) == 2 * THREADS
        });
    });
}

#[test]
fn a_wait_ends_in_time_whoever_watches() {
    let server = Shared::from(bind(|builder| builder));
    thread::scope(|scope| {
        for number in 1..=2 * THREADS as u64 {
            let server = &server;
            scope.spawn(move || {
                let timeout = Duration::from_millis(number);
                assert!(server.lock().receive_timeout(timeout).unwrap().is_none());
                assert!(!server.lock().wait(timeout).unwrap());
            });
        }
    });
}
