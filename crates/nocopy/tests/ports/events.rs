//! Events of the feature `tracing`, of ports in memory, and on a veth pair.

use nocopy::{Capture, Mode, Port};
use tracing::Level;

use crate::common::events::{events_of, first_copies};
use crate::common::{PATIENCE, lab, numbered_packet, open_port, send_packets};

#[test]
fn a_memory_port_reports_the_first_copy_of_each_cause() {
    let mut both = None;
    let opened = events_of(|| both = Some(Port::memory_pair().unwrap()));
    let (mut left, mut right) = both.unwrap();
    assert_eq!(opened.len(), 2, "{opened:?}");
    for event in &opened {
        assert_eq!((event.message(), event.level), ("mode taken", Level::INFO));
        let place =
            (event.field("half"), event.field("interface"), event.field("queue"), event.field("mode"));
        assert_eq!(place, ("port", "memory", "0", "memory"));
    }
    let mut exchange = |rounds: usize| {
        for _ in 0..rounds {
            send_packets(&mut left, &[vec![1; 100]]);
            left.sender().send_copy(&[2; 100]).unwrap();
            left.sender().flush().unwrap();
            let mut missing = 2;
            while missing > 0 {
                missing -= right.receiver().receive_timeout(PATIENCE).unwrap().count();
            }
        }
    };
    let first = events_of(|| exchange(1));
    let expected = [
        ("port sender", "memory port"),
        ("port sender", "given as a slice"),
        ("port receiver", "memory port"),
    ];
    assert_eq!(first_copies(&first), expected);
    let others = events_of(|| exchange(5000));
    assert!(others.is_empty(), "of 20,000 calls without a change: {others:?}");
}

#[test]
fn each_mode_that_a_port_does_not_get_is_one_warning() {
    let lab = lab!();
    let mut port = None;
    let right = lab.right();
    let events = right.namespace().run(|| {
        events_of(|| port = Some(Port::open(right.interface()).unwrap())) // the thread of the namespace
    });
    let port = port.unwrap();
    let explanation = port.explain();
    let expected = explanation
        .refusals
        .iter()
        .map(|refusal| (Level::WARN, "mode refused", refusal.mode.to_string(), refusal.to_string()));
    let taken = (Level::INFO, "mode taken", port.mode().to_string(), String::new());
    let expected: Vec<_> = expected.chain([taken]).collect();
    let found: Vec<_> = events
        .iter()
        .map(|event| (event.level, event.message(), event.field("mode").into(), event.field("reason").into()))
        .collect();
    assert_eq!(found, expected);
    let refused = &explanation.refusals[0];
    assert_eq!(refused.mode, Mode::XdpZeroCopy, "veth has none");
    assert!(events.iter().all(|event| event.field("interface") == right.interface()), "{events:?}");
    assert!(explanation.to_string().contains(&format!("refused  {}", events[0].field("reason"))));
}

#[test]
fn a_capture_reports_its_mode_and_its_first_copy() {
    let lab = lab!();
    let right = lab.right();
    let mut capture = None;
    let opened = right.namespace().run(|| {
        events_of(|| capture = Some(Capture::builder(right.interface()).immediate(true).open().unwrap()))
    });
    let [event] = &opened[..] else { panic!("{opened:?}") };
    let fields = (event.message(), event.field("half"), event.field("mode"), event.field("interface"));
    assert_eq!(fields, ("mode taken", "capture", "packet ring", right.interface()));
    let mut left = open_port(lab.left());
    let packets: Vec<_> = (0..100).map(|number| numbered_packet(right, number, 100)).collect();
    send_packets(&mut left, &packets);
    let mut capture = capture.unwrap();
    let copied = events_of(|| {
        let mut received = 0;
        while received < 100 {
            let mut block = capture.receive_timeout(PATIENCE).unwrap().expect("a packet");
            received += block.packets().count();
        }
    });
    assert_eq!(first_copies(&copied), [("capture", "packet ring")]);
}
