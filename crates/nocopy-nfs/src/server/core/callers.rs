//! The users for whom calls are made.

use crate::export::{Caller, User};
use crate::wire::rpc::{AUTH_SYS, AuthError, Credential, SystemCredential};
use crate::wire::xdr;

/// The users for whom calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// Always the user of this process, whatever the credential is.
    Server,
    /// The user in the credential; without a credential, the user nobody. Needs the rights to act for others
    /// ([`Caller::can_be_acted_for`]).
    Users {
        /// Whether root stays root instead of becoming nobody.
        is_root_trusted: bool,
    },
}

impl Callers {
    /// # Errors
    /// The credential is not valid for its flavor.
    pub(super) fn of(self, credential: &Credential<'_>) -> Result<Caller, AuthError> {
        let Self::Users { is_root_trusted } = self else { return Ok(Caller::Server) };
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

    #[test]
    fn a_credential_names_a_user() {
        let mut body = Vec::new();
        let said = SystemCredential { machine: b"somewhere", user: 1000, group: 100, groups: vec![0, 4] };
        said.encode(&mut body);
        let of = |callers: Callers, flavor, body| callers.of(&Credential { flavor, body });
        let users = Callers::Users { is_root_trusted: false };
        assert_eq!(of(Callers::Server, AUTH_SYS, &body), Ok(Caller::Server));
        assert_eq!(of(users, AUTH_SYS, &body), Ok(Caller::User(User::new(1000, 100, &[0, 4], false))));
        assert_eq!(of(users, 0, &[]), Ok(Caller::User(User::NOBODY)));
        for end in 0..body.len() {
            assert_eq!(of(users, AUTH_SYS, &body[..end]), Err(AuthError::BadCredential));
        }
        let longer = [&body[..], &[0; 4]].concat();
        assert_eq!(of(users, AUTH_SYS, &longer), Err(AuthError::BadCredential));
    }
}
