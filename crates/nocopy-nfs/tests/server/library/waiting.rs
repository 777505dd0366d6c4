//! Waits by loops of others: a descriptor, and tokio.

use nocopy::{Pool, ReceiverHalf};
use nocopy_nfs::client::{Client, FilePosition};
use rustix::event::{PollFd, PollFlags, poll};

use super::proxy::InterruptingProxy;
use super::{connect_with_builder, file_handle};
use crate::scene::{Scene, pattern_bytes};

const BYTES: usize = 4 << 20;
const PIECE: usize = 256 << 10;

fn post_all(client: &mut Client, pool: &Pool) {
    let file = file_handle(client, "file");
    for offset in (0..BYTES).step_by(PIECE) {
        client.post(pool.take().unwrap(), FilePosition { file, offset: offset as u64 }).unwrap();
    }
}

fn wait_until_readable(half: &mut impl ReceiverHalf) {
    if !half.arm().unwrap() {
        assert_eq!(poll(&mut [PollFd::new(half, PollFlags::IN)], None), Ok(1));
    }
}

/// The descriptor becomes readable whenever there is something to do, also when connections were lost.
#[test]
fn the_descriptor_is_readable_when_buffers_return() {
    let scene = Scene::new();
    scene.create_file("file", BYTES);
    let server = scene.serve();
    let proxy = InterruptingProxy::start(server.address, |number| (number > 1).then_some(900_000));
    let mut client = connect_with_builder(&Client::builder().connections(2), proxy.address.port());
    let pool = Pool::new((BYTES / PIECE) as u32, PIECE).unwrap();
    post_all(&mut client, &pool);
    let mut left = BYTES / PIECE;
    while left > 0 {
        wait_until_readable(&mut client);
        while let Some(filled) = client.try_receive().unwrap() {
            let start = filled.place.offset as usize;
            assert!(filled.into_result().unwrap().0[..] == pattern_bytes(start, PIECE), "from {start} on");
            left -= 1;
        }
    }
    assert!(client.stats().get("connections_lost").unwrap() > 1, "{}", client.stats());
    assert!(client.arm().unwrap(), "nothing is posted, so there is nothing to wait for");
}

#[cfg(feature = "tokio")]
#[test]
fn buffers_return_in_a_tokio_program() {
    use nocopy::AsyncReceiver;

    let scene = Scene::new();
    scene.create_file("file", BYTES);
    let server = scene.serve();
    let mut client = connect_with_builder(&Client::builder(), server.address.port());
    let pool = Pool::new((BYTES / PIECE) as u32, PIECE).unwrap();
    post_all(&mut client, &pool);
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let mut client = AsyncReceiver::new(client).unwrap();
        for _ in 0..BYTES / PIECE {
            let filled = client.receive().await.unwrap().expect("buffers are posted");
            let start = filled.place.offset as usize;
            assert!(filled.into_result().unwrap().0[..] == pattern_bytes(start, PIECE), "from {start} on");
        }
        assert!(client.receive().await.unwrap().is_none());
    });
}
