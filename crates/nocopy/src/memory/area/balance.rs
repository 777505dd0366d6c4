//! Counts of an area's frames by where they are.

use std::fmt;

/// The account of an area's frames. Each term is counted separately, where frames change owners, and none is
/// derived from the others, so that [`Balance::is_balanced`] really detects lost or doubled frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Balance {
    /// Frames in the area.
    pub total: u32,
    /// Free frames: in a pool, returning to one, or in no pool.
    pub free: u64,
    /// Frames the program holds.
    pub in_use: i64,
    /// Frames lent to the kernel to receive into.
    pub lent_rx: u64,
    /// Frames lent to the kernel to send.
    pub lent_tx: u64,
    /// Frames that a zero-copy device still had when its port was closed; they are not used again while the
    /// area exists.
    pub retired: u32,
}

impl Balance {
    /// Whether every frame is accounted for exactly once. Reliable only while the halves are idle, since the
    /// terms are read one by one.
    pub fn is_balanced(&self) -> bool {
        let counted = i128::from(self.free)
            + i128::from(self.in_use)
            + i128::from(self.lent_rx)
            + i128::from(self.lent_tx)
            + i128::from(self.retired);
        counted == i128::from(self.total)
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total, free, in_use, lent_rx, lent_tx, retired } = self;
        write!(
            f,
            "{total} frames: {free} free, {in_use} in use, {lent_rx} lent to receive, {lent_tx} lent to send"
        )?;
        if *retired > 0 {
            write!(f, ", {retired} retired")?;
        }
        if self.is_balanced() { Ok(()) } else { f.write_str(" (does not add up)") }
    }
}
