//! Sends UDP datagrams built in place: `send INTERFACE DESTINATION_MAC SOURCE_IP DESTINATION_IP [COUNT]`

use std::error::Error;
use std::time::Duration;

use nocopy::Port;
use nocopy_proto::{IpAddresses, MacAddress, UdpChecksum, UdpFrame};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [interface, mac, source, destination, rest @ ..] = &arguments[..] else {
        return Err("usage: send INTERFACE DESTINATION_MAC SOURCE_IP DESTINATION_IP [COUNT]".into());
    };
    let count: u64 = rest.first().map_or(Ok(10), |count| count.parse())?;
    let headers = UdpFrame {
        source_mac: MacAddress(nocopy::hardware_address(interface)?),
        destination_mac: mac.parse()?,
        vlan: None,
        addresses: IpAddresses::V4 { source: source.parse()?, destination: destination.parse()? },
        traffic_class: 0,
        hop_limit: 64,
        source_port: 9000,
        destination_port: 9000,
        checksum: UdpChecksum::Computed,
    };

    let mut port = Port::open(interface)?;
    let sender = port.sender();
    let packet_bytes_max = headers.header_bytes() + "datagram ".len() + 20;
    let mut number = 0;
    while number < count {
        let mut drafts = sender.drafts(usize::try_from(count - number)?, packet_bytes_max)?;
        while let Some(mut draft) = drafts.next_draft() {
            let payload = format!("datagram {number}");
            draft.truncate(headers.header_bytes() + payload.len());
            let (head, body) = draft.split_at_mut(headers.header_bytes());
            body.copy_from_slice(payload.as_bytes());
            headers.emit_headers(head, body)?;
            draft.queue();
            number += 1;
        }
        drop(drafts);
        sender.flush()?;
    }
    sender.drain(Duration::from_secs(1))?;
    println!("{count} datagrams sent: {}, {}", port.mode(), port.explain().evidence);
    Ok(())
}
