//! The kernel's log, and what in it is a complaint.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

/// What the kernel says when it is wrong, or thinks that it is. Each with the case it is printed in.
const COMPLAINTS: &[&str] = &[
    "WARNING:",
    "BUG:",
    "BUG at",
    "Oops",
    "Call Trace:",
    "refcount_t:",
    "general protection fault",
    "unable to handle",
    "unregister_netdevice: waiting",
    CARD_HANG,
    "blocked for more than",
    "possible recursive locking",
    "possible circular locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "rcu: INFO:",
    "soft lockup",
    "hard LOCKUP",
    "UBSAN:",
    "KASAN:",
    "DMA-API:",
    "stack-protector:",
    "Bad page state",
    "Memory leak",
];

/// A card has not sent what it was given, for seconds.
const CARD_HANG: &str = "NETDEV WATCHDOG";

/// How many lines after a complaint belong to it.
const TRACE_LINES: usize = 40;

/// The lines of the kernel's log, from the first one on.
pub(crate) struct KernelLog {
    file: File,
}

impl KernelLog {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a small constant");
        Ok(Self { file: OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg")? })
    }

    /// What the kernel complained of since last asked.
    pub(crate) fn complaints(&mut self) -> io::Result<Vec<String>> {
        Ok(complaints(&self.lines()?))
    }

    fn lines(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut record = [0; 8192];
        loop {
            match self.file.read(&mut record) {
                Ok(bytes) => lines.extend(text(&String::from_utf8_lossy(&record[..bytes]))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(lines),
                // Records were overwritten before they were read; the next read goes on after them.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    lines.push("WARNING: the kernel's log overflowed, lines are missing".into());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The text of a record: `priority,sequence,microseconds,flags;text`, then lines of key=value.
fn text(record: &str) -> Option<String> {
    Some(record.split_once(';')?.1.lines().next()?.to_owned())
}

/// Whether nothing is complained of but a card that sent nothing for a while, and was reset.
pub(crate) fn is_hang_of_a_card(complaints: &[String]) -> bool {
    let mut complaints = complaints.iter().filter(|line| is_complaint(line)).peekable();
    complaints.peek().is_some() && complaints.all(|line| line.contains(CARD_HANG))
}

fn is_complaint(line: &str) -> bool {
    COMPLAINTS.iter().any(|words| line.contains(words))
}

fn complaints(lines: &[String]) -> Vec<String> {
    let mut left = 0;
    let mut found = Vec::new();
    for line in lines {
        if is_complaint(line) {
            left = TRACE_LINES;
        }
        if left > 0 {
            left -= 1;
            found.push(line.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_comes_with_its_trace_and_peace_is_silent() {
        let mut lines: Vec<String> = (0..100).map(|i| format!("line {i}")).collect();
        assert!(complaints(&lines).is_empty());
        lines[30] = "WARNING: CPU: 1 PID: 7 at net/xdp/xsk.c:1".into();
        let found = complaints(&lines);
        assert_eq!((found.len(), &found[0], &found[1]), (TRACE_LINES, &lines[30], &lines[31]));
    }

    #[test]
    fn a_card_that_stood_still_is_told_from_what_the_kernel_did_wrong() {
        let hang =
            "igb 0000:01:00.0 nc0: NETDEV WATCHDOG: CPU: 1: transmit queue 0 timed out 6512 ms".to_owned();
        let reset = "igb 0000:01:00.0 nc0: Reset adapter".to_owned();
        assert!(is_hang_of_a_card(&[hang.clone(), reset.clone()]));
        assert!(!is_hang_of_a_card(&[]) && !is_hang_of_a_card(&[reset]));
        assert!(!is_hang_of_a_card(&[hang, "BUG: kernel NULL pointer dereference".into()]));
    }

    #[test]
    fn a_record_is_its_text() {
        assert_eq!(text("4,1049,1975437,-;PCI: Using\n SUBSYSTEM=pci\n").unwrap(), "PCI: Using");
    }
}
