//! The summary of services: the JSON schema `nocopy.serve/2` (docs/serve.md). A field that does not apply is
//! absent.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nocopy_proto::errno::ErrorCounts;
use serde::{Serialize, Serializer};

use crate::endpoint::Scheme;
use nocopy_report::table::Table;
use nocopy_report::{CommandEnd, Outcome};

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    ended: CommandEnd,
    seconds: f64,
    services: Vec<ServiceCounters>,
}

#[derive(Debug, Serialize)]
pub(super) struct ServiceCounters {
    scheme: &'static str,
    address: SocketAddr,
    /// Messages or datagrams that were answered; absent for TCP, where messages cannot be distinguished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<u64>,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Connections refused or ended by the server, and datagrams not answered.
    pub refused: u64,
    /// Answers that the kernel did not take, by its error; they are among those refused.
    #[serde(serialize_with = "serialize_by_name", skip_serializing_if = "ErrorCounts::is_empty")]
    pub refused_by: ErrorCounts,
    /// Runs of the program that failed or took too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_failures: Option<u64>,
}

impl ServiceCounters {
    pub(super) fn new(scheme: Scheme, address: SocketAddr) -> Self {
        let counts = |is_counted: bool| is_counted.then_some(0);
        Self {
            scheme: scheme.name(),
            address,
            answered: counts(scheme != Scheme::Tcp),
            bytes: 0,
            connections: counts(matches!(scheme, Scheme::Tcp | Scheme::Message)),
            refused: 0,
            refused_by: ErrorCounts::default(),
            program_failures: None,
        }
    }

    pub(super) fn count_answer(&mut self, bytes: usize) {
        *self.answered.get_or_insert(0) += 1;
        self.bytes += bytes as u64;
    }

    /// Counts an answer that is lost.
    pub(super) fn count_refused(&mut self, error: &io::Error) {
        self.refused += 1;
        self.refused_by.add(error, 1);
    }

    fn description(&self) -> String {
        let answered = self.answered.map(|count| format!("{count} answered, "));
        let connections = self.connections.map(|count| format!(", {count} connections"));
        let refused = Some(self.refused).filter(|count| *count > 0).map(|count| format!(", {count} refused"));
        let refused_by =
            Some(&self.refused_by).filter(|counts| !counts.is_empty()).map(|counts| format!(" ({counts})"));
        let failures = self.program_failures.filter(|count| *count > 0);
        let failures = failures.map(|count| format!(", {count} program failures"));
        [answered, Some(format!("{} bytes", self.bytes)), connections, refused, refused_by, failures]
            .into_iter()
            .flatten()
            .collect()
    }
}

fn serialize_by_name<S: Serializer>(counts: &ErrorCounts, serializer: S) -> Result<S::Ok, S::Error> {
    counts.counts_by_name().serialize(serializer)
}

impl Summary {
    pub(super) fn from_services(ended: CommandEnd, time: Duration, services: Vec<ServiceCounters>) -> Self {
        Self { ended, seconds: time.as_secs_f64(), services }
    }
}

impl nocopy_report::Summary for Summary {
    const SCHEMA: &'static str = "nocopy.serve/2";

    fn table(&self) -> Table {
        let row = |served: &ServiceCounters| {
            (format!("{}://{}", served.scheme, served.address), served.description())
        };
        self.services.iter().map(row).collect::<Vec<_>>().into()
    }

    fn outcome(&self) -> Outcome {
        Outcome::Positive
    }
}
