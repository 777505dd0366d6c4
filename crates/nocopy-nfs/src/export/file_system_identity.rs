//! What a file system is known by: of what stays with it, the first that there is.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::Hasher;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nocopy::integration::FileSystemId;
use nocopy_report::quantity::parse_digits;
use rustix::fs::{CWD, FileType, Mode, OFlags, Statx, fstatfs, fstatvfs, openat};
use rustix::io::Errno;

use super::identity::device_number;
use super::magic_numbers::{BCACHEFS, BTRFS, EXFAT, EXT, FAT, JFS, OVERLAY, TMPFS, ZFS};
use super::{descriptor_path, file};

/// The number that statfs(2) returns comes from the UUID: on others, as XFS, it is the device number. On
/// Btrfs each subvolume has its own.
const NUMBERED_BY_UUID: [u32; 5] = [EXT, BTRFS, ZFS, BCACHEFS, JFS];

/// The name of a file system that the user has given: a number, or a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemName(pub(super) u64);

impl FromStr for FileSystemName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = match text {
            "root" => Some(0),
            text if text.contains('-') && !text.starts_with('-') => uuid_number(text),
            text => parse_digits(text).or_else(|| uuid_number(text).filter(|_| text.len() == 32)),
        };
        number.map(Self).ok_or("not a number or a UUID, such as 7 or f3a10001-0203-0405-0607-08090a0b0c0d")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileSystemIdentity {
    /// By the user.
    Name(u64),
    /// What is on its disk.
    Disk { kind: u32, number: u64 },
    /// What a file system in memory got when it was mounted.
    Memory(u64),
    /// Nothing that stays: the boot of the machine, the device, and which disk that is by now.
    Boot { boot: String, device: u64, disk: String },
}

/// A mount that this process sees.
#[derive(Debug)]
pub(super) struct Mount {
    id: u64,
    pub(super) point: PathBuf,
}

impl FileSystemIdentity {
    /// What the file system of an open file is known by.
    ///
    /// # Errors
    /// For want of descriptors or memory that cannot be found out.
    pub(super) fn of_open_file(
        file: impl AsFd,
        stat: &Statx,
        mount: Option<&Mount>,
    ) -> rustix::io::Result<Self> {
        let (file, kind) = (file.as_fd(), file_system_magic(&file)?);
        let number = fstatvfs(file)?.f_fsid;
        if number != 0 && kind == TMPFS {
            return Ok(Self::Memory(number));
        }
        if number != 0 && NUMBERED_BY_UUID.contains(&kind) {
            return Ok(Self::Disk { kind, number });
        }
        if kind != OVERLAY || !is_overlay_layer_file(stat, mount) {
            let opened = open_on_same_file_system(file, stat, mount)?;
            let id = opened.and_then(|opened| FileSystemId::of(opened, kind == FAT));
            let id = id.map(|id| match id {
                FileSystemId::Uuid(uuid) => folded_uuid(uuid),
                FileSystemId::Fat(number) => number.into(),
            });
            if let Some(number) = id.or_else(|| udev_uuid_number(stat)) {
                return Ok(Self::Disk { kind, number });
            }
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Ok(Self::Boot { boot, device: device_number(stat), disk: disk_sequence(stat) })
    }

    /// When it is known no more, in words; `None` if it always is.
    pub(super) fn expiry_text(&self) -> Option<&'static str> {
        match self {
            Self::Name(_) | Self::Disk { .. } => None,
            Self::Memory(_) => Some("is unmounted: it is in memory"),
            Self::Boot { .. } => Some(
                "is unmounted, or the machine is restarted: it has no UUID that can be read; name it by --fsid",
            ),
        }
    }

    pub(super) fn hash_into(&self, hasher: &mut impl Hasher) {
        let (tag, words, texts) = match self {
            Self::Name(number) => (0, [0, *number], ["", ""]),
            Self::Disk { kind, number } => (1, [(*kind).into(), *number], ["", ""]),
            Self::Memory(number) => (2, [0, *number], ["", ""]),
            Self::Boot { boot, device, disk } => (3, [0, *device], [&**boot, disk]),
        };
        hasher.write(&[tag]);
        words.iter().for_each(|word| hasher.write(&word.to_be_bytes()));
        texts.iter().for_each(|text| hasher.write(text.as_bytes()));
    }
}

impl Mount {
    pub(super) fn of_open_file(file: impl AsFd) -> Option<Self> {
        let stat = format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd());
        let stat = fs::read_to_string(stat).ok()?;
        let id = stat.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()?;
        let all = fs::read("/proc/self/mountinfo").ok()?;
        let point = all.split(|byte| *byte == b'\n').find_map(|line| parse_mount_point(line, id))?;
        Some(Self { id, point })
    }
}

/// The place of a mount in its line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
fn parse_mount_point(line: &[u8], id: u64) -> Option<PathBuf> {
    let mut words = line.split(|byte| *byte == b' ');
    let number: u64 = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    let point = words.nth(3).filter(|_| number == id)?;
    let (mut rest, mut path) = (point, Vec::with_capacity(point.len()));
    while let Some((&byte, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| byte == b'\\');
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        path.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { &behind[3..] } else { behind };
    }
    Some(OsString::from_vec(path).into())
}

/// FAT and exFAT have no inode numbers: the kernel numbers the files that it has in memory.
pub(super) fn has_volatile_inodes(file: impl AsFd) -> rustix::io::Result<bool> {
    Ok([FAT, EXFAT].contains(&file_system_magic(file)?))
}

fn file_system_magic(file: impl AsFd) -> rustix::io::Result<u32> {
    // The type of the field differs between processors.
    Ok(fstatfs(file)?.f_type as u32)
}

fn is_directory(stat: &Statx) -> bool {
    FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory
}

/// Whether overlayfs shows a file of a layer with a device number that is neither its own nor that of a disk:
/// of several layers, these numbers may be exchanged the next time.
fn is_overlay_layer_file(stat: &Statx, mount: Option<&Mount>) -> bool {
    let top = || openat(CWD, &mount?.point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
    let is_own = || {
        top()
            .and_then(|top| file::stat(top).ok())
            .is_some_and(|top| device_number(&top) == device_number(stat))
    };
    !is_directory(stat) && !is_own()
}

/// An open file of the same file system, to be asked: never a device or a FIFO.
fn open_on_same_file_system(
    file: BorrowedFd<'_>,
    stat: &Statx,
    mount: Option<&Mount>,
) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |at: BorrowedFd<'_>, path: &Path, flags| match openat(at, path, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(error),
        Err(_) => Ok(None),
    };
    if is_directory(stat) {
        return open(file, Path::new("."), flags | OFlags::DIRECTORY);
    }
    // The top of its mount, unless another one hides that.
    if let Some(mount) = mount
        && let Some(top) = open(CWD, &mount.point, flags | OFlags::DIRECTORY)?
        && Mount::of_open_file(&top).is_some_and(|found| found.id == mount.id)
    {
        return Ok(Some(top));
    }
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
        return Ok(None);
    }
    let link = descriptor_path(file.as_raw_fd());
    open(CWD, Path::new(OsStr::from_bytes(link.to_bytes())), flags)
}

/// The UUID that udev has read from a disk (`ID_FS_UUID`): of FAT, ISO 9660 and others, and before Linux 6.9.
fn udev_uuid_number(stat: &Statx) -> Option<u64> {
    let known = format!("/run/udev/data/b{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    let known = fs::read(known).ok()?;
    let known = String::from_utf8_lossy(&known);
    uuid_number(known.lines().find_map(|line| line.strip_prefix("E:ID_FS_UUID="))?)
}

/// The number of a UUID, or of the shorter numbers that some file systems have instead.
pub(super) fn uuid_number(uuid: &str) -> Option<u64> {
    let digits: String = uuid.chars().filter(|one| *one != '-').collect();
    match digits.len() {
        _ if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => None,
        1..=16 => u64::from_str_radix(&digits, 16).ok(),
        32 => Some(folded_uuid(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())),
        _ => None,
    }
}

/// As the kernel does it for statfs(2) (`uuid_to_fsid`).
fn folded_uuid(uuid: [u8; 16]) -> u64 {
    let [low, high] = [0, 8].map(|at| u64::from_le_bytes(uuid[at..at + 8].try_into().expect("eight bytes")));
    low ^ high
}

/// Which disk the device is by now: another one in a loop device has another number (`diskseq`, since Linux
/// 5.15).
fn disk_sequence(stat: &Statx) -> String {
    let device = format!("/sys/dev/block/{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    let read = |name: &str| fs::read_to_string(format!("{device}/{name}"));
    read("diskseq").or_else(|_| read("../diskseq")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::tests::Scene;
    use super::super::{Caller, Export};
    use super::*;
    use crate::wire::nfs3::Status;

    #[test]
    fn uuid_text_and_bytes_give_the_same_number() {
        let uuid = [0xf3, 0xa1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];
        let written = "F3A10001-0203-0405-0607-08090a0b0c0d";
        assert_eq!(uuid_number(written), Some(folded_uuid(uuid)));
        assert_eq!(uuid_number("ABCD-1234"), Some(0xabcd_1234), "of FAT");
        for other in ["", "-", "no number", "+BCD-1234", "f3a10001-0203-0405-0607-08090a0b0c0dd"] {
            assert_eq!(uuid_number(other), None, "{other}");
        }
    }

    #[test]
    fn mount_points_are_parsed() {
        let line =
            br"36 35 98:0 /mnt1 /mnt/a\040b\134c rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(parse_mount_point(line, 36), Some(PathBuf::from(r"/mnt/a b\c")));
        assert_eq!((parse_mount_point(line, 35), parse_mount_point(b"", 36)), (None, None));
        assert_eq!(
            Mount::of_open_file(fs::File::open("/proc/self").unwrap()).unwrap().point,
            Path::new("/proc")
        );
    }

    #[test]
    fn different_identities_have_different_hashes() {
        let boot = |boot: &str, disk: &str| FileSystemIdentity::Boot {
            boot: boot.into(),
            device: 5,
            disk: disk.into(),
        };
        let all = [
            FileSystemIdentity::Name(5),
            FileSystemIdentity::Disk { kind: 0, number: 5 },
            FileSystemIdentity::Disk { kind: EXT, number: 5 },
            FileSystemIdentity::Memory(5),
            boot("one\n", "1\n"),
            boot("other\n", "1\n"),
            boot("one\n", "2\n"),
        ];
        let mut numbers: Vec<u64> = all
            .iter()
            .map(|known| {
                let mut hasher = siphasher::sip::SipHasher24::new();
                known.hash_into(&mut hasher);
                hasher.finish()
            })
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all.len());
    }

    #[test]
    fn file_systems_are_identified_by_the_given_name() {
        let scene = Scene::new();
        let open = |name: Option<&str>| {
            let name = name.map(|name| name.parse().unwrap());
            Export::open_named(&scene.path("exported"), Some(&scene.path("state")), name).unwrap()
        };
        let export = open(Some("7"));
        let known = export.walk(&Caller::Server, Path::new("below/file")).unwrap();
        export.save_index().unwrap();
        drop(export);
        assert_eq!(open(Some("7")).file_by_handle(&known).map(drop), Ok(()));
        assert!(open(Some("7")).handle_expiry_text().is_none());
        for other in [None, Some("8"), Some("f3a10001-0203-0405-0607-08090a0b0c0d")] {
            assert_eq!(open(other).file_by_handle(&known).map(drop), Err(Status::Stale), "{other:?}");
        }
        assert!(
            ["", "x", "-1", "+7", "7 ", "+3a10001-0203-0405-0607-08090a0b0c0d"]
                .iter()
                .all(|name| name.parse::<FileSystemName>().is_err())
        );
    }
}
