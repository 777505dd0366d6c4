//! UDP sockets whose datagrams were joined to bursts: the library's file of counters, and the report of them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;

use nocopy_proto::run::sockets::{FILE_BYTES, MAGIC, Socket, Sockets};
use nocopy_report::print;
use nocopy_report::table::Table;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use serde::Serialize;
use serde_json::{Map, Value};

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
    pub(super) fn pass_on(&self, command: &mut Command) -> io::Result<()> {
        let inode = fstat(&self.0)?.st_ino;
        command.env("NOCOPY_BATCH_REPORT", format!("{}:{inode}", self.0.as_raw_fd()));
        Ok(())
    }

    pub(super) fn read(&self) -> io::Result<Sockets> {
        let mut bytes = vec![0; FILE_BYTES];
        self.0.read_exact_at(&mut bytes, 0)?;
        let malformed = || io::Error::other("the program has overwritten what the library counted");
        Sockets::parse(&bytes).ok_or_else(malformed)
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
    /// By reason, without zeros.
    flushed: Map<String, Value>,
    plain: Map<String, Value>,
    refused: u64,
    lost: u64,
    left_alone: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    alone_why: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plain_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batched_ns: Option<u64>,
}

impl SocketRow {
    pub(super) fn new(socket: &Socket) -> Self {
        Self {
            process: socket.process,
            program: socket.program.clone(),
            peer: socket.peer.map(|peer| peer.to_string()),
            datagram_bytes: Some(socket.datagram_bytes).filter(|bytes| *bytes > 0),
            batched: socket.joined,
            bursts: socket.bursts,
            flushed: nonzero(socket.flushed.iter().map(|(why, count)| (why.text(), *count))),
            plain: nonzero(socket.plain.iter().map(|(why, count)| (why.text(), *count))),
            refused: socket.refused,
            lost: socket.lost,
            left_alone: socket.left_alone,
            alone_why: socket.alone.map(|why| why.text()),
            plain_ns: socket.cost_ns.map(|(plain, _)| plain),
            batched_ns: socket.cost_ns.map(|(_, batched)| batched),
        }
    }

    fn cells(&self) -> Vec<String> {
        let plain: u64 = self.plain.values().filter_map(Value::as_u64).fold(0, u64::saturating_add);
        let a_burst = self.batched.checked_div(self.bursts).map_or("-".into(), |count| count.to_string());
        vec![
            self.process.to_string(),
            print::one_line(&self.program),
            self.peer.clone().unwrap_or("-".into()),
            self.datagram_bytes.map_or("-".into(), |bytes| bytes.to_string()),
            self.batched.to_string(),
            self.bursts.to_string(),
            a_burst,
            plain.to_string(),
        ]
    }

    /// Sentences that are too long for a table cell.
    fn details(&self) -> impl Iterator<Item = String> {
        let list = |counts: &Map<String, Value>| {
            let parts: Vec<_> = counts.iter().map(|(why, count)| format!("{why} {count}")).collect();
            Some(parts.join(", ")).filter(|words| !words.is_empty())
        };
        let costs = self.plain_ns.zip(self.batched_ns);
        let is_lost = self.refused > 0 || self.lost > 0;
        let words = [
            list(&self.flushed).map(|words| format!("bursts ended by: {words}")),
            list(&self.plain).map(|words| format!("sent alone: {words}")),
            costs.map(|(plain, batched)| {
                format!("measured: {plain} ns a datagram alone, {batched} ns in bursts")
            }),
            self.alone_why.map(|why| format!("left alone: {why}")),
            is_lost.then(|| {
                format!(
                    "{} refused and {} lost after the program was told that they are sent",
                    self.refused, self.lost
                )
            }),
        ];
        let subject = format!("{} ({})", print::one_line(&self.program), self.process);
        words.into_iter().flatten().map(move |words| format!("{subject}: {words}"))
    }
}

pub(super) fn text(rows: &[SocketRow]) -> String {
    let header = [
        "process",
        "program",
        "peer",
        "datagram bytes",
        "batched",
        "bursts",
        "datagrams a burst",
        "sent alone",
    ];
    let mut text = Table::new(&header, 3..8, rows.iter().map(SocketRow::cells).collect()).text();
    for words in rows.iter().flat_map(SocketRow::details) {
        text += &format!("{words}\n");
    }
    text
}

/// Further notes for the user.
pub(super) fn notes(sockets: &Sockets) -> Vec<String> {
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

fn nonzero(counts: impl Iterator<Item = (&'static str, u64)>) -> Map<String, Value> {
    counts.filter(|(_, count)| *count > 0).map(|(why, count)| (why.to_owned(), count.into())).collect()
}

#[cfg(test)]
mod tests {
    use nocopy_proto::run::sockets::{Alone, Flush, Plain};

    use super::*;

    fn socket() -> Socket {
        Socket {
            process: 4711,
            program: "sen\x1b[1md\ner".into(),
            peer: Some("192.0.2.1:9".parse().unwrap()),
            datagram_bytes: 1400,
            joined: 92,
            bursts: 2,
            refused: 0,
            lost: 3,
            alone: Some(Alone::Slower),
            left_alone: 1,
            cost_ns: Some((900, 70)),
            flushed: vec![(Flush::Full, 1), (Flush::Deadline, 1), (Flush::Close, 0)],
            plain: vec![(Plain::NoRun, 8), (Plain::First, 2)],
        }
    }

    #[test]
    fn the_report_has_a_line_per_socket_and_reasons() {
        let text = text(&[SocketRow::new(&socket())]);
        let lines: Vec<_> = text.lines().collect();
        let cells: Vec<_> = lines[1].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells[..2], ["4711", "sen\u{fffd}[1md\u{fffd}er"], "{text}");
        assert_eq!(cells[2..], ["192.0.2.1:9", "1400", "92", "2", "46", "10"], "{text}");
        let ends = |words: &str| lines.iter().any(|line| line.ends_with(words));
        assert!(ends("bursts ended by: full 1, the deadline 1"), "{text}");
        assert!(ends("sent alone: no run of equal datagrams 8, the first of a burst 2"), "{text}");
        assert!(ends("left alone: bursts were not faster than plain sends"), "{text}");
        assert!(ends("0 refused and 3 lost after the program was told that they are sent"), "{text}");
    }

    #[test]
    fn zeros_and_unknown_fields_are_absent_in_json() {
        let unknown = Socket { peer: None, cost_ns: None, alone: None, datagram_bytes: 0, ..socket() };
        let json = serde_json::to_value(SocketRow::new(&unknown)).unwrap();
        assert_eq!(json["flushed"], serde_json::json!({"full": 1, "the deadline": 1}));
        for field in ["peer", "datagram_bytes", "alone_why", "plain_ns", "batched_ns"] {
            assert!(json.get(field).is_none(), "{json}");
        }
    }

    #[test]
    fn the_length_of_the_file_is_sealed() {
        let counts = CounterFile::new().unwrap();
        for bytes in [0, FILE_BYTES - 1, FILE_BYTES + 1] {
            assert_eq!(ftruncate(&counts.0, bytes as u64), Err(rustix::io::Errno::PERM), "{bytes} bytes");
        }
        assert_eq!(fcntl_add_seals(&counts.0, SealFlags::WRITE), Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn an_unused_file_has_no_sockets() {
        let counts = CounterFile::new().unwrap();
        assert_eq!(counts.read().unwrap(), Sockets::default());
        counts.0.write_all_at(&[0; 8], 0).unwrap();
        assert!(counts.read().is_err(), "overwritten");
    }
}
