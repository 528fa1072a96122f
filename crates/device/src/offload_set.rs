//! The set of offloads to request from a device, and its text form.

use std::fmt;
use std::str::FromStr;

/// The offloads of a TUN or TAP device, all on by default.
///
/// Segmentation requires `csum`, and every offload requires `vnet_hdr`, the header that carries
/// the requests. [`normalized`](Self::normalized) turns off the offloads whose requirement is off.
///
/// The text form is a list of words separated by commas: `none`, `all`, `vnet_hdr`, `csum`,
/// `tso4`, `tso6`, `tso` (both), `uso`. A word turns on an offload and its requirements; `-word`
/// turns off an offload and those that require it. A list that begins with `-` starts from `all`.
///
/// ```
/// use fullsend_device::OffloadSet;
/// let set: OffloadSet = "all,-tso6".parse().unwrap();
/// assert!(set.tso4 && !set.tso6);
/// let set: OffloadSet = "tso4".parse().unwrap();
/// assert!(set.vnet_hdr && set.csum && set.tso4 && !set.uso);
/// assert_eq!("none".parse(), Ok(OffloadSet::NONE));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffloadSet {
    /// A `virtio_net_hdr` before each packet.
    pub vnet_hdr: bool,
    /// Checksums that the other side completes.
    pub csum: bool,
    /// TCP/IPv4 super-segments.
    pub tso4: bool,
    /// TCP/IPv6 super-segments.
    pub tso6: bool,
    /// UDP super-segments, both families (Linux 6.2).
    pub uso: bool,
}

const NAMES: &str = "none, all, vnet_hdr, csum, tso4, tso6, tso, uso";

impl OffloadSet {
    /// No offload.
    pub const NONE: Self = Self {
        vnet_hdr: false,
        csum: false,
        tso4: false,
        tso6: false,
        uso: false,
    };

    /// Every offload.
    pub const ALL: Self = Self {
        vnet_hdr: true,
        csum: true,
        tso4: true,
        tso6: true,
        uso: true,
    };

    /// Returns the set without the offloads whose requirement is off.
    #[must_use]
    pub const fn normalized(self) -> Self {
        let csum = self.csum && self.vnet_hdr;
        Self {
            vnet_hdr: self.vnet_hdr,
            csum,
            tso4: self.tso4 && csum,
            tso6: self.tso6 && csum,
            uso: self.uso && csum,
        }
    }

    /// Returns the set with the requirements of its offloads.
    const fn with_requirements(mut self) -> Self {
        self.csum |= self.tso4 || self.tso6 || self.uso;
        self.vnet_hdr |= self.csum;
        self
    }

    fn set(&mut self, word: &str, on: bool) -> bool {
        match word {
            "vnet_hdr" => self.vnet_hdr = on,
            "csum" => self.csum = on,
            "tso4" => self.tso4 = on,
            "tso6" => self.tso6 = on,
            "tso" => (self.tso4, self.tso6) = (on, on),
            "uso" => self.uso = on,
            "all" => *self = if on { Self::ALL } else { Self::NONE },
            "none" if on => *self = Self::NONE,
            _ => return false,
        }
        true
    }
}

impl Default for OffloadSet {
    fn default() -> Self {
        Self::ALL
    }
}

/// An unknown word in an offload list; the text lists the valid words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownOffload(String);

impl fmt::Display for UnknownOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(word) = self;
        write!(
            f,
            "\"{word}\" is not an offload; write {NAMES}, separated by commas, with - before one \
             to remove it (all,-tso6)"
        )
    }
}

impl std::error::Error for UnknownOffload {}

impl FromStr for OffloadSet {
    type Err = UnknownOffload;

    fn from_str(text: &str) -> Result<Self, UnknownOffload> {
        let mut set = if text.trim_start().starts_with('-') {
            Self::ALL
        } else {
            Self::NONE
        };
        for word in text.split(',').map(str::trim) {
            let (name, on) = match word.strip_prefix('-') {
                Some(name) => (name, false),
                None => (word, true),
            };
            if !set.set(name, on) {
                return Err(UnknownOffload(word.to_owned()));
            }
            set = if on {
                set.with_requirements()
            } else {
                set.normalized()
            };
        }
        Ok(set)
    }
}

impl fmt::Display for OffloadSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (self.vnet_hdr, "vnet_hdr"),
            (self.csum, "csum"),
            (self.tso4, "tso4"),
            (self.tso6, "tso6"),
            (self.uso, "uso"),
        ];
        let on: Vec<&str> = words.iter().filter(|w| w.0).map(|w| w.1).collect();
        f.write_str(if on.is_empty() { "none" } else { "" })?;
        f.write_str(&on.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::OffloadSet;

    #[test]
    fn text_forms() {
        let rows = [
            ("all", "vnet_hdr,csum,tso4,tso6,uso"),
            ("none", "none"),
            ("vnet_hdr", "vnet_hdr"),
            ("csum", "vnet_hdr,csum"),
            ("csum,tso4", "vnet_hdr,csum,tso4"),
            ("tso", "vnet_hdr,csum,tso4,tso6"),
            ("uso", "vnet_hdr,csum,uso"),
            ("-tso6", "vnet_hdr,csum,tso4,uso"),
            ("-tso", "vnet_hdr,csum,uso"),
            ("-csum", "vnet_hdr"),
            ("-vnet_hdr", "none"),
            ("all, -uso ,-tso4", "vnet_hdr,csum,tso6"),
            ("all,-all", "none"),
            ("none,tso4", "vnet_hdr,csum,tso4"),
        ];
        for (text, want) in rows {
            let set: OffloadSet = text.parse().expect(text);
            assert_eq!(set.to_string(), want, "{text}");
            assert_eq!(want.parse(), Ok(set), "{text}");
            assert_eq!(set.normalized(), set, "{text}");
        }
    }

    #[test]
    fn an_error_has_the_word_and_the_valid_ones() {
        for (text, bad) in [
            ("csum,tso5", "\"tso5\""),
            ("-none", "\"-none\""),
            ("", "\"\""),
        ] {
            let message = text.parse::<OffloadSet>().unwrap_err().to_string();
            assert!(
                message.contains(bad) && message.contains("tso4"),
                "{message}"
            );
        }
    }
}
