//! `setsockopt` and `getsockopt`: dispatch by level, and the encoding of values.

/// Returns an option of a stream: the connection's value, or without a connection the value that
/// was set, or the default.
macro_rules! setting {
    ($stream:ident, $host:expr, $field:ident, $option:ident, $default:expr) => {
        match $stream.connection_options($host) {
            Some(options) => options.$field,
            None => {
                let own = $stream.find_option(|option| match *option {
                    fullsend_tcp::SocketOption::$option(value) => Some(value),
                    _ => None,
                });
                own.unwrap_or($default)
            }
        }
    };
}

mod ip;
mod socket;
mod tcp;

use alloc::vec::Vec;

use fullsend_wire::Instant;

use crate::Posix;
use crate::abi::{AF_INET, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, TCP_SAVED_SYN};
use crate::errno::{Errno, Result};
use crate::files::{FileKind, Handle};

pub(crate) use ip::{
    DEFAULT_TTL, IpOptions, byte_or_default, int_or_byte, mtu_discover, mtu_discover_number,
};
pub(crate) use socket::CommonOptions;

/// A value that `getsockopt` returns.
#[derive(Debug)]
pub(crate) enum OptionValue {
    Int(i32),
    /// An integer of level IP, returned as one byte if it fits and the buffer is shorter than an `int`.
    Small(i32),
    Bytes(Vec<u8>),
}

impl OptionValue {
    /// Writes the bytes that fit and returns their number.
    fn put(&self, out: &mut [u8]) -> usize {
        match self {
            Self::Small(value) if (1..4).contains(&out.len()) && (0..256).contains(value) => {
                out[0] = *value as u8;
                1
            }
            Self::Int(value) | Self::Small(value) => put(out, &value.to_ne_bytes()),
            Self::Bytes(bytes) => put(out, bytes),
        }
    }
}

impl From<bool> for OptionValue {
    fn from(value: bool) -> Self {
        Self::Int(value.into())
    }
}

/// Returns the error for a level that the socket does not have.
pub(crate) const fn unknown_level(domain: i32) -> Errno {
    if domain == AF_INET {
        Errno::EOPNOTSUPP
    } else {
        Errno::ENOPROTOOPT
    }
}

fn put(out: &mut [u8], bytes: &[u8]) -> usize {
    let n = out.len().min(bytes.len());
    out[..n].copy_from_slice(&bytes[..n]);
    n
}

/// Parses an `int`. Returns EINVAL if there are too few bytes.
pub(crate) fn int(value: &[u8]) -> Result<i32> {
    let bytes = value.first_chunk().ok_or(Errno::EINVAL)?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// Parses an `int` that must be 0 or 1.
fn strict_flag(value: &[u8]) -> Result<bool> {
    match int(value)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

/// Parses an `int` that must be in `range`.
fn int_in(value: &[u8], range: core::ops::RangeInclusive<i32>) -> Result<i32> {
    let value = int(value)?;
    range.contains(&value).then_some(value).ok_or(Errno::EINVAL)
}

impl Posix {
    /// Sets a socket option: `setsockopt(2)`.
    ///
    /// # Errors
    /// ENOPROTOOPT for an option that is not supported, EINVAL for a value that is too short or out
    /// of range, EDOM for an invalid time, ENOENT for an unknown congestion control, EBADF for a
    /// handle that is not open, ENOTSOCK for one that is not a socket.
    pub fn setsockopt(
        &mut self,
        now: Instant,
        handle: Handle,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<()> {
        match &mut self.files.get_mut(handle)?.kind {
            FileKind::Stream(stream) => match level {
                SOL_SOCKET => stream.set_socket(&mut self.host, now, name, value),
                IPPROTO_TCP => stream.set_tcp(&mut self.host, now, name, value),
                IPPROTO_IP => stream.set_ip(&mut self.host, now, name, value),
                IPPROTO_IPV6 => stream.set_ipv6(&mut self.host, now, name, value),
                _ => Err(Errno::ENOPROTOOPT),
            },
            FileKind::Datagram(datagram) => datagram.set(&mut self.host, now, (level, name), value),
            _ => Err(Errno::ENOTSOCK),
        }
    }

    /// Reads a socket option into `value`: `getsockopt(2)`. Returns its length in bytes.
    ///
    /// # Errors
    /// ENOPROTOOPT for an option that is not supported, ENOTCONN for one that only a connection
    /// has, EBADF for a handle that is not open, ENOTSOCK for one that is not a socket.
    pub fn getsockopt(
        &mut self,
        now: Instant,
        handle: Handle,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize> {
        self.process_wakes();
        let got = match &mut self.files.get_mut(handle)?.kind {
            FileKind::Stream(stream) => match level {
                SOL_SOCKET => stream.get_socket(&mut self.host, name, value.len()),
                IPPROTO_TCP if name == TCP_SAVED_SYN => {
                    stream.saved_syn(&mut self.host, value.len())
                }
                IPPROTO_TCP => stream.get_tcp(&mut self.host, now, name),
                IPPROTO_IP => stream.get_ip(&mut self.host, name),
                IPPROTO_IPV6 => stream.get_ipv6(&mut self.host, name),
                _ => Err(unknown_level(stream.domain)),
            },
            FileKind::Datagram(datagram) => datagram.get(&mut self.host, now, level, name),
            _ => Err(Errno::ENOTSOCK),
        };
        Ok(got?.put(value))
    }
}
