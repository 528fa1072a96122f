//! Configuration of queueing disciplines, in `tc`'s syntax.

mod syntax;
#[cfg(test)]
mod tests;

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use fullsend_wire::{Nanos, Rate};

use syntax::{Tokens, parse_count, parse_long_size, parse_rate, parse_size, parse_time};

/// The queueing discipline of an interface and its parameters.
///
/// The text form is the end of `tc qdisc add dev DEV root`: `noqueue`, `pfifo limit 1000`,
/// `fq maxrate 1gbit`, `tbf rate 100mbit burst 64kb latency 50ms`. As with `tc`, sizes have
/// prefixes of 1024 (`64kb`), and rates have prefixes of 1000 and count bits (`1gbit`; `125mbps` is
/// bytes).
///
/// ```
/// use fullsend_qdisc::QdiscConfig;
///
/// let config: QdiscConfig = "fq maxrate 1gbit".parse().unwrap();
/// let QdiscConfig::Fq(fq) = config else { panic!("not fq") };
/// assert_eq!(fq.limit, 10_000); // packets; the default, as with tc
/// assert_eq!(config.to_string().parse(), Ok(config));
/// assert!("fq maxrate fast".parse::<QdiscConfig>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum QdiscConfig {
    /// No queue: the device pulls from the sockets.
    #[default]
    NoQueue,
    /// First in, first out.
    Pfifo {
        /// Most queued packets (a super-segment is one).
        limit: u32,
    },
    /// Fair queueing between flows, with departure times.
    Fq(FqConfig),
    /// Token bucket filter: one rate for all packets.
    Tbf(TbfConfig),
}

/// The parameters of fair queueing: one queue for each flow, served round robin by bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FqConfig {
    /// Most queued packets in all (a super-segment is one).
    pub limit: u32,
    /// Most queued packets of one flow.
    pub flow_limit: u32,
    /// Bytes that a flow may send per round.
    pub quantum: u32,
    /// Bytes that a new flow may send first, before flows that are queued already.
    pub initial_quantum: u32,
    /// Largest distance of a departure time from now.
    pub horizon: Nanos,
    /// Drops packets beyond the horizon; otherwise they leave at the horizon.
    pub horizon_drop: bool,
    /// Delay after a packet could have left from which it is marked CE (RFC 3168).
    pub ce_threshold: Option<Nanos>,
    /// Largest rate of one flow.
    pub maxrate: Option<Rate>,
}

impl Default for FqConfig {
    /// Returns the parameters of `tc qdisc add dev eth0 root fq`.
    fn default() -> Self {
        // A full Ethernet frame.
        const FRAME: u32 = 1514;
        Self {
            limit: 10_000,
            flow_limit: 100,
            quantum: 2 * FRAME,
            initial_quantum: 10 * FRAME,
            horizon: Nanos::from_secs(10),
            horizon_drop: true,
            ce_threshold: None,
            maxrate: None,
        }
    }
}

/// The parameters of a token bucket: a rate, and the burst that may exceed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TbfConfig {
    /// The long-term rate.
    pub rate: Rate,
    /// Size of the bucket: the bytes that may leave at once after a pause.
    pub burst: u32,
    /// Most queued bytes.
    pub limit: u64,
}

impl TbfConfig {
    /// Returns a token bucket with a limit of the burst plus 50 ms at `rate`; `burst` is in bytes.
    pub const fn new(rate: Rate, burst: u32) -> Self {
        Self {
            rate,
            burst,
            limit: Self::limit_for(rate, burst, DEFAULT_LATENCY),
        }
    }

    /// Returns the limit in bytes at which the last packet waits for at most `latency`.
    const fn limit_for(rate: Rate, burst: u32, latency: Nanos) -> u64 {
        let bytes = rate.0 as u128 * latency.as_nanos() as u128 / 1_000_000_000;
        let limit = bytes + burst as u128;
        if limit > u64::MAX as u128 {
            u64::MAX
        } else {
            limit as u64
        }
    }
}

/// Default of `tbf`'s `latency`: the longest time that a packet waits.
const DEFAULT_LATENCY: Nanos = Nanos::from_millis(50);
/// Default of `pfifo`'s `limit`: Linux's txqueuelen.
const DEFAULT_LIMIT: u32 = 1000;

/// The error of an invalid configuration; its text names the value to write instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QdiscError(String);

impl QdiscError {
    fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for QdiscError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for QdiscError {}

impl QdiscConfig {
    /// Checks that every parameter lets packets pass. Parsing a text includes this check.
    ///
    /// # Errors
    /// Returns an error that names the first parameter below its minimum.
    pub fn check(&self) -> Result<(), QdiscError> {
        let least = match self {
            Self::NoQueue => return Ok(()),
            Self::Pfifo { limit } => [("limit", u64::from(*limit), 1)].to_vec(),
            Self::Fq(fq) => [
                ("limit", u64::from(fq.limit), 1),
                ("flow_limit", u64::from(fq.flow_limit), 1),
                ("quantum", u64::from(fq.quantum), 256),
                ("initial_quantum", u64::from(fq.initial_quantum), 256),
                ("maxrate", fq.maxrate.map_or(1, |rate| rate.0), 1),
            ]
            .to_vec(),
            Self::Tbf(tbf) => [
                ("rate", tbf.rate.0, 1),
                ("burst", u64::from(tbf.burst), 1),
                ("limit", tbf.limit, 1),
            ]
            .to_vec(),
        };
        for (key, value, least) in least {
            if value < least {
                return Err(QdiscError(alloc::format!(
                    "`{key}` {value} is too small for packets to pass; write {least} or more"
                )));
            }
        }
        Ok(())
    }
}

impl FromStr for QdiscConfig {
    type Err = QdiscError;

    fn from_str(text: &str) -> Result<Self, QdiscError> {
        let mut tokens = Tokens::new(text);
        let config = match tokens.next() {
            Some("noqueue" | "none") => Self::NoQueue,
            Some("pfifo") => pfifo(&mut tokens)?,
            Some("fq") => Self::Fq(fq(&mut tokens)?),
            Some("tbf") => Self::Tbf(tbf(&mut tokens)?),
            other => {
                return Err(QdiscError(alloc::format!(
                    "`{}` is not a queueing discipline; write noqueue, pfifo, fq or tbf",
                    other.unwrap_or_default()
                )));
            }
        };
        tokens.expect_end()?;
        config.check()?;
        Ok(config)
    }
}

fn pfifo(tokens: &mut Tokens<'_>) -> Result<QdiscConfig, QdiscError> {
    let mut limit = DEFAULT_LIMIT;
    while let Some(key) = tokens.next() {
        match key {
            "limit" => limit = tokens.value(key, parse_count)?,
            _ => return Err(tokens.unknown_keyword(key, "pfifo", "limit")),
        }
    }
    Ok(QdiscConfig::Pfifo { limit })
}

fn fq(tokens: &mut Tokens<'_>) -> Result<FqConfig, QdiscError> {
    let mut fq = FqConfig::default();
    while let Some(key) = tokens.next() {
        match key {
            "limit" => fq.limit = tokens.value(key, parse_count)?,
            "flow_limit" => fq.flow_limit = tokens.value(key, parse_count)?,
            "quantum" => fq.quantum = tokens.value(key, parse_size)?,
            "initial_quantum" => fq.initial_quantum = tokens.value(key, parse_size)?,
            "horizon" => fq.horizon = tokens.value(key, parse_time)?,
            "horizon_drop" => fq.horizon_drop = true,
            "horizon_cap" => fq.horizon_drop = false,
            "ce_threshold" => fq.ce_threshold = Some(tokens.value(key, parse_time)?),
            "maxrate" => fq.maxrate = Some(tokens.value(key, parse_rate)?),
            _ => {
                let known = "limit, flow_limit, quantum, initial_quantum, horizon, horizon_drop, \
                             horizon_cap, ce_threshold or maxrate";
                return Err(tokens.unknown_keyword(key, "fq", known));
            }
        }
    }
    Ok(fq)
}

fn tbf(tokens: &mut Tokens<'_>) -> Result<TbfConfig, QdiscError> {
    let (mut rate, mut burst, mut limit, mut latency) = (None, None, None, None);
    while let Some(key) = tokens.next() {
        match key {
            "rate" => rate = Some(tokens.value(key, parse_rate)?),
            "burst" | "buffer" | "maxburst" => burst = Some(tokens.value(key, parse_size)?),
            "limit" => limit = Some(tokens.value(key, parse_long_size)?),
            "latency" => latency = Some(tokens.value(key, parse_time)?),
            _ => return Err(tokens.unknown_keyword(key, "tbf", "rate, burst, limit or latency")),
        }
    }
    let (Some(rate), Some(burst)) = (rate, burst) else {
        return Err(QdiscError::new(
            "`tbf` needs `rate` and `burst`; write tbf rate 100mbit burst 64kb",
        ));
    };
    let limit = match (limit, latency) {
        (Some(_), Some(_)) => {
            return Err(QdiscError::new(
                "`limit` and `latency` both set the length of the queue; write only one of them",
            ));
        }
        (Some(limit), None) => limit,
        (None, latency) => TbfConfig::limit_for(rate, burst, latency.unwrap_or(DEFAULT_LATENCY)),
    };
    Ok(TbfConfig { rate, burst, limit })
}

impl fmt::Display for QdiscConfig {
    /// Writes the text form, which parses to the same configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQueue => f.write_str("noqueue"),
            Self::Pfifo { limit } => write!(f, "pfifo limit {limit}p"),
            Self::Fq(fq) => write!(f, "{fq}"),
            Self::Tbf(tbf) => write!(f, "{tbf}"),
        }
    }
}

impl fmt::Display for FqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fq limit {}p flow_limit {}p quantum {} initial_quantum {} horizon {} {}",
            self.limit,
            self.flow_limit,
            syntax::format_size(u64::from(self.quantum)),
            syntax::format_size(u64::from(self.initial_quantum)),
            syntax::format_time(self.horizon),
            if self.horizon_drop {
                "horizon_drop"
            } else {
                "horizon_cap"
            },
        )?;
        if let Some(threshold) = self.ce_threshold {
            write!(f, " ce_threshold {}", syntax::format_time(threshold))?;
        }
        match self.maxrate {
            Some(rate) => write!(f, " maxrate {}", syntax::format_rate(rate)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for TbfConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tbf rate {} burst {} limit {}",
            syntax::format_rate(self.rate),
            syntax::format_size(u64::from(self.burst)),
            syntax::format_size(self.limit),
        )
    }
}
