//! The sinks of datagrams. The cost of sending depends on the sink more than on anything else, so nothing is
//! compared across sinks.

use std::io;

use nocopy::integration::tc::CountingDrop;
use nocopy_lab::Lab;

use crate::Failure;
use crate::asynchronous::AsyncLibrary;
use crate::baseline::{datagram_receiver, packet_socket};
use crate::datagram::{DatagramChecker, DatagramSpec};
use crate::frame::try_read_every_byte;
use crate::stage::{NetworkSite, SitePair};
use crate::traffic::ThreadWork;
use crate::udp;
use crate::workload::packet_send;

pub(super) const NOTE: &str = "The sinks: offload: tc drops on the peer, and bursts arrive whole, as with a card that cuts them; segmented: XDP \
    drops on the peer, and every datagram is made; delivered: a recvmmsg receiver; pair: the library's receiver, which takes datagrams joined \
    (GRO), except where the variant is to-recvmmsg.";

const SKIP: &str =
    "SKIP: udp-send into offload: it needs Linux 6.6, whose tc programs go with their process.";

/// Why a sink is left out, if one is.
pub(super) fn skip_note() -> Option<String> {
    (!supports_offload_sink()).then(|| SKIP.to_owned())
}

/// Whether this kernel has tc programs that go with their process.
pub(crate) fn supports_offload_sink() -> bool {
    CountingDrop::is_supported()
}

/// Counts the datagrams; `offload` and `segmented` while attached.
#[derive(Debug)]
pub(crate) enum DatagramSink {
    Offload(CountingDrop),
    Segmented(packet_send::CountingDropSink),
    Delivered,
    /// As `Delivered`, and the receiver compares every byte with the sent one.
    Checked,
    Pair,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiverKind {
    Recvmmsg,
    /// By hand, too, but as the kernel joined them (`UDP_GRO`).
    Joined,
    Checking,
    /// The library's own socket.
    Ours,
    Async(AsyncLibrary),
}

/// A sink with its own pair of interfaces, because programs attached for one sink would disturb others.
#[derive(Debug)]
pub(crate) struct SinkTestbed {
    pub stage: SitePair,
    pub sink: DatagramSink,
}

/// With a `recvmmsg` receiver.
pub(crate) fn delivered_testbed(stage: SitePair) -> Result<SinkTestbed, Failure> {
    open_testbed(stage, |_| Ok(DatagramSink::Delivered))
}

/// With a receiver that compares every byte.
pub(crate) fn checked_testbed(stage: SitePair) -> Result<SinkTestbed, Failure> {
    open_testbed(stage, |_| Ok(DatagramSink::Checked))
}

/// With the library's receiver.
pub(crate) fn pair_testbed(stage: SitePair) -> Result<SinkTestbed, Failure> {
    open_testbed(stage, |_| Ok(DatagramSink::Pair))
}

/// With an XDP program that drops every datagram.
pub(crate) fn segmented_testbed(stage: SitePair) -> Result<SinkTestbed, Failure> {
    open_testbed(stage, |stage| Ok(DatagramSink::Segmented(packet_send::CountingDropSink::open(stage)?)))
}

fn offload_testbed(stage: SitePair) -> Result<SinkTestbed, Failure> {
    open_testbed(stage, |SitePair { receiver, .. }| {
        Ok(DatagramSink::Offload(receiver.run(|| CountingDrop::attach(&receiver.interface))?))
    })
}

fn open_testbed(
    stage: SitePair,
    open: impl FnOnce(&SitePair) -> Result<DatagramSink, Failure>,
) -> Result<SinkTestbed, Failure> {
    Ok(SinkTestbed { sink: open(&stage)?, stage })
}

/// In a private lab with this MTU.
pub(crate) fn private_site_pair(mtu_bytes: u32) -> Result<SitePair, Failure> {
    SitePair::in_private_lab(Lab::builder().mtu(mtu_bytes))
}

pub(crate) fn open_testbeds(mtu_bytes: u32) -> Result<Vec<SinkTestbed>, Failure> {
    let first =
        supports_offload_sink().then_some(offload_testbed as fn(SitePair) -> Result<SinkTestbed, Failure>);
    first
        .into_iter()
        .chain([segmented_testbed, delivered_testbed, pair_testbed])
        .map(|open| open(private_site_pair(mtu_bytes)?))
        .collect()
}

impl DatagramSink {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Offload(_) => "offload",
            Self::Segmented(_) => "segmented",
            Self::Delivered => "delivered",
            Self::Checked => "delivered and checked",
            Self::Pair => "pair",
        }
    }

    /// Datagrams dropped so far; of sinks that deliver none.
    pub(crate) fn datagrams_dropped(&self) -> io::Result<u64> {
        match self {
            Self::Offload(drop) => drop.datagrams(),
            Self::Segmented(sink) => sink.packets(),
            Self::Delivered | Self::Checked | Self::Pair => Ok(0),
        }
    }

    pub(crate) fn receiver_kind(&self) -> Option<ReceiverKind> {
        match self {
            Self::Offload(_) | Self::Segmented(_) => None,
            Self::Delivered => Some(ReceiverKind::Recvmmsg),
            Self::Checked => Some(ReceiverKind::Checking),
            Self::Pair => Some(ReceiverKind::Ours),
        }
    }
}

impl ReceiverKind {
    pub(crate) fn open(
        self,
        site: &NetworkSite,
        datagrams: DatagramSpec,
    ) -> Result<ThreadWork<'static>, Failure> {
        let failed =
            |method| Failure::step(method, "open a receiver", "run it as root or grant CAP_NET_ADMIN");
        let by_hand = || datagram_receiver::open_receiver_socket(site).map_err(failed("recvmmsg"));
        let bytes = datagrams.bytes;
        Ok(match self {
            Self::Recvmmsg => {
                let socket = by_hand()?;
                Box::new(move |gauge| {
                    packet_socket::receive_batches(&socket, bytes, gauge, try_read_every_byte)
                })
            }
            Self::Joined => {
                let socket = datagram_receiver::open_gro_socket(site).map_err(failed("gro"))?;
                Box::new(move |gauge| datagram_receiver::receive_joined(&socket, gauge, try_read_every_byte))
            }
            Self::Checking => {
                let (socket, expected) = (by_hand()?, DatagramChecker::new(datagrams));
                let check = move |datagram: &[u8]| expected.check_datagram(datagram);
                Box::new(move |gauge| packet_socket::receive_batches(&socket, bytes, gauge, check))
            }
            Self::Ours => {
                let receiver = udp::open_receiver(site)?;
                Box::new(move |gauge| udp::receive_datagrams(receiver, gauge))
            }
            Self::Async(library) => library.open_datagram_receiver(site)?,
        })
    }
}
