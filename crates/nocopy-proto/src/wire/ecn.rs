//! Explicit congestion notification (RFC 3168).

/// The two bits of an IP header by which routers report long queues instead of dropping packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not react to marks, so routers drop its packets.
    NotEct = 0b00,
    /// Routers may mark the packet; the sender asks for marks at short queues (L4S, RFC 9331).
    Ect1 = 0b01,
    /// Routers may mark the packet.
    Ect0 = 0b10,
    /// Congestion experienced: a router whose queue was long marked the packet.
    Ce = 0b11,
}

impl Ecn {
    /// The last two bits of IPv4's type of service, or of IPv6's traffic class.
    #[inline]
    pub const fn of_traffic_class(traffic_class: u8) -> Self {
        match traffic_class & 0b11 {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Its two bits, as in the header.
    #[inline]
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_two_bits_of_a_traffic_class_count() {
        for class in 0..=u8::MAX {
            assert_eq!(Ecn::of_traffic_class(class).bits(), class & 0b11);
        }
        let all = [0b00, 0b01, 0b10, 0b11].map(Ecn::of_traffic_class);
        assert_eq!(all, [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce]);
    }
}
