//! The address at which metrics are served.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The prefix of the path of a Unix socket.
const UNIX: &str = "unix:";

/// The address at which metrics are served: `127.0.0.1:9100`, `[::1]:9100` or `unix:/run/metrics`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MetricsAddress {
    /// A TCP port. Any program that can reach it can read the metrics.
    Tcp(SocketAddr),
    /// A Unix socket, created with mode 0600.
    Unix(PathBuf),
}

/// A text that is not a [`MetricsAddress`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetricsAddressError(String);

impl fmt::Display for MetricsAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not an address for metrics; write e.g. 127.0.0.1:9100, [::1]:9100 or \
             unix:/run/fullsend/metrics.sock",
            self.0
        )
    }
}

impl std::error::Error for MetricsAddressError {}

impl FromStr for MetricsAddress {
    type Err = MetricsAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = match text.strip_prefix(UNIX) {
            Some("") => None,
            Some(path) => Some(Self::Unix(path.into())),
            None => text.parse().ok().map(Self::Tcp),
        };
        address.ok_or_else(|| MetricsAddressError(text.to_owned()))
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ports_or_paths() {
        for text in ["127.0.0.1:9100", "[::1]:9100", "unix:/run/m.sock", "unix:m"] {
            let address: MetricsAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn an_error_names_the_value_and_what_to_write() {
        for text in ["", "9100", "localhost:9100", "127.0.0.1", "unix:", "::1:x"] {
            let error = text.parse::<MetricsAddress>().unwrap_err().to_string();
            let start = format!("`{text}` is not an address for metrics; write e.g. ");
            assert!(error.starts_with(&start), "{error}");
        }
    }
}
