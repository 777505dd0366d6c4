use std::net::UdpSocket;

use nocopy_lab::patience::wait_until;

use super::*;
use crate::sys::fork::tests::in_forked_child;
use crate::sys::udp_send::report_errors;

/// For a half whose errors are never taken, while another half reads the queue.
#[test]
fn unread_errors_are_counted_and_the_last_are_stored() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    report_errors(&socket, false).unwrap();
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let read = KernelSocket::new(Arc::new(socket.try_clone().unwrap().into()));
    wait_until("many errors", || {
        let _ = socket.send_to(&[1], closed); // may fail by the error of one before
        read.read();
        read.network_errors() > 3 * ERRORS_MAX as u64
    });
    assert_eq!(read.take_errors().len(), ERRORS_MAX);
    assert!(read.take_errors().is_empty());
}

#[test]
fn a_child_forked_during_a_lock_reads_no_error_queue() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let kernel = KernelSocket::new(Arc::new(socket.into()));
    let locked = kernel.queue();
    in_forked_child(|| {
        assert!(kernel.claim().is_none() && kernel.next_completion().is_none());
        assert_eq!((kernel.read(), kernel.take_errors().len()), (0, 0));
        kernel.release(Some(0));
    });
    drop(locked);
    assert_eq!(kernel.claim(), Some(0));
}

#[test]
fn completions_without_a_sender_are_discarded() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let kernel = KernelSocket::new(Arc::new(socket.try_clone().unwrap().into()));
    crate::sys::option::allow_zero_copy(&socket).unwrap();
    let complete_one =
        || socket2::SockRef::from(&socket).send_to_with_flags(&[1; 10], &to.into(), libc::MSG_ZEROCOPY);
    complete_one().unwrap();
    kernel.read();
    let first = kernel.claim().unwrap();
    assert!(kernel.claim().is_none() && kernel.next_completion().is_none());
    complete_one().unwrap();
    kernel.read();
    assert_eq!(kernel.next_completion().map(|report| (report.first, report.last)), Some((1, 1)));
    kernel.release(Some(first + 2));
    assert_eq!(kernel.claim(), Some(2));
}

#[test]
fn completions_match_calls_in_any_order_once() {
    let mut calls = CallTable::starting_at(0);
    (0..3).for_each(|number| assert_eq!(calls.push(number), number));
    assert_eq!(calls.take(2).unwrap(), 2);
    assert!(calls.take(2).is_none() && calls.take(3).is_none() && calls.take(u64::MAX).is_none());
    assert_eq!((calls.open(), calls.end()), (2, 3));
    assert_eq!((calls.take(0).unwrap(), calls.take(1).unwrap()), (0, 1));
    assert!(calls.take(0).is_none());
    assert_eq!((calls.open(), calls.push(9)), (0, 3));
}

#[test]
fn a_failed_call_may_have_a_number() {
    let mut calls = CallTable::starting_at(0);
    calls.skip();
    assert_eq!((calls.push(5), calls.end()), (1, 2));
    calls.skip();
    assert_eq!((calls.push(6), calls.open()), (3, 2));
    assert!(calls.take(0).is_none() && calls.take(2).is_none());
    assert_eq!((calls.take(1).unwrap(), calls.take(3).unwrap(), calls.end()), (5, 6, 4));
}

#[test]
fn the_kernels_call_counter_wraps() {
    let mut calls = CallTable::starting_at(u64::from(u32::MAX));
    for number in 0..3 {
        calls.push(number);
    }
    assert_eq!(calls.number(u32::MAX), i64::from(u32::MAX));
    assert_eq!(calls.number(1), i64::from(u32::MAX) + 2);
    let last = u64::from(u32::MAX);
    assert_eq!(calls.open_part(&(calls.number(1)..calls.number(7))), last + 2..last + 3);
    assert!(calls.open_part(&(calls.number(7)..calls.number(9))).is_empty());
}

#[test]
fn a_report_may_begin_before_the_open_calls() {
    let mut calls = CallTable::starting_at(0);
    (0..3).for_each(|number| _ = calls.push(number));
    let _ = (calls.take(0), calls.take(1));
    assert_eq!(calls.open_part(&(calls.number(0)..calls.number(3))), 2..3);
    assert!(calls.open_part(&(calls.number(0)..calls.number(2))).is_empty());
    assert_eq!(CallTable::<u64>::starting_at(0).number(u32::MAX), -1);
    assert!(CallTable::<u64>::starting_at(0).open_part(&(-1..0)).is_empty());
}
