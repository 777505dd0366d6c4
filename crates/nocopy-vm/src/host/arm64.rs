//! Machines with arm64 processors, which QEMU emulates. All they have is a file system in memory: programs of
//! Debian's packages, the kernel's modules, and what was built for them, at the paths that it has on the
//! host.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use super::kernel::KernelTree;
use super::packages::{PackageArchive, PackageSuite};
use super::ramdisk::RamdiskWriter;
use super::{Error, LockedCache};
use crate::built::{self, BuiltPrograms};
use crate::event;
use crate::guest;
use crate::topology::Architecture;

/// The release that the machine's programs are of: one whose programs run with the C library of any host.
const RELEASE: &str = "bookworm";

/// Programs that tests and the lab start: modprobe, ip and tc, the compiler of filters, a shell.
const PACKAGES: &[&str] = &["kmod", "iproute2", "libpcap0.8", "busybox-static"];

/// The C library's directory in the cross compiler's packages of Debian and Ubuntu, in which programs look
/// for it.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu/lib";
const LIBRARIES_THERE: &str = "/lib/aarch64-linux-gnu";
const LOADER: &str = "ld-linux-aarch64.so.1";

/// Modules that may be loaded, below the directory of the kernel's version: whole directories.
const MODULES: &[&str] = &["kernel/net", "kernel/lib", "kernel/crypto", "kernel/arch"];

/// In this directory, only drivers that are a file: the directories are of cards.
const DRIVERS: &str = "kernel/drivers/net";

/// The processor of many embedded boards, without the atomic instructions of later ones.
const PROCESSOR: &str = "cortex-a72";

/// Twice the size of the file system, which is in memory twice while it is unpacked, and room for tests.
const MEMORY: &str = "4G";

pub(crate) struct RamdiskImage {
    /// Removed with it.
    directory: tempfile::TempDir,
    /// The lab's own program for arm64.
    program: PathBuf,
}

impl RamdiskImage {
    /// Makes the file system for machines with that kernel.
    pub(crate) fn make(
        cache: &LockedCache,
        kernel: &KernelTree,
        built: &BuiltPrograms,
    ) -> Result<Self, Error> {
        let programs = cache.filled_directory(&format!("arm64-programs-{RELEASE}"), fetch_programs)?;
        let directory = tempfile::Builder::new().prefix("nocopy-vm-").tempdir();
        let directory = directory.map_err(Error::for_file(std::env::temp_dir()))?;
        let image = Self { directory, program: built.lab.clone() };
        let path = image.ramdisk_path();
        let file = File::create(&path).map_err(Error::for_file(&path))?;
        let mut ramdisk = RamdiskWriter::new(BufWriter::new(file));
        ramdisk.add_tree(&programs, Path::new("/"), &|below| !below.starts_with("usr/share"))?;
        add_libraries(&mut ramdisk)?;
        add_modules(&mut ramdisk, kernel)?;
        for file in &built.files {
            ramdisk.add_file(file, file)?;
        }
        let tests = serde_json::to_vec(&built.tests).expect("strings");
        ramdisk.add_bytes(Path::new(built::TESTS), &tests)?;
        ramdisk.finish().map_err(Error::for_file(path))?;
        Ok(image)
    }

    fn ramdisk_path(&self) -> PathBuf {
        self.directory.path().join("ramdisk")
    }

    /// The command that starts a machine, whose first process runs the lab's program with these words.
    pub(crate) fn emulator_command(
        &self,
        kernel: &KernelTree,
        guest: &[String],
        shared: &Path,
    ) -> Vec<OsString> {
        let mut words: Vec<OsString> =
            ["qemu-system-aarch64", "-machine", "virt", "-cpu", PROCESSOR].map(OsString::from).to_vec();
        words.extend(["-smp", "2", "-m", MEMORY, "-nodefaults", "-display", "none"].map(OsString::from));
        words.extend(["-no-reboot", "-serial", "stdio", "-device", "virtio-serial-pci"].map(OsString::from));
        let events = format!("file,id=events,path={}", shared.join(event::FILE).display());
        let port = format!("virtserialport,chardev=events,name={}", guest::init::EVENTS_PORT);
        words.extend(["-chardev".into(), events.into(), "-device".into(), port.into()]);
        words.extend([
            "-kernel".into(),
            kernel.image.clone().into(),
            "-initrd".into(),
            self.ramdisk_path().into(),
        ]);
        // The words after '--' are the first process's arguments. When the first process ends, the machine
        // ends.
        let line = format!(
            "console=ttyAMA0 panic=-1 net.ifnames=0 rdinit={} -- init {}",
            self.program.display(),
            guest.join(" ")
        );
        words.extend(["-append".into(), line.into()]);
        words
    }
}

fn fetch_programs(place: &Path) -> Result<(), Error> {
    let lists = tempfile::tempdir().map_err(Error::for_file(std::env::temp_dir()))?;
    let suite =
        PackageSuite::fetch(PackageArchive::Debian, RELEASE, None, Architecture::Arm64, lists.path())?;
    suite.unpack(&suite.with_libraries(PACKAGES)?, place)
}

/// The C library that the programs were linked with.
fn add_libraries(ramdisk: &mut RamdiskWriter) -> Result<(), Error> {
    let from = Path::new(LIBRARIES);
    for entry in fs::read_dir(from).map_err(Error::for_file(from))? {
        let name = entry.map_err(Error::for_file(from))?.file_name();
        let text = name.to_string_lossy();
        // Not those of the compiler's sanitizers, which are large.
        if text.contains(".so.") && !text.contains("san.so") {
            ramdisk.add_file(&from.join(&name), &Path::new(LIBRARIES_THERE).join(&name))?;
        }
    }
    ramdisk.add_file(&from.join(LOADER), &Path::new("/lib").join(LOADER))
}

fn add_modules(ramdisk: &mut RamdiskWriter, kernel: &KernelTree) -> Result<(), Error> {
    let there = Path::new("/lib/modules").join(&kernel.version);
    let is_list = |below: &Path| {
        let name = below.to_string_lossy();
        name.starts_with("modules.")
    };
    let is_driver = |below: &Path| below.parent() == Some(Path::new(DRIVERS)) && below.extension().is_some();
    ramdisk.add_tree(&kernel.modules, &there, &|below| {
        let is_on_the_way = ["kernel", "kernel/drivers", DRIVERS].iter().any(|way| below == Path::new(way));
        let is_wanted = MODULES.iter().any(|directory| below.starts_with(directory));
        is_list(below) || is_driver(below) || is_on_the_way || is_wanted
    })
}
