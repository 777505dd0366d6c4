//! Prints the packets of an interface that hold some text: `capture INTERFACE TEXT COUNT`

use std::error::Error;

use nocopy::Capture;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let interface = arguments.next().ok_or("which interface?")?;
    let text = arguments.next().ok_or("which text?")?;
    let mut left: u64 = arguments.next().ok_or("how many packets?")?.parse()?;

    let mut capture = Capture::open(&interface)?;
    println!("capturing: {}", capture.explain());
    while left > 0 {
        let Some(mut block) = capture.receive()? else { continue };
        for packet in block.packets() {
            let holds = packet.bytes.windows(text.len()).any(|window| window == text.as_bytes());
            if holds && left > 0 {
                println!("{} bytes at {} ns", packet.original_bytes, packet.time_ns);
                left -= 1;
            }
        }
    }
    println!("{}", capture.ledger());
    Ok(())
}
