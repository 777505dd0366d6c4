//! Several queues used as one and inherited by a forked child, with all other descriptors of the process:
//! `cargo xtask test` runs each test in a process of its own.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::{PATIENCE, lab, numbered_packet, open_queues, send_numbered_on_queue};
use nocopy::Mode;
use nocopy::integration::PortTuning;
use nocopy::port::{PortBuilder, Queues};
use nocopy_lab::Lab;
use nocopy_lab::patience::wait_until;

/// Only one of these tests at a time: with `cargo test`, where they share a process, a child would keep the
/// descriptors of all of them open.
fn lock_forking_tests() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
#[allow(unsafe_code)]
fn a_forked_child_drops_its_ports_without_harm_to_the_parent() {
    let _alone = lock_forking_tests();
    let lab = lab!(Lab::builder().queues(2));
    let inherited = |builder: PortBuilder| {
        builder.mode(Mode::XdpCopyNative).tuning(PortTuning { inherited: true, ..PortTuning::default() })
    };
    let mut queues = open_queues(lab.right(), inherited);
    queues.waker().unwrap();
    let program = lab.right().xdp_program().unwrap();
    assert!(program.is_some());
    send_numbered_on_queue(lab.left(), 1, lab.right(), 0, 5);
    wait_until("packets", || queues.arm().unwrap());
    // SAFETY: the child only closes what this thread has made, and ends. (Other tests' threads may hold the
    // allocator's locks, which the C library makes good.)
    match unsafe { libc::fork() } {
        0 => {
            queues.disown();
            // SAFETY: nothing of this process is to be run in its place.
            unsafe { libc::_exit(7) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is a place for one.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status >> 8, 7, "the child ended otherwise: {status:#x}");
        }
    }
    assert_eq!(lab.right().xdp_program().unwrap(), program, "still attached");
    send_numbered_on_queue(lab.left(), 0, lab.right(), 10, 5);
    let mut count = 0;
    while count < 10 {
        let came = queues.receive_timeout(PATIENCE).unwrap().count();
        assert!(came > 0, "only {count} of 10 came");
        count += came;
    }
    let balance = crate::common::area_balance(&mut queues);
    assert!(balance.is_balanced() && balance.in_use == 0, "{balance}");
}

/// As for a daemon, whose parent ends.
#[test]
#[allow(unsafe_code)]
fn a_forked_child_continues_with_its_parents_queues() {
    let _alone = lock_forking_tests();
    let lab = lab!(Lab::builder().queues(2));
    let inherited = |builder: PortBuilder| {
        builder.mode(Mode::XdpCopyNative).tuning(PortTuning { inherited: true, ..PortTuning::default() })
    };
    let mut queues = open_queues(lab.right(), inherited);
    let receive = |queues: &mut Queues, count: u32| {
        let mut expected = 0;
        while expected < count {
            let before = expected;
            for received in queues.receive_timeout(PATIENCE).unwrap() {
                assert!(*received == *numbered_packet(lab.right(), expected, 100), "packet {expected}");
                expected += 1;
            }
            assert!(expected > before, "only {before} of {count} came");
        }
    };
    let (mut ready, mut told) = std::io::pipe().unwrap();
    // SAFETY: the child receives with what this thread has made, and ends without a word to anybody else.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                std::io::Write::write_all(&mut told, b"x").unwrap();
                receive(&mut queues, 300);
            }));
            // SAFETY: nothing of this process is to be run in its place.
            unsafe { libc::_exit(if done.is_ok() { 7 } else { 8 }) }
        }
        child => {
            std::io::Read::read_exact(&mut ready, &mut [0]).unwrap();
            send_numbered_on_queue(lab.left(), 0, lab.right(), 0, 300);
            let mut status = 0;
            // SAFETY: `status` is a place for one.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status >> 8, 7, "the child ended otherwise: {status:#x}");
            queues.disown();
        }
    }
}
