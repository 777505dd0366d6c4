//! Finds capturing packet sockets: local captures on an interface see what a program sends by a packet
//! socket, but not what it sends by AF_XDP.

use std::fs;
use std::io;

/// Packet sockets of the thread's network namespace.
const LIST: &str = "/proc/thread-self/net/packet";

/// The protocol of sockets for every protocol (`ETH_P_ALL`); others never see sent frames.
const EVERYTHING: &str = "0003";

/// The inode of a packet socket, other than `own`, that would see what is sent on an interface. Errors: the
/// list cannot be read.
pub(super) fn find_local_capture(index: u32, own: u64) -> io::Result<Option<u64>> {
    Ok(find_capture_in_list(&fs::read_to_string(LIST)?, index, own))
}

/// Columns: `sk RefCnt Type Proto Iface R Rmem User Inode`; interface 0 means all interfaces.
fn find_capture_in_list(list: &str, index: u32, own: u64) -> Option<u64> {
    list.lines().skip(1).find_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(3);
        let sees_all = columns.next()? == EVERYTHING;
        let bound_to: u32 = columns.next()?.parse().ok()?;
        let inode: u64 = columns.nth(3)?.parse().ok()?;
        (sees_all && (bound_to == index || bound_to == 0) && inode != own).then_some(inode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKETS: &str = "\
sk               RefCnt Type Proto  Iface R Rmem   User   Inode
00000000f1d5a3c1 3      3    88cc   4     1 0      0      11
00000000a87e0b52 3      3    0003   4     1 0      0      12
00000000a87e0b53 3      3    0003   5     1 0      1000   13
00000000a87e0b54 3      3    0000   4     0 0      0      14
";

    #[test]
    fn only_sockets_that_capture_the_interface_are_found() {
        assert_eq!(find_capture_in_list(SOCKETS, 4, 0), Some(12));
        assert_eq!(find_capture_in_list(SOCKETS, 4, 12), None, "its own");
        assert_eq!(find_capture_in_list(SOCKETS, 6, 0), None);
        let all = format!("{SOCKETS}00000000a87e0b55 3 3 0003 0 1 0 0 15\n");
        assert_eq!(find_capture_in_list(&all, 6, 0), Some(15));
        assert_eq!(find_capture_in_list("", 4, 0), None);
    }

    #[test]
    fn the_list_of_packet_sockets_can_be_read() {
        find_local_capture(u32::MAX, 0).expect("a list");
    }
}
