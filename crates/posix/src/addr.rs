//! Socket addresses in Linux's layout (`sockaddr_in`, `sockaddr_in6`), and the IPv4-mapped form in
//! which an IPv6 socket shows IPv4 addresses (RFC 4291 2.5.5.2).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::abi::{AF_INET, AF_INET6, AF_UNSPEC};
use crate::errno::{Errno, Result};

/// Length of `sockaddr_in`, in bytes.
pub const SOCKADDR_IN_LEN: usize = 16;
/// Length of `sockaddr_in6`, in bytes.
pub const SOCKADDR_IN6_LEN: usize = 28;
/// Length of RFC 2133's `sockaddr_in6` without the scope, in bytes; Linux still accepts it.
const SOCKADDR_IN6_RFC2133_LEN: usize = 24;

/// A socket address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SockAddr {
    /// `AF_UNSPEC`: dissolves the association when passed to `connect`.
    Unspec,
    /// `AF_INET`.
    V4(SocketAddrV4),
    /// `AF_INET6`, which may be an IPv4-mapped address.
    V6(SocketAddrV6),
}

impl SockAddr {
    /// Parses Linux's layout.
    ///
    /// # Errors
    /// EINVAL if `bytes` is too short for its family, EAFNOSUPPORT for an unsupported family.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let family = bytes.first_chunk().ok_or(Errno::EINVAL)?;
        match i32::from(u16::from_ne_bytes(*family)) {
            AF_UNSPEC => Ok(Self::Unspec),
            AF_INET if bytes.len() >= SOCKADDR_IN_LEN => {
                let ip: [u8; 4] = bytes_at(bytes, 4);
                let port = u16::from_be_bytes(bytes_at(bytes, 2));
                Ok(Self::V4(SocketAddrV4::new(ip.into(), port)))
            }
            AF_INET6 if bytes.len() >= SOCKADDR_IN6_RFC2133_LEN => {
                let ip: [u8; 16] = bytes_at(bytes, 8);
                let port = u16::from_be_bytes(bytes_at(bytes, 2));
                let scope = if bytes.len() >= SOCKADDR_IN6_LEN {
                    u32::from_ne_bytes(bytes_at(bytes, 24))
                } else {
                    0
                };
                let flow = u32::from_be_bytes(bytes_at(bytes, 4));
                Ok(Self::V6(SocketAddrV6::new(ip.into(), port, flow, scope)))
            }
            AF_INET | AF_INET6 => Err(Errno::EINVAL),
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }

    /// Returns Linux's layout and its length in bytes (0 for [`SockAddr::Unspec`]).
    pub fn to_bytes(self) -> ([u8; SOCKADDR_IN6_LEN], usize) {
        let mut out = [0; SOCKADDR_IN6_LEN];
        match self {
            Self::Unspec => (out, 0),
            Self::V4(addr) => {
                out[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
                out[2..4].copy_from_slice(&addr.port().to_be_bytes());
                out[4..8].copy_from_slice(&addr.ip().octets());
                (out, SOCKADDR_IN_LEN)
            }
            Self::V6(addr) => {
                out[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
                out[2..4].copy_from_slice(&addr.port().to_be_bytes());
                out[4..8].copy_from_slice(&addr.flowinfo().to_be_bytes());
                out[8..24].copy_from_slice(&addr.ip().octets());
                out[24..28].copy_from_slice(&addr.scope_id().to_ne_bytes());
                (out, SOCKADDR_IN6_LEN)
            }
        }
    }

    /// Returns the address as the host uses it: an IPv4-mapped address becomes the IPv4 address.
    /// Returns `None` for [`SockAddr::Unspec`].
    pub fn canonical(self) -> Option<SocketAddr> {
        match self {
            Self::Unspec => None,
            Self::V4(addr) => Some(addr.into()),
            Self::V6(addr) => Some(match addr.ip().to_canonical() {
                IpAddr::V4(ip) => SocketAddr::new(ip.into(), addr.port()),
                IpAddr::V6(_) => addr.into(),
            }),
        }
    }

    /// Returns the address as a socket of `domain` shows it: an IPv6 socket shows IPv4 mapped.
    pub fn for_domain(domain: i32, addr: SocketAddr) -> Self {
        match addr {
            SocketAddr::V4(v4) if domain == AF_INET6 => {
                let ip = v4.ip().to_ipv6_mapped();
                Self::V6(SocketAddrV6::new(ip, v4.port(), 0, 0))
            }
            SocketAddr::V4(v4) => Self::V4(v4),
            SocketAddr::V6(v6) => Self::V6(v6),
        }
    }

    /// Returns the unspecified address of `domain` with port 0.
    pub const fn any(domain: i32) -> Self {
        if domain == AF_INET6 {
            Self::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0))
        } else {
            Self::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))
        }
    }
}

impl From<SocketAddr> for SockAddr {
    fn from(addr: SocketAddr) -> Self {
        match addr {
            SocketAddr::V4(addr) => Self::V4(addr),
            SocketAddr::V6(addr) => Self::V6(addr),
        }
    }
}

/// Returns `N` bytes from `at`, which must be within `bytes`.
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::SockAddr;
    use crate::abi::{AF_INET, AF_INET6};
    use crate::errno::Errno;

    #[test]
    fn addresses_round_trip() {
        for text in ["10.0.0.1:80", "[2001:db8::1]:443", "[::ffff:10.0.0.1]:80"] {
            let addr: SocketAddr = text.parse().unwrap();
            let (bytes, len) = SockAddr::from(addr).to_bytes();
            assert_eq!(SockAddr::from_bytes(&bytes[..len]), Ok(addr.into()));
            assert_eq!(SockAddr::from_bytes(&bytes[..12]), Err(Errno::EINVAL));
        }
        assert_eq!(SockAddr::from_bytes(&[0, 0]), Ok(SockAddr::Unspec));
        assert_eq!(SockAddr::from_bytes(&[1, 0]), Err(Errno::EAFNOSUPPORT));
        assert_eq!(SockAddr::from_bytes(&[2]), Err(Errno::EINVAL));
    }

    #[test]
    fn an_ipv6_socket_shows_ipv4_mapped() {
        let plain: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:80".parse().unwrap();
        assert_eq!(SockAddr::for_domain(AF_INET6, plain), mapped.into());
        assert_eq!(SockAddr::for_domain(AF_INET, plain), plain.into());
        assert_eq!(SockAddr::from(mapped).canonical(), Some(plain));
    }
}
