//! One trial: its processes, one connection each way, and their common window.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::messages::{PeerMessage, Report};
use super::peer::Peer;
use super::task::{Role, Task};
use super::{ProxyMode, ReceiveMode, SendMode};
use crate::baseline::started::network_counter;
use crate::stage::{Site, Stage};
use crate::traffic::{Probe, StreamFacts, Traffic};
use crate::window::Phase;
use nocopy_report::result::Evidence;

/// Long enough for TCP to adapt its buffers, and for methods that measure first.
const WARM_UP: Duration = Duration::from_millis(150);

#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamSetup {
    pub send: SendMode,
    /// Bytes of the data that the sender sends repeatedly.
    pub source_bytes: usize,
    pub proxy: Option<ProxyMode>,
    pub receive: ReceiveMode,
}

/// The side whose evidence about copies is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Sender,
    Proxy,
    Receiver,
}

struct Processes {
    receiver: Peer,
    proxy: Option<Peer>,
    sender: Peer,
}

struct Reports {
    receiver: Report,
    proxy: Option<Report>,
    sender: Report,
}

impl StreamSetup {
    pub(crate) fn run(
        self,
        stage: &Stage,
        side: Side,
        duration: Duration,
    ) -> io::Result<(Traffic, Evidence)> {
        let retransmitted_before = segments_retransmitted(stage)?;
        let mut processes = self.start(stage)?;
        processes.all().try_for_each(|peer| peer.wait_for(&PeerMessage::UnderWay))?;
        let probes = processes.observe(duration);
        // Even if a process has ended: it has reported why, and its peers end with it.
        let reports = processes.reports()?;
        let (before, after) = probes?;
        reports.check()?;
        let reporting = match side {
            Side::Sender => Some(&reports.sender),
            Side::Proxy => reports.proxy.as_ref(),
            Side::Receiver => Some(&reports.receiver),
        };
        let evidence = reporting.and_then(|report| report.evidence.clone());
        let stream = StreamFacts {
            proxy: reports.proxy.map(|report| report.reading),
            mapped_fraction: reports.receiver.mapped_fraction,
            receiver_user_copies: None,
            buffer_bytes: self.receive.buffer_bytes(),
            memory_bytes: None,
            segments_retransmitted: Some(segments_retransmitted(stage)? - retransmitted_before),
        };
        let traffic = Traffic {
            senders: vec![reports.sender.reading],
            receivers: vec![reports.receiver.reading],
            machine_busy: after.machine_busy_since(&before),
            stream,
            ..Traffic::default()
        };
        Ok((traffic, evidence.unwrap_or_else(|| Evidence::unknown("not reported"))))
    }

    fn start(self, stage: &Stage) -> io::Result<Processes> {
        let start =
            |site: &Site, place, role| Peer::start(site, Task { role, processor: site.processor(place) });
        // With a proxy, the other two share a processor, so that the proxy is the slowest.
        let ends = if self.proxy.is_some() { 1 } else { 0 };
        let (from, to) = (&stage.sender, &stage.receiver);
        let mut receiver = start(to, ends, Role::Receive { at: to.ipv4, mode: self.receive })?;
        let mut address = receiver.address()?;
        let proxy = match self.proxy {
            None => None,
            Some(mode) => {
                let mut proxy = start(to, 0, Role::Proxy { at: to.ipv4, to: address, mode })?;
                address = proxy.address()?;
                Some(proxy)
            }
        };
        let sender =
            start(from, 0, Role::Send { to: address, mode: self.send, source_bytes: self.source_bytes })?;
        Ok(Processes { receiver, proxy, sender })
    }
}

/// TCP segments that the sender's network stack, its namespace alone, has retransmitted.
fn segments_retransmitted(stage: &Stage) -> io::Result<u64> {
    stage.sender.run(|| network_counter("thread-self", "Tcp: ", "RetransSegs"))
}

impl Processes {
    /// In order from the sender: the first failure is reported first.
    fn all(&mut self) -> impl Iterator<Item = &mut Peer> {
        std::iter::once(&mut self.sender).chain(&mut self.proxy).chain(std::iter::once(&mut self.receiver))
    }

    /// Opens the window for `duration`.
    fn observe(&mut self, duration: Duration) -> io::Result<(Probe, Probe)> {
        sleep(WARM_UP);
        self.send_phase(Phase::Measure)?;
        // On a busy machine the window could otherwise end before a process has noticed its beginning.
        self.all().try_for_each(|peer| peer.wait_for(&PeerMessage::Measuring))?;
        let before = Probe::take(None)?;
        sleep(duration);
        let after = Probe::take(None)?;
        self.send_phase(Phase::Drain)?;
        Ok((before, after))
    }

    fn send_phase(&mut self, phase: Phase) -> io::Result<()> {
        // The receiver first: it ends its window while bytes still arrive.
        let peers = std::iter::once(&mut self.receiver)
            .chain(&mut self.proxy)
            .chain(std::iter::once(&mut self.sender));
        peers.into_iter().try_for_each(|peer| peer.send_phase(phase))
    }

    fn reports(&mut self) -> io::Result<Reports> {
        let sender = self.sender.report();
        let proxy = self.proxy.as_mut().map(Peer::report).transpose();
        // A failed receiver makes the others fail, so its error comes first.
        Ok(Reports { receiver: self.receiver.report()?, proxy: proxy?, sender: sender? })
    }
}

impl Reports {
    /// A stream that ends in order has arrived whole.
    fn check(&self) -> io::Result<()> {
        let (sent, received) = (self.sender.reading.packets_total, self.receiver.reading.packets_total);
        if sent != received {
            let text = format!("{sent} bytes were sent, and {received} received");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(())
    }
}
