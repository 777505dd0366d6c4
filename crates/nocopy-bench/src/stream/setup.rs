//! One trial: its processes, one connection each way, and their common window.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::messages::{PeerMessage, PeerReport};
use super::peer::PeerProcess;
use super::task::{PeerRole, PeerTask};
use super::{ProxyMode, ReceiveMode, SendMode};
use crate::baseline::started::network_counter;
use crate::stage::{NetworkSite, SitePair};
use crate::traffic::{CounterProbe, StreamFacts, TrafficReadings};
use crate::window::TrialPhase;
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
pub(crate) enum ReportingSide {
    Sender,
    Proxy,
    Receiver,
}

struct StreamProcesses {
    receiver: PeerProcess,
    proxy: Option<PeerProcess>,
    sender: PeerProcess,
}

struct StreamReports {
    receiver: PeerReport,
    proxy: Option<PeerReport>,
    sender: PeerReport,
}

impl StreamSetup {
    pub(crate) fn run_trial(
        self,
        stage: &SitePair,
        side: ReportingSide,
        duration: Duration,
    ) -> io::Result<(TrafficReadings, Evidence)> {
        let retransmitted_before = segments_retransmitted(stage)?;
        let mut processes = self.start_processes(stage)?;
        processes.all_peers().try_for_each(|peer| peer.wait_for_message(&PeerMessage::UnderWay))?;
        let probes = processes.observe_window(duration);
        // Even if a process has ended: it has reported why, and its peers end with it.
        let reports = processes.collect_reports()?;
        let (before, after) = probes?;
        reports.check_all_bytes_arrived()?;
        let reporting = match side {
            ReportingSide::Sender => Some(&reports.sender),
            ReportingSide::Proxy => reports.proxy.as_ref(),
            ReportingSide::Receiver => Some(&reports.receiver),
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
        let traffic = TrafficReadings {
            senders: vec![reports.sender.reading],
            receivers: vec![reports.receiver.reading],
            machine_busy: after.machine_busy_since(&before),
            stream,
            ..TrafficReadings::default()
        };
        Ok((traffic, evidence.unwrap_or_else(|| Evidence::unknown("not reported"))))
    }

    fn start_processes(self, stage: &SitePair) -> io::Result<StreamProcesses> {
        let start = |site: &NetworkSite, place, role| {
            PeerProcess::start(site, PeerTask { role, processor: site.processor_of_thread(place) })
        };
        // With a proxy, the other two share a processor, so that the proxy is the slowest.
        let ends = if self.proxy.is_some() { 1 } else { 0 };
        let (from, to) = (&stage.sender, &stage.receiver);
        let mut receiver = start(to, ends, PeerRole::Receive { at: to.ipv4, mode: self.receive })?;
        let mut address = receiver.wait_for_address()?;
        let proxy = match self.proxy {
            None => None,
            Some(mode) => {
                let mut proxy = start(to, 0, PeerRole::Proxy { at: to.ipv4, to: address, mode })?;
                address = proxy.wait_for_address()?;
                Some(proxy)
            }
        };
        let sender =
            start(from, 0, PeerRole::Send { to: address, mode: self.send, source_bytes: self.source_bytes })?;
        Ok(StreamProcesses { receiver, proxy, sender })
    }
}

/// TCP segments that the sender's network stack, its namespace alone, has retransmitted.
fn segments_retransmitted(stage: &SitePair) -> io::Result<u64> {
    stage.sender.run(|| network_counter("thread-self", "Tcp: ", "RetransSegs"))
}

impl StreamProcesses {
    /// In order from the sender: the first failure is reported first.
    fn all_peers(&mut self) -> impl Iterator<Item = &mut PeerProcess> {
        std::iter::once(&mut self.sender).chain(&mut self.proxy).chain(std::iter::once(&mut self.receiver))
    }

    /// Opens the window for `duration`.
    fn observe_window(&mut self, duration: Duration) -> io::Result<(CounterProbe, CounterProbe)> {
        sleep(WARM_UP);
        self.send_phase(TrialPhase::Measure)?;
        // On a busy machine the window could otherwise end before a process has noticed its beginning.
        self.all_peers().try_for_each(|peer| peer.wait_for_message(&PeerMessage::Measuring))?;
        let before = CounterProbe::take(None)?;
        sleep(duration);
        let after = CounterProbe::take(None)?;
        self.send_phase(TrialPhase::Drain)?;
        Ok((before, after))
    }

    fn send_phase(&mut self, phase: TrialPhase) -> io::Result<()> {
        // The receiver first: it ends its window while bytes still arrive.
        let peers = std::iter::once(&mut self.receiver)
            .chain(&mut self.proxy)
            .chain(std::iter::once(&mut self.sender));
        peers.into_iter().try_for_each(|peer| peer.send_phase(phase))
    }

    fn collect_reports(&mut self) -> io::Result<StreamReports> {
        let sender = self.sender.wait_for_report();
        let proxy = self.proxy.as_mut().map(PeerProcess::wait_for_report).transpose();
        // A failed receiver makes the others fail, so its error comes first.
        Ok(StreamReports { receiver: self.receiver.wait_for_report()?, proxy: proxy?, sender: sender? })
    }
}

impl StreamReports {
    /// A stream that ends in order has arrived whole.
    fn check_all_bytes_arrived(&self) -> io::Result<()> {
        let (sent, received) = (self.sender.reading.packets_total, self.receiver.reading.packets_total);
        if sent != received {
            let text = format!("{sent} bytes were sent, and {received} received");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(())
    }
}
