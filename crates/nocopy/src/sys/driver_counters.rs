//! A driver's own counters (`ethtool -S`).

use std::io;
use std::ptr::NonNull;

use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};
use rustix::param::page_size;

use super::interface::{control_socket, ethtool_ioctl};

const ETHTOOL_GSTRINGS: u32 = 0x0000_001b;
const ETHTOOL_GSTATS: u32 = 0x0000_001d;
const ETHTOOL_GSSET_INFO: u32 = 0x0000_0037;
/// Which set of strings: the names of counters.
const ETH_SS_STATS: u32 = 1;
const NAME_BYTES: usize = 32;
/// More than any driver has; larger numbers are refused.
const COUNT_MAX: usize = 1 << 16;

/// `struct ethtool_sset_info` with room for one set.
#[repr(C)]
struct StringSetInfo {
    command: u32,
    reserved: u32,
    sets: u64,
    count: u32,
    padding: u32,
}

/// Name and value of each; empty if the driver keeps none.
pub(crate) fn driver_counters(name: &str) -> io::Result<Vec<(String, u64)>> {
    let socket = control_socket()?;
    let mut info = StringSetInfo {
        command: ETHTOOL_GSSET_INFO,
        reserved: 0,
        sets: 1 << ETH_SS_STATS,
        count: 0,
        padding: 0,
    };
    // SAFETY: `StringSetInfo` is the structure this command fills, with room for the one set it is asked for.
    match unsafe { ethtool_ioctl(&socket, name, (&raw mut info).cast()) } {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
        done => done?,
    }
    let count = info.count as usize;
    if info.sets == 0 || count == 0 || count > COUNT_MAX {
        return Ok(Vec::new());
    }
    // Command, set and length; command and length. Then the entries.
    let mut names = GuardedMemory::new(16 + count * NAME_BYTES)?;
    names.put_u32(4, ETHTOOL_GSTRINGS);
    names.put_u32(8, ETH_SS_STATS);
    let mut values = GuardedMemory::new(8 + count * size_of::<u64>())?;
    values.put_u32(0, ETHTOOL_GSTATS);
    // SAFETY: `struct ethtool_gstrings` (12 bytes, 4 in) and `struct ethtool_stats`, each with room for
    // `count` entries. The driver may have more by now: what does not fit runs into the guard, and the call
    // fails.
    unsafe {
        ethtool_ioctl(&socket, name, names.pointer(4))?;
        ethtool_ioctl(&socket, name, values.pointer(0))?;
    }
    let (names, values) = (&names.bytes()[16..], &values.bytes()[8..]);
    let name = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
    };
    let value = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight"));
    let pairs =
        names.chunks_exact(NAME_BYTES).map(name).zip(values.chunks_exact(size_of::<u64>()).map(value));
    Ok(pairs.filter(|(name, _)| !name.is_empty()).collect())
}

/// Zeroed memory that ends at an inaccessible page: ethtool's calls write as much as the driver has at that
/// moment, whatever was asked for.
struct GuardedMemory {
    base: NonNull<u8>,
    mapped_bytes: usize,
    bytes: usize,
}

impl GuardedMemory {
    fn new(bytes: usize) -> io::Result<Self> {
        assert!(bytes.is_multiple_of(8), "aligned for what lies in it, from its end");
        let usable_bytes = bytes.next_multiple_of(page_size());
        let mapped_bytes = usable_bytes + page_size();
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping at an address of the kernel's choosing overlaps nothing.
        let base = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), mapped_bytes, prot, flags)? };
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never returns null");
        let guarded = Self { base, mapped_bytes, bytes };
        // SAFETY: the last page of the mapping just made, which holds nothing.
        unsafe { mm::mprotect(base.as_ptr().add(usable_bytes).cast(), page_size(), MprotectFlags::empty())? };
        Ok(guarded)
    }

    /// Pointer to byte `at`, counted so that the last byte is before the guard.
    fn pointer(&mut self, at: usize) -> *mut libc::c_char {
        assert!(at <= self.bytes);
        let start = self.mapped_bytes - page_size() - self.bytes;
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().add(start + at).cast() }
    }

    fn put_u32(&mut self, at: usize, value: u32) {
        assert!(at + 4 <= self.bytes);
        // SAFETY: within the usable part; written unaligned.
        unsafe { self.pointer(at).cast::<u32>().write_unaligned(value) }
    }

    fn bytes(&self) -> &[u8] {
        let start = self.mapped_bytes - page_size() - self.bytes;
        // SAFETY: the usable part of the mapping, initialised (zeroed) and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(start), self.bytes) }
    }
}

impl Drop for GuardedMemory {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped. A failure would leak it, which harms nobody.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn veth_has_queue_counters_and_loopback_none() {
        let Some(lab) = nocopy_lab::Lab::builder().queues(2).build_or_skip() else { return };
        lab.left().namespace().run(|| {
            let counters = driver_counters(lab.left().interface()).unwrap();
            for name in ["peer_ifindex", "rx_queue_0_xdp_packets", "rx_queue_1_xdp_packets"] {
                assert!(counters.iter().any(|(found, _)| found == name), "{name} in {counters:?}");
            }
            assert_eq!(counters[0], ("peer_ifindex".into(), lab.right().index().into()));
            assert_eq!(driver_counters("lo").unwrap(), []);
            assert_eq!(driver_counters("nope0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        });
    }

    #[test]
    fn an_answer_longer_than_its_buffer_is_an_error() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        lab.left().namespace().run(|| {
            let mut small = GuardedMemory::new(8 + 8).unwrap();
            small.put_u32(0, ETHTOOL_GSTATS);
            // SAFETY: as above; veth has more than the one counter there is room for.
            let error = unsafe {
                ethtool_ioctl(&control_socket().unwrap(), lab.left().interface(), small.pointer(0))
            };
            assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EFAULT));
        });
    }
}
