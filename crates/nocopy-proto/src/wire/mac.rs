//! Addresses of Ethernet stations.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// A 48-bit Ethernet address, in transmission order.
///
/// Written and read as six pairs of hex digits: `02:00:00:00:00:01`. Reading also accepts `-` between the
/// pairs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// `ff:ff:ff:ff:ff:ff`: every station on the link.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// All zero: no station; the target of an ARP request.
    pub const UNSPECIFIED: Self = Self([0; 6]);

    /// Whether the address names a group of stations. Broadcast is one (IEEE 802-2014, 8.2.2).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The multicast MAC address of a group (RFC 1112 section 6.4, RFC 2464 section 7): its low 23 or 32 bits
    /// after a fixed prefix. `None` for the address of one station.
    pub const fn multicast_address_of(group: IpAddr) -> Option<Self> {
        match group {
            IpAddr::V4(group) if group.is_multicast() => {
                let [_, a, b, c] = group.octets();
                Some(Self([0x01, 0x00, 0x5e, a & 0x7f, b, c]))
            }
            IpAddr::V6(group) if group.is_multicast() => {
                let [.., a, b, c, d] = group.octets();
                Some(Self([0x33, 0x33, a, b, c, d]))
            }
            _ => None,
        }
    }

    /// Whether the address is [`BROADCAST`](Self::BROADCAST).
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }
}

const HEX_DIGITS: [u8; 16] = *b"0123456789abcdef";

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = *b"00:00:00:00:00:00";
        for (place, byte) in (0..).step_by(3).zip(self.0) {
            text[place] = HEX_DIGITS[usize::from(byte >> 4)];
            text[place + 1] = HEX_DIGITS[usize::from(byte & 0xf)];
        }
        // Whole, so that `{:20}` aligns columns of addresses.
        f.pad(std::str::from_utf8(&text).expect("hex digits and colons"))
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacAddress({self})")
    }
}

/// A text that is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?}: not a MAC address; one has six pairs of hex digits; write it like 02:00:00:00:00:01")]
pub struct NotAMacAddress {
    /// The text as it was given.
    pub text: String,
}

impl FromStr for MacAddress {
    type Err = NotAMacAddress;

    fn from_str(text: &str) -> Result<Self, NotAMacAddress> {
        parse_text(text).ok_or_else(|| NotAMacAddress { text: text.to_owned() })
    }
}

fn parse_text(text: &str) -> Option<MacAddress> {
    let separator = if text.contains('-') { '-' } else { ':' };
    let mut pairs = text.split(separator);
    let mut address = [0; 6];
    for byte in &mut address {
        let pair = pairs.next()?;
        // `from_str_radix` alone would accept "+f" and "f".
        let is_pair = pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit());
        *byte = is_pair.then(|| u8::from_str_radix(pair, 16).ok())??;
    }
    pairs.next().is_none().then_some(MacAddress(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn group_and_station_addresses_are_distinguished() {
        assert!(MacAddress::BROADCAST.is_broadcast() && MacAddress::BROADCAST.is_multicast());
        let ipv6_all_nodes = MacAddress([0x33, 0x33, 0, 0, 0, 1]);
        assert!(ipv6_all_nodes.is_multicast() && !ipv6_all_nodes.is_broadcast());
        assert!(!MacAddress([2, 0, 0, 0, 0, 1]).is_multicast());
    }

    #[test]
    fn ip_groups_map_to_group_mac_addresses() {
        let of =
            |group: &str| MacAddress::multicast_address_of(group.parse().unwrap()).map(|mac| mac.to_string());
        // The example of RFC 1112: the 9 bits in front of the low 23 do not count.
        assert_eq!(of("224.128.1.2").as_deref(), Some("01:00:5e:00:01:02"));
        assert_eq!(of("239.255.255.250").as_deref(), Some("01:00:5e:7f:ff:fa"));
        assert_eq!(of("ff02::1:ff28:9c5a").as_deref(), Some("33:33:ff:28:9c:5a"));
        assert_eq!((of("10.0.0.1"), of("255.255.255.255"), of("fe80::1")), (None, None, None));
    }

    #[test]
    fn invalid_address_texts_are_in_the_error() {
        let no_addresses = [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "+2:00:00:00:00:01",
            "02:00:00:00-00:01",
            "0g:00:00:00:00:01",
            "é:00:00:00:00:01",
        ];
        for text in no_addresses {
            assert_eq!(text.parse::<MacAddress>(), Err(NotAMacAddress { text: text.to_owned() }));
        }
        assert_eq!("AA-bb-0c-0D-0e-0f".parse(), Ok(MacAddress([0xaa, 0xbb, 0x0c, 0x0d, 0x0e, 0x0f])));
    }

    #[test]
    fn mac_addresses_are_padded_to_width() {
        assert_eq!(format!("{:>19}|", MacAddress::UNSPECIFIED), "  00:00:00:00:00:00|");
    }

    proptest! {
        #[test]
        fn mac_addresses_survive_a_text_round_trip(bytes: [u8; 6]) {
            prop_assert_eq!(MacAddress(bytes).to_string().parse(), Ok(MacAddress(bytes)));
        }
    }
}
