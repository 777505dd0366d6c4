//! Streams over TCP, each side a process.

pub(crate) mod proxy;
pub(crate) mod receive;
pub(crate) mod send;

use nocopy_lab::Lab;

use crate::Failure;
use crate::plan::BenchPlan;
use crate::series::{Sample, Series, Trial};
use crate::stage::{CONGESTION_CONTROL, SitePair, USUAL_MTU_BYTES};
use crate::stream::{CHUNK_BYTES, ReportingSide, SOURCE_BYTES, StreamSetup};
use nocopy_report::figure::Figure;
use nocopy_report::result::LinkDescription;

const LOOPBACK: &str = "lo";
const PAIR: &str = "veth";
const CABLE: &str = "cable";

const BUFFER_BYTES: usize = 64 << 10;

const NOTE: &str = "tcp-*: one connection, reno, each side a process; sender, proxy, receiver, machine: CPU us per megabyte.";

#[derive(Debug)]
pub(crate) struct TcpTestbed {
    stage: SitePair,
    link: LinkDescription,
}

impl TcpTestbed {
    fn on_site_pair(stage: SitePair, link: &'static str) -> Self {
        let mtu_bytes = stage.mtu_bytes();
        let link = LinkDescription {
            link: link.into(),
            mtu_bytes,
            congestion_control: CONGESTION_CONTROL.into(),
            source_bytes: Some(SOURCE_BYTES),
        };
        Self { stage, link }
    }

    pub(crate) fn over_loopback() -> Result<Self, Failure> {
        Ok(Self::on_site_pair(SitePair::on_loopback()?, LOOPBACK))
    }

    /// The ports of `--pair`, or the loopback interface.
    pub(crate) fn over_cable_or_loopback(plan: &BenchPlan) -> Result<Self, Failure> {
        match &plan.cable {
            Some(cable) => Ok(Self::on_site_pair(SitePair::over_cable(&cable.lab)?, CABLE)),
            None => Self::over_loopback(),
        }
    }

    pub(crate) fn over_veth(mtu_bytes: u32) -> Result<Self, Failure> {
        Ok(Self::on_site_pair(SitePair::in_private_lab_in_order(Lab::builder().mtu(mtu_bytes))?, PAIR))
    }

    /// The loopback interface, and a new veth pair.
    pub(crate) fn over_loopback_and_veth() -> Result<[Self; 2], Failure> {
        Ok([Self::over_loopback()?, Self::over_veth(USUAL_MTU_BYTES)?])
    }

    pub(crate) fn build_trial(
        &self,
        method: &'static str,
        variant: Option<String>,
        baselines: &'static [&'static str],
        setup: StreamSetup,
        side: ReportingSide,
    ) -> Trial<'_> {
        let run = move |duration| {
            let outcome = setup.run_trial(&self.stage, side, duration);
            let (traffic, evidence) = outcome.map_err(Failure::step(
                method,
                "move a stream",
                "look at what its process printed",
            ))?;
            Ok(Sample { traffic, latency: None, evidence, wanted_share: 1.0 })
        };
        Trial { method, variant, baselines, run: Box::new(run) }
    }

    pub(crate) fn build_series<'a>(
        &self,
        workload: &'static str,
        about: &str,
        trials: Vec<Trial<'a>>,
    ) -> Series<'a> {
        let LinkDescription { link, mtu_bytes, congestion_control, .. } = &self.link;
        Series {
            workload,
            title: format!("{workload} over {link}, MTU {mtu_bytes}, {congestion_control}{about}"),
            sink: None,
            payload_bytes: CHUNK_BYTES,
            link: Some(self.link.clone()),
            figure: Figure::BytesPerSecond,
            trials,
        }
    }
}

fn length_name(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{}-MiB", bytes >> 20) } else { format!("{}-KiB", bytes >> 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_in_binary_units() {
        assert_eq!([1 << 10, 64 << 10, 4 << 20].map(length_name), ["1-KiB", "64-KiB", "4-MiB"]);
    }
}
