use std::net::UdpSocket;

use nocopy_lab::patience::wait_until;

use super::*;
use crate::facts::features;
use crate::sys::fork::tests::in_forked_child;
use crate::sys::udp_send::enable_error_queue;

/// For a half whose errors are never taken, while another half reads the queue.
#[test]
fn unread_errors_are_counted_and_the_last_are_stored() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    enable_error_queue(&socket, false).unwrap();
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let read = KernelSocket::new(Arc::new(socket.try_clone().unwrap().into()));
    wait_until("many errors", || {
        let _ = socket.send_to(&[1], closed); // may fail by the error of one before
        read.read_error_queue();
        read.network_error_count() > 3 * ERRORS_MAX as u64
    });
    assert_eq!(read.take_errors().len(), ERRORS_MAX);
    assert!(read.take_errors().is_empty());
}

#[test]
fn a_child_forked_while_the_error_queue_is_locked_does_not_read_it() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let kernel = KernelSocket::new(Arc::new(socket.into()));
    let locked = kernel.lock_error_queue();
    in_forked_child(|| {
        assert!(kernel.claim_numbering().is_none() && kernel.next_completion().is_none());
        assert_eq!((kernel.read_error_queue(), kernel.take_errors().len()), (0, 0));
        kernel.release_numbering(Some(0));
    });
    drop(locked);
    assert_eq!(kernel.claim_numbering(), Some(0));
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
    kernel.read_error_queue();
    let first = kernel.claim_numbering().unwrap();
    assert!(kernel.claim_numbering().is_none() && kernel.next_completion().is_none());
    complete_one().unwrap();
    kernel.read_error_queue();
    assert_eq!(kernel.next_completion().map(|report| (report.first, report.last)), Some((1, 1)));
    kernel.release_numbering(Some(first + 2));
    assert_eq!(kernel.claim_numbering(), Some(2));
}

#[test]
fn completions_in_any_order_take_each_call_once() {
    let mut calls = CallTable::starting_at(0);
    (0..3).for_each(|number| assert_eq!(calls.push(number), number));
    assert_eq!(calls.take(2).unwrap(), 2);
    assert!(calls.take(2).is_none() && calls.take(3).is_none() && calls.take(u64::MAX).is_none());
    assert_eq!((calls.open_count(), calls.next_number()), (2, 3));
    assert_eq!((calls.take(0).unwrap(), calls.take(1).unwrap()), (0, 1));
    assert!(calls.take(0).is_none());
    assert_eq!((calls.open_count(), calls.push(9)), (0, 3));
}

#[test]
fn skipped_numbers_belong_to_no_call() {
    let mut calls = CallTable::starting_at(0);
    calls.skip_number();
    assert_eq!((calls.push(5), calls.next_number()), (1, 2));
    calls.skip_number();
    assert_eq!((calls.push(6), calls.open_count()), (3, 2));
    assert!(calls.take(0).is_none() && calls.take(2).is_none());
    assert_eq!((calls.take(1).unwrap(), calls.take(3).unwrap(), calls.next_number()), (5, 6, 4));
}

#[test]
fn the_kernels_call_counter_wraps() {
    let mut calls = CallTable::starting_at(u64::from(u32::MAX));
    for number in 0..3 {
        calls.push(number);
    }
    assert_eq!(calls.full_number(u32::MAX), i64::from(u32::MAX));
    assert_eq!(calls.full_number(1), i64::from(u32::MAX) + 2);
    let last = u64::from(u32::MAX);
    assert_eq!(calls.clamp_to_table(&(calls.full_number(1)..calls.full_number(7))), last + 2..last + 3);
    assert!(calls.clamp_to_table(&(calls.full_number(7)..calls.full_number(9))).is_empty());
}

#[test]
fn a_report_may_begin_before_the_open_calls() {
    let mut calls = CallTable::starting_at(0);
    (0..3).for_each(|number| _ = calls.push(number));
    let _ = (calls.take(0), calls.take(1));
    assert_eq!(calls.clamp_to_table(&(calls.full_number(0)..calls.full_number(3))), 2..3);
    assert!(calls.clamp_to_table(&(calls.full_number(0)..calls.full_number(2))).is_empty());
    assert_eq!(CallTable::<u64>::starting_at(0).full_number(u32::MAX), -1);
    assert!(CallTable::<u64>::starting_at(0).clamp_to_table(&(-1..0)).is_empty());
}

#[test]
fn the_refusal_of_zero_copy_names_the_kernels_that_have_it() {
    let why = NoZeroCopyReason::Kernel(io::Error::from_raw_os_error(libc::ENOPROTOOPT)).why();
    let [tcp, udp] = [features::TCP_ZERO_COPY, features::UDP_ZERO_COPY].map(|feature| feature.kernel);
    assert!(why.contains(&format!("Linux {tcp} or newer for TCP sockets, {udp} for UDP sockets")), "{why}");
}
