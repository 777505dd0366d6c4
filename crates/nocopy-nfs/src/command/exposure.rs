//! What clients may do that they could not do as themselves, for the line that a server prints at its start.

use crate::server::Settings;
use crate::server::core::CallerMapping;

/// The sentence; `None` if only root of this host can name users, who can become any of them anyway.
pub(super) fn exposure_warning(settings: &Settings, is_local: bool, server: u32) -> Option<String> {
    let does = if settings.is_writable { "read and change" } else { "read" };
    let (hosts, advice) = match (is_local, settings.allow.is_empty()) {
        (true, _) => ("this host", ""),
        (false, true) => ("every host that reaches this address", "; name networks by --allow"),
        (false, false) => ("every host that --allow names", ""),
    };
    match settings.callers {
        CallerMapping::Server => {
            Some(format!("every program on {hosts} can {does} it with the rights of user {server}{advice}"))
        }
        CallerMapping::Users { is_any_port_trusted: false, .. } if is_local => None,
        CallerMapping::Users { is_root_trusted, is_any_port_trusted } => {
            let programs = if is_any_port_trusted { "every program" } else { "root" };
            let users = if is_root_trusted { "any user" } else { "any user but root" };
            Some(format!("{programs} on {hosts} can {does} it as {users}{advice}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn exposure_warnings_name_hosts_rights_and_users() {
        let users = |is_root_trusted, is_any_port_trusted| CallerMapping::Users {
            is_root_trusted,
            is_any_port_trusted,
        };
        let of = |host: [u8; 4], allow: &[&str], is_writable, callers| {
            let address = SocketAddr::from((host, 2049));
            let allow = allow.iter().map(|network| network.parse().unwrap()).collect();
            let (is_stable, is_portmapper, connections_max) = (false, false, 1);
            let settings = Settings {
                addresses: vec![address],
                allow,
                is_stable,
                is_writable,
                callers,
                is_portmapper,
                connections_max,
            };
            exposure_warning(&settings, address.ip().is_loopback(), 1000)
        };
        let (here, open, allowed) = ([127, 0, 0, 1], [0, 0, 0, 0], ["10.0.0.0/8"]);
        for (said, expected) in [
            (of(here, &[], false, users(false, false)), None),
            (
                of(here, &[], false, users(false, true)),
                Some("every program on this host can read it as any user but root"),
            ),
            (
                of(here, &[], true, CallerMapping::Server),
                Some("every program on this host can read and change it with the rights of user 1000"),
            ),
            (
                of(open, &[], false, CallerMapping::Server),
                Some(
                    "every program on every host that reaches this address can read it with the rights of user 1000; name networks by --allow",
                ),
            ),
            (
                of(open, &[], true, users(true, false)),
                Some(
                    "root on every host that reaches this address can read and change it as any user; name networks by --allow",
                ),
            ),
            (
                of(open, &allowed, true, users(false, false)),
                Some("root on every host that --allow names can read and change it as any user but root"),
            ),
        ] {
            assert_eq!(said.as_deref(), expected);
        }
    }
}
