//! Faults around a port, in every mode of a veth pair: each a clear error, and every frame accounted for.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::waiting::ObservedThread;
use crate::common::{
    PATIENCE, SECOND, assert_all_frames_returned, lab, numbered_packet, open_port_with, receive_packets,
    send_packets,
};
use nocopy::port::OpenError;
use nocopy::{Mode, Port, Wait};
use nocopy_lab::End;

const MODES: [Mode; 3] = [Mode::XdpCopyNative, Mode::XdpCopyGeneric, Mode::PacketRing];

fn open_in_mode(end: &End, mode: Mode) -> Port {
    open_port_with(end, |builder| builder.mode(mode)).expect("opened")
}

#[test]
fn an_interface_down_is_an_error_until_it_is_up() {
    for mode in MODES {
        let lab = lab!();
        let (mut left, mut right) = (open_in_mode(lab.left(), mode), open_in_mode(lab.right(), mode));
        lab.left().set_down().unwrap();
        let mut frame = left.sender().buffer().unwrap();
        frame.fill(&numbered_packet(lab.right(), 1, 100)).unwrap();
        left.sender().send(frame).unwrap();
        let error = left.sender().flush().unwrap_err();
        assert!(error.to_string().contains("the interface is down"), "{error}");
        assert_eq!(error.kind(), std::io::ErrorKind::NetworkDown);
        assert!(left.balance().is_balanced(), "{}", left.balance());
        lab.left().bring_interface_up().unwrap();
        lab.wait_for_carrier().unwrap();
        left.sender().flush().unwrap();
        assert_eq!(
            receive_packets(&mut right, 1).len(),
            1,
            "what was queued goes out when the interface is back"
        );
        assert_all_frames_returned(&mut left);
    }
}

#[test]
fn a_blocked_receiver_reports_a_down_or_removed_interface() {
    for (mode, wait) in MODES.into_iter().flat_map(|mode| [(mode, Wait::Spin), (mode, Wait::Interrupt)]) {
        let lab = lab!();
        let mut port = open_port_with(lab.right(), |builder| builder.mode(mode).wait(wait)).unwrap();
        let (about_to_wait, waiter) = mpsc::channel();
        let waiting = std::thread::spawn(move || {
            about_to_wait.send(ObservedThread::this_thread()).unwrap();
            port.receiver().receive().err().map(|error| error.to_string())
        });
        waiter.recv().unwrap().wait_until_asleep_or_spinning();
        lab.right().set_down().unwrap();
        let error = waiting.join().unwrap().expect("an error");
        assert!(error.contains("the interface is down"), "{mode}, {wait:?}: {error}");
    }
}

#[test]
fn every_wait_reports_a_deleted_interface() {
    let coalesced = Wait::Coalesced { packets: 8, delay: Duration::from_millis(1) };
    let waits = [Wait::Spin, Wait::Interrupt, coalesced];
    for (mode, wait) in MODES.into_iter().flat_map(|mode| waits.map(|wait| (mode, wait))) {
        let lab = lab!();
        let (mut left, mut right) = (
            open_in_mode(lab.left(), mode),
            open_port_with(lab.right(), |builder| builder.mode(mode).wait(wait)).unwrap(),
        );
        send_packets(&mut left, &[numbered_packet(lab.right(), 1, 100)]);
        let kept = loop {
            if let Some(packet) = right.receiver().receive_timeout(PATIENCE).unwrap().next() {
                break packet.take();
            }
        };
        lab.delete_pair().unwrap();
        let error = (0..20).find_map(|_| right.receiver().receive_timeout(SECOND).err());
        assert!(error.is_some(), "{mode}, {wait:?}: nothing said that the interface was removed");
        let error = right.receiver().receive().expect_err("not said only once");
        assert_eq!(error.kind(), std::io::ErrorKind::NotConnected, "{mode}, {wait:?}: {error}");
        let mut frame = left.sender().buffer().unwrap();
        frame.fill(&numbered_packet(lab.right(), 2, 100)).unwrap();
        left.sender().send(frame).unwrap();
        assert!(left.sender().flush().is_err());
        let area = right.area().clone();
        assert!(left.balance().is_balanced() && right.balance().is_balanced());
        drop((left, right));
        assert_eq!((area.balance().in_use, area.balance().is_balanced()), (1, true), "{}", area.balance());
        drop(kept);
        assert_eq!(area.balance().in_use, 0);
    }
}

#[test]
fn a_renamed_interface_works_and_a_moved_one_fails() {
    for mode in MODES {
        let lab = lab!();
        let (mut left, mut right) = (open_in_mode(lab.left(), mode), open_in_mode(lab.right(), mode));
        lab.right().rename("other0").unwrap();
        send_packets(&mut left, &[numbered_packet(lab.right(), 1, 100)]);
        assert_eq!(receive_packets(&mut right, 1), [numbered_packet(lab.right(), 1, 100)], "{mode}");
        // Arming checks whether the port still works.
        assert!(!right.receiver().arm().unwrap(), "{mode}");
        assert!(right.receiver().receive_timeout(Duration::from_millis(250)).unwrap().is_empty(), "{mode}");
        assert!(!right.receiver().arm().unwrap(), "{mode}");
        lab.right().rename(lab.right().interface()).unwrap();
        let elsewhere = nocopy_lab::Namespace::new().unwrap();
        lab.right().move_to(&elsewhere).unwrap();
        let error = (0..20).find_map(|_| right.receiver().receive_timeout(SECOND).err()).expect("an error");
        assert!(error.to_string().contains("the interface "), "{mode}: {error}");
        let error = right.receiver().receive().expect_err("not said only once");
        assert_eq!(error.kind(), std::io::ErrorKind::NotConnected, "{mode}: {error}");
        assert!(right.balance().is_balanced(), "{mode}: {}", right.balance());
        let area = right.area().clone();
        drop(right);
        assert!(area.balance().is_balanced() && area.balance().in_use == 0, "{mode}: {}", area.balance());
    }
}

#[test]
fn the_memlock_limit_is_named_and_the_packet_ring_opens() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::CapabilitySet as Capabilities;
    let lab = lab!();
    let end = lab.left();
    let before = getrlimit(Resource::Memlock);
    // The limit is the whole process's, but every other thread has the capability that lifts it.
    setrlimit(Resource::Memlock, Rlimit { current: Some(64 << 10), ..before }).unwrap();
    let limited = |mode: Option<Mode>| {
        end.namespace().run(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(Capabilities::IPC_LOCK);
            rustix::thread::set_capabilities(None, sets).unwrap();
            let builder = Port::builder(end.interface());
            mode.map_or(builder.clone(), |mode| builder.mode(mode)).open()
        })
    };
    let strict = limited(Some(Mode::XdpCopyNative));
    let stepped_down = limited(None);
    setrlimit(Resource::Memlock, before).unwrap();
    let error = strict.unwrap_err();
    assert!(matches!(error, OpenError::PinnedMemory { .. }), "{error}");
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    let port = stepped_down.unwrap();
    assert_eq!(port.mode(), Mode::PacketRing);
    assert!(port.explain().to_string().contains("ulimit -l"), "{}", port.explain());
    assert!(lab.left().xdp_program().unwrap().is_none(), "a refused rung leaves nothing attached");
}

#[test]
fn a_missing_capability_is_named() {
    use rustix::thread::CapabilitySet as Capabilities;
    let lab = lab!();
    let end = lab.left();
    let cases = [
        (Capabilities::NET_RAW, "CAP_NET_RAW"),
        (Capabilities::NET_ADMIN, "CAP_NET_ADMIN"),
        (Capabilities::BPF | Capabilities::SYS_ADMIN, "CAP_BPF"), // the older one stands in for the newer
    ];
    for (dropped, name) in cases {
        let error = end.namespace().run(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(dropped);
            rustix::thread::set_capabilities(None, sets).unwrap(); // of this thread only
            Port::builder(end.interface()).mode(Mode::XdpCopyNative).open().unwrap_err()
        });
        assert!(matches!(error, OpenError::Capability { capability, .. } if capability == name), "{error}");
    }
}

/// Signals of a profiler, or of stopping and continuing the process. The kernel's verifier gives up at a
/// signal.
#[test]
#[allow(unsafe_code)]
fn a_port_opens_despite_signals() {
    /// For each port: fewer than the attempts to load a program, so even if each signal interrupts one, the
    /// last succeeds.
    const SIGNALS_MAX: u32 = 90;
    /// Signals in a row. Pauses between bursts spread them over all steps of opening.
    const BURST: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(10);
    let lab = lab!();
    let handled = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGURG, handled.clone()).unwrap();
    let (tell, told) = mpsc::channel();
    let opens = Arc::new(AtomicU32::new(0));
    let (interface, begun) = (lab.left().interface(), opens.clone());
    let opener = lab.left().namespace().spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        for _ in 0..30 {
            begun.fetch_add(1, Relaxed);
            Port::builder(interface).mode(Mode::XdpCopyNative).open().expect("opened");
        }
    });
    let (process, thread) = (rustix::process::getpid(), told.recv().unwrap());
    let (mut open, mut signals) = (0, 0);
    while !opener.is_finished() {
        std::thread::sleep(Duration::from_micros(100));
        if open != opens.load(Relaxed) {
            (open, signals) = (opens.load(Relaxed), 0);
            // Bursts come at other moments each time.
            std::thread::sleep(PAUSE * (open % 4) / 4);
        } else if signals > 0 && signals % BURST == 0 {
            std::thread::sleep(PAUSE);
        }
        // Signals for one port must not be counted as another's.
        if signals == SIGNALS_MAX || open != opens.load(Relaxed) {
            continue;
        }
        signals += 1;
        // SAFETY: numbers only. A thread that has ended meanwhile is an error that is of no interest.
        unsafe {
            libc::syscall(
                libc::SYS_tgkill,
                process.as_raw_nonzero().get(),
                thread.as_raw_nonzero().get(),
                libc::SIGURG,
            )
        };
    }
    opener.join().unwrap();
    assert!(handled.load(Relaxed), "no signal came");
}
