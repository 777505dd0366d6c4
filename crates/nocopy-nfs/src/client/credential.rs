//! Who this client says that it is (AUTH_SYS; RFC 5531, appendix A). Nothing proves it.

use rustix::process::{getegid, geteuid, getgroups};

use crate::wire::xdr::{Xdr, put_opaque};

/// More groups than that have no place.
const GROUPS_MAX: usize = 16;

/// Of the name of this host.
const NAME_BYTES_MAX: usize = 255;

/// A user of the server's system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) groups: Vec<u32>,
}

impl User {
    /// The one that this process runs as.
    pub(super) fn of_process() -> Self {
        let groups = getgroups().unwrap_or_default();
        Self {
            user: geteuid().as_raw(),
            group: getegid().as_raw(),
            groups: groups.iter().map(|group| group.as_raw()).collect(),
        }
    }

    /// The body of the credential.
    pub(super) fn body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        0_u32.encode(&mut body); // a stamp, which means nothing
        let names = rustix::system::uname();
        let name = names.nodename().to_bytes();
        put_opaque(&mut body, &name[..name.len().min(NAME_BYTES_MAX)]);
        self.user.encode(&mut body);
        self.group.encode(&mut body);
        let groups = &self.groups[..self.groups.len().min(GROUPS_MAX)];
        (groups.len() as u32).encode(&mut body);
        groups.iter().for_each(|group| group.encode(&mut body));
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::xdr::Reader;

    #[test]
    fn a_credential_has_the_user_and_at_most_16_groups() {
        let body = User { user: 1000, group: 100, groups: (0..20).collect() }.body();
        let mut input = Reader::new(&body);
        assert_eq!(input.read::<u32>(), Ok(0));
        assert!(input.opaque(255).is_ok());
        let words: Vec<u32> = (0..19).map(|_| input.read().unwrap()).collect();
        assert_eq!(words[..3], [1000, 100, 16]);
        assert!(words[3..].iter().copied().eq(0..16) && input.rest().is_empty());
    }
}
