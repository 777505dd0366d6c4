//! The kernel as a source of frames that look as if an XDP card had received them.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::integration::xdp::Generator;

use super::stage::NetworkSite;
use super::window::WindowGauge;
use crate::Failure;

pub(crate) const CAUSE: &str = "a template resent by the kernel: no program writes these frames";

/// Frames per call at full rate: enough to hide its fixed cost, few enough to stop in time.
const FULL_BURST: u32 = 16_384;

/// The interval of bursts of the paced load.
const INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GeneratorLoad {
    /// As fast as the kernel makes them.
    Full,
    /// That many thousands a second, in bursts, as packets usually arrive; a receiver that sleeps between
    /// bursts is not idle.
    Paced { kpps: u32 },
}

impl GeneratorLoad {
    pub(crate) fn name(self) -> String {
        match self {
            GeneratorLoad::Full => "full-rate".into(),
            GeneratorLoad::Paced { kpps } => format!("{kpps}-kpps"),
        }
    }
}

pub(crate) fn open_generator(site: &NetworkSite) -> Result<Generator, Failure> {
    Ok(site.run(|| Generator::new(&site.interface))?)
}

/// One in this number of packets matches the filter.
pub(crate) const WANTED_ONE_IN: u32 = 100;

/// Sends until the gauge ends it, including the wanted frames, if they differ; must run on a thread that
/// entered the generator's site.
pub(crate) fn generate_frames(
    generator: &Generator,
    (frame, wanted): (&[u8], Option<&[u8]>),
    load: GeneratorLoad,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    let send = |burst: u32| {
        let Some(wanted) = wanted else { return generator.send(frame, burst) };
        generator.send(frame, burst - burst / WANTED_ONE_IN)?;
        generator.send(wanted, burst / WANTED_ONE_IN)
    };
    match load {
        GeneratorLoad::Full => {
            while gauge.may_send() {
                send(FULL_BURST)?;
                gauge.count_packets(FULL_BURST.into());
            }
        }
        GeneratorLoad::Paced { kpps: burst } => {
            let mut next = Instant::now();
            while gauge.may_send() {
                send(burst)?;
                gauge.count_packets(burst.into());
                next += INTERVAL;
                sleep(next.saturating_duration_since(Instant::now()));
            }
        }
    }
    Ok(())
}
