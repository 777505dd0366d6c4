//! The options of `nocopy serve nfs`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;

use nocopy_report::quantity;

#[derive(Debug, Args)]
pub struct NfsArguments {
    /// The directory to serve.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Where to listen; port 0 takes a free port. The default is reachable from this host only.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2049")]
    pub listen: SocketAddr,
    /// Serve only clients in this network, such as 10.0.0.0/8; may be given again (default: every host that reaches the address).
    #[arg(long, value_name = "NETWORK", value_parser = network)]
    pub allow: Vec<IpNet>,
    /// Where to keep what makes file handles valid after a restart, so that clients continue (default: a
    /// directory for each DIR below ~/.local/state/nocopy).
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<PathBuf>,
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
    /// Believe the user that a call names from every port, not only from ports below 1024, which need root on the client; needs a
    /// server that is started as root.
    #[arg(long)]
    pub insecure: bool,
    /// Listen at port 111 (portmapper), too, for clients that cannot be given the port.
    #[arg(long)]
    pub portmap: bool,
    /// End after this time: 10s, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    pub duration: Option<Duration>,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
}

/// A network, or one address.
fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse().map(|address: std::net::IpAddr| IpNet::from(address));
    text.parse()
        .or_else(|_| address())
        .map_err(|_| "not a network: write it as 10.0.0.0/8 or fd00::/8".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_as_written() {
        for (text, read) in
            [("10.0.0.0/8", "10.0.0.0/8"), ("10.1.2.3", "10.1.2.3/32"), ("fd00::/8", "fd00::/8")]
        {
            assert_eq!(network(text).unwrap().to_string(), read);
        }
        assert!(network("10.0.0.0/33").unwrap_err().contains("10.0.0.0/8"));
    }
}
