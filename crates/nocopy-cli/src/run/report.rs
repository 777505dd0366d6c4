//! The final report: for each handle, its library, mode and counts; for each UDP socket, what was batched.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use nocopy_proto::run::sockets::SharedSockets;
use nocopy_proto::run::{CaptureMode, CapturingLibrary, FilterLocation, HandleCounts};
use serde::Serialize;

use super::process_reports::{CaptureHandle, HandleState, ProcessReports};
use super::sockets;
use nocopy_report::Failure;
use nocopy_report::print::{replace_all_control_characters, replace_control_characters};
use nocopy_report::table::Table;

const SCHEMA: &str = "nocopy.run/2";

/// A place of a filter, and a state, by which rows differ.
const USER_SPACE: &str = "user-space";
const PROCESS_ENDED: &str = "process-ended";

#[derive(Debug, Serialize)]
pub(super) struct RunReport {
    schema: &'static str,
    command: Vec<String>,
    library: String,
    take: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handles: Option<Vec<HandleRow>>,
    /// Instead of handles, with the library that joins datagrams.
    #[serde(skip_serializing_if = "Option::is_none")]
    sockets: Option<Vec<sockets::SocketRow>>,
    /// Further notes for the user.
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct HandleRow {
    process: u32,
    program: String,
    interface: String,
    library: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queues: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    promiscuous: bool,
    snap_bytes: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_cause: Option<String>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<HandleCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sending: Option<String>,
}

impl RunReport {
    pub(super) fn new(
        command: Vec<String>,
        library: &Path,
        take: bool,
        status: ExitStatus,
        reports: &ProcessReports,
    ) -> Self {
        Self {
            schema: SCHEMA,
            command,
            library: library.display().to_string(),
            take,
            exit_code: status.code(),
            signal: status.signal(),
            handles: Some(reports.handles.iter().map(HandleRow::new).collect()),
            sockets: None,
            notes: report_notes(reports),
        }
    }

    /// Makes it a report of UDP sockets. Returns whether there are none.
    pub(super) fn add_sockets(&mut self, counters: &SharedSockets) -> bool {
        let rows: Vec<_> = counters.sockets.iter().map(sockets::SocketRow::new).collect();
        let is_empty = rows.is_empty();
        (self.handles, self.sockets) = (None, Some(rows));
        self.notes.extend(sockets::socket_notes(counters));
        is_empty
    }

    pub(super) fn add_note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(super) fn to_json(&self) -> Result<String, Failure> {
        nocopy_report::json_text(self)
    }

    pub(super) fn to_text(&self) -> String {
        let how = match (self.exit_code, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "an unknown status".into(),
        };
        let handles = self.handles.as_deref().unwrap_or_default();
        let (count, thing) = match &self.sockets {
            Some(sockets) => (sockets.len(), "UDP socket"),
            None => (handles.len(), "capture handle"),
        };
        let plural = if count == 1 { "" } else { "s" };
        let mut text = format!(
            "nocopy: {} ended with {how}; {count} {thing}{plural}\n",
            replace_all_control_characters(&self.command.join(" "))
        );
        if !handles.is_empty() {
            text += &handle_table(handles).text();
        }
        for row in handles {
            row.detail_sentences()
                .for_each(|words| text += &format!("{}\n", replace_all_control_characters(&words)));
        }
        if let Some(rows) = self.sockets.as_deref().filter(|rows| !rows.is_empty()) {
            text += &sockets::socket_table_text(rows);
        }
        for note in &self.notes {
            text += &format!("{}\n", replace_all_control_characters(note));
        }
        replace_control_characters(&text)
    }
}

fn handle_table(handles: &[HandleRow]) -> Table {
    let header = [
        "process",
        "program",
        "interface",
        "library",
        "mode",
        "filter",
        "received",
        "dropped",
        "interface dropped",
        "sent",
    ];
    Table::new(&header, 6..10, handles.iter().map(HandleRow::table_cells).collect())
}

impl HandleRow {
    fn new(handle: &CaptureHandle) -> Self {
        let (library, cause, mode, queues, note) = match handle.opened.library.clone() {
            CapturingLibrary::System { why } => ("system", Some(why), None, Vec::new(), None),
            CapturingLibrary::Ours { mode: CaptureMode::Passive, note } => {
                ("nocopy", None, Some("passive"), Vec::new(), note)
            }
            CapturingLibrary::Ours { mode: CaptureMode::Take { queues }, note } => {
                ("nocopy", None, Some("take"), queues, note)
            }
        };
        let (filter, filter_cause) = match handle.filter.clone() {
            None => (None, None),
            Some(FilterLocation::Xdp) => (Some("xdp"), None),
            Some(FilterLocation::Socket) => (Some("socket"), None),
            Some(FilterLocation::UserSpace { why }) => (Some(USER_SPACE), Some(why)),
        };
        let (state, closed) = match &handle.state {
            HandleState::Open => ("open", None),
            HandleState::ProcessEnded => (PROCESS_ENDED, None),
            HandleState::Closed(closed) => ("closed", Some(closed.clone())),
        };
        Self {
            process: handle.process.id,
            program: handle.process.program.clone(),
            interface: handle.opened.interface.clone(),
            library,
            cause,
            mode,
            queues,
            note,
            promiscuous: handle.opened.promiscuous,
            snap_bytes: handle.opened.snap_bytes,
            filter,
            filter_cause,
            state,
            counts: closed.as_ref().map(|closed| closed.counts),
            sending: closed.and_then(|closed| closed.sending),
        }
    }

    fn table_cells(&self) -> Vec<String> {
        let count =
            |of: fn(&HandleCounts) -> u64| self.counts.as_ref().map_or("?".into(), |all| of(all).to_string());
        let mode = match self.mode {
            Some(mode) if self.queues.is_empty() => mode.to_owned(),
            Some(mode) => {
                format!("{mode}: {}", replace_all_control_characters(&grouped_queues(&self.queues)))
            }
            None => "-".into(),
        };
        let filter = match (self.library, self.filter) {
            ("system", _) => "-",
            (_, None) => "none",
            (_, Some(USER_SPACE)) => "user space",
            (_, Some(place)) => place,
        };
        vec![
            self.process.to_string(),
            replace_all_control_characters(&self.program),
            replace_all_control_characters(&self.interface),
            self.library.into(),
            mode,
            filter.into(),
            count(|all| all.received),
            count(|all| all.dropped),
            count(|all| all.interface_dropped),
            count(|all| all.sent),
        ]
    }

    /// Sentences that are too long for a table cell.
    fn detail_sentences(&self) -> impl Iterator<Item = String> {
        let unknown = match self.state {
            "open" => Some("still open when the command ended: what it counted is not known"),
            PROCESS_ENDED => Some("its process ended without closing it: what it counted is not known"),
            _ => None,
        };
        let words = [
            self.cause.as_ref().map(|cause| format!("the system's libpcap: {cause}")),
            self.note.clone(),
            self.filter_cause.as_ref().map(|cause| format!("filter in user space: {cause}")),
            self.sending.as_ref().map(|way| format!("sent {way}")),
            unknown.map(str::to_owned),
        ];
        let subject = format!("{} ({}) on {}", self.program, self.process, self.interface);
        words.into_iter().flatten().map(move |words| format!("{subject}: {words}"))
    }
}

/// `xdp zero-copy`, or each mode with its number of queues.
fn grouped_queues(queues: &[String]) -> String {
    let mut runs: Vec<(&String, usize)> = Vec::new();
    for queue in queues {
        match runs.iter_mut().find(|(known, _)| *known == queue) {
            Some((_, count)) => *count += 1,
            None => runs.push((queue, 1)),
        }
    }
    let words: Vec<_> = runs
        .into_iter()
        .map(|(queue, count)| if count == 1 { queue.clone() } else { format!("{count} x {queue}") })
        .collect();
    words.join(", ")
}

fn report_notes(reports: &ProcessReports) -> Vec<String> {
    let left_out = (reports.handles_left_out > 0)
        .then(|| format!("{} more handles, which are not listed", reports.handles_left_out));
    let malformed = reports.first_malformed.as_ref().map(|first| {
        format!("{} messages of the library were not understood; the first: {first}", reports.malformed)
    });
    left_out.into_iter().chain(malformed).collect()
}

#[cfg(test)]
mod tests {
    use nocopy_proto::run::{ClosedHandle, OpenedHandle};

    use super::super::process_reports::{ChannelId, ReportingProcess};
    use super::*;

    fn opened_handle(handle: u64, library: CapturingLibrary) -> OpenedHandle {
        OpenedHandle { handle, interface: "eth0".into(), library, promiscuous: true, snap_bytes: 262_144 }
    }

    fn channel_id(channel: u64) -> ChannelId {
        ChannelId { process: 4711, channel }
    }

    fn example_process_reports() -> ProcessReports {
        let mut reports = ProcessReports::default();
        let process = ReportingProcess { id: 4711, program: "tcpdump".into() };
        let mode = CaptureMode::Take { queues: vec!["xdp copy native".into(); 2] };
        reports.on_handle_opened(
            channel_id(1),
            &process,
            opened_handle(0, CapturingLibrary::Ours { mode, note: None }),
        );
        reports.on_filter_location(
            channel_id(1),
            0,
            Some(FilterLocation::UserSpace { why: "it\x1b[1m loops".into() }),
        );
        let counts = HandleCounts { received: 1000, dropped: 20, interface_dropped: 3, sent: 0 };
        reports.on_handle_closed(channel_id(1), ClosedHandle { handle: 0, counts, sending: None });
        // The same number of another process, and of another handle: neither is the first one's.
        let other = ReportingProcess { id: 4712, program: "sh".into() };
        reports.on_handle_opened(
            channel_id(2),
            &other,
            opened_handle(0, CapturingLibrary::System { why: "the 'any' device".into() }),
        );
        reports.on_handle_opened(
            channel_id(1),
            &process,
            opened_handle(0, CapturingLibrary::Ours { mode: CaptureMode::Passive, note: None }),
        );
        reports.on_process_ended(channel_id(2));
        reports
    }

    fn example_report() -> RunReport {
        let status = ExitStatus::from_raw(libc::SIGTERM);
        RunReport::new(
            vec!["sh".into(), "-c".into()],
            Path::new("/l.so"),
            true,
            status,
            &example_process_reports(),
        )
    }

    #[test]
    fn the_report_has_a_line_per_handle_and_details() {
        let text = example_report().to_text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "nocopy: sh -c ended with signal 15; 3 capture handles");
        let words = |line: &str| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let first = [
            "4711",
            "tcpdump",
            "eth0",
            "nocopy",
            "take: 2 x xdp copy native",
            "user space",
            "1000",
            "20",
            "3",
            "0",
        ];
        assert_eq!(words(lines[2]), first);
        assert_eq!(words(lines[3]), ["4712", "sh", "eth0", "system", "-", "-", "?", "?", "?", "?"]);
        assert_eq!(words(lines[4])[4..7], ["passive", "none", "?"]);
        assert_eq!(lines[5], "tcpdump (4711) on eth0: filter in user space: it\u{fffd}[1m loops");
        assert_eq!(lines[6], "sh (4712) on eth0: the system's libpcap: the 'any' device");
        assert!(lines[7].contains("ended without closing it") && lines[8].contains("still open"), "{text}");
        assert_eq!(lines.len(), 9, "{text}");
    }

    /// Each is a line of the report, which a newline would make two.
    #[test]
    fn strings_of_processes_are_one_line_each() {
        let forged = || "x\nnocopy: forged\t".to_owned();
        let mut reports = ProcessReports::default();
        let process = ReportingProcess { id: 4711, program: forged() };
        let mode = || CaptureMode::Take { queues: vec![forged()] };
        let ours = |note| CapturingLibrary::Ours { mode: mode(), note };
        for (handle, library) in
            [ours(Some(forged())), CapturingLibrary::System { why: forged() }].into_iter().enumerate()
        {
            let opened = OpenedHandle { interface: forged(), ..opened_handle(handle as u64, library) };
            reports.on_handle_opened(channel_id(1), &process, opened);
            reports.on_filter_location(
                channel_id(1),
                handle as u64,
                Some(FilterLocation::UserSpace { why: forged() }),
            );
            let closed = ClosedHandle {
                handle: handle as u64,
                counts: HandleCounts::default(),
                sending: Some(forged()),
            };
            reports.on_handle_closed(channel_id(1), closed);
        }
        reports.count_malformed(forged());
        let command = vec!["sh".into(), forged()];
        let mut report = RunReport::new(command, Path::new("/l.so"), true, ExitStatus::from_raw(0), &reports);
        report.add_note(forged());
        let text = report.to_text();
        assert!(!text.lines().any(|line| line.starts_with("nocopy: forged")), "{text}");
        assert_eq!(text.lines().count(), 1 + 3 + 6 + 2, "{text}");
    }

    #[test]
    fn unknown_fields_are_absent_in_json() {
        let json: serde_json::Value = serde_json::from_str(&example_report().to_json().unwrap()).unwrap();
        assert_eq!((&json["schema"], &json["signal"]), (&"nocopy.run/2".into(), &15.into()));
        assert!(json.get("exit_code").is_none());
        let first = &json["handles"][0];
        assert_eq!(first["queues"], serde_json::json!(["xdp copy native", "xdp copy native"]));
        assert_eq!(first["counts"]["interface_dropped"], 3);
        assert_eq!((&first["filter"], &first["state"]), (&"user-space".into(), &"closed".into()));
        let second = &json["handles"][1];
        assert_eq!((&second["library"], &second["state"]), (&"system".into(), &"process-ended".into()));
        assert!(second.get("counts").is_none() && second.get("mode").is_none());
    }
}
