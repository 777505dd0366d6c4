//! A server in this process, of a directory made for the test.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use nocopy_nfs::export::Export;
use nocopy_nfs::server::core::CallerMapping;
use nocopy_nfs::server::{ClientCounts, Server, ServerStatistics, Settings};
use rustix::fs::Mode;
use rustix::process::umask;

use crate::client::Client;

/// An exported directory, and one beside it for the state.
pub(crate) struct Scene {
    around: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        umask(Mode::empty()); // as the command does
        let around = tempfile::tempdir().unwrap();
        fs::create_dir(around.path().join("exported")).unwrap();
        Self { around }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.around.path().join("exported").join(below)
    }

    /// A file of that many bytes, which depend on their positions.
    pub(crate) fn create_file(&self, name: &str, bytes: usize) -> File {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(self.path(name));
        let file = file.unwrap();
        file.write_all_at(&pattern_bytes(0, bytes), 0).unwrap();
        file
    }

    pub(crate) fn serve(&self) -> RunningServer {
        self.serve_with(|_| {})
    }

    pub(crate) fn bind_server(&self, change: impl FnOnce(&mut Settings)) -> Server {
        let export = Export::open(&self.path(""), Some(&self.around.path().join("state"))).unwrap();
        let mut settings = Settings {
            addresses: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            allow: Vec::new(),
            is_stable: false,
            is_writable: false,
            callers: CallerMapping::Server,
            is_portmapper: false,
            connections_max: 2048,
        };
        change(&mut settings);
        Server::bind(Arc::new(export), settings).unwrap()
    }

    pub(crate) fn serve_with(&self, change: impl FnOnce(&mut Settings)) -> RunningServer {
        let server = self.bind_server(change);
        let address = server.address();
        let (stop, is_stopped) = mpsc::channel();
        let (ask, is_asked) = mpsc::channel::<mpsc::Sender<(ClientCounts, usize)>>();
        let thread = std::thread::spawn(move || {
            let (accounts, done) = server.run(|progress| {
                while is_stopped.try_recv().is_err() {
                    assert!(!progress.is_failed(), "a thread of the server has ended");
                    if let Ok(answer) = is_asked.recv_timeout(Duration::from_millis(5)) {
                        answer.send((progress.statistics().total(), progress.queued_bytes())).unwrap();
                    }
                }
            });
            done.unwrap();
            accounts
        });
        RunningServer { address, stop, ask, thread: Some(thread) }
    }
}

/// The contents of a file from an offset on.
pub(crate) fn pattern_bytes(from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

pub(crate) struct RunningServer {
    pub(crate) address: SocketAddr,
    stop: mpsc::Sender<()>,
    ask: mpsc::Sender<mpsc::Sender<(ClientCounts, usize)>>,
    thread: Option<JoinHandle<ServerStatistics>>,
}

impl RunningServer {
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    pub(crate) fn total_counts(&self) -> ClientCounts {
        self.query_status().0
    }

    /// Memory of replies that no client has read yet.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.query_status().1
    }

    fn query_status(&self) -> (ClientCounts, usize) {
        let (answer, progress) = mpsc::channel();
        self.ask.send(answer).unwrap();
        progress.recv_timeout(nocopy_lab::patience::PATIENCE).unwrap()
    }

    pub(crate) fn stop(mut self) -> ServerStatistics {
        self.stop.send(()).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }

    pub(crate) fn stop_and_count(self) -> ClientCounts {
        let accounts = self.stop();
        let clients = accounts.clients();
        assert_eq!(clients.len(), 1);
        assert_eq!(clients[0].0, Some(IpAddr::from([127, 0, 0, 1])));
        clients[0].1
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.stop.send(());
    }
}
