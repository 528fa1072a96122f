//! Neighbour Discovery messages and options (RFC 4861), without their ICMPv6 header.

use core::net::Ipv6Addr;

use crate::WireError;
use crate::ethernet::Mac;
use crate::read::{array, be32, put32};

mod kind {
    pub(super) const ROUTER_SOLICIT: u8 = 133;
    pub(super) const ROUTER_ADVERT: u8 = 134;
    pub(super) const NEIGHBOUR_SOLICIT: u8 = 135;
    pub(super) const NEIGHBOUR_ADVERT: u8 = 136;
}

mod option {
    pub(super) const SOURCE_LINK: u8 = 1;
    pub(super) const TARGET_LINK: u8 = 2;
    pub(super) const PREFIX: u8 = 3;
    pub(super) const MTU: u8 = 5;
    /// Nonce option (RFC 3971 5.3.2).
    pub(super) const NONCE: u8 = 14;
    /// Length of an option with a nonce of 6 bytes, in bytes.
    pub(super) const NONCE_LEN: usize = 8;
    /// Length of a link-layer address option on Ethernet, in bytes.
    pub(super) const LINK_LEN: usize = 8;
}

/// Returns whether this module parses the ICMPv6 type. Redirect (137) is not: it is never followed.
pub(crate) const fn is_ndp(kind: u8) -> bool {
    matches!(kind, kind::ROUTER_SOLICIT..=kind::NEIGHBOUR_ADVERT)
}

/// A random number by which a sender recognises its own messages (RFC 3971 5.3.2, RFC 7527).
pub type Nonce = [u8; 6];

/// A Neighbour Discovery message; link-layer addresses other than Ethernet's read as absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NdpRepr<'a> {
    /// Router solicitation.
    RouterSolicit {
        /// The sender's hardware address.
        source_mac: Option<Mac>,
    },
    /// Router advertisement.
    RouterAdvert {
        /// Hop limit to use; 0: unspecified.
        hop_limit: u8,
        /// M (0x80), O (0x40) and the flags of later RFCs.
        flags: u8,
        /// Seconds for which the sender is a default router; 0: it is none.
        lifetime_s: u16,
        /// Milliseconds for which a neighbour stays reachable; 0: unspecified.
        reachable_ms: u32,
        /// Milliseconds between solicitations; 0: unspecified.
        retrans_ms: u32,
        /// The message's options.
        options: NdpOptions<'a>,
    },
    /// Neighbour solicitation.
    NeighbourSolicit {
        /// The address to resolve.
        target: Ipv6Addr,
        /// The sender's hardware address; absent in duplicate address detection.
        source_mac: Option<Mac>,
        /// Distinguishes a looped-back message from another host's in duplicate address detection.
        nonce: Option<Nonce>,
    },
    /// Neighbour advertisement.
    NeighbourAdvert {
        /// The address that is advertised.
        target: Ipv6Addr,
        /// R: the sender is a router.
        router: bool,
        /// S: the message answers a solicitation.
        solicited: bool,
        /// O: the address replaces a cached one.
        override_cache: bool,
        /// The target's hardware address.
        target_mac: Option<Mac>,
    },
}

impl<'a> NdpRepr<'a> {
    /// Reads a message from ICMPv6's parts, with the checks of RFC 4861 6.1 and 7.1 except for the
    /// hop limit.
    pub(crate) fn parse(kind: u8, code: u8, rest: u32, data: &'a [u8]) -> Result<Self, WireError> {
        if code != 0 {
            return Err(WireError::BadField);
        }
        match kind {
            kind::ROUTER_SOLICIT => Ok(Self::RouterSolicit {
                source_mac: NdpOptions::parse(data)?.source_mac(),
            }),
            kind::ROUTER_ADVERT => {
                let (times, options) = data.split_first_chunk::<8>().ok_or(WireError::Truncated)?;
                Ok(Self::RouterAdvert {
                    hop_limit: (rest >> 24) as u8,
                    flags: (rest >> 16) as u8,
                    lifetime_s: rest as u16,
                    reachable_ms: be32(times, 0),
                    retrans_ms: be32(times, 4),
                    options: NdpOptions::parse(options)?,
                })
            }
            _ => Self::parse_neighbour(kind, rest, data),
        }
    }

    fn parse_neighbour(kind: u8, rest: u32, data: &'a [u8]) -> Result<Self, WireError> {
        let (target, options) = data.split_first_chunk::<16>().ok_or(WireError::Truncated)?;
        let target = Ipv6Addr::from(*target);
        let options = NdpOptions::parse(options)?;
        if target.is_multicast() {
            return Err(WireError::BadField);
        }
        Ok(if kind == kind::NEIGHBOUR_SOLICIT {
            Self::NeighbourSolicit {
                target,
                source_mac: options.source_mac(),
                nonce: options.nonce(),
            }
        } else {
            Self::NeighbourAdvert {
                target,
                router: rest >> 31 != 0,
                solicited: rest >> 30 & 1 != 0,
                override_cache: rest >> 29 & 1 != 0,
                target_mac: options.target_mac(),
            }
        })
    }

    /// Returns the ICMPv6 type.
    pub(crate) const fn kind(&self) -> u8 {
        match self {
            Self::RouterSolicit { .. } => kind::ROUTER_SOLICIT,
            Self::RouterAdvert { .. } => kind::ROUTER_ADVERT,
            Self::NeighbourSolicit { .. } => kind::NEIGHBOUR_SOLICIT,
            Self::NeighbourAdvert { .. } => kind::NEIGHBOUR_ADVERT,
        }
    }

    /// Returns bytes 4 to 7 of the message.
    pub(crate) fn rest(&self) -> u32 {
        match *self {
            Self::RouterSolicit { .. } | Self::NeighbourSolicit { .. } => 0,
            Self::RouterAdvert {
                hop_limit,
                flags,
                lifetime_s,
                ..
            } => u32::from_be_bytes([hop_limit, flags, 0, 0]) | u32::from(lifetime_s),
            Self::NeighbourAdvert {
                router,
                solicited,
                override_cache,
                ..
            } => {
                u32::from(router) << 31
                    | u32::from(solicited) << 30
                    | u32::from(override_cache) << 29
            }
        }
    }

    /// Returns the number of bytes that follow the ICMPv6 header.
    pub(crate) fn body_len(&self) -> usize {
        let link = |mac: &Option<Mac>| mac.map_or(0, |_| option::LINK_LEN);
        match self {
            Self::RouterSolicit { source_mac } => link(source_mac),
            Self::RouterAdvert { options, .. } => 8 + options.0.len(),
            Self::NeighbourSolicit {
                source_mac, nonce, ..
            } => 16 + link(source_mac) + nonce.map_or(0, |_| option::NONCE_LEN),
            Self::NeighbourAdvert { target_mac, .. } => 16 + link(target_mac),
        }
    }

    /// Writes the bytes that follow the ICMPv6 header; `out` has their length.
    pub(crate) fn emit_body(&self, out: &mut [u8]) {
        match self {
            Self::RouterSolicit { source_mac } => {
                emit_link(option::SOURCE_LINK, *source_mac, out);
            }
            Self::RouterAdvert {
                reachable_ms,
                retrans_ms,
                options,
                ..
            } => {
                put32(out, 0, *reachable_ms);
                put32(out, 4, *retrans_ms);
                out[8..].copy_from_slice(options.0);
            }
            Self::NeighbourSolicit {
                target,
                source_mac,
                nonce,
            } => {
                out[..16].copy_from_slice(&target.octets());
                emit_link(option::SOURCE_LINK, *source_mac, &mut out[16..]);
                if let (Some(nonce), Some(out)) =
                    (nonce, out.last_chunk_mut::<{ option::NONCE_LEN }>())
                {
                    out[..2].copy_from_slice(&[option::NONCE, 1]);
                    out[2..].copy_from_slice(nonce);
                }
            }
            Self::NeighbourAdvert {
                target, target_mac, ..
            } => {
                out[..16].copy_from_slice(&target.octets());
                emit_link(option::TARGET_LINK, *target_mac, &mut out[16..]);
            }
        }
    }
}

fn emit_link(kind: u8, mac: Option<Mac>, out: &mut [u8]) {
    if let Some(mac) = mac {
        out[0] = kind;
        out[1] = 1;
        out[2..8].copy_from_slice(&mac.0);
    }
}

/// A list of Neighbour Discovery options whose lengths have been checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NdpOptions<'a>(&'a [u8]);

/// A Neighbour Discovery option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NdpOption<'a> {
    /// The sender's hardware address.
    SourceMac(Mac),
    /// The target's hardware address.
    TargetMac(Mac),
    /// A prefix of the link.
    Prefix {
        /// Length of the prefix, in bits.
        len: u8,
        /// L: addresses with this prefix are on the link.
        on_link: bool,
        /// A: hosts may form addresses with this prefix.
        autonomous: bool,
        /// Valid lifetime in seconds; all ones: infinite.
        valid_s: u32,
        /// Preferred lifetime in seconds; all ones: infinite.
        preferred_s: u32,
        /// The prefix.
        prefix: Ipv6Addr,
    },
    /// The link's MTU, in bytes.
    Mtu(u32),
    /// A nonce of six bytes.
    Nonce(Nonce),
    /// Any other option, or a known one with a wrong length.
    Other {
        /// Option type.
        kind: u8,
        /// The bytes after type and length.
        value: &'a [u8],
    },
}

impl<'a> NdpOptions<'a> {
    /// Checks that options fill `bytes` exactly.
    ///
    /// # Errors
    /// `BadLength` for an option of length zero; `Truncated` if the last option ends after `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // RFC 4861 4.6: an option of length zero makes the packet invalid.
            let len = match rest {
                [_, 0, ..] => return Err(WireError::BadLength),
                &[_, units, ..] => usize::from(units) * 8,
                _ => return Err(WireError::Truncated),
            };
            rest = rest.get(len..).ok_or(WireError::Truncated)?;
        }
        Ok(Self(bytes))
    }

    /// Returns an iterator over the options.
    pub fn iter(self) -> impl Iterator<Item = NdpOption<'a>> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let &[kind, units, ..] = rest else {
                return None;
            };
            let (option, after) = rest.split_at_checked(usize::from(units) * 8)?;
            rest = after;
            Some(NdpOption::parse(kind, &option[2..]))
        })
    }

    fn source_mac(self) -> Option<Mac> {
        self.iter().find_map(|option| match option {
            NdpOption::SourceMac(mac) => Some(mac),
            _ => None,
        })
    }

    fn nonce(self) -> Option<Nonce> {
        self.iter().find_map(|option| match option {
            NdpOption::Nonce(nonce) => Some(nonce),
            _ => None,
        })
    }

    fn target_mac(self) -> Option<Mac> {
        self.iter().find_map(|option| match option {
            NdpOption::TargetMac(mac) => Some(mac),
            _ => None,
        })
    }
}

impl<'a> NdpOption<'a> {
    fn parse(kind: u8, value: &'a [u8]) -> Self {
        match (kind, value.len()) {
            (option::SOURCE_LINK, 6) => Self::SourceMac(Mac(array(value, 0))),
            (option::TARGET_LINK, 6) => Self::TargetMac(Mac(array(value, 0))),
            (option::PREFIX, 30) if value[0] <= 128 => Self::Prefix {
                len: value[0],
                on_link: value[1] & 0x80 != 0,
                autonomous: value[1] & 0x40 != 0,
                valid_s: be32(value, 2),
                preferred_s: be32(value, 6),
                prefix: array::<16>(value, 14).into(),
            },
            (option::MTU, 6) => Self::Mtu(be32(value, 2)),
            (option::NONCE, 6) => Self::Nonce(array(value, 0)),
            _ => Self::Other { kind, value },
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use core::net::Ipv6Addr;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::{NdpOption, NdpOptions, NdpRepr};
    use crate::WireError;
    use crate::ethernet::Mac;
    use crate::icmpv6::{Icmpv6Repr, checksum_ok};

    fn unicast() -> impl Strategy<Value = Ipv6Addr> {
        (any::<u128>(), 0u8..0xff).prop_map(|(address, first)| {
            let mut octets = address.to_be_bytes();
            octets[0] = first;
            octets.into()
        })
    }

    fn message() -> impl Strategy<Value = NdpRepr<'static>> {
        let mac = || any::<Option<[u8; 6]>>().prop_map(|mac| mac.map(Mac));
        prop_oneof![
            mac().prop_map(|source_mac| NdpRepr::RouterSolicit { source_mac }),
            (unicast(), mac(), any::<Option<[u8; 6]>>()).prop_map(|(target, source_mac, nonce)| {
                NdpRepr::NeighbourSolicit {
                    target,
                    source_mac,
                    nonce,
                }
            }),
            (unicast(), mac(), any::<[bool; 3]>()).prop_map(|(target, target_mac, flags)| {
                NdpRepr::NeighbourAdvert {
                    target,
                    router: flags[0],
                    solicited: flags[1],
                    override_cache: flags[2],
                    target_mac,
                }
            }),
            any::<(u8, u8, u16, u32, u32)>().prop_map(|(hop_limit, flags, lifetime_s, a, b)| {
                NdpRepr::RouterAdvert {
                    hop_limit,
                    flags,
                    lifetime_s,
                    reachable_ms: a,
                    retrans_ms: b,
                    options: NdpOptions::parse(&[5, 1, 0, 0, 0, 0, 5, 0xdc]).unwrap(),
                }
            }),
        ]
    }

    proptest! {
        #[test]
        fn emit_then_parse_is_identity(ndp in message(), src in unicast(), dst in unicast()) {
            let repr = Icmpv6Repr::Ndp(ndp);
            let mut bytes = vec![0xee; repr.len()];
            prop_assert_eq!(repr.emit(src, dst, &mut bytes), bytes.len());
            prop_assert!(checksum_ok(src, dst, &bytes));
            prop_assert_eq!(Icmpv6Repr::parse(&bytes), Ok(repr));
        }

        #[test]
        fn options_do_not_panic(bytes: Vec<u8>) {
            if let Ok(options) = NdpOptions::parse(&bytes) {
                prop_assert!(options.iter().count() <= bytes.len() / 8);
            }
        }
    }

    #[test]
    fn a_router_advertisement_is_parsed() {
        let mut options = vec![3, 4, 64, 0xc0, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0, 0];
        options.extend("2001:db8::".parse::<Ipv6Addr>().unwrap().octets());
        options.extend([
            5, 1, 0, 0, 0, 0, 5, 0xdc, 1, 1, 2, 3, 4, 5, 6, 7, 99, 1, 0, 0, 0, 0, 0, 1,
        ]);
        let options = NdpOptions::parse(&options).unwrap();
        let expected = [
            NdpOption::Prefix {
                len: 64,
                on_link: true,
                autonomous: true,
                valid_s: 9,
                preferred_s: 8,
                prefix: "2001:db8::".parse().unwrap(),
            },
            NdpOption::Mtu(1500),
            NdpOption::SourceMac(Mac([2, 3, 4, 5, 6, 7])),
            NdpOption::Other {
                kind: 99,
                value: &[0, 0, 0, 0, 0, 1],
            },
        ];
        assert!(options.iter().eq(expected));
    }

    #[test]
    fn invalid_messages_are_errors() {
        assert_eq!(
            NdpOptions::parse(&[1, 0, 0, 0, 0, 0, 0, 0]),
            Err(WireError::BadLength)
        );
        assert_eq!(
            NdpOptions::parse(&[1, 2, 0, 0, 0, 0, 0, 0]),
            Err(WireError::Truncated)
        );
        let mut solicit = vec![135, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Icmpv6Repr::parse(&solicit), Err(WireError::Truncated));
        solicit.extend("ff02::1".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(Icmpv6Repr::parse(&solicit), Err(WireError::BadField));
        solicit[8] = 0xfe;
        assert!(Icmpv6Repr::parse(&solicit).is_ok());
        solicit[1] = 1;
        assert_eq!(Icmpv6Repr::parse(&solicit), Err(WireError::BadField));
    }
}
