//! What packets are recorded to: files on a disk, or a program that reads them as they come.

use std::time::Duration;

use nocopy::integration::disk::SECTOR_BYTES;
use nocopy_report::input_file;

use crate::arguments::{RecordArguments, RecordFormat};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordingTarget {
    Disk,
    /// A pipe or device: each packet is passed on soon, and nothing is padded.
    Stream,
}

impl RecordingTarget {
    /// Known before anything is opened.
    pub(super) fn from_arguments(arguments: &RecordArguments) -> Self {
        let RecordArguments { output, rotate_size, rotate_time, .. } = arguments;
        let is_special = || std::fs::metadata(output).is_ok_and(|metadata| !metadata.is_file());
        match input_file::is_standard_stream(output)
            || rotate_size.is_none() && rotate_time.is_none() && is_special()
        {
            true => Self::Stream,
            false => Self::Disk,
        }
    }

    /// The length of pieces is a multiple of this.
    pub(super) fn alignment_bytes(self, format: RecordFormat) -> usize {
        match (self, format) {
            (Self::Disk, _) => SECTOR_BYTES,
            (Self::Stream, RecordFormat::Pcapng) => 4,
            (Self::Stream, RecordFormat::Payload) => 1,
        }
    }

    /// How long a packet may wait in a block of the kernel that is not full.
    pub(super) fn block_timeout(self) -> Duration {
        match self {
            Self::Disk => Duration::from_millis(100),
            Self::Stream => Duration::from_millis(20),
        }
    }

    /// The longest blocks of the kernel.
    pub(super) fn block_bytes_max(self) -> u64 {
        match self {
            Self::Disk => 1 << 20,
            // A block is used up at each timeout: of shorter ones there are more.
            Self::Stream => 1 << 18,
        }
    }

    /// How long collected packets wait for more.
    pub(super) fn collect_timeout(self) -> Duration {
        match self {
            Self::Disk => Duration::from_millis(200),
            Self::Stream => Duration::from_millis(20),
        }
    }
}
