//! Every half, by name: this does not compile when one lacks a method, or has another type for it.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use nocopy::message::{Endpoint, Peer};
use nocopy::{
    Buffer, Capture, Completed, Explanation, Frame, Ledger, Port, Reason, Rejected, Stats, Wait, port, tcp,
    udp,
};

const TIME: Duration = Duration::from_secs(1);

/// All methods of a half that receives. The traits are not imported, so these are the half's own.
macro_rules! receives {
    ($($name:ident: $half:ty),+ $(,)?) => { $(
        #[expect(dead_code, reason = "it is enough that it compiles")]
        fn $name(half: &mut $half) -> io::Result<()> {
            fn keeps_the_contract(_: &impl nocopy::ReceiverHalf) {}
            keeps_the_contract(half);
            let _ = half.receive()?;
            let _ = half.receive_timeout(TIME)?;
            let _ = half.try_receive()?;
            half.set_wait(Wait::Interrupt);
            let _: bool = half.arm()?;
            let _: Ledger = half.ledger();
            let _: Stats = half.stats()?;
            let _: Explanation = half.explain();
            let _ = half.as_fd();
            Ok(())
        }
    )+ };
}

/// All methods of a half that sends; `send` and `send_copy` take the payload, and behind it the destination if there are several.
macro_rules! sends {
    ($($name:ident: $half:ty $(, to $to:ident: $address:ty)?);+ $(;)?) => { $(
        #[expect(dead_code, reason = "it is enough that it compiles")]
        fn $name(half: &mut $half $(, $to: $address)?) -> Result<(), Box<dyn Error>> {
            fn keeps_the_contract(_: &impl nocopy::SenderHalf) {}
            keeps_the_contract(half);
            let buffer = half.buffer().ok_or("all buffers are in use")?;
            if let Err(Rejected { item: _, reason: Reason::Full }) = half.send(buffer $(, $to)?) {
                half.flush()?;
            }
            half.send_copy(b"bytes" $(, $to)?)?;
            let _: bool = half.try_flush()?;
            let _: bool = half.flush_timeout(TIME)?;
            let _: usize = half.reap();
            let _: usize = half.in_flight();
            let _: bool = half.drain(TIME)?;
            let _: bool = half.close(TIME)?;
            if let Some(buffer) = half.buffer() {
                half.recycle(buffer);
            }
            let _: bool = half.arm()?;
            let _: Ledger = half.ledger();
            let _: Stats = half.stats()?;
            let _: Explanation = half.explain();
            let _ = half.as_fd();
            Ok(())
        }
    )+ };
}

receives! {
    packets: port::Receiver,
    packets_of_queues: port::Queues,
    packets_captured: Capture,
    datagrams: udp::Receiver,
    stream: tcp::Receiver,
    messages: Endpoint,
}

sends! {
    packets_sent: port::Sender;
    datagrams_sent: udp::Sender, to to: SocketAddr;
    stream_sent: tcp::Sender;
    messages_sent: Endpoint, to to: Peer;
}

/// What the kernel is done with, one at a time: with a ticket where `send` returned one, and as itself where a frame comes back.
#[expect(dead_code, reason = "it is enough that it compiles")]
fn completed(
    packets: &mut port::Sender,
    datagrams: &mut udp::Sender,
    stream: &mut tcp::Sender,
) -> (Option<Frame>, Option<Completed<udp::Message>>, Option<Completed<Buffer>>) {
    (packets.completed(), datagrams.completed(), stream.completed())
}

/// A port says of itself what its halves say.
#[expect(dead_code, reason = "it is enough that it compiles")]
fn port_explained(port: &Port) -> Explanation {
    port.explain()
}
