//! The text forms of tunables, as in `/proc/sys`.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use core::ops::RangeInclusive;

use crate::FastopenKeys;
use crate::congestion_set::{AVAILABLE, CongestionSet};

/// The type of a tunable.
pub(super) trait Tunable: Sized {
    /// The allowed values.
    type Allowed;
    /// Parses the text form; the error is a description of the allowed values.
    fn parse(text: &str, allowed: &Self::Allowed) -> Result<Self, String>;
    /// Returns the text form.
    fn show(&self) -> String;
}

impl Tunable for u32 {
    type Allowed = RangeInclusive<Self>;

    fn parse(text: &str, allowed: &Self::Allowed) -> Result<Self, String> {
        let text = text.trim();
        let value = match text.strip_prefix("0x") {
            Some(digits) => Self::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        value
            .filter(|v| allowed.contains(v))
            .ok_or_else(|| format!("a number from {} to {}", allowed.start(), allowed.end()))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Tunable for Option<FastopenKeys> {
    type Allowed = ();

    fn parse(text: &str, (): &()) -> Result<Self, String> {
        let mut keys = text.trim().split(',').map(str::trim);
        let found = match (keys.next(), keys.next(), keys.next()) {
            (Some(""), None, None) => Some(None),
            (Some(primary), None, None) => fastopen_key(primary).map(|primary| {
                let backup = None;
                Some(FastopenKeys { primary, backup })
            }),
            (Some(primary), Some(backup), None) => fastopen_key(primary).and_then(|primary| {
                let backup = Some(fastopen_key(backup)?);
                Some(Some(FastopenKeys { primary, backup }))
            }),
            _ => None,
        };
        found.ok_or_else(|| {
            "one key such as 00112233-44556677-8899aabb-ccddeeff, two with a comma between them, \
             or an empty value for a generated key"
                .to_owned()
        })
    }

    fn show(&self) -> String {
        let Some(keys) = self else {
            return String::new();
        };
        let hex_groups = |key: &[u8; 16]| {
            let (words, _) = key.as_chunks::<4>();
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| u32::from_le_bytes(words[i]));
            format!("{a:08x}-{b:08x}-{c:08x}-{d:08x}")
        };
        let backup = keys.backup.as_ref();
        let backup = backup.map_or_else(String::new, |key| format!(",{}", hex_groups(key)));
        hex_groups(&keys.primary) + &backup
    }
}

/// Parses a Fast Open key in Linux's text form, whose groups are little-endian.
fn fastopen_key(text: &str) -> Option<[u8; 16]> {
    let mut key = [0; 16];
    let mut groups = text.split('-');
    for word in key.as_chunks_mut::<4>().0 {
        let group = groups.next().filter(|g| matches!(g.len(), 1..=8))?;
        *word = u32::from_str_radix(group, 16).ok()?.to_le_bytes();
    }
    groups.next().is_none().then_some(key)
}

impl Tunable for [u16; 2] {
    type Allowed = RangeInclusive<u16>;

    fn parse(text: &str, allowed: &Self::Allowed) -> Result<Self, String> {
        let mut words = text.split_whitespace().map(str::parse);
        match (words.next(), words.next(), words.next()) {
            (Some(Ok(first)), Some(Ok(last)), None)
                if first <= last && allowed.contains(&first) && allowed.contains(&last) =>
            {
                Ok([first, last])
            }
            _ => Err(format!(
                "the first and the last port in ascending order, each from {} to {}",
                allowed.start(),
                allowed.end()
            )),
        }
    }

    fn show(&self) -> String {
        let [first, last] = self;
        format!("{first}\t{last}")
    }
}

impl Tunable for bool {
    type Allowed = ();

    fn parse(text: &str, (): &()) -> Result<Self, String> {
        match text.trim() {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err("0 (off) or 1 (on)".to_owned()),
        }
    }

    fn show(&self) -> String {
        u8::from(*self).to_string()
    }
}

/// Whether only the present value is allowed.
pub(super) struct ReadOnly(pub(super) bool);

impl Tunable for CongestionSet {
    type Allowed = ReadOnly;

    fn parse(text: &str, ReadOnly(read_only): &ReadOnly) -> Result<Self, String> {
        let set = Self::parse(text).filter(|set| !read_only || *set == Self::ALL);
        set.ok_or_else(|| match read_only {
            true => "nothing, as the tunable is read-only".to_owned(),
            false => format!("one or more of {}, separated by spaces", Self::ALL),
        })
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Tunable for &'static str {
    type Allowed = [&'static str; AVAILABLE.len()];

    fn parse(text: &str, allowed: &Self::Allowed) -> Result<Self, String> {
        let known = allowed.iter().find(|&&name| name == text.trim());
        known
            .copied()
            .ok_or_else(|| format!("one of {}", allowed.join(", ")))
    }

    fn show(&self) -> String {
        (*self).to_owned()
    }
}

impl Tunable for [u32; 3] {
    type Allowed = RangeInclusive<u32>;

    fn parse(text: &str, allowed: &Self::Allowed) -> Result<Self, String> {
        let mut values = [0; 3];
        let mut words = text.split(|c: char| c.is_whitespace() || c == ',');
        let mut words = words.by_ref().filter(|w| !w.is_empty());
        let all_parsed = values.iter_mut().all(|slot| {
            let value = words.next().and_then(|w| w.parse().ok());
            value
                .filter(|v| allowed.contains(v))
                .map(|v| *slot = v)
                .is_some()
        });
        let ordered = values.is_sorted();
        if !all_parsed || !ordered || words.next().is_some() {
            return Err(format!(
                "three numbers in ascending order (minimum, initial, maximum), each from {} to {}",
                allowed.start(),
                allowed.end()
            ));
        }
        Ok(values)
    }

    fn show(&self) -> String {
        let [least, initial, most] = self;
        format!("{least}\t{initial}\t{most}")
    }
}
