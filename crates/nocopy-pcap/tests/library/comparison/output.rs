//! What a program left behind: the files of its directory, read.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use super::frames::LAST_PORT;

#[derive(Debug)]
pub(crate) struct ProgramOutput {
    name: String,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// Files by name, with the output as `stdout` and `stderr`.
    pub(crate) files: BTreeMap<String, Content>,
}

#[derive(Debug)]
pub(crate) enum Content {
    Text(Vec<String>),
    Savefile(Savefile),
}

/// A file of libpcap's format, or of packets in pcapng.
#[derive(Debug)]
pub(crate) struct Savefile {
    /// Byte order, resolution, snapshot length, link type; empty for pcapng, whose header depends on the run.
    pub(crate) header: Vec<u8>,
    pub(crate) packets: Vec<Packet>,
}

#[derive(Clone)]
pub(crate) struct Packet {
    /// Of the second, in the file's unit.
    pub(crate) fraction: u32,
    pub(crate) wire_bytes: u32,
    pub(crate) bytes: Vec<u8>,
}

/// Compares everything but the time: each library's socket gets the packet at a different one.
impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        (self.wire_bytes, &self.bytes) == (other.wire_bytes, &other.bytes)
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = &self.bytes[..self.bytes.len().min(64)];
        write!(formatter, "{} of {} bytes: {start:02x?}", self.bytes.len(), self.wire_bytes)
    }
}

const HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 16;
/// Blocks of pcapng: the first, and one with a packet.
const SECTION: u32 = 0x0a0d_0d0a;
const PACKET: u32 = 6;
/// Of this machine's byte order.
const MAGIC: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];

impl ProgramOutput {
    pub(crate) fn read(name: &str, directory: &Path) -> Self {
        let files = fs::read_dir(directory).unwrap().map(|entry| {
            let entry = entry.unwrap();
            // One that is being renamed is not there.
            let bytes = fs::read(entry.path()).unwrap_or_default();
            (entry.file_name().into_string().unwrap(), Content::read(&bytes))
        });
        Self { name: name.into(), code: None, signal: None, files: files.collect() }
    }

    /// How many of the last frames it shows: one is sent in each direction.
    pub(crate) fn last_frames(&self) -> usize {
        self.files.values().map(Content::last_frames).sum()
    }

    /// Leaves out how many packets were received, which may be more than were asked for.
    pub(crate) fn remove_received_count(&mut self) {
        if let Some(Content::Text(lines)) = self.files.get_mut("stderr") {
            lines.retain(|line| !line.contains("received"));
        }
    }

    pub(crate) fn packets(&self) -> Vec<Packet> {
        let savefiles = self.files.values().filter_map(|content| match content {
            Content::Savefile(savefile) => Some(savefile.packets.clone()),
            Content::Text(_) => None,
        });
        savefiles.flatten().collect()
    }

    pub(crate) fn lines(&self, file: &str) -> &[String] {
        match self.files.get(file) {
            Some(Content::Text(lines)) => lines,
            _ => &[],
        }
    }

    pub(crate) fn counted(&self, words: &str) -> u64 {
        let line = self.lines("stderr").iter().find(|line| line.ends_with(words));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.unwrap_or_else(|| panic!("no '{words}': {self}"))
    }
}

impl fmt::Display for ProgramOutput {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: exit code {:?}, signal {:?}", self.name, self.code, self.signal)?;
        for (name, content) in &self.files {
            match content {
                Content::Text(lines) => {
                    let all = lines.iter().rev().take(12).rev();
                    all.into_iter().try_for_each(|line| write!(formatter, "\n  {name}: {line}"))?;
                }
                Content::Savefile(savefile) => {
                    write!(formatter, "\n  {name}: {} packets", savefile.packets.len())?;
                }
            }
        }
        Ok(())
    }
}

impl Content {
    fn read(bytes: &[u8]) -> Self {
        match Savefile::read(bytes).or_else(|| Savefile::read_pcapng(bytes)) {
            Some(savefile) => Self::Savefile(savefile),
            None => Self::Text(lines(&String::from_utf8_lossy(bytes))),
        }
    }

    fn last_frames(&self) -> usize {
        match self {
            Self::Savefile(savefile) => savefile.packets.iter().filter(|packet| packet.is_last()).count(),
            Self::Text(lines) => {
                let port = LAST_PORT.to_string();
                lines.iter().filter(|line| line.contains(&port) && line.contains("10.77.0.")).count()
            }
        }
    }

    /// The first difference, in words.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        match (self, other) {
            (Self::Text(first), Self::Text(second)) => differing("line", first, second),
            (Self::Savefile(first), Self::Savefile(second)) if first.header != second.header => {
                Some(format!("headers {:x?} and {:x?}", first.header, second.header))
            }
            (Self::Savefile(first), Self::Savefile(second)) => {
                differing("packet", &first.packets, &second.packets)
            }
            (first, second) => Some(format!("a text and a savefile: {first:?} {second:?}")),
        }
    }
}

fn differing<T: PartialEq + fmt::Debug>(what: &str, first: &[T], second: &[T]) -> Option<String> {
    let index = (0..first.len().max(second.len())).find(|&index| first.get(index) != second.get(index))?;
    let [one, other] = [first, second].map(|all| format!("{:?}", all.get(index)));
    let counts = [first.len(), second.len()];
    Some(format!("{what} {index} of {counts:?} differs:\n    {one}\n    {other}"))
}

/// Without what is of one run: its progress, and lines with its process and the time.
fn lines(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.rsplit('\r').next().unwrap_or(line));
    lines.filter(|line| !line.starts_with(" ** (")).map(String::from).collect()
}

impl Savefile {
    /// Parses the complete part of a savefile; `None` if it is not one.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (header, mut rest) = bytes.split_at_checked(HEADER_BYTES)?;
        if !MAGIC.contains(&word(header, 0)) {
            return None;
        }
        let mut packets = Vec::new();
        while let Some((record, after)) = rest.split_at_checked(RECORD_BYTES) {
            let Some((bytes, after)) = after.split_at_checked(word(record, 2) as usize) else { break };
            let (fraction, wire_bytes) = (word(record, 1), word(record, 3));
            packets.push(Packet { fraction, wire_bytes, bytes: bytes.into() });
            rest = after;
        }
        Some(Self { header: header.into(), packets })
    }

    /// As `read`, for a pcapng file.
    fn read_pcapng(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER_BYTES || word(bytes, 0) != SECTION {
            return None;
        }
        let (mut packets, mut rest) = (Vec::new(), bytes);
        // Its kind, its length, and what is in it.
        while rest.len() >= 8
            && let Some((block, after)) = rest.split_at_checked(word(rest, 1) as usize)
        {
            if word(block, 0) == PACKET {
                let (fraction, kept_bytes, wire_bytes) = (word(block, 4), word(block, 5), word(block, 6));
                packets.push(Packet {
                    fraction,
                    wire_bytes,
                    bytes: block[28..28 + kept_bytes as usize].into(),
                });
            }
            rest = after;
        }
        Some(Self { header: Vec::new(), packets })
    }
}

fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_ne_bytes(bytes[4 * index..4 * index + 4].try_into().expect("four"))
}

impl Packet {
    fn is_last(&self) -> bool {
        // Of Ethernet, IPv4 without options, and UDP.
        self.bytes.get(36..38) == Some(&LAST_PORT.to_be_bytes())
    }
}
