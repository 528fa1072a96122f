//! The host's TCP tunables, under Linux's names.

use core::fmt;

/// `net.ipv4.tcp_*`, readable and settable live by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sysctl {
    /// Receive buffer: least, initial, most bytes.
    pub tcp_rmem: [u32; 3],
    /// Send buffer: least, initial, most bytes.
    pub tcp_wmem: [u32; 3],
}

impl Default for Sysctl {
    fn default() -> Self {
        Self {
            tcp_rmem: [4096, 131_072, 6_291_456],
            tcp_wmem: [4096, 16_384, 4_194_304],
        }
    }
}

impl Sysctl {
    /// Sets `key` (with or without `net.ipv4.`) from Linux's text form.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SysctlError> {
        let _ = (key, value);
        todo!()
    }
}

/// Why a tunable could not be read or set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SysctlError;

impl fmt::Display for SysctlError {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}
