//! A directory that is written by NFS from `nocopy serve nfs`, and its controls: the same from the kernel's
//! own server, and a directory of the same disk without NFS. A failure that a control has, too, is not the
//! server's fault.

use std::collections::BTreeMap;
use std::time::Instant;

use nocopy_lab::Lab;
use serde_json::{Value, json};

use super::filesystem::{SharedDirectory, make_for_unprivileged_user};
use super::nfs::{Mount, NfsFixture, ServedExport, Server};
use super::nfsd::KernelServer;
use super::{Guest, print_at_console};
use crate::failure::Failure;

/// Clients without shared state: otherwise two mounts of the same server would be one.
const TWO_CLIENTS: &str = ",nosharecache";

/// Attributes are not cached, and every write waits for the server.
const STRICT: &str = ",nosharecache,noac,sync";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirectoryKind {
    Ours,
    Kernel,
    Local,
}

/// The directories, each mounted by two clients.
pub(crate) struct Controls {
    directories: Vec<(&'static str, DirectoryKind, SharedDirectory)>,
    seconds: BTreeMap<&'static str, f64>,
    wrong: Vec<String>,
    // In the order in which they must be unmounted.
    mounts: Vec<Mount>,
    server: Server,
    kernel: KernelServer,
    fixture: NfsFixture,
}

impl Controls {
    pub(crate) fn new(guest: &Guest) -> Result<Self, Failure> {
        let lab = guest.lab();
        let fixture = NfsFixture::writable()?;
        let server = fixture.serve(lab, &["--writable"])?;
        let kernel = KernelServer::start(lab, &fixture)?;
        let mut controls = Self {
            directories: Vec::new(),
            seconds: BTreeMap::new(),
            wrong: Vec::new(),
            mounts: Vec::new(),
            server,
            kernel,
            fixture,
        };
        controls.mount(lab, "ours", DirectoryKind::Ours, Some((ServedExport::of(lab), TWO_CLIENTS)))?;
        if guest.soak() {
            // Three times as many calls.
            controls.mount(
                lab,
                "ours, noac,sync",
                DirectoryKind::Ours,
                Some((ServedExport::of(lab), STRICT)),
            )?;
        }
        let export = controls.kernel.export;
        controls.mount(lab, "kernel", DirectoryKind::Kernel, Some((export, TWO_CLIENTS)))?;
        controls.mount(lab, "local", DirectoryKind::Local, None)?;
        Ok(controls)
    }

    /// Adds a directory, which two clients mount if it is served. They are at the end where the servers are,
    /// so that calls go over the loopback: through an emulated card each takes some 5 ms.
    fn mount(
        &mut self,
        lab: &Lab,
        name: &'static str,
        kind: DirectoryKind,
        served: Option<(ServedExport, &str)>,
    ) -> Result<(), Failure> {
        make_for_unprivileged_user(&self.fixture.exported().join(name))?;
        let mut paths = [(); 2].map(|()| self.fixture.exported());
        if let Some((export, options)) = served {
            for (client, path) in paths.iter_mut().enumerate() {
                *path = self.fixture.sibling_directory(&format!("{name}, client {client}"))?;
                self.mounts.push(export.mount(lab.left().namespace(), path.clone(), options)?);
            }
        }
        let [here, there] = paths.map(|path| path.join(name));
        self.directories.push((name, kind, SharedDirectory { here, there }));
        Ok(())
    }

    /// Checks in each directory; `failure_of` returns the failures.
    pub(crate) fn check(&mut self, name: &str, failure_of: impl Fn(&SharedDirectory) -> Option<String>) {
        let (mut ours, mut controls) = (Vec::new(), Vec::new());
        for (directory_name, kind, directory) in &self.directories {
            let start = Instant::now();
            let found = failure_of(directory).map(|why| format!("{name}, {directory_name}: {why}"));
            let seconds = start.elapsed().as_secs_f64();
            *self.seconds.entry(directory_name).or_default() += seconds;
            print_at_console(&format!("{name}, {directory_name}: {seconds:.1} s"));
            if *kind == DirectoryKind::Ours {
                ours.extend(found)
            } else {
                controls.extend(found.map(|why| (*kind, why)))
            }
        }
        // A check that the file system itself does not pass is wrong.
        let is_check_wrong = controls.iter().any(|(kind, _)| *kind == DirectoryKind::Local);
        if controls.is_empty() || is_check_wrong {
            self.wrong.append(&mut ours);
        }
        for (kind, why) in controls {
            // Failures of a control alone are also reported.
            eprintln!("not ours alone: {why}");
            if kind == DirectoryKind::Local {
                self.wrong.push(why);
            }
        }
        ours.iter().for_each(|why| eprintln!("as the kernel's server: {why}"));
    }

    /// Adds the duration of all checks to the report, ends the server, and fails if it had an error.
    pub(crate) fn end(mut self, guest: &Guest) -> Result<(), Failure> {
        guest.record(&json!({ "seconds": self.seconds }));
        self.mounts.clear();
        let summary = self.server.end()?;
        guest.record(&json!({ "calls": summary["calls"], "written_bytes": summary["written_bytes"] }));
        let broken = ["malformed", "index_write_errors"].map(|count| &summary[count]);
        if broken != [&Value::from(0), &Value::from(0)] {
            self.wrong.push(format!("the server: {summary}"));
        }
        if self.wrong.is_empty() { Ok(()) } else { Err(Failure(self.wrong.join("\n"))) }
    }
}
