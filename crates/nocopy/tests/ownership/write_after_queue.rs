//! A packet written in place cannot be written after it was queued, nor while others are being flushed.
fn main() {
    let (mut port, _peer) = nocopy::Port::memory_pair().unwrap();
    let sender = port.sender();
    let mut drafts = sender.drafts(2, 5).unwrap();
    let mut first = drafts.next_draft().unwrap();
    first.queue();
    first.fill(0); //~ E0382
    let mut second = drafts.next_draft().unwrap();
    sender.flush().unwrap(); //~ E0499
    second.fill(0);
}
