//! The memory budget of a gateway, and the shares of its parts.

use std::fmt;
use std::io;
use std::str::FromStr;

use fullsend_device::process_memory;

/// Most memory of a gateway without a configured budget, bytes.
const DEFAULT_MAX: u64 = 256 << 20;
/// Divisor of the process's memory that bounds a gateway without a configured budget.
const DEFAULT_PART: u64 = 4;
/// Least memory of a gateway, bytes.
const MIN: u64 = 24 << 20;

/// Memory of an idle TCP connection, with its task, its flow and the host's socket, bytes.
const CONNECTION_BYTES: u64 = 5 << 10;
/// Memory of a UDP flow, bytes.
const UDP_FLOW_BYTES: u64 = 4400;
/// Memory of a DNS query that has no answer yet, with the task that waits for it, bytes.
const DNS_QUERY_BYTES: u64 = 8 << 10;
/// Memory of a sequence of echo requests, bytes.
const PING_BYTES: u64 = 4 << 10;
/// Memory of a pair of an address and one of its names, bytes.
const NAME_BYTES: u64 = 512;

/// The memory that a gateway may use, in bytes, for all guests together: the data and tables of its
/// stack, its relays and its services.
///
/// It excludes the program itself and the kernel's memory of the host's sockets.
///
/// ```
/// use fullsend_gateway::{Config, MemoryBudget};
///
/// let config = Config {
///     memory: "64M".parse()?,
///     ..Config::default()
/// };
/// assert_eq!(config.memory.bytes(), 64 << 20);
///
/// let error = "64X".parse::<MemoryBudget>().unwrap_err();
/// assert_eq!(error.to_string(), "64X is not a size; write e.g. 64M");
/// # Ok::<(), fullsend_gateway::MemoryBudgetError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MemoryBudget(u64);

impl MemoryBudget {
    /// Returns the budget of a gateway in this process: 256 MiB, or a quarter of the machine's memory or
    /// of the lowest limit of the process's control groups if that is less, but at least 24 MiB.
    ///
    /// Reads /proc and /sys, and must be called before a sandbox hides them. [`Config::default`] calls
    /// it.
    ///
    /// [`Config::default`]: crate::Config
    #[must_use]
    pub fn of_process() -> Self {
        Self::of_memory(process_memory())
    }

    fn of_memory(bytes: Option<u64>) -> Self {
        let part = bytes.map_or(DEFAULT_MAX, |bytes| bytes / DEFAULT_PART);
        Self(part.clamp(MIN, DEFAULT_MAX))
    }

    /// Returns a budget of `bytes`.
    ///
    /// # Errors
    /// Returns an error for less than 24 MiB.
    pub fn new(bytes: u64) -> Result<Self, MemoryBudgetError> {
        if bytes < MIN {
            return Err(MemoryBudgetError(format!(
                "{bytes} bytes are too little memory for a gateway; allow at least {MIN} (24M)"
            )));
        }
        Ok(Self(bytes))
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the shares of the gateway's parts.
    pub(crate) const fn shares(self) -> Shares {
        let Self(bytes) = self;
        Shares {
            stack: bytes / 8 * 3,
            tcp_data: Shares::tcp_data_of(bytes),
            tcp_minimum: bytes / 32 * 3,
            udp_data: bytes / 64 * 3,
            relays: Shares::relays_of(bytes),
            tcp_connections: bytes / 4 / CONNECTION_BYTES,
            udp_flows: bytes / 8 / UDP_FLOW_BYTES,
            forwarded_udp_flows: bytes / 32 / UDP_FLOW_BYTES,
            dns_queries: bytes / 32 / DNS_QUERY_BYTES,
            pings: bytes / 128 / PING_BYTES,
            names: bytes / 64 / NAME_BYTES,
        }
    }
}

/// The parts of a [`MemoryBudget`]: bytes, and numbers of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shares {
    /// The memory from which the stack derives the bounds of its tables and queues, except those below.
    /// They use up to a third of it.
    pub(crate) stack: u64,
    /// Bytes of data of the guests' TCP connections in the stack.
    pub(crate) tcp_data: u64,
    /// Bytes of data in addition to `tcp_data`, so that each connection makes progress.
    pub(crate) tcp_minimum: u64,
    /// Bytes of datagrams that wait in the stack.
    pub(crate) udp_data: u64,
    /// Bytes of data that relays have received from one side and not yet passed to the other.
    pub(crate) relays: u64,
    pub(crate) tcp_connections: u64,
    pub(crate) udp_flows: u64,
    pub(crate) forwarded_udp_flows: u64,
    pub(crate) dns_queries: u64,
    pub(crate) pings: u64,
    /// Pairs of an address and one of its names, of all guests.
    pub(crate) names: u64,
}

impl Shares {
    /// Returns the share of `bytes` for data of TCP connections in the stack.
    pub(crate) const fn tcp_data_of(bytes: u64) -> u64 {
        bytes / 8
    }

    /// Returns the share of `bytes` for data that relays hold.
    pub(crate) const fn relays_of(bytes: u64) -> u64 {
        bytes / 64 * 3
    }
}

/// An invalid memory budget; the message names the value and the fix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryBudgetError(String);

impl std::error::Error for MemoryBudgetError {}

impl fmt::Display for MemoryBudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<MemoryBudgetError> for io::Error {
    fn from(error: MemoryBudgetError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Parses a number of bytes, which may end with `K`, `M` or `G` (1024 bytes, its square and its cube).
impl FromStr for MemoryBudget {
    type Err = MemoryBudgetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(parse_size(text)?)
    }
}

/// Parses a size in bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, MemoryBudgetError> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse::<u64>().ok().filter(|_| is_number);
    let bytes = number.and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| MemoryBudgetError(format!("{text} is not a size; write e.g. 64M")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_quarter_of_the_memory_and_at_most_256_mib() {
        let default = |bytes| MemoryBudget::of_memory(bytes).bytes();
        assert_eq!(default(None), 256 << 20);
        assert_eq!(default(Some(64 << 30)), 256 << 20);
        assert_eq!(default(Some(256 << 20)), 64 << 20);
        assert_eq!(default(Some(16 << 20)), 24 << 20);
    }

    #[test]
    fn sizes_have_binary_units() {
        let parsed = |text: &str| text.parse::<MemoryBudget>().map(MemoryBudget::bytes);
        assert_eq!(parsed("64M"), Ok(64 << 20));
        assert_eq!(parsed("1g"), Ok(1 << 30));
        assert_eq!(parsed("32768K"), Ok(32 << 20));
        assert_eq!(parsed("67108864"), Ok(64 << 20));
        for text in [
            "",
            "M",
            "+64M",
            "64MB",
            "-1",
            "6.5G",
            "18446744073709551615G",
            "é",
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert_eq!(error, format!("{text} is not a size; write e.g. 64M"));
        }
        let error = parsed("23M").unwrap_err().to_string();
        assert!(error.contains("at least 25165824 (24M)"), "{error}");
    }

    /// All parts at their bounds together leave room for the heap's own loss.
    #[test]
    fn the_shares_together_are_less_than_the_budget() {
        for mib in [24, 64, 256, 4096] {
            let budget = MemoryBudget::new(mib << 20).unwrap();
            let shares = budget.shares();
            // Fragments, the queues of the interface and of the loopback, unresolved neighbours: 1/32
            // each; records: 4/128; the device: 3/32; free payload memory: 1/16.
            let tables_of_stack = shares.stack / 32 * (4 + 1 + 3 + 2);
            let data = shares.tcp_data + shares.tcp_minimum + shares.udp_data + shares.relays;
            let entries = shares.tcp_connections * CONNECTION_BYTES
                + (shares.udp_flows + shares.forwarded_udp_flows) * UDP_FLOW_BYTES
                + shares.dns_queries * DNS_QUERY_BYTES
                + shares.pings * PING_BYTES
                + shares.names * NAME_BYTES;
            let sum = tables_of_stack + data + entries;
            assert!(sum <= budget.bytes() / 16 * 15, "{sum} of {mib} MiB");
        }
    }
}
