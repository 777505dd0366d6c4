//! Endpoints as streams and sinks.
#![cfg(feature = "futures")]

use futures_util::{SinkExt, StreamExt};
use nocopy::message::Endpoint;

use crate::common::PATIENCE;
use crate::common::message::{any, connect, pattern};

/// The first message of the sink finds no room: it waits, and nothing is lost or doubled.
#[tokio::test]
async fn messages_go_through_a_sink_and_a_stream() {
    const MORE: usize = 100;
    const BYTES: usize = 20_000;
    let bind =
        || Endpoint::builder().memory(16 << 20).max_message_bytes(64 << 10).bind(any(0)).expect("bound");
    let (mut left, mut right) = (bind(), bind());
    let (to_right, _) = connect(&mut left, &mut right);
    let (mut left, mut right) = (left.into_async().unwrap(), right.into_async().unwrap());
    let fitting = (0..).take_while(|&number| left.send_to(pattern(number, BYTES), to_right).is_ok()).count();
    let reads = tokio::spawn(async move {
        for number in 0..fitting + MORE {
            let message = right.next().await.expect("no end").unwrap();
            assert!(message.to_vec() == pattern(number, BYTES), "message {number}");
        }
        right
    });
    let work = async {
        for number in fitting..fitting + MORE {
            left.feed((pattern(number, BYTES).into(), to_right)).await.unwrap();
        }
        SinkExt::flush(&mut left).await.unwrap();
        let mut right = tokio::select! {
            right = reads => right.unwrap(),
            // The endpoint works only while it is polled.
            _ = left.next() => panic!("nothing is sent back"),
        };
        tokio::select! {
            closed = SinkExt::close(&mut left) => closed.unwrap(),
            _ = right.next() => panic!("nothing more was sent"),
        }
        assert_eq!(left.in_flight(), 0);
    };
    tokio::time::timeout(PATIENCE, work).await.expect("in time");
}
