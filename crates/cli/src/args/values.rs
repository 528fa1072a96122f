//! Parsers of the values of `fullsend perf`'s arguments, with their error texts.

use std::net::SocketAddr;
use std::time::Duration;

use crate::size;

/// The default port of `perf serve`.
pub(super) const DEFAULT_PORT: u16 = 5211;
/// Largest `--message` in bytes, as the source of a stream keeps one in memory.
const MESSAGE_MAX: usize = 64 << 20;

pub(super) fn parse_flows(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=1_000_000) => Ok(n),
        _ => Err(format!(
            "`{text}` is not a number of connections; write 1 to 1000000"
        )),
    }
}

pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 86_400.0 => Ok(Duration::from_secs_f64(s)),
        _ => Err(format!(
            "`{text}` is not a time; write seconds above 0 and up to 86400, e.g. 0.5"
        )),
    }
}

pub(super) fn parse_message(text: &str) -> Result<usize, String> {
    match size::parse(text)? {
        n if n > MESSAGE_MAX => Err(format!("`{text}` is too large; write 64M or less")),
        n => Ok(n),
    }
}

pub(crate) fn parse_mtu(text: &str) -> Result<u32, String> {
    match size::parse(text) {
        // RFC 8200 5: IPv6 requires an MTU of at least 1280.
        Ok(n @ 1280..=65_535) => Ok(n as u32),
        _ => Err(format!(
            "`{text}` is not an MTU; write bytes from 1280 to 65535"
        )),
    }
}

pub(super) fn parse_set(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(format!("`{text}` is not KEY=VALUE; write e.g. tcp_sack=0")),
    }
}

pub(super) fn parse_endpoint(text: &str) -> Result<SocketAddr, String> {
    with_port(text).ok_or_else(|| {
        format!("`{text}` is not ADDR:PORT; write e.g. 10.0.0.2:5211 or [fd00::2]:5211")
    })
}

pub(super) fn parse_bind(text: &str) -> Result<SocketAddr, String> {
    with_port(text).ok_or_else(|| {
        format!("`{text}` is not an address; write e.g. 127.0.0.1, [::1]:5211 or 0.0.0.0:0")
    })
}

fn with_port(text: &str) -> Option<SocketAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    text.parse()
        .ok()
        .or_else(|| Some(SocketAddr::new(bare.parse().ok()?, DEFAULT_PORT)))
}
