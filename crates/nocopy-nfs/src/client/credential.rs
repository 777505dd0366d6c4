//! The user that this client claims to be (AUTH_SYS), without a proof.

use rustix::process::{getegid, geteuid, getgroups};

use crate::wire::rpc::{GROUPS_MAX, MACHINE_BYTES_MAX, SystemCredential};
use crate::wire::xdr::Xdr;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) groups: Vec<u32>,
}

impl User {
    pub(super) fn of_process() -> Self {
        let groups = getgroups().unwrap_or_default();
        Self {
            user: geteuid().as_raw(),
            group: getegid().as_raw(),
            groups: groups.iter().map(|group| group.as_raw()).collect(),
        }
    }

    /// The body of the credential, with as many groups as it can hold.
    pub(super) fn encode_credential_body(&self) -> Vec<u8> {
        let names = rustix::system::uname();
        let name = names.nodename().to_bytes();
        let (user, group) = (self.user, self.group);
        let groups = self.groups.iter().copied().take(GROUPS_MAX).collect();
        let machine = &name[..name.len().min(MACHINE_BYTES_MAX)];
        let mut body = Vec::new();
        SystemCredential { machine, user, group, groups }.encode(&mut body);
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::xdr;

    #[test]
    fn credentials_have_the_user_and_at_most_16_groups() {
        let body = User { user: 1000, group: 100, groups: (0..20).collect() }.encode_credential_body();
        let said: SystemCredential<'_> = xdr::parse(&body).unwrap();
        assert_eq!((said.user, said.group, said.groups), (1000, 100, (0..16).collect()));
    }
}
