//! UDP sockets whose datagrams were joined to bursts: the library's file of counters, and the report of them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;

use nocopy_proto::run::sockets::{FILE_BYTES, Flush, MAGIC, SharedSockets, SocketRecord, UnbatchedCause};
use nocopy_report::print;
use nocopy_report::table::Table;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use serde::{Serialize, Serializer};

/// A file in memory that all processes of the command inherit and count in.
#[derive(Debug)]
pub(super) struct CounterFile(File);

impl CounterFile {
    pub(super) fn new() -> io::Result<Self> {
        let file = memfd_create("nocopy-run", MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, FILE_BYTES as u64)?;
        // A process that made it shorter would end all others at their next datagram (SIGBUS).
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let file = File::from(file);
        file.write_all_at(&MAGIC.to_ne_bytes(), 0)?;
        Ok(Self(file))
    }

    /// Passes the file to the library. With its inode: a program that closes unknown descriptors may open
    /// something else with that number.
    pub(super) fn pass_to_command(&self, command: &mut Command) -> io::Result<()> {
        let inode = fstat(&self.0)?.st_ino;
        command.env("NOCOPY_BATCH_REPORT", format!("{}:{inode}", self.0.as_raw_fd()));
        Ok(())
    }

    pub(super) fn read_counters(&self) -> io::Result<SharedSockets> {
        let mut bytes = vec![0; FILE_BYTES];
        self.0.read_exact_at(&mut bytes, 0)?;
        let malformed = || io::Error::other("the program has overwritten what the library counted");
        SharedSockets::parse(&bytes).ok_or_else(malformed)
    }
}

#[derive(Debug, Serialize)]
pub(super) struct SocketRow {
    process: u32,
    program: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    datagram_bytes: Option<u64>,
    batched: u64,
    bursts: u64,
    /// By cause, without zeros.
    #[serde(serialize_with = "serialize_as_map")]
    flushed: Vec<(Flush, u64)>,
    #[serde(serialize_with = "serialize_as_map")]
    sent_unbatched: Vec<(UnbatchedCause, u64)>,
    refused: u64,
    lost: u64,
    batching_stopped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    batching_stopped_cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unbatched_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batched_ns: Option<u64>,
}

impl SocketRow {
    pub(super) fn new(socket: &SocketRecord) -> Self {
        Self {
            process: socket.process,
            program: socket.program.clone(),
            peer: socket.peer.map(|peer| peer.to_string()),
            datagram_bytes: Some(socket.datagram_bytes).filter(|bytes| *bytes > 0),
            batched: socket.joined,
            bursts: socket.bursts,
            flushed: nonzero_counts(&socket.flushed),
            sent_unbatched: nonzero_counts(&socket.plain),
            refused: socket.refused,
            lost: socket.lost,
            batching_stopped: socket.left_alone,
            batching_stopped_cause: socket.alone.map(|cause| cause.text()),
            unbatched_ns: socket.cost_ns.map(|(unbatched, _)| unbatched),
            batched_ns: socket.cost_ns.map(|(_, batched)| batched),
        }
    }

    fn table_cells(&self) -> Vec<String> {
        let unbatched = self.sent_unbatched.iter().map(|(_, count)| *count).fold(0, u64::saturating_add);
        let a_burst = self.batched.checked_div(self.bursts).map_or("-".into(), |count| count.to_string());
        vec![
            self.process.to_string(),
            print::replace_all_control_characters(&self.program),
            self.peer.clone().unwrap_or("-".into()),
            self.datagram_bytes.map_or("-".into(), |bytes| bytes.to_string()),
            self.batched.to_string(),
            self.bursts.to_string(),
            a_burst,
            unbatched.to_string(),
        ]
    }

    /// Sentences that are too long for a table cell.
    fn detail_sentences(&self) -> impl Iterator<Item = String> {
        let flushed = self.flushed.iter().map(|(cause, count)| format!("{} {count}", cause.text()));
        let unbatched = self.sent_unbatched.iter().map(|(cause, count)| format!("{} {count}", cause.text()));
        let costs = self.unbatched_ns.zip(self.batched_ns);
        let is_lost = self.refused > 0 || self.lost > 0;
        let words = [
            comma_separated(flushed).map(|words| format!("bursts ended by: {words}")),
            comma_separated(unbatched).map(|words| format!("sent unbatched: {words}")),
            costs.map(|(unbatched, batched)| {
                format!("measured: {unbatched} ns a datagram unbatched, {batched} ns in bursts")
            }),
            self.batching_stopped_cause.map(|cause| format!("batching stopped: {cause}")),
            is_lost.then(|| {
                format!("{} refused and {} lost after success was returned", self.refused, self.lost)
            }),
        ];
        let subject = format!("{} ({})", print::replace_all_control_characters(&self.program), self.process);
        words.into_iter().flatten().map(move |words| format!("{subject}: {words}"))
    }
}

pub(super) fn socket_table_text(rows: &[SocketRow]) -> String {
    let header = [
        "process",
        "program",
        "peer",
        "datagram bytes",
        "batched",
        "bursts",
        "datagrams a burst",
        "sent unbatched",
    ];
    let mut text = Table::new(&header, 3..8, rows.iter().map(SocketRow::table_cells).collect()).text();
    for words in rows.iter().flat_map(SocketRow::detail_sentences) {
        text += &format!("{words}\n");
    }
    text
}

/// Further notes for the user.
pub(super) fn socket_notes(sockets: &SharedSockets) -> Vec<String> {
    let left_out = (sockets.left_out > 0)
        .then(|| format!("{} more UDP sockets, which are counted together as '(others)'", sockets.left_out));
    let confined = (sockets.confined > 0).then(|| {
        format!(
            "{} of {} programs filter their system calls (seccomp): from then on nothing was batched in them",
            sockets.confined, sockets.programs
        )
    });
    left_out.into_iter().chain(confined).collect()
}

fn nonzero_counts<C: Copy>(counts: &[(C, u64)]) -> Vec<(C, u64)> {
    counts.iter().copied().filter(|(_, count)| *count > 0).collect()
}

fn serialize_as_map<C: Serialize, S: Serializer>(
    counts: &[(C, u64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counts.iter().map(|(cause, count)| (cause, count)))
}

fn comma_separated(parts: impl Iterator<Item = String>) -> Option<String> {
    Some(parts.collect::<Vec<_>>().join(", ")).filter(|words| !words.is_empty())
}

#[cfg(test)]
mod tests {
    use nocopy_proto::run::sockets::BatchingStopCause;

    use super::*;

    fn example_socket() -> SocketRecord {
        SocketRecord {
            process: 4711,
            program: "sen\x1b[1md\ner".into(),
            peer: Some("192.0.2.1:9".parse().unwrap()),
            datagram_bytes: 1400,
            joined: 92,
            bursts: 2,
            refused: 0,
            lost: 3,
            alone: Some(BatchingStopCause::Slower),
            left_alone: 1,
            cost_ns: Some((900, 70)),
            flushed: vec![(Flush::Full, 1), (Flush::Deadline, 1), (Flush::Close, 0)],
            plain: vec![(UnbatchedCause::NoRun, 8), (UnbatchedCause::First, 2)],
        }
    }

    #[test]
    fn the_report_has_a_line_per_socket_and_reasons() {
        let text = socket_table_text(&[SocketRow::new(&example_socket())]);
        let lines: Vec<_> = text.lines().collect();
        let cells: Vec<_> = lines[1].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells[..2], ["4711", "sen\u{fffd}[1md\u{fffd}er"], "{text}");
        assert_eq!(cells[2..], ["192.0.2.1:9", "1400", "92", "2", "46", "10"], "{text}");
        let ends = |words: &str| lines.iter().any(|line| line.ends_with(words));
        assert!(ends("bursts ended by: full 1, the deadline 1"), "{text}");
        assert!(ends("sent unbatched: no run of equal datagrams 8, the first of a burst 2"), "{text}");
        assert!(ends("batching stopped: bursts were not faster than single sends"), "{text}");
        assert!(ends("0 refused and 3 lost after success was returned"), "{text}");
    }

    #[test]
    fn zeros_and_unknown_fields_are_absent_in_json() {
        let unknown =
            SocketRecord { peer: None, cost_ns: None, alone: None, datagram_bytes: 0, ..example_socket() };
        let json = serde_json::to_value(SocketRow::new(&unknown)).unwrap();
        assert_eq!(json["flushed"], serde_json::json!({"full": 1, "deadline": 1}));
        for field in ["peer", "datagram_bytes", "batching_stopped_cause", "unbatched_ns", "batched_ns"] {
            assert!(json.get(field).is_none(), "{json}");
        }
    }

    #[test]
    fn the_counter_file_can_be_neither_resized_nor_sealed() {
        let counts = CounterFile::new().unwrap();
        for bytes in [0, FILE_BYTES - 1, FILE_BYTES + 1] {
            assert_eq!(ftruncate(&counts.0, bytes as u64), Err(rustix::io::Errno::PERM), "{bytes} bytes");
        }
        assert_eq!(fcntl_add_seals(&counts.0, SealFlags::WRITE), Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn an_unused_counter_file_has_no_sockets() {
        let counts = CounterFile::new().unwrap();
        assert_eq!(counts.read_counters().unwrap(), SharedSockets::default());
        counts.0.write_all_at(&[0; 8], 0).unwrap();
        assert!(counts.read_counters().is_err(), "overwritten");
    }
}
