//! The cookie of TCP Fast Open (RFC 7413 2) and its option.

use super::options::kind;

/// Experiment identifier of Fast Open (RFC 7413 appendix).
pub(super) const EXPERIMENT: [u8; 2] = [0xf9, 0x89];

/// A TCP Fast Open cookie (RFC 7413 2); an empty cookie requests one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FastopenCookie {
    bytes: [u8; 16],
    len: u8,
    experimental: bool,
}

impl FastopenCookie {
    /// The request for a cookie.
    pub const REQUEST: Self = Self {
        bytes: [0; 16],
        len: 0,
        experimental: false,
    };

    /// Returns a cookie of 4 to 16 bytes, or the request if `cookie` is empty; `None` for any other
    /// or an odd length.
    pub fn new(cookie: &[u8]) -> Option<Self> {
        if !(matches!(cookie.len(), 0 | 4..=16) && cookie.len().is_multiple_of(2)) {
            return None;
        }
        let mut bytes = [0; 16];
        bytes[..cookie.len()].copy_from_slice(cookie);
        let len = cookie.len() as u8;
        Some(Self {
            bytes,
            len,
            experimental: false,
        })
    }

    /// Returns the cookie in the older form of experiments (RFC 6994, kind 254) if `experimental`,
    /// else with the assigned kind 34.
    #[must_use]
    pub const fn with_experimental(self, experimental: bool) -> Self {
        Self {
            experimental,
            ..self
        }
    }

    /// Returns whether the option has the older, experimental form.
    pub const fn is_experimental(&self) -> bool {
        self.experimental
    }

    /// Returns the bytes of the cookie.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns whether this is a request for a cookie.
    pub const fn is_request(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes before the cookie: kind, length and experiment identifier.
    const fn head_len(&self) -> usize {
        if self.experimental { 4 } else { 2 }
    }

    /// Returns the length of the option in bytes, NOPs after it included.
    pub(super) const fn option_len(&self) -> usize {
        (self.head_len() + self.len as usize).next_multiple_of(4)
    }

    /// Fills `out`, which has [`option_len`](Self::option_len) bytes.
    pub(super) fn emit(&self, out: &mut [u8]) {
        let (head, len) = (self.head_len(), self.head_len() + usize::from(self.len));
        let [high, low] = EXPERIMENT;
        let kind = if self.experimental {
            kind::EXPERIMENT
        } else {
            kind::FASTOPEN
        };
        out[..head].copy_from_slice(&[kind, len as u8, high, low][..head]);
        out[head..len].copy_from_slice(self.as_slice());
        out[len..].fill(kind::NOP);
    }
}
