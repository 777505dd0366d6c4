use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use nocopy_lab::Lab;
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::guest::Guest;
use crate::guest::filesystem::read_piece;
use crate::guest::nfs::{NfsFixture, NfsMount, RunningServer};
use crate::guest::patience::{ARRIVAL_MAX, wait_until};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "Debian's kernel mounts `nocopy serve nfs` and finds the names, attributes and bytes of the directory there, cached, direct and \
             mapped, past 4 GiB and from cold files; it reads on after the server was killed and started again, and unmounts in the middle \
             of reading",
    on: &[Topology::VirtioTaps],
    kernels: &[Kernel::Newest],
    run,
};

/// Files in one directory.
const NAMES: usize = 10_000;

/// Sizes of files: around a page, around the longest read that the server copies (8 KiB), and around and
/// above the longest read (1 MiB).
const SIZES: [usize; 12] =
    [0, 1, 2, 3, 4095, 4096, 4097, 8192, 8193, (64 << 10) + 1, (1 << 20) + 3, (3 << 20) + 5];

const LONGEST: &str = "3145733";

/// Offsets and lengths of reads of the longest file: not at a page, across pages, across the end of the file,
/// at it, and behind it.
const PIECES: [(u64, usize); 7] = [
    (1, 1),
    (4095, 2),
    (4097, 8191),
    (65_537, (1 << 20) + 1),
    (3_145_700, 100),
    (3_145_733, 1),
    (4_000_000, 4096),
];

const GIB: u64 = 1 << 30;
const SPARSE: &str = "sparse";
const SPARSE_BYTES: u64 = 5 * GIB + 7;
/// The places of data in the sparse file.
const ISLANDS: [u64; 3] = [4 * GIB - 5, 4 * GIB + (1 << 20) + 1, SPARSE_BYTES - 11];
const ISLAND: &[u8] = b"not a hole.";

/// The name of busybox, which chooses its behaviour by its name.
const PROGRAM: &str = "busybox";

fn run(guest: &Guest) -> Result<(), Failure> {
    let start = Instant::now();
    let shown = |what: &str| {
        guest.record_measurement(&json!({ "shown": what, "after_seconds": start.elapsed().as_secs_f64() }));
    };
    let fixture = NfsFixture::new()?;
    make_files(&fixture.export_path())?;
    shown("files are made");
    let server = fixture.start_server(guest.lab(), &[])?;
    let mounted = fixture.mount_export(guest.lab())?;
    check_file_bytes(&fixture, &mounted)?;
    shown("bytes are the same");
    compare_trees(&fixture)?;
    shown("names and attributes are the same");
    check_read_only(&mounted)?;
    check_execution_from_mount(&fixture, &mounted)?;
    shown("a program runs that is mapped");

    let reader = ReadingThread::start(&fixture, &mounted);
    reader.wait_for_whole_pass()?;
    server.kill()?;
    let server = fixture.start_server(guest.lab(), &[])?;
    reader.wait_for_whole_pass()?;
    shown("reading goes on when the server was killed and started again");
    check_reading_after_lazy_unmount(&fixture, &server, mounted, reader)?;
    shown("reading goes on when it was unmounted");
    check_forced_unmount(&fixture, &server, guest.lab())?;
    shown("reading ends when it was unmounted by force");

    let mounted = fixture.mount_export(guest.lab())?;
    compare_files(&fixture.export_path().join(LONGEST), &mounted.path(LONGEST))?;
    mounted.unmount(UnmountFlags::empty()).map_err(|(_, error)| error)?;
    let summary = server.stop()?;
    assert_eq!(
        (summary["malformed"].as_u64(), summary["index_write_errors"].as_u64()),
        (Some(0), Some(0)),
        "{summary}"
    );
    guest.record_measurement(
        &json!({ "calls": summary["calls"], "reads": summary["reads"], "bytes": summary["bytes"] }),
    );
    Ok(())
}

fn make_files(directory: &Path) -> Result<(), Failure> {
    let mut random = File::open("/dev/urandom")?;
    for size in SIZES {
        let mut bytes = vec![0; size];
        random.read_exact(&mut bytes)?;
        fs::write(directory.join(size.to_string()), &bytes)?;
    }
    let sparse = File::create_new(directory.join(SPARSE))?;
    sparse.set_len(SPARSE_BYTES)?;
    ISLANDS.into_iter().try_for_each(|at| sparse.write_all_at(ISLAND, at))?;
    let many = directory.join("many");
    fs::create_dir(&many)?;
    (0..NAMES).try_for_each(|number| File::create_new(many.join(format!("name {number}"))).map(drop))?;
    let deep = directory.join("a/b/c/d");
    fs::create_dir_all(&deep)?;
    fs::create_dir(directory.join("empty"))?;
    for name in ["ü — \n", &"n".repeat(255), ".hidden", "-l"] {
        fs::write(deep.join(name), name)?;
    }
    for (number, target) in ["../..", "/etc/passwd", "nowhere", &"long/".repeat(800)].into_iter().enumerate()
    {
        symlink(target, deep.join(format!("link {number}")))?;
    }
    fs::hard_link(directory.join("4097"), deep.join("second name"))?;
    rustix::fs::mkfifoat(rustix::fs::CWD, deep.join("fifo"), 0o640.into())?;
    fs::copy(busybox_path()?, directory.join(PROGRAM))?;
    Ok(())
}

fn busybox_path() -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|directory| directory.join("busybox")).find(|file| file.exists());
    found.ok_or_else(|| Failure("busybox is not in PATH".into()))
}

/// Reads every file whole, and pieces of the long ones.
fn check_file_bytes(fixture: &NfsFixture, mounted: &NfsMount) -> Result<(), Failure> {
    // The server finds none of them in the page cache at first.
    rustix::fs::sync();
    for size in SIZES {
        let ours = File::open(fixture.export_path().join(size.to_string()))?;
        fadvise(&ours, 0, None, Advice::DontNeed)?;
    }
    for size in SIZES {
        let name = size.to_string();
        compare_files(&fixture.export_path().join(&name), &mounted.path(&name))?;
    }
    let around = ISLANDS.into_iter().map(|at| (at - 70_000, 150_000));
    let of_sparse = around.chain([(0, 10_000), (SPARSE_BYTES, 1), (SPARSE_BYTES + GIB, 1)]);
    let pieces =
        PIECES.into_iter().map(|piece| (LONGEST, piece)).chain(of_sparse.map(|piece| (SPARSE, piece)));
    for (name, (at, bytes)) in pieces {
        let ours = read_piece(&File::open(fixture.export_path().join(name))?, at, bytes)?;
        for flags in [OFlags::DIRECT, OFlags::empty()] {
            let theirs = read_piece(&open_file(&mounted.path(name), flags)?, at, bytes)?;
            assert!(ours == theirs, "{name}: {bytes} bytes at {at} are {} others, {flags:?}", theirs.len());
        }
    }
    Ok(())
}

fn compare_files(ours: &Path, theirs: &Path) -> io::Result<()> {
    let (expected, found) = (fs::read(ours)?, fs::read(theirs)?);
    let [expected_bytes, found_bytes] = [expected.len(), found.len()];
    assert!(
        expected == found,
        "{}: not what lies there: {found_bytes} B of {expected_bytes}",
        theirs.display()
    );
    Ok(())
}

fn open_file(path: &Path, flags: OFlags) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

/// `ls` and `find` print the same of both.
fn compare_trees(fixture: &NfsFixture) -> Result<(), Failure> {
    let all = "%p %y %s %b %m %n %U %G %T@ %C@ %i %l\\n";
    let programs = [
        &["ls", "-lanR", "--full-time"][..],
        // Of ten thousand files find asks for each by itself, after it has read all names: too many calls for
        // an emulated machine.
        &["find", "a", "empty", "-printf", all],
        &["find", ".", "-maxdepth", "1", "-printf", all],
        &["find", "many", "-printf", "%p %y\\n"],
    ];
    let mut seen = 0;
    for words in programs {
        let [ours, theirs] =
            [fixture.export_path(), fixture.mount_path()].map(|directory| output_lines(words, &directory));
        let (ours, theirs) = (ours?, theirs?);
        seen += ours.len();
        let other = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs);
        assert!(
            ours.len() == theirs.len() && other.is_none(),
            "{words:?}: {} and {} lines; {other:?}",
            ours.len(),
            theirs.len()
        );
    }
    assert!(seen > 2 * NAMES, "{seen} lines");
    Ok(())
}

/// The sorted output of a program in a directory.
fn output_lines(words: &[&str], directory: &Path) -> Result<Vec<String>, Failure> {
    let done = Command::new(words[0]).args(&words[1..]).current_dir(directory).output()?;
    let complaints = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success() && complaints.is_empty(),
        "{words:?} in {}: {complaints}",
        directory.display()
    );
    let mut lines: Vec<String> = String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    Ok(lines)
}

/// Changes are refused, with the right error.
fn check_read_only(mounted: &NfsMount) -> Result<(), Failure> {
    let tries = [
        File::create(mounted.path("new")).map(drop),
        fs::remove_file(mounted.path("1")),
        fs::rename(mounted.path("1"), mounted.path("2")),
        fs::create_dir(mounted.path("directory")),
    ];
    let errors = tries.map(|tried| tried.map_err(|error| error.kind()));
    assert_eq!(errors, [Err(ErrorKind::ReadOnlyFilesystem); 4]);
    Ok(())
}

/// Runs a program from the mount: the kernel maps its pages.
fn check_execution_from_mount(fixture: &NfsFixture, mounted: &NfsMount) -> Result<(), Failure> {
    let compare = |theirs: &str| {
        let (ours, theirs) = (fixture.export_path().join(LONGEST), mounted.path(theirs));
        Command::new(mounted.path(PROGRAM)).args(["cmp", "-s"]).arg(ours).arg(theirs).status()
    };
    assert_eq!((compare(LONGEST)?.code(), compare("4097")?.code()), (Some(0), Some(1)));
    Ok(())
}

/// A thread that reads the longest file again and again, without the client's cache, and checks its bytes.
struct ReadingThread {
    thread: JoinHandle<io::Result<()>>,
    passes: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl ReadingThread {
    fn start(fixture: &NfsFixture, mounted: &NfsMount) -> Self {
        let (ours, theirs) = (fixture.export_path().join(LONGEST), mounted.path(LONGEST));
        let (passes, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (passes, is_over) = (Arc::clone(&passes), Arc::clone(&is_over));
            move || {
                let (ours, file) = (fs::read(ours)?, open_file(&theirs, OFlags::DIRECT)?);
                while !is_over.load(Ordering::Relaxed) {
                    let theirs = read_piece(&file, 0, ours.len() + 1)?;
                    assert!(ours == theirs, "what was read is not the file");
                    passes.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        });
        Self { thread, passes, is_over }
    }

    /// Waits until the whole file was read once more from now on.
    fn wait_for_whole_pass(&self) -> Result<(), Failure> {
        // The one that is being read began before.
        let enough = self.passes.load(Ordering::Relaxed) + 2;
        let is_there = || Ok(self.thread.is_finished() || self.passes.load(Ordering::Relaxed) >= enough);
        wait_until("the whole file is read again", is_there)?;
        assert!(!self.thread.is_finished(), "the program that reads has failed");
        Ok(())
    }

    /// Ends the reading thread; returns the error that ended it earlier, if any.
    fn stop(self) -> io::Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the bytes are those of the file")
    }
}

/// An open file can be read after a lazy unmount, and the connection ends when it is closed.
fn check_reading_after_lazy_unmount(
    fixture: &NfsFixture,
    server: &RunningServer,
    mounted: NfsMount,
    reader: ReadingThread,
) -> Result<(), Failure> {
    let mounted = match mounted.unmount(UnmountFlags::empty()) {
        Err((mounted, Errno::BUSY)) => mounted,
        Err((_, error)) => return Err(error.into()),
        Ok(()) => return Err(Failure("it was unmounted although a file of it is open".into())),
    };
    mounted.unmount(UnmountFlags::DETACH).map_err(|(_, error)| error)?;
    assert_eq!(fs::read_dir(fixture.mount_path())?.count(), 0, "names where it was mounted");
    reader.wait_for_whole_pass()?;
    reader.stop()?;
    // The one that is left is that by which it listens.
    wait_until("the client that unmounted has ended its connection", || {
        Ok(count_sockets(server.process_id())? == 1)
    })
}

/// Unmounting by force while the server does not answer makes a read fail that waits for it; the server
/// serves the next client.
fn check_forced_unmount(fixture: &NfsFixture, server: &RunningServer, lab: &Lab) -> Result<(), Failure> {
    let mut mounted = fixture.mount_export(lab)?;
    let reader = ReadingThread::start(fixture, &mounted);
    reader.wait_for_whole_pass()?;
    let server = Pid::from_raw(server.process_id().cast_signed()).expect("a process has a number");
    kill_process(server, Signal::STOP)?;
    let give_up = Instant::now() + ARRIVAL_MAX;
    while !reader.thread.is_finished() && Instant::now() < give_up {
        // Makes calls that wait at this moment fail.
        match mounted.unmount(UnmountFlags::FORCE) {
            Err((still, Errno::BUSY)) => mounted = still,
            Err((_, error)) => return Err(error.into()),
            Ok(()) => break,
        }
        thread::yield_now();
    }
    kill_process(server, Signal::CONT)?;
    // EIO, or ERESTARTSYS (512), which this kernel lets out.
    reader.stop().expect_err("what was on its way when it was unmounted by force fails");
    Ok(())
}

fn count_sockets(process: u32) -> Result<usize, Failure> {
    let mut sockets = 0;
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        // A descriptor that is closed meanwhile does not count.
        let target = fs::read_link(entry?.path()).unwrap_or_default();
        sockets += usize::from(target.to_string_lossy().starts_with("socket:"));
    }
    Ok(sockets)
}
