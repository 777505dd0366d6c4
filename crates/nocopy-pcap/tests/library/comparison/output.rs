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
    pub(crate) files: BTreeMap<String, FileContent>,
}

#[derive(Debug)]
pub(crate) enum FileContent {
    Text(Vec<String>),
    Savefile(Savefile),
}

/// A file of libpcap's format, or of packets in pcapng.
#[derive(Debug)]
pub(crate) struct Savefile {
    /// Byte order, resolution, snapshot length, link type; empty for pcapng, whose header depends on the run.
    pub(crate) header: Vec<u8>,
    pub(crate) packets: Vec<SavedPacket>,
}

#[derive(Clone)]
pub(crate) struct SavedPacket {
    /// Of the second, in the file's unit.
    pub(crate) fraction: u32,
    pub(crate) wire_bytes: u32,
    pub(crate) bytes: Vec<u8>,
}

/// Compares everything but the time: each library's socket gets the packet at a different one.
impl PartialEq for SavedPacket {
    fn eq(&self, other: &Self) -> bool {
        (self.wire_bytes, &self.bytes) == (other.wire_bytes, &other.bytes)
    }
}

impl fmt::Debug for SavedPacket {
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
    pub(crate) fn read_directory(name: &str, directory: &Path) -> Self {
        let files = fs::read_dir(directory).unwrap().map(|entry| {
            let entry = entry.unwrap();
            // One that is being renamed is not there.
            let bytes = fs::read(entry.path()).unwrap_or_default();
            (entry.file_name().into_string().unwrap(), FileContent::parse(&bytes))
        });
        Self { name: name.into(), code: None, signal: None, files: files.collect() }
    }

    /// How many of the last frames it shows: one is sent in each direction.
    pub(crate) fn last_frame_count(&self) -> usize {
        self.files.values().map(FileContent::last_frame_count).sum()
    }

    /// Leaves out how many packets were received, which may be more than were asked for.
    pub(crate) fn remove_received_count(&mut self) {
        if let Some(FileContent::Text(lines)) = self.files.get_mut("stderr") {
            lines.retain(|line| !line.contains("received"));
        }
    }

    pub(crate) fn saved_packets(&self) -> Vec<SavedPacket> {
        let savefiles = self.files.values().filter_map(|content| match content {
            FileContent::Savefile(savefile) => Some(savefile.packets.clone()),
            FileContent::Text(_) => None,
        });
        savefiles.flatten().collect()
    }

    pub(crate) fn text_lines(&self, file: &str) -> &[String] {
        match self.files.get(file) {
            Some(FileContent::Text(lines)) => lines,
            _ => &[],
        }
    }

    pub(crate) fn printed_count(&self, words: &str) -> u64 {
        let line = self.text_lines("stderr").iter().find(|line| line.ends_with(words));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.unwrap_or_else(|| panic!("no '{words}': {self}"))
    }
}

impl fmt::Display for ProgramOutput {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: exit code {:?}, signal {:?}", self.name, self.code, self.signal)?;
        for (name, content) in &self.files {
            match content {
                FileContent::Text(lines) => {
                    let all = lines.iter().rev().take(12).rev();
                    all.into_iter().try_for_each(|line| write!(formatter, "\n  {name}: {line}"))?;
                }
                FileContent::Savefile(savefile) => {
                    write!(formatter, "\n  {name}: {} packets", savefile.packets.len())?;
                }
            }
        }
        Ok(())
    }
}

impl FileContent {
    fn parse(bytes: &[u8]) -> Self {
        match Savefile::parse(bytes).or_else(|| Savefile::parse_pcapng(bytes)) {
            Some(savefile) => Self::Savefile(savefile),
            None => Self::Text(comparable_lines(&String::from_utf8_lossy(bytes))),
        }
    }

    fn last_frame_count(&self) -> usize {
        match self {
            Self::Savefile(savefile) => {
                savefile.packets.iter().filter(|packet| packet.is_last_frame()).count()
            }
            Self::Text(lines) => {
                let port = LAST_PORT.to_string();
                lines.iter().filter(|line| line.contains(&port) && line.contains("10.77.0.")).count()
            }
        }
    }

    /// The first difference, in words.
    pub(crate) fn first_difference(&self, other: &Self) -> Option<String> {
        match (self, other) {
            (Self::Text(first), Self::Text(second)) => first_difference_in("line", first, second),
            (Self::Savefile(first), Self::Savefile(second)) if first.header != second.header => {
                Some(format!("headers {:x?} and {:x?}", first.header, second.header))
            }
            (Self::Savefile(first), Self::Savefile(second)) => {
                first_difference_in("packet", &first.packets, &second.packets)
            }
            (first, second) => Some(format!("a text and a savefile: {first:?} {second:?}")),
        }
    }
}

fn first_difference_in<T: PartialEq + fmt::Debug>(what: &str, first: &[T], second: &[T]) -> Option<String> {
    let index = (0..first.len().max(second.len())).find(|&index| first.get(index) != second.get(index))?;
    let [one, other] = [first, second].map(|all| format!("{:?}", all.get(index)));
    let counts = [first.len(), second.len()];
    Some(format!("{what} {index} of {counts:?} differs:\n    {one}\n    {other}"))
}

/// Without what is of one run: its progress, and lines with its process and the time.
fn comparable_lines(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.rsplit('\r').next().unwrap_or(line));
    lines.filter(|line| !line.starts_with(" ** (")).map(String::from).collect()
}

impl Savefile {
    /// Parses the complete part of a savefile; `None` if it is not one.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, mut rest) = bytes.split_at_checked(HEADER_BYTES)?;
        if !MAGIC.contains(&u32_at(header, 0)) {
            return None;
        }
        let mut packets = Vec::new();
        while let Some((record, after)) = rest.split_at_checked(RECORD_BYTES) {
            let Some((bytes, after)) = after.split_at_checked(u32_at(record, 2) as usize) else { break };
            let (fraction, wire_bytes) = (u32_at(record, 1), u32_at(record, 3));
            packets.push(SavedPacket { fraction, wire_bytes, bytes: bytes.into() });
            rest = after;
        }
        Some(Self { header: header.into(), packets })
    }

    /// As `parse`, for a pcapng file.
    fn parse_pcapng(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER_BYTES || u32_at(bytes, 0) != SECTION {
            return None;
        }
        let (mut packets, mut rest) = (Vec::new(), bytes);
        // Its kind, its length, and what is in it.
        while rest.len() >= 8
            && let Some((block, after)) = rest.split_at_checked(u32_at(rest, 1) as usize)
        {
            if u32_at(block, 0) == PACKET {
                let (fraction, kept_bytes, wire_bytes) =
                    (u32_at(block, 4), u32_at(block, 5), u32_at(block, 6));
                packets.push(SavedPacket {
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

fn u32_at(bytes: &[u8], index: usize) -> u32 {
    u32::from_ne_bytes(bytes[4 * index..4 * index + 4].try_into().expect("four"))
}

impl SavedPacket {
    fn is_last_frame(&self) -> bool {
        // Of Ethernet, IPv4 without options, and UDP.
        self.bytes.get(36..38) == Some(&LAST_PORT.to_be_bytes())
    }
}
