//! Ports, by number or by name.

use std::fmt;

pub(super) struct DisplayedPort {
    pub(super) number: u16,
    pub(super) named: bool,
}

/// Common service names (IANA).
const NAMES: [(u16, &str); 34] = [
    (7, "echo"),
    (9, "discard"),
    (20, "ftp-data"),
    (21, "ftp"),
    (22, "ssh"),
    (23, "telnet"),
    (25, "smtp"),
    (53, "domain"),
    (67, "bootps"),
    (68, "bootpc"),
    (69, "tftp"),
    (80, "http"),
    (110, "pop3"),
    (111, "sunrpc"),
    (123, "ntp"),
    (143, "imap"),
    (161, "snmp"),
    (162, "snmptrap"),
    (179, "bgp"),
    (319, "ptp-event"),
    (320, "ptp-general"),
    (389, "ldap"),
    (443, "https"),
    (514, "syslog"),
    (546, "dhcpv6-client"),
    (547, "dhcpv6-server"),
    (873, "rsync"),
    (993, "imaps"),
    (2049, "nfs"),
    (3306, "mysql"),
    (4789, "vxlan"),
    (4791, "roce"),
    (5201, "iperf3"),
    (5353, "mdns"),
];

impl fmt::Display for DisplayedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = NAMES.binary_search_by_key(&self.number, |(number, _)| *number);
        match found {
            Ok(place) if self.named => f.write_str(NAMES[place].1),
            _ => write!(f, "{}", self.number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_known_ports_are_in_ascending_order() {
        assert!(NAMES.is_sorted_by(|(before, _), (after, _)| before < after));
    }
}
