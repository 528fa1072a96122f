//! Command lines in the style of getopt_long, from a table of options.
//!
//! The programs that the gateway stands in for are called by other programs, which rely on details
//! of that style: `-m1500`, `-m 1500`, `--mtu=1500` and `--mtu 1500` are the same, options may follow
//! positional arguments, and an option may be repeated.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Whether an option takes a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Takes {
    Nothing,
    Value,
}

/// An option of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opt<K> {
    pub(crate) key: K,
    /// The option's letter; `'\0'` if it has none.
    pub(crate) short: char,
    /// The long names without dashes, of which documents use the first.
    pub(crate) long: &'static [&'static str],
    pub(crate) takes: Takes,
}

/// Returns an option of a table.
pub(crate) const fn option<K: Copy>(
    key: K,
    short: char,
    long: &'static [&'static str],
    takes: Takes,
) -> Opt<K> {
    Opt {
        key,
        short,
        long,
        takes,
    }
}

/// Whether options may follow positional arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Options may follow; `--` ends them.
    Mixed,
    /// The first positional argument ends the options: it begins a command with its own options.
    OptionsFirst,
}

/// A parsed command line.
#[derive(Debug)]
pub(crate) struct Parsed<K> {
    /// The options in their order, with their values.
    pub(crate) options: Vec<(K, OsString)>,
    pub(crate) positionals: Vec<OsString>,
}

/// An error of a command line, with the C library's text, which callers search for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OptionError {
    Unrecognized(String),
    InvalidLetter(char),
    NoValue(String),
    NoValueOfLetter(char),
    SurplusValue(String),
}

impl std::error::Error for OptionError {}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unrecognized(name) => write!(f, "unrecognized option '--{name}'"),
            Self::InvalidLetter(letter) => write!(f, "invalid option -- '{letter}'"),
            Self::NoValue(name) => write!(f, "option '--{name}' requires an argument"),
            Self::NoValueOfLetter(letter) => {
                write!(f, "option requires an argument -- '{letter}'")
            }
            Self::SurplusValue(name) => write!(f, "option '--{name}' doesn't allow an argument"),
        }
    }
}

/// Parses the arguments after the program's name.
pub(crate) fn parse<K: Copy>(
    table: &[Opt<K>],
    order: Order,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Parsed<K>, OptionError> {
    let mut arguments = arguments.into_iter();
    let mut parsed = Parsed {
        options: Vec::new(),
        positionals: Vec::new(),
    };
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        if bytes == b"--" {
            break;
        }
        if let Some(long) = bytes.strip_prefix(b"--") {
            parsed
                .options
                .push(long_option(table, long, &mut arguments)?);
        } else if bytes.len() > 1 && bytes[0] == b'-' {
            letters(table, &bytes[1..], &mut arguments, &mut parsed.options)?;
        } else {
            parsed.positionals.push(argument);
            if order == Order::OptionsFirst {
                break;
            }
        }
    }
    parsed.positionals.extend(arguments);
    Ok(parsed)
}

/// Parses `name` or `name=value`.
fn long_option<K: Copy>(
    table: &[Opt<K>],
    option: &[u8],
    arguments: &mut impl Iterator<Item = OsString>,
) -> Result<(K, OsString), OptionError> {
    let equals = option.iter().position(|&b| b == b'=');
    let (name, value) = match equals {
        Some(at) => (&option[..at], Some(OsStr::from_bytes(&option[at + 1..]))),
        None => (option, None),
    };
    let name = String::from_utf8_lossy(name).into_owned();
    let found = table.iter().find(|opt| opt.long.contains(&&*name));
    let Some(opt) = found else {
        // The C library prints the whole word.
        return Err(OptionError::Unrecognized(
            String::from_utf8_lossy(option).into_owned(),
        ));
    };
    let value = match (opt.takes, value) {
        (Takes::Nothing, None) => OsString::new(),
        (Takes::Nothing, Some(_)) => return Err(OptionError::SurplusValue(name)),
        (Takes::Value, Some(value)) => value.to_owned(),
        (Takes::Value, None) => arguments.next().ok_or(OptionError::NoValue(name))?,
    };
    Ok((opt.key, value))
}

/// Parses letters that follow a dash. The rest of the word after a letter with a value is its value.
fn letters<K: Copy>(
    table: &[Opt<K>],
    letters: &[u8],
    arguments: &mut impl Iterator<Item = OsString>,
    options: &mut Vec<(K, OsString)>,
) -> Result<(), OptionError> {
    for (at, &byte) in letters.iter().enumerate() {
        let letter = char::from(byte);
        let found = table
            .iter()
            .find(|opt| opt.short == letter && letter != '\0');
        let Some(opt) = found else {
            return Err(OptionError::InvalidLetter(letter));
        };
        if opt.takes == Takes::Nothing {
            options.push((opt.key, OsString::new()));
            continue;
        }
        let rest = &letters[at + 1..];
        let value = match rest {
            [] => arguments
                .next()
                .ok_or(OptionError::NoValueOfLetter(letter))?,
            rest => OsString::from_vec(rest.to_vec()),
        };
        options.push((opt.key, value));
        break;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{Opt, OptionError, Order, Parsed, Takes, option, parse};

    const TABLE: &[Opt<char>] = &[
        option('c', 'c', &["configure"], Takes::Nothing),
        option('m', 'm', &["mtu", "max-unit"], Takes::Value),
        option('d', '\0', &["cidr"], Takes::Value),
    ];

    fn run(order: Order, line: &str) -> Result<Parsed<char>, OptionError> {
        parse(TABLE, order, line.split(' ').map(OsString::from))
    }

    fn shown(order: Order, line: &str) -> String {
        let parsed = run(order, line).unwrap();
        let options = parsed.options.iter();
        let options: Vec<_> = options
            .map(|(key, value)| format!("{key}{}", value.display()))
            .collect();
        let positionals: Vec<_> = parsed.positionals.iter().map(|p| p.display()).collect();
        let positionals = positionals.iter().map(ToString::to_string);
        format!(
            "{} | {}",
            options.join(" "),
            positionals.collect::<Vec<_>>().join(" ")
        )
    }

    #[test]
    fn values_may_be_joined_or_separate() {
        for line in [
            "-m 9000",
            "-m9000",
            "--mtu 9000",
            "--mtu=9000",
            "--max-unit=9000",
        ] {
            assert_eq!(shown(Order::Mixed, line), "m9000 | ", "{line}");
        }
        assert_eq!(shown(Order::Mixed, "-cm9000"), "c m9000 | ");
        assert_eq!(shown(Order::Mixed, "--cidr="), "d | ");
        assert_eq!(shown(Order::Mixed, "-m -c"), "m-c | ");
    }

    #[test]
    fn options_may_follow_positionals_unless_these_begin_a_command() {
        let line = "-c 42 -m 9000 tap0";
        assert_eq!(shown(Order::Mixed, line), "c m9000 | 42 tap0");
        assert_eq!(shown(Order::OptionsFirst, line), "c | 42 -m 9000 tap0");
    }

    #[test]
    fn two_dashes_end_the_options() {
        assert_eq!(shown(Order::Mixed, "-c -- -m 1"), "c | -m 1");
        assert_eq!(shown(Order::OptionsFirst, "-c -- sh -c x"), "c | sh -c x");
        assert_eq!(shown(Order::Mixed, "- -c"), "c | -");
    }

    #[test]
    fn errors_have_the_words_of_the_c_library() {
        let rows = [
            ("--what", "unrecognized option '--what'"),
            ("--what=1", "unrecognized option '--what=1'"),
            ("-x", "invalid option -- 'x'"),
            ("-cx", "invalid option -- 'x'"),
            ("--mtu", "option '--mtu' requires an argument"),
            ("-m", "option requires an argument -- 'm'"),
            (
                "--configure=1",
                "option '--configure' doesn't allow an argument",
            ),
        ];
        for (line, text) in rows {
            assert_eq!(run(Order::Mixed, line).unwrap_err().to_string(), text);
        }
    }
}
