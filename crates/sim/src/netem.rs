//! The properties of a link, with the parameters of `tc netem`.

use std::fmt;
use std::str::FromStr;

use fullsend_wire::{Nanos, Rate};

#[cfg(test)]
mod tests;

/// The model of random loss.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RandomLoss {
    /// Each packet is lost with this probability (0.0 to 1.0).
    Even(f64),
    /// The Gilbert-Elliott model: a good and a bad state, which may change at each packet.
    Bursty {
        /// Probability of a change from good to bad.
        p: f64,
        /// Probability of a change from bad to good.
        r: f64,
        /// Probability of loss in the bad state.
        bad: f64,
        /// Probability of loss in the good state.
        good: f64,
    },
}

/// One direction of a link. The default has no delay, no limit and no faults.
///
/// It parses from netem's parameters, in any order:
///
/// | parameters | meaning |
/// |---|---|
/// | `delay TIME [JITTER]` | delays each packet, evenly distributed over ± jitter (which reorders packets) |
/// | `rate RATE [OVERHEAD]` | bit/s of the bottleneck; bytes added to each packet on the wire |
/// | `limit PACKETS` | most packets queued at the bottleneck; more are dropped. Default 1000 |
/// | `loss [random] P%` | loses packets with this probability |
/// | `loss gemodel P% [R% [1-H% [1-K%]]]` | bursty loss (Gilbert-Elliott) |
/// | `duplicate P%`, `corrupt P%` | duplicates a packet; flips a bit of a packet |
/// | `reorder P% [gap N]` | sends a packet without delay, ahead of others; needs a delay |
/// | `ecn` | random loss marks ECN-capable packets instead |
/// | `mtu BYTES [icmp]` | drops larger packets; with `icmp` notifies their sender |
/// | `ce_threshold TIME` | marks ECN-capable packets that were queued longer at the bottleneck |
///
/// ```
/// use fullsend_sim::Netem;
/// let netem: Netem = "delay 20ms 2ms loss 0.1% rate 100mbit limit 1000".parse().unwrap();
/// assert_eq!(netem.rate.0, 12_500_000);
/// let error = "delay 20 parsecs".parse::<Netem>().unwrap_err();
/// assert!(error.to_string().contains("parsecs"));
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Netem {
    /// Propagation delay.
    pub delay: Nanos,
    /// Largest deviation of the delay, in either direction.
    pub jitter: Nanos,
    /// Rate of the bottleneck.
    pub rate: Rate,
    /// Bytes that each packet takes on the wire in addition to its own.
    pub overhead: u32,
    /// Most packets queued at the bottleneck.
    pub limit: u32,
    /// The model of random loss.
    pub loss: RandomLoss,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a bit of a packet is flipped.
    pub corrupt: f64,
    /// Probability that a packet is sent without delay.
    pub reorder: f64,
    /// Only every `gap`th packet may be reordered.
    pub gap: u32,
    /// Random loss marks ECN-capable packets instead (RFC 3168).
    pub ecn: bool,
    /// Time in the bottleneck's queue from which ECN-capable packets are marked.
    pub ce_threshold: Nanos,
    /// Largest IP packet that passes, in bytes.
    pub mtu: u32,
    /// Senders of larger packets are notified (ICMP); only on links of IP packets.
    pub reports_mtu: bool,
}

impl Default for Netem {
    fn default() -> Self {
        Self {
            delay: Nanos::ZERO,
            jitter: Nanos::ZERO,
            rate: Rate::UNLIMITED,
            overhead: 0,
            limit: 1000,
            loss: RandomLoss::Even(0.0),
            duplicate: 0.0,
            corrupt: 0.0,
            reorder: 0.0,
            gap: 1,
            ecn: false,
            ce_threshold: Nanos::MAX,
            mtu: u32::MAX,
            reports_mtu: false,
        }
    }
}

/// The error of an invalid link description: the word, and what to write instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetemError {
    word: String,
    hint: &'static str,
}

impl NetemError {
    fn new(word: &str, hint: &'static str) -> Self {
        Self {
            word: word.to_owned(),
            hint,
        }
    }
}

impl fmt::Display for NetemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "netem: \"{}\": {}", self.word, self.hint)
    }
}

impl std::error::Error for NetemError {}

/// The words that are not parsed yet.
struct Tokens<'a> {
    rest: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

const TIME: &str = "is not a time; write e.g. 20ms, 150us or 1s";
const RATE: &str = "is not a rate; write e.g. 100mbit, 2.5gbit or 10mbps (bytes)";
const PERCENT: &str = "is not a percentage; write 0% to 100%, e.g. 0.1%";
const COUNT: &str = "is not a count; write a whole number above zero";

impl<'a> Tokens<'a> {
    /// Parses the value after `word`.
    fn value<T>(
        &mut self,
        word: &str,
        parse: impl Fn(&str) -> Option<T>,
        hint: &'static str,
    ) -> Result<T, NetemError> {
        let text = self
            .rest
            .next()
            .ok_or_else(|| NetemError::new(word, "has no value; write one after it"))?;
        parse(text).ok_or_else(|| NetemError::new(text, hint))
    }

    /// Parses the next word if it looks like a value: keywords do not start with a digit.
    fn optional_value<T>(
        &mut self,
        parse: impl Fn(&str) -> Option<T>,
        hint: &'static str,
    ) -> Result<Option<T>, NetemError> {
        let is_value = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        match self.rest.next_if(is_value) {
            Some(text) => parse(text)
                .map(Some)
                .ok_or_else(|| NetemError::new(text, hint)),
            None => Ok(None),
        }
    }

    fn accept(&mut self, word: &str) -> bool {
        self.rest.next_if_eq(&word).is_some()
    }

    fn next(&mut self) -> Option<&'a str> {
        self.rest.next()
    }
}

/// Splits a text like `20.5ms` into number and unit.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let value: f64 = text[..end].parse().ok()?;
    Some((value, &text[end..]))
}

fn time(text: &str) -> Option<Nanos> {
    let (value, unit) = number(text)?;
    let ns = match unit {
        "s" | "sec" | "secs" => 1e9,
        "ms" | "msec" | "msecs" => 1e6,
        // As in tc, a number without a unit is in microseconds.
        "us" | "usec" | "usecs" | "" => 1e3,
        "ns" | "nsec" | "nsecs" => 1.0,
        _ => return None,
    };
    Some(Nanos::from_nanos((value * ns).round() as u64))
}

fn rate(text: &str) -> Option<Rate> {
    let (value, unit) = number(text)?;
    let unit = unit.to_ascii_lowercase();
    // As in tc, "bps" and its multiples are bytes per second.
    let (prefix, bytes) = if let Some(prefix) = unit.strip_suffix("bps") {
        (prefix, 1.0)
    } else {
        (unit.strip_suffix("bit").unwrap_or(&unit), 1.0 / 8.0)
    };
    let factor = match prefix {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        "ki" => 1024.0,
        "mi" => 1024.0 * 1024.0,
        "gi" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let per_second = (value * factor * bytes).round() as u64;
    (per_second > 0).then_some(Rate(per_second))
}

fn percent(text: &str) -> Option<f64> {
    let (value, unit) = number(text)?;
    (matches!(unit, "%" | "") && value <= 100.0).then_some(value / 100.0)
}

fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|n| *n > 0)
}

fn bytes(text: &str) -> Option<u32> {
    text.parse().ok().filter(|n| *n <= 65_535)
}

fn loss(tokens: &mut Tokens<'_>) -> Result<RandomLoss, NetemError> {
    if !tokens.accept("gemodel") {
        tokens.accept("random");
        return Ok(RandomLoss::Even(tokens.value("loss", percent, PERCENT)?));
    }
    let p = tokens.value("gemodel", percent, PERCENT)?;
    let r = tokens.optional_value(percent, PERCENT)?.unwrap_or(1.0 - p);
    let bad = tokens.optional_value(percent, PERCENT)?.unwrap_or(1.0);
    let good = tokens.optional_value(percent, PERCENT)?.unwrap_or(0.0);
    Ok(RandomLoss::Bursty { p, r, bad, good })
}

impl Netem {
    /// Parses the values of the parameter `word`; returns `false` if it is unknown.
    fn parse_parameter(&mut self, word: &str, tokens: &mut Tokens<'_>) -> Result<bool, NetemError> {
        match word {
            "delay" => {
                self.delay = tokens.value(word, time, TIME)?;
                self.jitter = tokens.optional_value(time, TIME)?.unwrap_or(Nanos::ZERO);
            }
            "rate" => {
                self.rate = tokens.value(word, rate, RATE)?;
                self.overhead = tokens
                    .optional_value(bytes, "is not a number of bytes; write 0 to 65535")?
                    .unwrap_or(0);
            }
            "limit" => self.limit = tokens.value(word, count, COUNT)?,
            "loss" => self.loss = loss(tokens)?,
            "duplicate" => self.duplicate = tokens.value(word, percent, PERCENT)?,
            "corrupt" => self.corrupt = tokens.value(word, percent, PERCENT)?,
            "reorder" => {
                self.reorder = tokens.value(word, percent, PERCENT)?;
                if tokens.accept("gap") {
                    self.gap = tokens.value("gap", count, COUNT)?;
                }
            }
            "ecn" => self.ecn = true,
            "mtu" => {
                self.mtu = tokens.value(word, count, COUNT)?;
                self.reports_mtu = tokens.accept("icmp");
            }
            "ce_threshold" => self.ce_threshold = tokens.value(word, time, TIME)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl FromStr for Netem {
    type Err = NetemError;

    fn from_str(text: &str) -> Result<Self, NetemError> {
        let mut tokens = Tokens {
            rest: text.split_whitespace().peekable(),
        };
        let mut netem = Self::default();
        while let Some(word) = tokens.next() {
            if netem.parse_parameter(word, &mut tokens)? {
                continue;
            }
            let hint = if number(word).is_some() {
                "is not expected here; remove it (correlations are not supported; for bursts use \
                 loss gemodel)"
            } else {
                "is not a parameter; write delay, rate, limit, loss, duplicate, corrupt, reorder, \
                 ecn, mtu or ce_threshold"
            };
            return Err(NetemError::new(word, hint));
        }
        if netem.reorder > 0.0 && netem.delay == Nanos::ZERO {
            return Err(NetemError::new(
                "reorder",
                "requires a delay for packets to skip; add e.g. delay 10ms",
            ));
        }
        if netem.jitter > netem.delay {
            return Err(NetemError::new(
                "delay",
                "has a jitter larger than the delay; write a smaller jitter",
            ));
        }
        Ok(netem)
    }
}
