//! The values of a policy file, with errors that name their line.

use std::fmt::{Display, Write};
use std::net::{IpAddr, SocketAddr};
use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

use super::super::FlowProtocol;
use super::super::rule::PolicyError;

/// The names of protocols.
pub(super) const PROTOCOLS: &[(&str, FlowProtocol)] = &[
    ("tcp", FlowProtocol::Tcp),
    ("udp", FlowProtocol::Udp),
    ("icmp", FlowProtocol::Ping),
];
/// Most characters of a value that an error shows.
const SHOWN_MAX: usize = 60;

/// The name and the text of the file.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// Returns the file's name and the line of a byte offset.
    fn position(self, at: usize) -> String {
        let before = self.text.as_bytes().iter().take(at);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        format!("{}:{line}", self.name)
    }

    /// Returns the beginning of a value as the file has it.
    fn shown(self, span: Range<usize>) -> String {
        let text = self.text.get(span).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let line = line.chars().filter(|c| !c.is_control());
        let mut shown: String = line.take(SHOWN_MAX).collect();
        if shown.len() < text.len() {
            shown.push_str("...");
        }
        shown
    }

    pub(super) fn syntax_error(self, error: &Error) -> PolicyError {
        let at = error.span().map_or(0, |span| span.start);
        let message = error.message().replace(char::is_control, " ");
        PolicyError::new(format!(
            "{}: {message}: this is not TOML; correct the line",
            self.position(at)
        ))
    }
}

/// A table of the file.
#[derive(Clone)]
pub(super) struct Table<'a> {
    source: Source<'a>,
    at: usize,
    values: &'a DeTable<'a>,
}

impl<'a> Table<'a> {
    pub(super) const fn root(source: Source<'a>, values: &'a DeTable<'a>) -> Self {
        let at = 0;
        Self { source, at, values }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = Value<'a>> {
        let source = self.source;
        self.values.iter().map(move |(key, value)| Value {
            source,
            key: key.get_ref(),
            key_at: key.span().start,
            parsed: value,
        })
    }

    pub(super) fn get(&self, key: &str) -> Option<Value<'a>> {
        self.entries().find(|value| value.key == key)
    }

    /// Returns the file's name and the line of the table.
    pub(super) fn position(&self) -> String {
        self.source.position(self.at)
    }

    pub(super) fn error(&self, message: &str) -> PolicyError {
        PolicyError::new(format!("{}: {message}", self.position()))
    }
}

/// A value of the file with its key. Values in an array have the key of the array.
#[derive(Clone)]
pub(super) struct Value<'a> {
    source: Source<'a>,
    pub(super) key: &'a str,
    key_at: usize,
    parsed: &'a Spanned<DeValue<'a>>,
}

impl<'a> Value<'a> {
    /// Returns an error about the value; `message` continues a sentence that begins with the value.
    pub(super) fn error(&self, message: impl Display) -> PolicyError {
        let span = self.parsed.span();
        let (position, shown) = (self.source.position(span.start), self.source.shown(span));
        let key = self.shown_key();
        PolicyError::new(format!("{position}: {key} = {shown} {message}"))
    }

    /// Returns the key as a file would have it.
    fn shown_key(&self) -> String {
        let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if self.key.bytes().all(is_bare) {
            self.key.to_owned()
        } else {
            format!("{:?}", self.key)
        }
    }

    /// Prefixes an error that names the value with the value's position.
    pub(super) fn fault(&self, error: &PolicyError) -> PolicyError {
        let position = self.source.position(self.parsed.span().start);
        PolicyError::new(format!("{position}: {}: {error}", self.shown_key()))
    }

    /// Returns an error about an unknown key; `known` lists the keys of its table.
    pub(super) fn unknown_key(&self, known: &str) -> PolicyError {
        PolicyError::new(format!(
            "{}: there is no key {:?} here; write {known}",
            self.source.position(self.key_at),
            self.key
        ))
    }

    pub(super) fn text(&self) -> Result<&'a str, PolicyError> {
        match self.parsed.get_ref() {
            DeValue::String(text) => Ok(text),
            _ => Err(self.error("is not a text; write it in quotation marks")),
        }
    }

    /// Returns the value that one of these names stands for.
    pub(super) fn one_of<T: Copy>(&self, names: &[(&str, T)]) -> Result<T, PolicyError> {
        let text = self.parsed.get_ref().as_str();
        let found = names.iter().find(|(name, _)| Some(*name) == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let mut list = String::new();
            for (n, (name, _)) in names.iter().enumerate() {
                let separator = match n {
                    0 => "",
                    _ if n + 1 == names.len() => " or ",
                    _ => ", ",
                };
                // Writing to a string does not fail.
                let _ = write!(list, "{separator}{name:?}");
            }
            self.error(format_args!("is none of the values; write {list}"))
        })
    }

    pub(super) fn number(&self, range: RangeInclusive<u64>) -> Result<u64, PolicyError> {
        let number = self.parsed.get_ref().as_integer();
        let number = number.and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok());
        number.filter(|n| range.contains(n)).ok_or_else(|| {
            let (first, last) = range.into_inner();
            match last {
                u64::MAX => self.error(format_args!("is not a number of at least {first}")),
                _ => self.error(format_args!("is not a number between {first} and {last}")),
            }
        })
    }

    pub(super) fn address(&self) -> Result<IpAddr, PolicyError> {
        self.text()?.parse().map_err(|_| {
            self.error("is not an address; write e.g. \"192.0.2.7\" or \"2001:db8::7\"")
        })
    }

    /// Returns the address and port of a redirection.
    pub(super) fn destination(&self) -> Result<SocketAddr, PolicyError> {
        let to = self.text()?.parse().ok();
        let to = to.filter(|to: &SocketAddr| !to.ip().is_unspecified() && to.port() != 0);
        to.ok_or_else(|| self.error("is not an address with a port; write e.g. \"127.0.0.1:3128\""))
    }

    /// Returns a port, or a range of ports.
    pub(super) fn ports(&self) -> Result<RangeInclusive<u16>, PolicyError> {
        let number = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u16>().ok().filter(|_| is_number)
        };
        let ports = match self.parsed.get_ref() {
            DeValue::Integer(_) => self.number(0..=65_535).ok().map(|n| (n as u16, n as u16)),
            DeValue::String(text) => {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                number(first).zip(number(last))
            }
            _ => None,
        };
        let ports = ports.filter(|(first, last)| first <= last);
        let (first, last) = ports.ok_or_else(|| {
            self.error("is not a port from 0 to 65535; write e.g. 443 or \"8000-8099\"")
        })?;
        Ok(first..=last)
    }

    pub(super) fn table(&self) -> Result<Table<'a>, PolicyError> {
        let at = self.parsed.span().start;
        let source = self.source;
        match self.parsed.get_ref() {
            DeValue::Table(values) => Ok(Table { source, at, values }),
            _ => Err(self.error(format_args!(
                "is not a table; write [{}], and its values in lines of their own",
                self.shown_key()
            ))),
        }
    }

    /// Returns the tables of an array.
    pub(super) fn tables(&self) -> Result<Vec<Table<'a>>, PolicyError> {
        let error = || {
            self.error(format_args!(
                "is not a list of tables; write [[{}]] before each",
                self.shown_key()
            ))
        };
        let values = self.parsed.get_ref().as_array().ok_or_else(error)?;
        let tables = values.iter().map(|value| match value.get_ref() {
            DeValue::Table(values) => Ok(Table {
                source: self.source,
                at: value.span().start,
                values,
            }),
            _ => Err(error()),
        });
        tables.collect()
    }

    /// Returns the values of an array, or the value itself if it is not an array.
    pub(super) fn items(&self) -> Result<Vec<Self>, PolicyError> {
        let DeValue::Array(values) = self.parsed.get_ref() else {
            return Ok(vec![self.clone()]);
        };
        if values.is_empty() {
            return Err(self.error("is empty; remove the key, or add a value"));
        }
        let item = |parsed| Self {
            parsed,
            ..self.clone()
        };
        Ok(values.iter().map(item).collect())
    }
}
