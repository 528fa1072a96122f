//! How queues are configured, in `tc`'s words.

#[cfg(test)]
mod tests;
mod text;

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use fullsend_units::{Nanos, Rate};

use text::{Words, count, long_size, rate, size, time};

/// Which queueing discipline an interface has.
///
/// As text it is what one writes behind `tc qdisc add dev DEV root`: `noqueue`,
/// `pfifo limit 1000`, `fq maxrate 1gbit`, `tbf rate 100mbit burst 64kb latency 50ms`. Sizes count
/// in 1024 (`64kb`), rates in 1000 and bits (`1gbit`; `125mbps` is bytes), as with `tc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QdiscConfig {
    /// No queue: the device pulls from the sockets.
    #[default]
    NoQueue,
    /// First in, first out.
    Pfifo {
        /// Packets (a super-segment is one) that may wait.
        limit: u32,
    },
    /// Fair queueing between flows, and departure times kept.
    Fq(FqConfig),
    /// One rate for everything.
    Tbf(TbfConfig),
}

/// Fair queueing: one queue for each flow, served in turn by bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FqConfig {
    /// Packets (a super-segment is one) that may wait in all.
    pub limit: u32,
    /// Packets that may wait of one flow.
    pub flow_limit: u32,
    /// Bytes a flow may send in its turn.
    pub quantum: u32,
    /// Bytes a new flow may send in its first turn, before the flows that wait already.
    pub initial_quantum: u32,
    /// How far in the future a departure may lie.
    pub horizon: Nanos,
    /// Packets beyond the horizon are dropped; else they leave at the horizon.
    pub horizon_drop: bool,
    /// Packets that leave this much later than they could have get the mark of RFC 3168.
    pub ce_threshold: Option<Nanos>,
    /// Most that one flow may send.
    pub maxrate: Option<Rate>,
}

impl Default for FqConfig {
    /// What `tc qdisc add dev eth0 root fq` gives.
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

/// Token bucket: a rate, and how far a burst may exceed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TbfConfig {
    /// What leaves in the long run.
    pub rate: Rate,
    /// What may leave at once after a pause, bytes.
    pub burst: u32,
    /// Bytes that may wait.
    pub limit: u64,
}

impl TbfConfig {
    /// Its limit is what the rate carries in 50 ms, and the burst.
    pub const fn new(rate: Rate, burst: u32) -> Self {
        Self {
            rate,
            burst,
            limit: Self::limit_for(rate, burst, DEFAULT_LATENCY),
        }
    }

    /// The bytes of which the last waits for `latency` at most.
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

/// How long a packet waits in a token bucket at most if nobody says.
const DEFAULT_LATENCY: Nanos = Nanos::from_millis(50);
/// `pfifo`'s limit if nobody says: Linux's txqueuelen.
const DEFAULT_LIMIT: u32 = 1000;

/// A configuration that cannot work, and what to write instead.
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
    /// Says what cannot work. Text that was parsed has passed it.
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
                    "`{key}` of {value} lets nothing pass; make it {least} or more"
                )));
            }
        }
        Ok(())
    }
}

impl FromStr for QdiscConfig {
    type Err = QdiscError;

    fn from_str(text: &str) -> Result<Self, QdiscError> {
        let mut words = Words::new(text);
        let config = match words.next() {
            Some("noqueue" | "none") => Self::NoQueue,
            Some("pfifo") => pfifo(&mut words)?,
            Some("fq") => Self::Fq(fq(&mut words)?),
            Some("tbf") => Self::Tbf(tbf(&mut words)?),
            other => {
                return Err(QdiscError(alloc::format!(
                    "`{}` is not a queueing discipline; write noqueue, pfifo, fq or tbf",
                    other.unwrap_or_default()
                )));
            }
        };
        words.end()?;
        config.check()?;
        Ok(config)
    }
}

fn pfifo(words: &mut Words<'_>) -> Result<QdiscConfig, QdiscError> {
    let mut limit = DEFAULT_LIMIT;
    while let Some(key) = words.next() {
        match key {
            "limit" => limit = words.value(key, count)?,
            _ => return Err(words.unknown(key, "pfifo", "limit")),
        }
    }
    Ok(QdiscConfig::Pfifo { limit })
}

fn fq(words: &mut Words<'_>) -> Result<FqConfig, QdiscError> {
    let mut fq = FqConfig::default();
    while let Some(key) = words.next() {
        match key {
            "limit" => fq.limit = words.value(key, count)?,
            "flow_limit" => fq.flow_limit = words.value(key, count)?,
            "quantum" => fq.quantum = words.value(key, size)?,
            "initial_quantum" => fq.initial_quantum = words.value(key, size)?,
            "horizon" => fq.horizon = words.value(key, time)?,
            "horizon_drop" => fq.horizon_drop = true,
            "horizon_cap" => fq.horizon_drop = false,
            "ce_threshold" => fq.ce_threshold = Some(words.value(key, time)?),
            "maxrate" => fq.maxrate = Some(words.value(key, rate)?),
            _ => {
                let known = "limit, flow_limit, quantum, initial_quantum, horizon, horizon_drop, \
                             horizon_cap, ce_threshold or maxrate";
                return Err(words.unknown(key, "fq", known));
            }
        }
    }
    Ok(fq)
}

fn tbf(words: &mut Words<'_>) -> Result<TbfConfig, QdiscError> {
    let (mut the_rate, mut burst, mut limit, mut latency) = (None, None, None, None);
    while let Some(key) = words.next() {
        match key {
            "rate" => the_rate = Some(words.value(key, rate)?),
            "burst" | "buffer" | "maxburst" => burst = Some(words.value(key, size)?),
            "limit" => limit = Some(words.value(key, long_size)?),
            "latency" => latency = Some(words.value(key, time)?),
            _ => return Err(words.unknown(key, "tbf", "rate, burst, limit or latency")),
        }
    }
    let (Some(rate), Some(burst)) = (the_rate, burst) else {
        return Err(QdiscError::new(
            "`tbf` needs `rate` and `burst`; write tbf rate 100mbit burst 64kb",
        ));
    };
    let limit = match (limit, latency) {
        (Some(_), Some(_)) => {
            return Err(QdiscError::new(
                "`limit` and `latency` say the same thing; write one of them",
            ));
        }
        (Some(limit), None) => limit,
        (None, latency) => TbfConfig::limit_for(rate, burst, latency.unwrap_or(DEFAULT_LATENCY)),
    };
    Ok(TbfConfig { rate, burst, limit })
}

impl fmt::Display for QdiscConfig {
    /// What parses to the same.
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
            text::show_size(u64::from(self.quantum)),
            text::show_size(u64::from(self.initial_quantum)),
            text::show_time(self.horizon),
            if self.horizon_drop {
                "horizon_drop"
            } else {
                "horizon_cap"
            },
        )?;
        if let Some(threshold) = self.ce_threshold {
            write!(f, " ce_threshold {}", text::show_time(threshold))?;
        }
        match self.maxrate {
            Some(rate) => write!(f, " maxrate {}", text::show_rate(rate)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for TbfConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tbf rate {} burst {} limit {}",
            text::show_rate(self.rate),
            text::show_size(u64::from(self.burst)),
            text::show_size(self.limit),
        )
    }
}
