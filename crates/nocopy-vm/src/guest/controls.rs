//! A directory that is written by NFS from `nocopy serve nfs`, and its controls: the same from the kernel's
//! own server, and a directory of the same disk without NFS. A failure that a control has, too, is not the
//! server's fault.

use std::collections::BTreeMap;
use std::time::Instant;

use nocopy_lab::Lab;
use serde_json::{Value, json};

use super::filesystem::{SharedDirectory, make_for_unprivileged_user};
use super::nfs::{NfsFixture, NfsMount, RunningServer, ServedExport};
use super::nfsd::KernelNfsServer;
use super::{Guest, print_at_console};
use crate::failure::Failure;

/// Clients without shared state: otherwise two mounts of the same server would be one.
const TWO_CLIENTS: &str = ",nosharecache";

/// Attributes are not cached, and every write waits for the server.
const STRICT: &str = ",nosharecache,noac,sync";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Ours,
    Kernel,
    Local,
}

/// The directories, each mounted by two clients.
pub(crate) struct ComparedDirectories {
    directories: Vec<(&'static str, ServerKind, SharedDirectory)>,
    seconds: BTreeMap<&'static str, f64>,
    wrong: Vec<String>,
    // In the order in which they must be unmounted.
    mounts: Vec<NfsMount>,
    server: RunningServer,
    kernel: KernelNfsServer,
    fixture: NfsFixture,
}

impl ComparedDirectories {
    pub(crate) fn new(guest: &Guest) -> Result<Self, Failure> {
        let lab = guest.lab();
        let fixture = NfsFixture::writable()?;
        let server = fixture.start_server(lab, &["--writable"])?;
        let kernel = KernelNfsServer::start(lab, &fixture)?;
        let mut controls = Self {
            directories: Vec::new(),
            seconds: BTreeMap::new(),
            wrong: Vec::new(),
            mounts: Vec::new(),
            server,
            kernel,
            fixture,
        };
        controls.add_directory(
            lab,
            "ours",
            ServerKind::Ours,
            Some((ServedExport::of_nocopy_server(lab), TWO_CLIENTS)),
        )?;
        if guest.is_soak() {
            // Three times as many calls.
            controls.add_directory(
                lab,
                "ours, noac,sync",
                ServerKind::Ours,
                Some((ServedExport::of_nocopy_server(lab), STRICT)),
            )?;
        }
        let export = controls.kernel.export;
        controls.add_directory(lab, "kernel", ServerKind::Kernel, Some((export, TWO_CLIENTS)))?;
        controls.add_directory(lab, "local", ServerKind::Local, None)?;
        Ok(controls)
    }

    /// Adds a directory, which two clients mount if it is served. They are at the end where the servers are,
    /// so that calls go over the loopback: through an emulated card each takes some 5 ms.
    fn add_directory(
        &mut self,
        lab: &Lab,
        name: &'static str,
        kind: ServerKind,
        served: Option<(ServedExport, &str)>,
    ) -> Result<(), Failure> {
        make_for_unprivileged_user(&self.fixture.export_path().join(name))?;
        let mut paths = [(); 2].map(|()| self.fixture.export_path());
        if let Some((export, options)) = served {
            for (client, path) in paths.iter_mut().enumerate() {
                *path = self.fixture.new_sibling_directory(&format!("{name}, client {client}"))?;
                self.mounts.push(export.mount(lab.left().namespace(), path.clone(), options)?);
            }
        }
        let [here, there] = paths.map(|path| path.join(name));
        self.directories.push((name, kind, SharedDirectory { here, there }));
        Ok(())
    }

    /// Checks in each directory; `failure_of` returns the failures.
    pub(crate) fn check_each_directory(
        &mut self,
        name: &str,
        failure_of: impl Fn(&SharedDirectory) -> Option<String>,
    ) {
        let (mut ours, mut controls) = (Vec::new(), Vec::new());
        for (directory_name, kind, directory) in &self.directories {
            let start = Instant::now();
            let found = failure_of(directory).map(|why| format!("{name}, {directory_name}: {why}"));
            let seconds = start.elapsed().as_secs_f64();
            *self.seconds.entry(directory_name).or_default() += seconds;
            print_at_console(&format!("{name}, {directory_name}: {seconds:.1} s"));
            if *kind == ServerKind::Ours {
                ours.extend(found)
            } else {
                controls.extend(found.map(|why| (*kind, why)))
            }
        }
        // A check that the file system itself does not pass is wrong.
        let is_check_wrong = controls.iter().any(|(kind, _)| *kind == ServerKind::Local);
        if controls.is_empty() || is_check_wrong {
            self.wrong.append(&mut ours);
        }
        for (kind, why) in controls {
            // Failures of a control alone are also reported.
            eprintln!("not ours alone: {why}");
            if kind == ServerKind::Local {
                self.wrong.push(why);
            }
        }
        ours.iter().for_each(|why| eprintln!("as the kernel's server: {why}"));
    }

    /// Adds the duration of all checks to the report, ends the server, and fails if it had an error.
    pub(crate) fn finish(mut self, guest: &Guest) -> Result<(), Failure> {
        guest.record_measurement(&json!({ "seconds": self.seconds }));
        self.mounts.clear();
        let summary = self.server.stop()?;
        guest.record_measurement(
            &json!({ "calls": summary["calls"], "written_bytes": summary["written_bytes"] }),
        );
        let broken = ["malformed", "index_write_errors"].map(|count| &summary[count]);
        if broken != [&Value::from(0), &Value::from(0)] {
            self.wrong.push(format!("the server: {summary}"));
        }
        if self.wrong.is_empty() { Ok(()) } else { Err(Failure(self.wrong.join("\n"))) }
    }
}
