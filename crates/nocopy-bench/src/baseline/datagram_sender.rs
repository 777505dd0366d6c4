//! A connected UDP socket, and three ways of sending that copy.
#![allow(unsafe_code)]

use std::io;
use std::net::UdpSocket;

use rustix::net::SendFlags;

use super::packet_socket::{MmsgBatch, set_socket_option};
use crate::datagram::DatagramSpec;
use crate::stage::SitePair;
use crate::window::WindowGauge;

/// The destination port of all datagrams.
pub(crate) const PORT: u16 = 7072;

/// Datagrams of a `sendmmsg` call; sent singly, datagrams between two checks of the gauge.
const BATCH: usize = 64;

pub(crate) fn open_sender_socket(stage: &SitePair) -> io::Result<UdpSocket> {
    let socket = stage.sender.run(|| UdpSocket::bind((stage.sender.ipv4, 0)))?;
    socket.connect((stage.receiver.ipv4, PORT))?;
    Ok(socket)
}

/// A socket that sends each burst as one message, which the kernel or the card cuts.
pub(crate) fn open_gso_socket(stage: &SitePair, datagrams: DatagramSpec) -> io::Result<UdpSocket> {
    let socket = open_sender_socket(stage)?;
    set_socket_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, &(datagrams.bytes as i32))?;
    Ok(socket)
}

pub(crate) fn send_singly(
    socket: &UdpSocket,
    datagrams: DatagramSpec,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    send_numbered_runs(datagrams, BATCH, gauge, |source, run| {
        let bytes = &source.memory()[run.start * datagrams.bytes..run.end * datagrams.bytes];
        bytes.chunks_exact(datagrams.bytes).try_for_each(|datagram| socket.send(datagram).map(drop))
    })
}

/// Sends many datagrams per call, by `sendmmsg`.
pub(crate) fn send_batches(
    socket: &UdpSocket,
    datagrams: DatagramSpec,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    send_numbered_runs(datagrams, BATCH, gauge, |source, run| source.send(socket, run))
}

/// Sends bursts through a socket of [`open_gso_socket`].
pub(crate) fn send_segmented(
    socket: &UdpSocket,
    datagrams: DatagramSpec,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    send_numbered_runs(datagrams, datagrams.a_burst, gauge, |source, run| {
        let burst = &source.memory()[run.start * datagrams.bytes..run.end * datagrams.bytes];
        rustix::net::send(socket, burst, SendFlags::empty())?;
        Ok(())
    })
}

/// Numbers and sends runs of that many datagrams, cycling through the source.
fn send_numbered_runs(
    datagrams: DatagramSpec,
    a_run: usize,
    gauge: &mut WindowGauge<'_>,
    mut send: impl FnMut(&mut MmsgBatch, std::ops::Range<usize>) -> io::Result<()>,
) -> io::Result<()> {
    let count = datagrams.count_in_source();
    let mut source = MmsgBatch::new(count, datagrams.bytes);
    source.memory().chunks_exact_mut(datagrams.burst_bytes()).for_each(DatagramSpec::fill_pattern);
    let (mut start, mut sequence) = (0, 0);
    while gauge.may_send() {
        let end = count.min(start + a_run);
        datagrams
            .number_datagrams(&mut source.memory()[start * datagrams.bytes..end * datagrams.bytes], sequence);
        send(&mut source, start..end)?;
        let sent = (end - start) as u64;
        gauge.count_packets(sent);
        sequence += sent;
        start = end % count;
    }
    Ok(())
}
