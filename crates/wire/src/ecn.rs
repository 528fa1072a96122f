//! The ECN field of an IP header (RFC 3168 5).

/// The ECN field: the last two bits of IPv4's type of service or IPv6's traffic class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum EcnField {
    /// Not-ECT: the sender does not react to marks, so that a congested queue must drop the packet.
    #[default]
    NotEct = 0b00,
    /// ECT(1): marked like ECT(0); also identifies L4S traffic (RFC 9331).
    Ect1 = 0b01,
    /// ECT(0): a congested queue may mark the packet.
    Ect0 = 0b10,
    /// Congestion Experienced: a queue has marked the packet.
    Ce = 0b11,
}

impl EcnField {
    /// Returns the ECN field of a type of service or traffic class byte.
    #[inline]
    pub const fn of(tos: u8) -> Self {
        match tos & 0b11 {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Returns the field as the last two bits of a type of service byte.
    #[inline]
    pub const fn bits(self) -> u8 {
        self as u8
    }

    /// Returns whether the sender reacts to marks: ECT(0), ECT(1) or CE.
    #[inline]
    pub const fn is_capable(self) -> bool {
        !matches!(self, Self::NotEct)
    }
}

#[cfg(test)]
mod tests {
    use super::EcnField;

    #[test]
    fn the_field_is_the_last_two_bits() {
        for tos in 0..=u8::MAX {
            assert_eq!(EcnField::of(tos).bits(), tos & 3);
            assert_eq!(EcnField::of(tos).is_capable(), tos & 3 != 0);
        }
    }
}
