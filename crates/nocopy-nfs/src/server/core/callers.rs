//! The users for whom calls are made.

use std::net::SocketAddr;

use crate::export::{Caller, User};
use crate::wire::rpc::{AUTH_SYS, AuthError, Credential, SystemCredential};
use crate::wire::xdr;

/// The users for whom calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerMapping {
    /// Always the user of this process, whatever the credential is.
    Server,
    /// The user in the credential; without one, the user nobody. Needs the rights to act for others
    /// ([`Caller::check_impersonation`]).
    Users {
        /// Whether root stays root instead of becoming nobody.
        is_root_trusted: bool,
        /// Whether a call from any port is believed. Otherwise ports are believed that only root of the
        /// client can use, and calls from others are made as [`User::UNTRUSTED`].
        is_any_port_trusted: bool,
    },
}

/// The first port that programs without privileges can use.
const UNPRIVILEGED_PORT: u16 = 1024;

impl CallerMapping {
    /// # Errors
    /// The credential is not valid for its flavor.
    pub(super) fn map_credential(
        self,
        credential: &Credential<'_>,
        client: SocketAddr,
    ) -> Result<Caller, AuthError> {
        let Self::Users { is_root_trusted, is_any_port_trusted } = self else { return Ok(Caller::Server) };
        if client.port() >= UNPRIVILEGED_PORT && !is_any_port_trusted {
            return Ok(Caller::User(User::UNTRUSTED));
        }
        if credential.flavor != AUTH_SYS {
            return Ok(Caller::User(User::NOBODY));
        }
        let SystemCredential { user, group, groups, .. } =
            xdr::parse(credential.body).map_err(|_| AuthError::BadCredential)?;
        Ok(Caller::User(User::new(user, group, &groups, is_root_trusted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::xdr::Xdr;

    fn client_address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn credentials_are_mapped_to_users() {
        let mut body = Vec::new();
        let said = SystemCredential { machine: b"somewhere", user: 1000, group: 100, groups: vec![0, 4] };
        said.encode(&mut body);
        let of = |callers: CallerMapping, flavor, body| {
            callers.map_credential(&Credential { flavor, body }, client_address(1023))
        };
        let users = CallerMapping::Users { is_root_trusted: false, is_any_port_trusted: false };
        assert_eq!(of(CallerMapping::Server, AUTH_SYS, &body), Ok(Caller::Server));
        assert_eq!(of(users, AUTH_SYS, &body), Ok(Caller::User(User::new(1000, 100, &[0, 4], false))));
        assert_eq!(of(users, 0, &[]), Ok(Caller::User(User::NOBODY)));
        for end in 0..body.len() {
            assert_eq!(of(users, AUTH_SYS, &body[..end]), Err(AuthError::BadCredential));
        }
        let longer = [&body[..], &[0; 4]].concat();
        assert_eq!(of(users, AUTH_SYS, &longer), Err(AuthError::BadCredential));
    }

    #[test]
    fn unprivileged_ports_act_as_the_untrusted_user() {
        let mut body = Vec::new();
        SystemCredential { machine: b"", user: 1000, group: 100, groups: vec![4] }.encode(&mut body);
        let named = Caller::User(User::new(1000, 100, &[4], true));
        let (nobody, untrusted) = (Caller::User(User::NOBODY), Caller::User(User::UNTRUSTED));
        for (is_any_port_trusted, port, with_user, without) in [
            (false, 1023, named, nobody),
            (false, 1024, untrusted, untrusted),
            (false, 65_535, untrusted, untrusted),
            (true, 1024, named, nobody),
        ] {
            let callers = CallerMapping::Users { is_root_trusted: true, is_any_port_trusted };
            let of =
                |flavor, body| callers.map_credential(&Credential { flavor, body }, client_address(port));
            assert_eq!((of(AUTH_SYS, &body), of(0, &[])), (Ok(with_user), Ok(without)), "{port}");
        }
        let of_server = CallerMapping::Server
            .map_credential(&Credential { flavor: AUTH_SYS, body: &body }, client_address(1024));
        assert_eq!(of_server, Ok(Caller::Server));
    }
}
