//! The settings of a port.

use std::io;
use std::time::Duration;

use super::{Fanout, Mode, OpenError, Wait};
use crate::memory::area::{Area, AreaConfig};
use crate::port::filter::Program;
use crate::sys::interface::Interface;
use crate::sys::queues::card_numa_node;
use crate::sys::xsk::RingSizes;

/// Settings of a port to be opened; see [`Port::builder`](super::Port::builder).
///
/// Settings that depend on each other:
///
/// * [`mode`](Self::mode): allows one mode, so [`purpose`](Self::purpose) has no effect.
/// * [`area`](Self::area): must have enough frames ([`frame_count`](Self::frame_count)) for every port that
///   uses it.
/// * [`ring_sizes`](Self::ring_sizes): entries, powers of two.
/// * [`wait`](Self::wait): with [`Wait::Coalesced`], the rx ring and the receive frames must hold what
///   arrives during a sleep.
/// * [`multi_buffer`](Self::multi_buffer): without it, packets longer than a frame are neither received nor
///   sent.
/// * [`filter`](Self::filter): ports on several queues of one interface in one process must have the same.
/// * [`send_metadata`](Self::send_metadata): needs 16 free bytes in front of every packet that is sent.
///
/// ```
/// use nocopy::{Port, port::OpenError};
/// let builder = Port::memory_builder().ring_sizes(256, 256).frame_count(512, 512).batch(32);
/// let (port, _peer) = builder.memory_pair()?;
/// assert_eq!(port.area().config().frame_count, 1024);
/// let refused = Port::memory_builder().ring_sizes(300, 300).memory_pair();
/// assert!(matches!(refused, Err(OpenError::RingSize { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```
/// use nocopy::port::{OpenError, Purpose};
/// use nocopy::{Mode, Port};
/// use std::time::Duration;
/// let builder = Port::builder("absent0")
///     .purpose(Purpose::Capture) // the packets are the host's, too: this decides the order of the modes
///     .promiscuous(true) // also packets for other hosts
///     .busy_poll(Duration::from_micros(50), 64)
///     .receive_metadata(true); // asks the card for times, hashes, and VLAN tags
/// assert!(matches!(builder.open(), Err(OpenError::Interface(_)))); // there is no such interface
/// let only = Port::builder("absent0").mode(Mode::XdpZeroCopy); // this mode, or none
/// assert!(only.open().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct PortBuilder {
    pub(super) interface: String,
    pub(super) queue: u32,
    pub(super) mode: Option<Mode>,
    pub(super) area: Option<Area>,
    pub(super) rx_frames: u32,
    pub(super) tx_frames: u32,
    pub(super) rings: RingSizes,
    pub(super) busy_poll: Option<(Duration, u32)>,
    pub(super) batch: u32,
    pub(super) wait: Wait,
    pub(super) promiscuous: bool,
    pub(super) purpose: Purpose,
    pub(super) multi_buffer: bool,
    pub(super) filter: Option<Program>,
    pub(super) receive_metadata: bool,
    pub(super) send_metadata: bool,
    pub(super) tuning: PortTuning,
    /// Not a setting: determined while opening.
    pub(super) mtu_bytes: u32,
}

/// The purpose of a port, which decides which mode is the fastest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// To receive and to answer. The port alone gets the packets if the mode allows it (all AF_XDP modes).
    #[default]
    Exchange,
    /// To observe arriving packets. It does not matter whether the host gets them too.
    Capture,
    /// To send.
    Send,
}

/// Settings of ports for this workspace's own crates; see [`PortBuilder::tuning`].
#[derive(Debug, Clone, Copy)]
pub struct PortTuning {
    /// Whether the kernel may sleep and ask for wake-ups (default true: saves system calls on both sides).
    pub need_wakeup: bool,
    /// How long to wait for carrier, before and after attaching: some drivers reset the link whenever a
    /// program is attached or detached, also when the previous port was closed (default 5 s).
    pub carrier_timeout: Duration,
    /// In packet ring mode: the number of a group of ports, and how the interface's packets are distributed
    /// among them (default: this port gets all packets of its queue). A port that joins while others receive
    /// misses packets of its share between two system calls, uncounted: open all ports of a group before
    /// traffic matters.
    pub fanout: Option<(u16, Fanout)>,
    /// In packet ring mode: receives packets that the host sends on the interface, too (default false).
    pub outgoing: bool,
    /// In packet ring mode: how long a packet may wait in a block that is not full, in whole milliseconds
    /// (default: the delay of [`Wait::Coalesced`], otherwise 1 ms).
    pub block_timeout: Option<Duration>,
    /// Checks zero-copy by sending one frame of 60 B (to the interface itself, EtherType 0x88b5); steps down
    /// if it is not reported as sent within `timeout`. By default only for drivers known to accept a socket
    /// but send nothing (bonding: 1 s). A frame that does not return is lost for the area.
    pub probe_frame: Option<Duration>,
    /// Records the arrival time of each packet by [`Clock::Monotonic`], if the card gives no time
    /// ([`Packet::arrival`]; default false): for the AF_XDP modes; packets of a packet ring always have a
    /// time. Costs one clock read per redirected packet, on the processor that redirects it.
    ///
    /// Ports of one process on an interface share its program: if the first was opened without this, later
    /// ones have no times, and report [`Unsupported::OtherProgram`].
    ///
    /// [`Clock::Monotonic`]: crate::metadata::Clock::Monotonic
    /// [`Packet::arrival`]: crate::Packet::arrival
    /// [`Unsupported::OtherProgram`]: crate::metadata::Unsupported::OtherProgram
    pub arrival_times: bool,
    /// Prepares returning packets to the host ([`ToHost`]) when the port is opened, for programs that give up
    /// their privileges afterwards. Preparing needs the privileges of opening a port. Returning packets needs
    /// none, since Linux 5.19 or if `kernel.unprivileged_bpf_disabled` is 0 (default false: prepared at first
    /// use).
    ///
    /// [`ToHost`]: super::ToHost
    pub prepare_host_path: bool,
    /// Shares the area's memory with forked children, as the rings always are (default false: it is unmapped
    /// there). For libraries in programs that fork freely: either parent or child may continue with the port
    /// (as a daemon whose parent ends), and the other gives it up
    /// ([`Queues::disown`](super::Queues::disown)). With a given area, [`AreaConfig::inherited`] decides.
    ///
    /// [`AreaConfig::inherited`]: crate::area::AreaConfig::inherited
    pub inherited: bool,
    /// Packets of a memory port may have unfinished checksums, as those of an interface without a wire
    /// (default false).
    pub wireless: bool,
}

impl Default for PortTuning {
    fn default() -> Self {
        Self {
            need_wakeup: true,
            carrier_timeout: Duration::from_secs(5),
            fanout: None,
            outgoing: false,
            block_timeout: None,
            probe_frame: None,
            arrival_times: false,
            prepare_host_path: false,
            inherited: false,
            wireless: false,
        }
    }
}

impl PortBuilder {
    pub(super) fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            queue: 0,
            mode: None,
            area: None,
            rx_frames: 4096,
            tx_frames: 2048,
            rings: ring_sizes(4096, 2048),
            busy_poll: None,
            batch: 64,
            wait: Wait::Interrupt,
            promiscuous: false,
            purpose: Purpose::default(),
            multi_buffer: false,
            filter: None,
            receive_metadata: false,
            send_metadata: false,
            tuning: PortTuning::default(),
            mtu_bytes: 0,
        }
    }

    /// The queue, counted from 0 (default 0).
    #[must_use]
    pub fn queue(mut self, queue: u32) -> Self {
        self.queue = queue;
        self
    }

    /// The port's purpose, which decides the order in which modes are tried (default [`Purpose::Exchange`]:
    /// `xdp zero-copy`, `xdp copy native`, `xdp copy generic`, `packet ring`).
    #[must_use]
    pub fn purpose(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// Allows only this mode (strict); by default a port steps down until a mode works.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Uses frames of an existing area, so that frames can move between ports without a copy. By default a
    /// port makes its own area, with frames of 2048 or 4096 bytes, the smaller that holds the interface's
    /// MTU; in packet ring mode of up to 32,768 bytes.
    #[must_use]
    pub fn area(mut self, area: &Area) -> Self {
        self.area = Some(area.clone());
        self
    }

    /// Frames for the receiving and the sending half (default 4096 and 2048).
    ///
    /// A port with 0 receive frames only sends: packets arriving on its queue stay with the host. In
    /// zero-copy mode it then lends the card as many extra frames as the card's receive ring holds (an area
    /// given by [`area`](Self::area) must have room for them), and the kernel copies arriving packets from
    /// them for the host: a queue in zero-copy mode has no other buffers.
    #[must_use]
    pub fn frame_count(mut self, receive: u32, send: u32) -> Self {
        self.rx_frames = receive;
        self.tx_frames = send;
        self
    }

    /// Entries of the rx ring (default 4096) and of the tx ring (default 2048): powers of two. The fill and
    /// completion rings hold twice as many, so that the other end's index need not be read for every batch.
    #[must_use]
    pub fn ring_sizes(mut self, receive: u32, send: u32) -> Self {
        self.rings = ring_sizes(receive, send);
        self
    }

    /// Lets the receiving thread drive the device itself while it waits (`SO_PREFER_BUSY_POLL`): for how long
    /// at a time, and how many packets (default: off).
    #[must_use]
    pub fn busy_poll(mut self, duration: Duration, packets: u32) -> Self {
        self.busy_poll = Some((duration, packets));
        self
    }

    /// Most packets in one received batch (default 64).
    #[must_use]
    pub fn batch(mut self, packets: u32) -> Self {
        self.batch = packets;
        self
    }

    /// How the receiver waits (default [`Wait::Interrupt`]).
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Receives packets addressed to other hosts too, while the port is open (default false).
    #[must_use]
    pub fn promiscuous(mut self, on: bool) -> Self {
        self.promiscuous = on;
        self
    }

    /// Receives and sends packets longer than a frame as a [`Chain`] of several (default false): for an MTU
    /// of more than 3,818 bytes, and in packet ring mode for packets that the kernel has joined. Receive with
    /// [`Batch::next_chain`], send with [`Sender::send_chain`]. Needs Linux 6.6 for AF_XDP.
    ///
    /// [`Batch::next_chain`]: super::Batch::next_chain
    /// [`Chain`]: crate::Chain
    /// [`Sender::send_chain`]: super::NonblockingSender::send_chain
    #[must_use]
    pub fn multi_buffer(mut self, on: bool) -> Self {
        self.multi_buffer = on;
        self
    }

    /// Receives only packets that match; see [`filter`](crate::filter) (default: all). In the AF_XDP modes
    /// the filter belongs to the interface: ports on several of its queues in one process must have the same.
    /// If the kernel refuses it, it runs in user space, and [`Port::explain`] says why. Matching packets are
    /// received whole, whatever length the filter returns.
    ///
    /// [`Port::explain`]: super::Port::explain
    #[must_use]
    pub fn filter(mut self, filter: &Program) -> Self {
        self.filter = Some(filter.clone());
        self
    }

    /// Asks the card about each arriving packet: time, hash, VLAN tag ([`Packet::arrival`]; default false).
    /// If the card, the kernel or the mode does not report one of them, the port still opens, and each packet
    /// says why it is missing.
    ///
    /// [`Packet::arrival`]: crate::Packet::arrival
    #[must_use]
    pub fn receive_metadata(mut self, on: bool) -> Self {
        self.receive_metadata = on;
        self
    }

    /// Lets packets be sent with a request to the card or the kernel: complete the checksum, report the
    /// departure time ([`Sender::send_with`]; default false). If neither can, the port still opens, and
    /// [`Port::explain`] says why. Every packet then needs 16 free bytes in front; packets written into fresh
    /// frames have them.
    ///
    /// [`Port::explain`]: super::Port::explain
    /// [`Sender::send_with`]: super::NonblockingSender::send_with
    #[must_use]
    pub fn send_metadata(mut self, on: bool) -> Self {
        self.send_metadata = on;
        self
    }

    /// Settings for this workspace's own crates.
    #[doc(hidden)]
    #[must_use]
    pub fn tuning(mut self, tuning: PortTuning) -> Self {
        self.tuning = tuning;
        self
    }

    #[cfg(feature = "message")]
    pub(crate) fn interface_name(&self) -> &str {
        &self.interface
    }

    pub(crate) fn default_frame_memory_bytes(&self) -> u64 {
        u64::from(self.rx_frames + self.tx_frames) * 2048
    }

    pub(super) fn check_settings(&self) -> Result<(), OpenError> {
        let RingSizes { fill, rx, tx, completion } = self.rings;
        for (ring, entries) in [("rx", rx), ("tx", tx), ("fill", fill), ("completion", completion)] {
            if !entries.is_power_of_two() {
                return Err(OpenError::RingSize { ring, entries });
            }
        }
        if self.batch == 0 {
            return Err(OpenError::Batch);
        }
        Ok(())
    }

    /// The given area, or a new one with room for `ports` such ports on an interface.
    pub(super) fn area_for_ports(&self, interface: &Interface, ports: u32) -> Result<Area, OpenError> {
        let more = self.frames_to_lend(interface).saturating_add(self.proof_frames(interface));
        let frame_count = self.half_frame_total().saturating_add(more).saturating_mul(ports);
        self.area_near_card(interface, self.frame_bytes_for(interface), frame_count)
    }

    /// The given area, or a new one, on the card's own NUMA node if there is memory.
    pub(super) fn area_near_card(
        &self,
        interface: &Interface,
        frame_bytes: u32,
        frame_count: u32,
    ) -> Result<Area, OpenError> {
        let node = card_numa_node(interface);
        // The node was not requested: if it has no memory, any node will do.
        self.given_or_new_area(frame_bytes, frame_count, node).or_else(|refused| {
            if node.is_some() { self.given_or_new_area(frame_bytes, frame_count, None) } else { Err(refused) }
        })
    }

    /// Frames of both halves.
    pub(super) fn half_frame_total(&self) -> u32 {
        self.rx_frames.saturating_add(self.tx_frames)
    }

    pub(super) fn given_or_new_area(
        &self,
        frame_bytes: u32,
        frame_count: u32,
        numa_node: Option<u32>,
    ) -> Result<Area, OpenError> {
        match &self.area {
            Some(area) => Ok(area.clone()),
            None => {
                let inherited = self.tuning.inherited;
                Ok(Area::new(AreaConfig {
                    frame_count,
                    frame_bytes,
                    headroom_bytes: 0,
                    numa_node,
                    inherited,
                })?)
            }
        }
    }

    pub(super) fn system_error(&self, operation: &'static str, source: io::Error) -> OpenError {
        OpenError::System { interface: self.interface.clone(), queue: self.queue, operation, source }
    }
}

fn ring_sizes(receive: u32, send: u32) -> RingSizes {
    RingSizes { rx: receive, fill: receive.saturating_mul(2), tx: send, completion: send.saturating_mul(2) }
}
