//! The words and units of `tc`.

use alloc::format;
use alloc::string::String;
use core::str::SplitWhitespace;

use fullsend_wire::{Nanos, Rate};

use super::QdiscError;

/// The words of a configuration, in order.
pub(super) struct Tokens<'a>(SplitWhitespace<'a>);

impl<'a> Tokens<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self(text.split_whitespace())
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    /// Returns the word after `key`, converted by `parse`.
    pub(super) fn value<T>(
        &mut self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, &'static str>,
    ) -> Result<T, QdiscError> {
        let Some(token) = self.next() else {
            return Err(QdiscError(format!(
                "`{key}` has no value; write one after it"
            )));
        };
        parse(token).map_err(|hint| {
            QdiscError(format!("`{token}` is not a value of `{key}`; write {hint}"))
        })
    }

    #[allow(
        clippy::unused_self,
        reason = "it is called as a method, as the others are"
    )]
    pub(super) fn unknown_keyword(&self, token: &str, kind: &str, known: &str) -> QdiscError {
        QdiscError(format!(
            "`{token}` is not a parameter of `{kind}`; write {known}"
        ))
    }

    /// Checks that no word follows.
    pub(super) fn expect_end(&mut self) -> Result<(), QdiscError> {
        match self.next() {
            None => Ok(()),
            Some(token) => Err(QdiscError(format!(
                "`{token}` is not expected here; remove it"
            ))),
        }
    }
}

/// Splits a text like `12.5mbit` into its digits and its unit.
fn split_unit(text: &str) -> (&str, &str) {
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    text.split_at(text.find(|c| !digits(c)).unwrap_or(text.len()))
}

/// Returns `digits` times `unit`, rounded down; at most six decimals.
fn parse_scaled(digits: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    if fraction.len() > 6 {
        return None;
    }
    let whole: u128 = u128::from(whole.parse::<u64>().ok()?);
    let fraction_digits: u128 = u128::from(fraction.parse::<u64>().ok()?);
    let unit = u128::from(unit);
    let divisor = 10_u128.pow(fraction.len() as u32);
    u64::try_from(whole * unit + fraction_digits * unit / divisor).ok()
}

/// Parses a number of packets: `1000` or `1000p`.
pub(super) fn parse_count(text: &str) -> Result<u32, &'static str> {
    let digits = text.strip_suffix('p').unwrap_or(text);
    digits
        .parse()
        .map_err(|_| "a number of packets up to 4294967295, e.g. 1000")
}

/// Parses a size in bytes, with prefixes of 1024.
pub(super) fn parse_long_size(text: &str) -> Result<u64, &'static str> {
    let (digits, unit) = split_unit(text);
    let unit = match unit {
        "" | "b" => 1,
        "k" | "kb" => 1 << 10,
        "m" | "mb" => 1 << 20,
        "g" | "gb" => 1 << 30,
        _ => return Err(SIZE_HINT),
    };
    parse_scaled(digits, unit).ok_or(SIZE_HINT)
}

const SIZE_HINT: &str = "a size in bytes, e.g. 1514, 64kb or 1mb (1024-based)";

/// Parses a size in bytes below 4 GiB, with prefixes of 1024.
pub(super) fn parse_size(text: &str) -> Result<u32, &'static str> {
    u32::try_from(parse_long_size(text)?).map_err(|_| "a size below 4gb")
}

/// Parses a rate: `bit` for bits per second, `bps` for bytes per second.
pub(super) fn parse_rate(text: &str) -> Result<Rate, &'static str> {
    const HINT: &str = "a rate of at least 8bit per second, e.g. 100mbit or 1gbit";
    let (digits, unit) = split_unit(text);
    let lower = unit.to_ascii_lowercase();
    let (prefix, bits) = match (lower.strip_suffix("bit"), lower.strip_suffix("bps")) {
        (Some(prefix), _) => (prefix, 1),
        (_, Some(prefix)) => (prefix, 8),
        _ => return Err(HINT),
    };
    let unit = match prefix {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        "ki" => 1 << 10,
        "mi" => 1 << 20,
        "gi" => 1 << 30,
        "ti" => 1 << 40,
        _ => return Err(HINT),
    };
    match parse_scaled(digits, unit * bits) {
        Some(bits) if bits >= 8 => Ok(Rate(bits / 8)),
        _ => Err(HINT),
    }
}

/// Parses a time with its unit.
pub(super) fn parse_time(text: &str) -> Result<Nanos, &'static str> {
    const HINT: &str = "a time with its unit, e.g. 500us, 50ms or 10s";
    let (digits, unit) = split_unit(text);
    let unit = match unit {
        "ns" => 1,
        "us" | "usec" | "usecs" => 1_000,
        "ms" | "msec" | "msecs" => 1_000_000,
        "s" | "sec" | "secs" => 1_000_000_000,
        _ => return Err(HINT),
    };
    parse_scaled(digits, unit)
        .map(Nanos::from_nanos)
        .ok_or(HINT)
}

/// Formats `value` in the largest of `units` that divides it.
fn format_in_largest_unit(value: u128, units: &[(u128, &str)]) -> String {
    let fits = |(unit, _): &&(u128, &str)| value != 0 && value.is_multiple_of(*unit);
    match units.iter().find(fits) {
        Some((unit, name)) => format!("{}{name}", value / unit),
        None => format!("0{}", units.last().map_or("", |(_, name)| name)),
    }
}

pub(super) fn format_size(bytes: u64) -> String {
    format_in_largest_unit(
        u128::from(bytes),
        &[(1 << 30, "gb"), (1 << 20, "mb"), (1 << 10, "kb"), (1, "b")],
    )
}

pub(super) fn format_rate(rate: Rate) -> String {
    format_in_largest_unit(
        u128::from(rate.0) * 8,
        &[
            (1_000_000_000, "gbit"),
            (1_000_000, "mbit"),
            (1_000, "kbit"),
            (1, "bit"),
        ],
    )
}

pub(super) fn format_time(time: Nanos) -> String {
    format_in_largest_unit(
        u128::from(time.as_nanos()),
        &[
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
            (1, "ns"),
        ],
    )
}
