//! Totals as OpenMetrics text (the specification of OpenMetrics 1.0).

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::stats::report::{CounterRow, CounterSource, InterfaceReport};

type MetricLabels = Vec<(&'static str, String)>;

/// One counter, with its value for each source.
#[derive(Debug)]
struct MetricFamily {
    name: String,
    help: &'static str,
    samples: Vec<(MetricLabels, u64)>,
}

/// The one metric for all of a driver's own counters, with their names as a label: these are not names of
/// metrics. Its type is unknown, since a driver's counters may decrease.
const DRIVER: &str = "nocopy_driver";
const DRIVER_HELP: &str = "What the driver counts under a name of its own, as ethtool -S shows it.";

#[derive(Debug, Default)]
struct MetricFamilies(Vec<MetricFamily>);

impl MetricFamilies {
    fn from_reports(reports: &[InterfaceReport]) -> Self {
        let mut families = Self::default();
        let groups = reports.iter().flat_map(|report| report.groups.iter().map(move |group| (report, group)));
        for (report, group) in groups {
            let (prefix, labels) = prefix_and_labels(&group.source);
            let labels = [&[("interface", report.interface.clone())], &labels[..]].concat();
            for CounterRow { counter, .. } in &group.rows {
                if matches!(group.source, CounterSource::Driver) {
                    let labels = [&labels[..], &[("name", counter.name.to_string())]].concat();
                    families.add_sample(prefix.into(), DRIVER_HELP, labels, counter.value);
                } else {
                    let name = format!("{prefix}_{}", counter.name);
                    families.add_sample(name, counter.meaning, labels.clone(), counter.value);
                }
            }
        }
        families
    }

    /// Samples of a family must be contiguous.
    fn add_sample(&mut self, name: String, help: &'static str, labels: MetricLabels, value: u64) {
        match self.0.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.push((labels, value)),
            None => self.0.push(MetricFamily { name, help, samples: vec![(labels, value)] }),
        }
    }
}

fn prefix_and_labels(source: &CounterSource) -> (&'static str, MetricLabels) {
    match source {
        CounterSource::Link => ("nocopy_link", vec![]),
        CounterSource::Driver => (DRIVER, vec![]),
        CounterSource::Queue(_, number) => ("nocopy_queue", vec![("queue", number.to_string())]),
        CounterSource::Socket(socket) => {
            let (pid, process) = socket.owner.clone().unzip();
            let labels = vec![
                ("queue", socket.queue.to_string()),
                ("inode", socket.inode.to_string()),
                ("pid", pid.map(|pid| pid.to_string()).unwrap_or_default()),
                ("process", process.unwrap_or_default()),
            ];
            ("nocopy_socket", labels)
        }
    }
}

/// The name without its unit, which the encoder adds itself.
fn split_unit(name: &str) -> (&str, Option<Unit>) {
    if let Some(stem) = name.strip_suffix("_bytes") {
        (stem, Some(Unit::Bytes))
    } else if let Some(stem) = name.strip_suffix("_packets") {
        (stem, Some(Unit::Other("packets".into())))
    } else {
        (name, None)
    }
}

impl Collector for MetricFamilies {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for MetricFamily { name, help, samples } in &self.0 {
            let ((stem, unit), is_driver) = (split_unit(name), name == DRIVER);
            let kind = if is_driver { MetricType::Unknown } else { MetricType::Counter };
            let mut family = encoder.encode_descriptor(stem, help, unit.as_ref(), kind)?;
            for (labels, value) in samples {
                let mut sample = family.encode_family(labels)?;
                if is_driver {
                    sample.encode_gauge(value)?; // written like a value of unknown type: a number, no suffix
                } else {
                    sample.encode_counter::<MetricLabels, u64, f64>(value, None)?;
                }
            }
        }
        Ok(())
    }
}

pub(in crate::stats) fn openmetrics_text(reports: &[InterfaceReport]) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricFamilies::from_reports(reports)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes everything");
    text
}
