//! What is measured, a file each.

pub(crate) mod capture;
pub(crate) mod latency;
pub(crate) mod libpcap;
pub(crate) mod messages;
pub(crate) mod packet_send;
pub(crate) mod record;
pub(crate) mod tcp;
pub(crate) mod udp_send;

/// Frame lengths of the packet workloads, in bytes: the shortest Ethernet allows, and one that nearly fills the MTU.
pub(crate) const FRAME_BYTES: [usize; 2] = [64, 1400];
