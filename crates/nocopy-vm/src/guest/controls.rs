//! A directory that is written by NFS from `nocopy serve nfs`, and its controls: the same from the kernel's
//! own server, and a directory of the same disk without NFS. A failure that a control has, too, is not the
//! server's fault.

use std::collections::BTreeMap;
use std::time::Instant;

use nocopy_lab::Lab;
use serde_json::{Value, json};

use super::filesystem::{Place, make_for_nobody};
use super::nfs::{Mounted, Offer, Scene, Server};
use super::nfsd::KernelServer;
use super::{Guest, say_at_console};
use crate::failure::Failure;

/// Clients without shared state: otherwise two mounts of the same server would be one.
const TWO_CLIENTS: &str = ",nosharecache";

/// Attributes are not cached, and every write waits for the server.
const STRICT: &str = ",nosharecache,noac,sync";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    Kernel,
    Local,
}

/// The directories, each mounted by two clients.
pub(crate) struct Controls {
    places: Vec<(&'static str, Kind, Place)>,
    seconds: BTreeMap<&'static str, f64>,
    wrong: Vec<String>,
    // In the order in which they must be unmounted.
    mounts: Vec<Mounted>,
    server: Server,
    kernel: KernelServer,
    scene: Scene,
}

impl Controls {
    pub(crate) fn new(guest: &Guest) -> Result<Self, Failure> {
        let lab = guest.lab();
        let scene = Scene::writable()?;
        let server = scene.serve(lab, &["--writable"])?;
        let kernel = KernelServer::start(lab, &scene)?;
        let mut controls = Self {
            places: Vec::new(),
            seconds: BTreeMap::new(),
            wrong: Vec::new(),
            mounts: Vec::new(),
            server,
            kernel,
            scene,
        };
        controls.mount(lab, "ours", Kind::Ours, Some((Offer::of(lab), TWO_CLIENTS)))?;
        if guest.soak() {
            // Three times as many calls.
            controls.mount(lab, "ours, noac,sync", Kind::Ours, Some((Offer::of(lab), STRICT)))?;
        }
        let offer = controls.kernel.offer;
        controls.mount(lab, "kernel", Kind::Kernel, Some((offer, TWO_CLIENTS)))?;
        controls.mount(lab, "local", Kind::Local, None)?;
        Ok(controls)
    }

    /// Adds a directory, which two clients mount if it is served. They are at the end where the servers are,
    /// so that calls go over the loopback: through an emulated card each takes some 5 ms.
    fn mount(
        &mut self,
        lab: &Lab,
        name: &'static str,
        kind: Kind,
        served: Option<(Offer, &str)>,
    ) -> Result<(), Failure> {
        make_for_nobody(&self.scene.exported().join(name))?;
        let mut paths = [(); 2].map(|()| self.scene.exported());
        if let Some((offer, options)) = served {
            for (client, path) in paths.iter_mut().enumerate() {
                *path = self.scene.beside(&format!("{name}, client {client}"))?;
                self.mounts.push(offer.mount(lab.left().namespace(), path.clone(), options)?);
            }
        }
        let [here, there] = paths.map(|path| path.join(name));
        self.places.push((name, kind, Place { here, there }));
        Ok(())
    }

    /// Checks in each directory; `finds` returns the failures.
    pub(crate) fn check(&mut self, name: &str, finds: impl Fn(&Place) -> Option<String>) {
        let (mut ours, mut controls) = (Vec::new(), Vec::new());
        for (place_name, kind, place) in &self.places {
            let start = Instant::now();
            let found = finds(place).map(|why| format!("{name}, {place_name}: {why}"));
            let seconds = start.elapsed().as_secs_f64();
            *self.seconds.entry(place_name).or_default() += seconds;
            say_at_console(&format!("{name}, {place_name}: {seconds:.1} s"));
            if *kind == Kind::Ours {
                ours.extend(found)
            } else {
                controls.extend(found.map(|why| (*kind, why)))
            }
        }
        // A check that the file system itself does not pass is wrong.
        let is_wrong_itself = controls.iter().any(|(kind, _)| *kind == Kind::Local);
        if controls.is_empty() || is_wrong_itself {
            self.wrong.append(&mut ours);
        }
        for (kind, why) in controls {
            // Failures of a control alone are also reported.
            eprintln!("not ours alone: {why}");
            if kind == Kind::Local {
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
        let broken = ["malformed", "unsaved"].map(|count| &summary[count]);
        if broken != [&Value::from(0), &Value::from(0)] {
            self.wrong.push(format!("the server: {summary}"));
        }
        if self.wrong.is_empty() { Ok(()) } else { Err(Failure(self.wrong.join("\n"))) }
    }
}
