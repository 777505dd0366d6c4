//! An injector on a veth pair. As part of programs: `tests/library/c_programs.rs`.

use std::sync::mpsc;

use nocopy::{Mode, Port};
use nocopy_lab::End;

use nocopy_lab::patience::PATIENCE;

use super::*;

impl Injector {
    /// Sends a frame, also alone.
    fn send_frame(self: &Arc<Self>, frame: &[u8], nonblocking: bool) -> io::Result<()> {
        if let Some(single) = self.inject(frame, nonblocking)? {
            single.send_frame(frame).into_io_result()?;
            self.count_single_send();
        }
        Ok(())
    }
}

/// Frames in flight at a time: somewhat more than veth's own ring holds.
const BURST: u32 = 200;

fn numbered_frame(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; bytes];
    frame[..6].copy_from_slice(&[2; 6]);
    frame[6] = 4;
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

fn open_injector(end: &End) -> Arc<Injector> {
    end.namespace().run(|| Injector::open(end.interface(), None).unwrap())
}

/// Receives frames at an end; reports the number and length of each.
fn receive_frames(end: &End, arrived: &mpsc::Sender<(u32, usize)>, until: u32) {
    let mut port =
        end.namespace().run(|| Port::builder(end.interface()).mode(Mode::XdpCopyNative).open()).unwrap();
    arrived.send((0, 0)).unwrap(); // it may begin
    loop {
        for packet in port.receiver().receive_timeout(PATIENCE).unwrap() {
            if packet[12..14] != [0x88, 0xb5] {
                continue; // the host's own
            }
            let number = u32::from_be_bytes(packet[14..18].try_into().unwrap());
            if number == until {
                return;
            }
            arrived.send((number, packet.len())).unwrap();
        }
    }
}

/// Sends bursts of frames of varied lengths, each after the previous one has arrived, until the injector
/// batches, and ten more.
fn send_bursts(injector: &Arc<Injector>, arrived: &mpsc::Receiver<(u32, usize)>) -> u32 {
    let (started, mut number, mut more) = (Instant::now(), 1, 10);
    while more > 0 {
        assert!(started.elapsed() < PATIENCE, "no batches: {:?}", injector.summary());
        let sent: Vec<_> =
            (number..number + BURST).map(|number| (number, [60, 1514, 600][number as usize % 3])).collect();
        for &(number, bytes) in &sent {
            injector.send_frame(&numbered_frame(number, bytes), false).unwrap();
        }
        for sent in sent {
            assert_eq!(arrived.recv_timeout(PATIENCE), Ok(sent), "in order, and without a loss");
        }
        number += BURST;
        more -= i32::from(injector.state.lock().batch_starts > 0);
    }
    number
}

/// Sends until the injector has begun to batch.
fn begin_batches(injector: &Arc<Injector>) {
    let started = Instant::now();
    while injector.state.lock().batch_starts == 0 {
        injector.send_frame(&numbered_frame(0, 60), false).unwrap();
        assert!(started.elapsed() < PATIENCE, "no batches: {:?}", injector.summary());
    }
}

/// Forks: the child runs that and ends, with 0 if it returns true.
fn fork_child(run: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child uses nothing that another thread may have had, but for the allocator, which the C
    // library makes good.
    match unsafe { libc::fork() } {
        // SAFETY: nothing of this process is to be run in its place.
        0 => unsafe { libc::_exit(i32::from(!run())) },
        child => child,
    }
}

fn exits_with_success(child: libc::pid_t) -> bool {
    let mut status = -1;
    // SAFETY: `status` is a place for one.
    unsafe { libc::waitpid(child, &raw mut status, 0) == child && status == 0 }
}

/// Runs `run` on a thread, and panics if it hangs.
fn run_within_timeout<R: Send + 'static>(run: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(run()));
    result.recv_timeout(PATIENCE).expect("it waits for ever")
}

#[test]
fn pending_errors_are_returned_once_per_frame_in_order() {
    let mut pending_errors = PendingErrors::default();
    pending_errors.fail_if_pending().expect("nothing pending");
    pending_errors.record_error(libc::ENOBUFS, 1);
    pending_errors.record_error(libc::ENOBUFS, 1);
    pending_errors.record_error(libc::ENETDOWN, 1);
    pending_errors.record_error(libc::ENETDOWN, 0);
    let reported: Vec<_> =
        std::iter::from_fn(|| pending_errors.fail_if_pending().err()?.raw_os_error()).collect();
    assert_eq!(reported, [libc::ENOBUFS, libc::ENOBUFS, libc::ENETDOWN]);
    assert_eq!((pending_errors.lost, pending_errors.unreported_frames()), (3, 0));
}

#[test]
fn frames_arrive_in_order_without_another_call() {
    const LAST: u32 = u32::MAX;
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (send, arrived) = mpsc::channel();
    let injector = open_injector(lab.left());
    std::thread::scope(|scope| {
        scope.spawn(|| receive_frames(lab.right(), &send, LAST));
        arrived.recv_timeout(PATIENCE).unwrap();
        let injector = &injector;
        lab.left().namespace().run(move || {
            let next = send_bursts(injector, &arrived);
            // Too long for a batch, and for the interface: as the kernel answers.
            let error = injector.send_frame(&numbered_frame(next, 1519), false).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
            let error = injector.send_frame(&[0; 13], false).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
            injector.send_frame(&numbered_frame(LAST, 60), false).unwrap();
        });
    });
    let summary = injector.summary().expect("frames were sent");
    assert!(summary.contains("by AF_XDP in batches") && !summary.contains("lost"), "{summary}");
}

#[test]
fn a_local_capture_receives_every_frame() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let left = lab.left();
    let injector = open_injector(left);
    left.namespace().run(|| {
        let capture_socket = capture_socket(left);
        let started = Instant::now();
        for number in 0.. {
            injector.send_frame(&numbered_frame(number, 60), false).unwrap();
            let mut seen = [0; 60];
            // SAFETY: the buffer is as long as the call is told.
            let bytes =
                unsafe { libc::recv(capture_socket.as_raw_fd(), seen.as_mut_ptr().cast(), seen.len(), 0) };
            assert_eq!((bytes, &seen[14..18]), (60, &number.to_be_bytes()[..]));
            if injector.state.lock().refusal.is_some() {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "it was never asked for many");
        }
    });
    let summary = injector.summary().unwrap();
    assert!(summary.contains("captures") && !summary.contains("AF_XDP"), "{summary}");
}

/// A socket that sees what is sent on an interface; it gives up after a while.
fn capture_socket(end: &End) -> OwnedFd {
    let name = CString::new(end.interface()).unwrap();
    let socket = packet_socket::open(&name, libc::ETH_P_ALL as u16).unwrap();
    // SAFETY: the pointer and length describe `patience`, which outlives the call.
    unsafe {
        let patience = libc::timeval { tv_sec: 60, tv_usec: 0 };
        let bytes = size_of_val(&patience) as libc::socklen_t;
        let value = (&raw const patience).cast();
        assert_eq!(
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, bytes),
            0
        );
    }
    socket
}

#[test]
fn interface_down_is_an_error_for_each_unsent_frame() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let left = lab.left();
    let injector = open_injector(left);
    left.namespace().run(|| {
        begin_batches(&injector);
        let (started, mut sent) = (Instant::now(), injector.sent_frames());
        left.set_down().unwrap();
        // It continues until it gets the error, which lasts as long as the interface is down.
        let mut failed = 0;
        while failed < 1000 {
            match injector.send_frame(&numbered_frame(0, 60), false) {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN), "{error}");
                    failed += 1;
                }
            }
            assert!(started.elapsed() < PATIENCE, "{failed} errors");
        }
        let state = injector.state.lock();
        assert_eq!(state.pending_errors.unreported_frames(), 0);
        let taken = injector.singly.load(Relaxed) + state.batched_frames();
        // The last of the lost ones may have been reported at once.
        assert!((0..=1).contains(&(taken - sent)), "{taken} were taken, {sent} calls succeeded");
    });
}

#[test]
fn a_forked_child_does_not_keep_the_queue_in_use() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let left = lab.left();
    let injector = open_injector(left);
    left.namespace().run(|| {
        begin_batches(&injector);
        let (mut parent_ends, parent) = std::io::pipe().unwrap();
        let mut parent = Some(parent);
        let child = fork_child(|| {
            drop(parent.take());
            std::io::Read::read(&mut parent_ends, &mut [0]).is_ok()
        });
        assert!(injector.close().is_continue());
        let interface = Interface::query(injector.socket.as_fd(), injector.index).unwrap();
        let mut opened = XdpBatchSender::open(&interface);
        let started = Instant::now();
        while opened.is_err() && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            opened = XdpBatchSender::open(&interface);
        }
        let refusal = opened.err();
        drop(parent);
        assert!(exits_with_success(child));
        assert_eq!(refusal, None, "the child lives, and the parent's socket is closed");
    });
}

#[test]
fn a_signal_handler_does_not_wait_for_the_interrupted_call() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let injector = open_injector(lab.left());
    run_within_timeout(move || {
        // `close` waits for the kernel, and a signal arrives.
        let closing = injector.begin_call().expect("nothing else has it");
        injector.send_frame(&numbered_frame(0, 60), false).unwrap();
        assert!(injector.close().is_break());
        assert!(exits_with_success(fork_child(|| true)));
        drop(closing);
        assert!(injector.close().is_continue());
    });
}

#[test]
fn an_abandoned_call_blocks_no_other() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let left = open_injector(lab.left());
    let injector = Arc::clone(&left);
    // A call that sends, and that the program leaves by siglongjmp(3).
    std::thread::spawn(move || std::mem::forget(left.begin_call())).join().unwrap();
    run_within_timeout(move || {
        let send = || injector.send_frame(&numbered_frame(0, 60), false).is_ok();
        assert!(send());
        assert!(exits_with_success(fork_child(send)));
        assert!(injector.close().is_break());
        assert_eq!(injector.sent_frames(), 1);
    });
}

#[test]
fn a_fork_waits_once_for_all_abandoned_calls() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let left = [(); 3].map(|()| open_injector(lab.left()));
    for injector in left.clone() {
        std::thread::spawn(move || std::mem::forget(injector.begin_call())).join().unwrap();
    }
    run_within_timeout(|| {
        let before = crate::timed_wait::TIMED_OUT.get();
        assert!(exits_with_success(fork_child(|| true)));
        assert_eq!(crate::timed_wait::TIMED_OUT.get() - before, 1);
    });
    drop(left);
}
