use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Error, Missing};

/// A network namespace held by a descriptor. Clones refer to the same namespace.
///
/// A descriptor, not a name under /run/netns: a name outlives a killed process, a descriptor does not.
#[derive(Debug, Clone)]
pub struct Namespace {
    descriptor: Arc<OwnedFd>,
}

/// The environment variable with settings for each new namespace, which otherwise begins with those of the
/// machine: `PATH=VALUE;PATH=VALUE …` with paths below /proc/sys.
pub const SYSCTLS: &str = "NOCOPY_LAB_SYSCTLS";

/// The namespace of the *thread*; /proc/self is that of the process's first thread.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

impl Namespace {
    /// A new, empty network namespace.
    ///
    /// # Errors
    /// [`Error::Missing`] without `CAP_SYS_ADMIN` or a kernel without network namespaces.
    pub fn new() -> Result<Self, Error> {
        // A thread of its own, because unshare moves the calling thread, and there is no way back without
        // a descriptor of the old namespace.
        let maker =
            thread::Builder::new().name("namespace".into()).spawn(Self::enter_new).map_err(Error::Thread)?;
        maker.join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn enter_new() -> Result<Self, Error> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
            nix::errno::Errno::EPERM => Error::Missing(Missing::Capability("CAP_SYS_ADMIN")),
            nix::errno::Errno::EINVAL => {
                Error::Missing(Missing::Kernel("network namespaces (CONFIG_NET_NS)"))
            }
            errno => Error::Namespace { operation: "make", source: errno.into() },
        })?;
        let settings = std::env::var(SYSCTLS).unwrap_or_default();
        for (name, value) in settings.split(';').filter_map(|setting| setting.split_once('=')) {
            let path = Path::new("/proc/sys").join(name);
            std::fs::write(path, value).map_err(|source| Error::Namespace { operation: "set up", source })?;
        }
        Self::current()
    }

    /// The namespace the calling thread is in.
    ///
    /// # Errors
    /// [`Error::Namespace`] when /proc is not mounted.
    pub fn current() -> Result<Self, Error> {
        Self::open(Path::new(OWN_NAMESPACE))
    }

    /// The namespace of a file, such as another process's `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// [`Error::Namespace`].
    pub fn open(file: &Path) -> Result<Self, Error> {
        let file = File::open(file).map_err(|source| Error::Namespace { operation: "open", source })?;
        Ok(Self { descriptor: Arc::new(file.into()) })
    }

    /// Permanently moves the calling thread, and only it, into the namespace. Threads it starts begin there
    /// too.
    ///
    /// # Errors
    /// The kernel's refusal; `EPERM` without `CAP_SYS_ADMIN`.
    pub fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.descriptor.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }

    /// Runs `work` on a thread inside the namespace and waits for it. Sockets opened there stay in the
    /// namespace.
    ///
    /// # Panics
    /// When `work` panics, with its payload; when the thread cannot be started or may not enter (the process
    /// dropped `CAP_SYS_ADMIN` since the namespace was made).
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                self.enter_or_panic();
                work()
            });
            worker.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Starts `work` on a thread inside the namespace and does not wait. The thread keeps the namespace
    /// alive.
    ///
    /// # Panics
    /// When the thread cannot be started. A refused entry panics that thread and shows at `join`.
    pub fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let namespace = self.clone();
        thread::spawn(move || {
            namespace.enter_or_panic();
            // The thread itself is in the namespace now; the descriptor is not needed any more.
            drop(namespace);
            work()
        })
    }

    fn enter_or_panic(&self) {
        if let Err(error) = self.enter() {
            panic!("cannot enter the namespace: {error}: keep CAP_SYS_ADMIN for as long as the lab is used");
        }
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
