//! Neighbour Discovery messages and options (RFC 4861), as they stand in ICMPv6.

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
    /// RFC 3971 5.3.2.
    pub(super) const NONCE: u8 = 14;
    /// Bytes of an option with a nonce of the usual length.
    pub(super) const NONCE_LEN: usize = 8;
    /// Bytes of a link-layer address option on Ethernet.
    pub(super) const LINK_LEN: usize = 8;
}

/// The ICMPv6 types read here; Redirect (137) is not, we never follow one.
pub(crate) const fn is_ndp(kind: u8) -> bool {
    matches!(kind, kind::ROUTER_SOLICIT..=kind::NEIGHBOUR_ADVERT)
}

/// A random number by which a sender knows its own message again (RFC 3971 5.3.2, RFC 7527).
pub type Nonce = [u8; 6];

/// A message. Link-layer addresses are Ethernet's; others are as if not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NdpRepr<'a> {
    /// Is there a router?
    RouterSolicit {
        /// Who asks.
        source_mac: Option<Mac>,
    },
    /// A router tells of itself and the link.
    RouterAdvert {
        /// Hop limit to use; 0 says nothing.
        hop_limit: u8,
        /// M (0x80), O (0x40) and what later RFCs added.
        flags: u8,
        /// Seconds for which it is a default router; 0: it is none.
        lifetime_s: u16,
        /// Milliseconds a neighbour stays reachable; 0 says nothing.
        reachable_ms: u32,
        /// Milliseconds between solicitations; 0 says nothing.
        retrans_ms: u32,
        /// Options.
        options: NdpOptions<'a>,
    },
    /// Who has the target address?
    NeighbourSolicit {
        /// The address.
        target: Ipv6Addr,
        /// Who asks; nobody in duplicate address detection.
        source_mac: Option<Mac>,
        /// In duplicate address detection, tells a message that was looped back from another host's.
        nonce: Option<Nonce>,
    },
    /// The target's hardware address.
    NeighbourAdvert {
        /// The address.
        target: Ipv6Addr,
        /// It is a router.
        router: bool,
        /// An answer to a solicitation.
        solicited: bool,
        /// It replaces what is cached.
        override_cache: bool,
        /// Its hardware address.
        target_mac: Option<Mac>,
    },
}

impl<'a> NdpRepr<'a> {
    /// Reads a message from ICMPv6's parts, with the checks of RFC 4861 6.1 and 7.1 but for the
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

    /// ICMPv6 type.
    pub(crate) const fn kind(&self) -> u8 {
        match self {
            Self::RouterSolicit { .. } => kind::ROUTER_SOLICIT,
            Self::RouterAdvert { .. } => kind::ROUTER_ADVERT,
            Self::NeighbourSolicit { .. } => kind::NEIGHBOUR_SOLICIT,
            Self::NeighbourAdvert { .. } => kind::NEIGHBOUR_ADVERT,
        }
    }

    /// Bytes 4 to 7.
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

    /// Bytes that follow the ICMPv6 header.
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

    /// Writes them; `out` is as long.
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

/// A list of options whose lengths have been checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NdpOptions<'a>(&'a [u8]);

/// One option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NdpOption<'a> {
    /// The sender's hardware address.
    SourceMac(Mac),
    /// The target's hardware address.
    TargetMac(Mac),
    /// A prefix of the link.
    Prefix {
        /// Its length in bits.
        len: u8,
        /// L: addresses under it are on the link.
        on_link: bool,
        /// A: hosts may make addresses under it.
        autonomous: bool,
        /// Seconds; all ones is for ever.
        valid_s: u32,
        /// Seconds; all ones is for ever.
        preferred_s: u32,
        /// The prefix.
        prefix: Ipv6Addr,
    },
    /// The link's MTU.
    Mtu(u32),
    /// A nonce of six bytes.
    Nonce(Nonce),
    /// Any other, or one of a length it should not have.
    Other {
        /// Type.
        kind: u8,
        /// What follows type and length.
        value: &'a [u8],
    },
}

impl<'a> NdpOptions<'a> {
    /// Checks that options fill `bytes` exactly.
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

    /// The options.
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
        fn any_options_are_listed_or_refused(bytes: Vec<u8>) {
            if let Ok(options) = NdpOptions::parse(&bytes) {
                prop_assert!(options.iter().count() <= bytes.len() / 8);
            }
        }
    }

    #[test]
    fn a_router_advertisement_is_read() {
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
    fn invalid_messages_are_refused() {
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
