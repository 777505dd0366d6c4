//! The methods of every half: this does not compile if a half lacks one, or has another type for it. Other
//! crates with halves of their own include this file by its path.

/// All methods of a receiving half. The traits are not imported, so these are inherent methods.
macro_rules! receives {
    ($($name:ident: $half:ty),+ $(,)?) => { $(
        #[expect(dead_code, reason = "it is enough that it compiles")]
        fn $name(half: &mut $half) -> io::Result<()> {
            fn requires_half_trait(_: &impl nocopy::ReceiverHalf) {}
            requires_half_trait(&**half);
            let _ = half.receive()?;
            let _ = half.receive_timeout(TIME)?;
            let _ = half.try_receive()?;
            half.set_wait(Wait::Interrupt);
            let _: bool = half.arm()?;
            let _: Ledger = half.ledger();
            let _: Stats = half.stats();
            let _: Explanation = half.explain();
            let _ = half.as_fd();
            Ok(())
        }
    )+ };
}

/// All methods of a sending half; with a destination, those that end in `_to`, which take the payload, and
/// then the destination.
#[allow(unused_macros, reason = "not every crate has halves that send")]
macro_rules! sends {
    ($($name:ident: $half:ty, $send:ident, $send_copy:ident $(, to $to:ident: $address:ty)?);+ $(;)?) => { $(
        #[expect(dead_code, reason = "it is enough that it compiles")]
        fn $name(half: &mut $half $(, $to: $address)?) -> Result<(), Box<dyn Error>> {
            fn requires_half_trait(_: &impl nocopy::SenderHalf) {}
            requires_half_trait(&**half);
            let buffer = half.buffer().ok_or("all buffers are in use")?;
            if let Err(Rejected { item: _, reason: Reason::Full }) = half.$send(buffer $(, $to)?) {
                half.flush()?;
            }
            half.$send_copy(b"bytes" $(, $to)?)?;
            let _: bool = half.try_flush()?;
            let _: bool = half.flush_timeout(TIME)?;
            let _: usize = half.reap();
            let shared: &$half = half;
            let _: usize = shared.in_flight();
            let _: bool = half.drain(TIME)?;
            let _: bool = half.close(TIME)?;
            if let Some(buffer) = half.buffer() {
                half.recycle(buffer);
            }
            let _: bool = half.arm()?;
            let _: Ledger = half.ledger();
            let _: Stats = half.stats();
            let _: Explanation = half.explain();
            let _ = half.as_fd();
            Ok(())
        }
    )+ };
}
