//! The options of `nocopy serve nfs`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nocopy_report::address::HostPort;
use nocopy_report::quantity;

use crate::export::FileSystemName;
use crate::server::AllowRule;

#[derive(Debug, Args)]
pub struct NfsArguments {
    /// The directory to serve.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Where to listen: an address, or a name with its addresses of this host; without HOST at all addresses
    /// of this host. Port 0 takes a free port. The default is reachable from this host only.
    #[arg(long, value_name = "[HOST]:PORT", default_value = "127.0.0.1:2049")]
    pub listen: HostPort,
    /// Serve only clients in this network, such as 10.0.0.0/8, or of this host; may be given again (default:
    /// every host that reaches the address).
    #[arg(long, value_name = "NETWORK|HOST")]
    pub allow: Vec<AllowRule>,
    /// Where to keep what makes file handles valid after a restart, so that clients continue (default: a
    /// directory for each DIR below ~/.local/state/nocopy).
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<PathBuf>,
    /// What handles know the file system of DIR by, a number or a UUID, instead of the UUID that is on the
    /// disk: for a file system that has none, or several computers that serve the same disk.
    #[arg(long, value_name = "NUMBER|UUID")]
    pub fsid: Option<FileSystemName>,
    /// Copy what is read, so that a file that changes while a reply is on its way does not change the reply.
    #[arg(long)]
    pub stable: bool,
    /// Let clients change files: if the server is started as root, as the user that each client names;
    /// otherwise all as the user of the server.
    #[arg(long)]
    pub writable: bool,
    /// Let root of every client act as root here, and not as nobody; needs a server that is started as root.
    #[arg(long)]
    pub no_root_squash: bool,
    /// Believe the user that a call names from every port, not only from ports below 1024, which need root on
    /// the client; needs a server that is started as root.
    #[arg(long)]
    pub insecure: bool,
    /// Listen at port 111 (portmapper), too, for clients that cannot be given the port.
    #[arg(long)]
    pub portmap: bool,
    /// End after this time: 10s, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub duration: Option<Duration>,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
}
