//! Settings of a client, and how it connects: the server's ports, then the mount.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nocopy::Pool;
use nocopy_report::address::{self, FailedAttempts, Family};
use rustix::rand::{GetRandomFlags, getrandom};

use super::core::{Completion, ProcedureNumber, TransferLimits};
use super::credential::User;
use super::half::WaitDescriptor;
use super::transport::{ConnectSettings, Transport};
use super::{Client, ClientError, TransportError, Url};
use crate::wire::mount::{self, MountReply, Text};
use crate::wire::nfs3::{self, Attributes, FileHandle, FileSystemInformation, Procedure};
use crate::wire::portmap::{self, Mapping};
use crate::wire::xdr::{self, Xdr};

/// The longest useful READ or WRITE.
const CALL_BYTES_MAX: usize = 1 << 20;

/// A server that announces less is asked for this much nevertheless, and may read or write less: otherwise it
/// would decide how many calls, and how much memory, a buffer takes.
const SERVER_BYTES_MIN: usize = 1024;

const BUFFERS: u32 = 16;

/// The longest reply to MNT: a handle and authentication flavors.
const MOUNT_REPLY_BYTES_MAX: usize = 1024;

#[derive(Debug, Clone)]
pub struct Builder {
    connections: usize,
    timeout: Duration,
    give_up_after: Option<Duration>,
    is_reserved: bool,
    user: User,
    call_bytes_max: usize,
    pool: Option<Pool>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            connections: 1,
            timeout: Duration::from_secs(15),
            give_up_after: Some(Duration::from_secs(60)),
            is_reserved: false,
            user: User::of_process(),
            call_bytes_max: CALL_BYTES_MAX,
            pool: None,
        }
    }
}

impl Builder {
    /// The number of TCP connections, among which calls are distributed (1).
    ///
    /// # Panics
    /// It is 0.
    #[must_use]
    pub fn connections(self, connections: usize) -> Self {
        assert!(connections > 0, "a client of no connections");
        Self { connections, ..self }
    }

    /// How long to wait for a reply before the client replaces the connection and sends its calls again (15
    /// s).
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How long to repeat calls without any reply before all of them fail (60 s); `None`: forever, as a hard
    /// mount does.
    #[must_use]
    pub fn give_up_after(self, patience: Option<Duration>) -> Self {
        Self { give_up_after: patience, ..self }
    }

    /// Connects from a port below 1024, which needs `CAP_NET_BIND_SERVICE`: servers with the option `secure`
    /// accept no others.
    #[must_use]
    pub fn reserved_port(self, on: bool) -> Self {
        Self { is_reserved: on, ..self }
    }

    /// Calls as this user and group instead of those of the process. The server may ignore it.
    #[must_use]
    pub fn user(self, user: u32, group: u32) -> Self {
        Self { user: User { user, group, groups: Vec::new() }, ..self }
    }

    /// The most bytes of one READ or WRITE call (1 MiB, or the server's limit, but at least 1 KiB).
    #[must_use]
    pub fn call_bytes_max(self, bytes: usize) -> Self {
        Self { call_bytes_max: bytes.max(1), ..self }
    }

    /// A pool for this and perhaps other clients, instead of a pool of 16 buffers, each for the longest READ.
    /// None of its buffers may be in use when a client connects.
    #[must_use]
    pub fn pool(self, pool: Pool) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// Mounts the longest exported beginning of the URL's path, and returns the rest of the path.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn connect(&self, url: &Url) -> Result<(Client, PathBuf), ClientError> {
        let addresses = url.host.resolve(0, Family::Any);
        let addresses =
            addresses.map_err(|source| ClientError::Host { host: url.host.to_string(), source })?;
        if let [address] = addresses[..] {
            return self.connect_at(url, address);
        }
        let unreachable = |failed: FailedAttempts| ClientError::Unreachable {
            host: url.host.to_string(),
            source: failed.into_error(),
        };
        let first = self.first_reachable_address(url, &addresses).map_err(unreachable)?;
        let mut failed = FailedAttempts::default();
        for address in [first].into_iter().chain(addresses.into_iter().filter(|address| *address != first)) {
            match self.connect_at(url, address) {
                Err(ClientError::Transport(TransportError::Connect { address, source })) => {
                    failed.record(address, source);
                }
                done => return done,
            }
        }
        Err(unreachable(failed))
    }

    /// Which of the server's addresses accepts connections first, so that an address without an answer delays
    /// nothing.
    fn first_reachable_address(
        &self,
        url: &Url,
        addresses: &[SocketAddr],
    ) -> Result<SocketAddr, FailedAttempts> {
        let ports = url.nfs_port.map_or(vec![portmap::PORT, nfs3::PORT], |port| vec![port]);
        let all: Vec<_> =
            addresses.iter().flat_map(|to| ports.iter().map(|port| with_port(*to, *port))).collect();
        let within = self.give_up_after.map_or(self.timeout, |most| most.min(self.timeout));
        let connected = address::connect(&all, within, |_| Ok(()), || false)?;
        let (_, to) = connected.expect("nothing stops it");
        Ok(with_port(to, 0))
    }

    fn connect_at(&self, url: &Url, host: SocketAddr) -> Result<(Client, PathBuf), ClientError> {
        let [nfs, mount] = self.find_ports(url, host)?;
        let (root, export, below) = self.mount_closest_export(url, with_port(host, mount))?;
        let pool = match &self.pool {
            Some(pool) => pool.clone(),
            None => {
                Pool::new(BUFFERS, self.call_bytes_max.min(CALL_BYTES_MAX)).map_err(ClientError::Memory)?
            }
        };
        let mut transport = self.new_transport(with_port(host, nfs), self.connections);
        transport.core.set_pool(&pool);
        let mut client = Client {
            transport,
            pool,
            export,
            root,
            give_up_after: self.give_up_after,
            filled: Default::default(),
            pending_calls: Default::default(),
            wait_descriptor: WaitDescriptor::new()
                .map_err(|source| TransportError::Wait { address: with_port(host, nfs), source })?,
        };
        let information: FileSystemInformation =
            client.call::<_, Option<Attributes>>(Procedure::FsInfo, &root, ("", "asked for its limits"))?;
        let limit = |bytes: u32| (bytes as usize).max(SERVER_BYTES_MIN).min(self.call_bytes_max);
        client.core_mut().set_limits(TransferLimits {
            read_bytes_max: limit(information.read_max),
            write_bytes_max: limit(information.write_max),
        });
        Ok((client, below))
    }

    fn new_transport(&self, address: SocketAddr, connections: usize) -> Transport {
        let Self { timeout, give_up_after: patience, is_reserved, .. } = *self;
        let reach = ConnectSettings { address, connections, is_reserved, timeout, give_up_after: patience };
        let mut xid = [0; 4];
        // Random, so that the server does not mistake a call for one of an earlier client.
        let _ = getrandom(&mut xid, GetRandomFlags::empty());
        Transport::new(reach, u32::from_ne_bytes(xid), self.user.encode_credential_body())
    }

    fn find_ports(&self, url: &Url, host: SocketAddr) -> Result<[u16; 2], ClientError> {
        let nfs = match url.nfs_port {
            Some(port) => port,
            None => self.query_portmapper(host, nfs3::PROGRAM, nfs3::VERSION)?.unwrap_or(nfs3::PORT),
        };
        if let Some(mount) = url.mount_port {
            return Ok([nfs, mount]);
        }
        // A URL with a port means that server also for MOUNT, if MOUNT is served there: the portmapper may
        // know another server.
        if url.nfs_port.is_some() && self.is_mount_port(with_port(host, nfs))? {
            return Ok([nfs, nfs]);
        }
        Ok([nfs, self.query_portmapper(host, mount::PROGRAM, mount::VERSION)?.unwrap_or(nfs)])
    }

    fn is_mount_port(&self, address: SocketAddr) -> Result<bool, ClientError> {
        let procedure = ProcedureNumber {
            program: mount::PROGRAM,
            version: mount::VERSION,
            procedure: mount::Procedure::Null as u32,
        };
        match make_single_call(&mut self.new_transport(address, 1), procedure, &()) {
            Ok(_) => Ok(true),
            Err(CallFailure::Call(_)) => Ok(false),
            Err(CallFailure::Transport(error)) => Err(error.into()),
        }
    }

    /// The port by the portmapper; `None` without a portmapper, or if it does not know the program.
    fn query_portmapper(
        &self,
        host: SocketAddr,
        program: u32,
        version: u32,
    ) -> Result<Option<u16>, ClientError> {
        let mut transport = self.new_transport(with_port(host, portmap::PORT), 1);
        let procedure = ProcedureNumber {
            program: portmap::PROGRAM,
            version: portmap::VERSION,
            procedure: portmap::Procedure::GetPort as u32,
        };
        let mapping = Mapping { program, version, protocol: portmap::TCP, port: 0 };
        let results = match make_single_call(&mut transport, procedure, &mapping) {
            Ok(results) => results,
            Err(CallFailure::Transport(TransportError::Connect { .. })) => return Ok(None),
            Err(CallFailure::Transport(error)) => return Err(error.into()),
            Err(CallFailure::Call(error)) => {
                let subject = format!("{} port {}", host.ip(), portmap::PORT);
                return Err(ClientError::from_call_error(subject, "asked for a port", error, false));
            }
        };
        let port = xdr::parse::<u32>(&results).ok().and_then(|port| u16::try_from(port).ok());
        Ok(port.filter(|port| *port != 0))
    }

    /// Mounts the path or its closest parent that is exported and a directory.
    fn mount_closest_export(
        &self,
        url: &Url,
        address: SocketAddr,
    ) -> Result<(FileHandle, String, PathBuf), ClientError> {
        let mut transport = self.new_transport(address, 1);
        let procedure = ProcedureNumber {
            program: mount::PROGRAM,
            version: mount::VERSION,
            procedure: mount::Procedure::Mount as u32,
        };
        let whole = normalized_path(&url.path);
        let mut first = None;
        for path in whole.ancestors() {
            let export = Url { path: path.to_owned(), ..url.clone() }.to_string();
            let asked: mount::Path<'_> = Text(path.as_os_str().as_bytes());
            let results =
                make_single_call(&mut transport, procedure, &asked).map_err(|error| match error {
                    CallFailure::Transport(error) => error.into(),
                    CallFailure::Call(error) => {
                        ClientError::from_call_error(export.clone(), "mounted", error, false)
                    }
                })?;
            let reply = xdr::parse::<MountReply>(&results).map_err(|error| ClientError::BadReply {
                subject: export.clone(),
                what: "mounted",
                source: error.into(),
            })?;
            match reply {
                Ok(mounted) => {
                    let below = whole.strip_prefix(path).unwrap_or(Path::new("")).to_owned();
                    return Ok((mounted.handle, export, below));
                }
                Err(status) => drop(first.get_or_insert((export, status))),
            }
        }
        let (export, status) = first.expect("a path has at least the root above it");
        Err(ClientError::Mount { export, status })
    }
}

/// The path from the root, with one slash between names.
fn normalized_path(path: &Path) -> PathBuf {
    let names = path.components().filter_map(|part| match part {
        std::path::Component::Normal(name) => Some(name),
        _ => None,
    });
    [OsStr::new("/")].into_iter().chain(names).collect()
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

enum CallFailure {
    Transport(TransportError),
    Call(super::CallError),
}

/// Makes the only call of a transport, and waits for its results.
fn make_single_call<'a>(
    transport: &mut Transport,
    procedure: ProcedureNumber,
    arguments: &impl Xdr<'a>,
) -> Result<Vec<u8>, CallFailure> {
    transport.core.call(procedure, arguments, MOUNT_REPLY_BYTES_MAX);
    loop {
        match transport.core.next_completion() {
            Some(Completion::Results { results, .. }) => return results.map_err(CallFailure::Call),
            Some(_) => unreachable!("nothing else was asked for"),
            None => transport.drive(None).map_err(CallFailure::Transport)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalized_paths_have_single_slashes_and_no_dots() {
        for (path, expected) in [("/srv//a/./b/", "/srv/a/b"), ("//", "/"), ("/", "/")] {
            assert_eq!(normalized_path(Path::new(path)), Path::new(expected));
        }
    }
}
