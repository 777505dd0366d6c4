//! The task of one side's process.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{ProxyMode, ReceiveMode, SendMode, TransferAmount};

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct PeerTask {
    pub role: PeerRole,
    pub processor: usize,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum PeerRole {
    Send { to: SocketAddr, mode: SendMode, source_bytes: usize },
    Receive { at: Ipv4Addr, mode: ReceiveMode },
    Proxy { at: Ipv4Addr, to: SocketAddr, mode: ProxyMode },
    SendAmount { to: SocketAddr, bytes: u64 },
    ReceiveAmount { at: Ipv4Addr, amount: TransferAmount },
}
