//! The place of a workload: two sites with an interface each, joined by a wire.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::panic::resume_unwind;
use std::thread;

use nocopy_lab::{Builder, End, Interface, Lab, Namespace};

use super::cpu;
use crate::Failure;
use nocopy_transfer::arguments::LOOPBACK;

/// The largest frame that fits the usual MTU.
pub(crate) const FRAME_BYTES_MAX: usize = 1514;

pub(crate) const USUAL_MTU_BYTES: u32 = 1500;

/// The MTU of stages for long frames.
pub(crate) const LONG_MTU_BYTES: u32 = 9000;

/// Of all TCP connections that are measured. bbr paces; cubic leaves slow start when it sees round trips grow
/// (HyStart), which on a virtual wire is chance: it then sends at a seventh to two thirds of what reno does.
/// Every kernel lets a namespace have this one as its default.
pub(crate) const CONGESTION_CONTROL: &str = "reno";

const CONGESTION_SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// One side: an interface, the namespace it is in, and the processors its threads run on.
#[derive(Debug)]
pub(crate) struct NetworkSite {
    /// `None`: the namespace the command was started in.
    namespace: Option<Namespace>,
    pub interface: String,
    pub index: u32,
    pub mac: [u8; 6],
    pub ipv4: Ipv4Addr,
    mtu_bytes: u32,
    processors: [usize; 2],
}

impl NetworkSite {
    /// Runs `work` where the interface is visible. Sockets opened there stay there.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.namespace {
            Some(namespace) => namespace.run(work),
            None => work(),
        }
    }

    /// Runs `work` on a thread that is on this side, and on its first processor: programs that it starts stay
    /// there.
    pub(crate) fn run_pinned<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let pinned = scope.spawn(|| {
                self.enter_thread(0)?;
                work()
            });
            pinned.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Moves the calling thread, the side's first or second, to this side for good.
    pub(crate) fn enter_thread(&self, place: usize) -> io::Result<()> {
        if let Some(namespace) = &self.namespace {
            namespace.enter()?;
        }
        cpu::pin_thread(self.processor_of_thread(place))
    }

    /// The processor of the side's first or second thread.
    pub(crate) fn processor_of_thread(&self, place: usize) -> usize {
        self.processors[place % 2]
    }
}

#[derive(Debug)]
pub(crate) struct SitePair {
    /// Held for as long as the sites are in use.
    lab: Option<Lab>,
    pub sender: NetworkSite,
    pub receiver: NetworkSite,
}

impl SitePair {
    pub(crate) fn in_private_lab(lab: Builder) -> Result<Self, Failure> {
        let lab = lab.build()?;
        let sites = Self::over_cable(&lab)?;
        Ok(Self { lab: Some(lab), ..sites })
    }

    /// As [`in_private_lab`](Self::in_private_lab), for TCP: each side receives on one processor, the one
    /// that the other side's first thread sends on. Otherwise a connection's packets that are sent by calls
    /// overtake those that are sent when acknowledgements arrive, and TCP takes them for lost.
    pub(crate) fn in_private_lab_in_order(lab: Builder) -> Result<Self, Failure> {
        let [first, second] = two_processors()?;
        Self::in_private_lab(lab.receive_on([second, first]))
    }

    /// As [`in_private_lab`](Self::in_private_lab), with single TCP segments on the wire: the kernel cuts
    /// data before the sender's interface. Otherwise the interface would pass it on whole, and GRO would
    /// have nothing to join.
    pub(crate) fn with_single_segments(lab: Builder) -> Result<Self, Failure> {
        let stage = Self::in_private_lab(lab)?;
        if let Some(lab) = &stage.lab {
            lab.left().set_tcp_segmentation(false)?;
        }
        Ok(stage)
    }

    /// Sets [`CONGESTION_CONTROL`] in both sides' namespaces, which must be private: that of sockets that set
    /// none.
    pub(crate) fn with_congestion_control(self) -> Result<Self, Failure> {
        let set = || {
            fs::write(CONGESTION_SETTING, CONGESTION_CONTROL)?;
            match fs::read_to_string(CONGESTION_SETTING)?.trim() {
                found if found == CONGESTION_CONTROL => Ok(()),
                found => Err(io::Error::other(format!("the kernel keeps '{found}'"))),
            }
        };
        for site in [&self.sender, &self.receiver] {
            let doing = "set the congestion control of its namespace";
            site.run(set).map_err(Failure::step(
                CONGESTION_CONTROL,
                doing,
                "load its module, and mount /proc/sys writable",
            ))?;
        }
        Ok(self)
    }

    /// Two ports in namespaces of their own, which are cabled to each other.
    pub(crate) fn over_cable(lab: &Lab) -> Result<Self, Failure> {
        let [first, second] = two_processors()?;
        let sender = lab_site(lab.left(), [first, second])?;
        let receiver = lab_site(lab.right(), [second, first])?;
        Ok(Self { lab: None, sender, receiver })
    }

    /// The loopback interface of a private namespace: both sides are on it.
    pub(crate) fn on_loopback() -> Result<Self, Failure> {
        let lab = Lab::builder().build()?;
        let [first, second] = two_processors()?;
        let sender = loopback_site(lab.left(), [first, second])?;
        let receiver = loopback_site(lab.left(), [second, first])?;
        Ok(Self { lab: Some(lab), sender, receiver })
    }

    /// A private lab of two queues, and two threads on each side; each queue's receiver is on the processor
    /// that its packets come in on: on veth, the sender's.
    pub(crate) fn with_two_queues(lab: Builder) -> Result<Self, Failure> {
        let stage = Self::in_private_lab(lab.queues(2))?;
        let receiver = NetworkSite { processors: stage.sender.processors, ..stage.receiver };
        Ok(Self { receiver, ..stage })
    }

    /// Two interfaces of the namespace the command was started in.
    pub(crate) fn between_interfaces(interface: &str, peer: &str) -> Result<Self, Failure> {
        if interface == peer {
            return Err(Failure::SameInterface { interface: interface.into() });
        }
        let [first, second] = two_processors()?;
        Ok(Self {
            lab: None,
            sender: given_site(interface, [first, second], 1)?,
            receiver: given_site(peer, [second, first], 2)?,
        })
    }

    /// Whether frames of [`LONG_MTU_BYTES`] fit.
    pub(crate) fn fits_long_frames(&self) -> bool {
        self.mtu_bytes() >= LONG_MTU_BYTES
    }

    pub(crate) fn mtu_bytes(&self) -> u32 {
        self.sender.mtu_bytes.min(self.receiver.mtu_bytes)
    }

    /// Whether the bench made the interfaces.
    pub(crate) fn is_private(&self) -> bool {
        self.lab.is_some()
    }

    pub(crate) fn link_name(&self) -> &'static str {
        if self.is_private() { "veth" } else { "cable" }
    }
}

fn two_processors() -> Result<[usize; 2], Failure> {
    cpu::processor_pair().map_err(Failure::step("bench", "ask which processors it may use", "mount /proc"))
}

fn lab_site(end: &End, processors: [usize; 2]) -> Result<NetworkSite, Failure> {
    let found = end.namespace().run(|| Interface::find(end.interface()))?;
    Ok(new_site(found, Some(end.namespace()), end.ipv4(), processors))
}

fn loopback_site(end: &End, processors: [usize; 2]) -> Result<NetworkSite, Failure> {
    let found = end.namespace().run(|| Interface::find(LOOPBACK))?;
    Ok(new_site(found, Some(end.namespace()), Ipv4Addr::LOCALHOST, processors))
}

fn given_site(name: &str, processors: [usize; 2], host: u8) -> Result<NetworkSite, Failure> {
    let found = Interface::find(name).map_err(nocopy_transfer::Failure::from_interface_lookup(name))?;
    if !found.carrier {
        return Err(Failure::NoCarrier { interface: name.into() });
    }
    if (found.mtu_bytes as usize) < FRAME_BYTES_MAX - 14 {
        let (interface, mtu_bytes) = (name.into(), found.mtu_bytes);
        return Err(Failure::SmallMtu { interface, mtu_bytes, frame_bytes: FRAME_BYTES_MAX });
    }
    // Addresses from the range reserved for benchmarks (RFC 2544), used in frames only: the interfaces'
    // own addresses do not matter, and may be missing.
    let ipv4 = Ipv4Addr::new(198, 18, 0, host);
    Ok(new_site(found, None, ipv4, processors))
}

fn new_site(
    found: Interface,
    namespace: Option<&Namespace>,
    ipv4: Ipv4Addr,
    processors: [usize; 2],
) -> NetworkSite {
    let Interface { name: interface, index, mac, mtu_bytes, .. } = found;
    NetworkSite { namespace: namespace.cloned(), interface, index, mac, ipv4, mtu_bytes, processors }
}
