//! Which capabilities this thread holds, to name the one that is missing.

use rustix::thread::CapabilitySet;

/// The first of `needed` that is not in the effective set, by its name in capabilities(7).
pub(crate) fn missing_capability(needed: &[(CapabilitySet, &'static str)]) -> Option<&'static str> {
    let held = rustix::thread::capabilities(None).ok()?.effective;
    // CAP_SYS_ADMIN stands in for CAP_BPF as before Linux 5.8, not for the network's own.
    let held = if held.contains(CapabilitySet::SYS_ADMIN) { held | CapabilitySet::BPF } else { held };
    needed.iter().find(|(capability, _)| !held.contains(*capability)).map(|(_, name)| *name)
}

pub(crate) fn holds_capability(capability: CapabilitySet) -> bool {
    missing_capability(&[(capability, "")]).is_none()
}

/// How to grant a program all that a port needs; `setcap` replaces earlier grants, so it names all.
pub(crate) const GRANT: &str = "'setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM'";

/// Capabilities for opening an AF_XDP port: the socket, the programs, attaching them.
pub(crate) const PORT: &[(CapabilitySet, &str)] = &[
    (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::BPF, "CAP_BPF"),
];

/// Capabilities of a sender without a port.
pub(crate) const SENDER: &[(CapabilitySet, &str)] = &[(CapabilitySet::NET_RAW, "CAP_NET_RAW")];

/// Capabilities for loading and attaching an XDP program.
pub(crate) const PROGRAM: &[(CapabilitySet, &str)] =
    &[(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), (CapabilitySet::BPF, "CAP_BPF")];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::features;

    #[test]
    fn features_name_the_capabilities_that_are_looked_for() {
        let names = |needed: &[(CapabilitySet, &'static str)]| -> Vec<&str> {
            needed.iter().map(|(_, name)| *name).collect()
        };
        assert_eq!(names(PORT), features::PORT.capabilities);
        assert_eq!(names(PROGRAM), features::TC_LINK.capabilities);
    }
}
