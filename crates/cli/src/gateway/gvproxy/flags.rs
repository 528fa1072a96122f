//! Parsing of command lines like Go's package `flag`: `-x v`, `-x=v`, `--x v` and `--x=v` are the same.

use std::ffi::OsString;

use anyhow::{Result, bail};

/// Whether a flag takes a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// `-x`, `-x=true` or `-x=false`.
    Bool,
    Value,
}

/// A flag of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag<K> {
    pub(super) key: K,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

/// Parses the arguments after the program's name. Returns the flags in their order, with their values,
/// without flags that are `false`.
///
/// # Errors
/// Returns the error with Go's text, which callers search for.
pub(super) fn parse<K: Copy>(
    table: &[Flag<K>],
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Vec<(K, String)>> {
    let mut arguments = arguments.into_iter();
    let mut parsed = Vec::new();
    while let Some(argument) = arguments.next() {
        let Ok(word) = argument.into_string() else {
            bail!("an argument is not UTF-8");
        };
        let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            bail!("{word} is not a flag; gvproxy has no other arguments");
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        if name.is_empty() || name.starts_with('-') {
            bail!("bad flag syntax: {word}");
        }
        let Some(found) = table.iter().find(|flag| flag.name == name) else {
            bail!("flag provided but not defined: -{name}");
        };
        let value = match (found.kind, value) {
            (Kind::Bool, None) => "true".to_owned(),
            (Kind::Bool, Some(value)) => match &*value {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => "true".to_owned(),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => continue,
                _ => bail!("invalid boolean value \"{value}\" for -{name}: parse error"),
            },
            (Kind::Value, Some(value)) => value,
            (Kind::Value, None) => match arguments.next().map(OsString::into_string) {
                Some(Ok(value)) => value,
                Some(Err(_)) => bail!("the value of -{name} is not UTF-8"),
                None => bail!("flag needs an argument: -{name}"),
            },
        };
        parsed.push((found.key, value));
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Flag<char>] = &[
        Flag {
            key: 'm',
            name: "mtu",
            kind: Kind::Value,
        },
        Flag {
            key: 'd',
            name: "debug",
            kind: Kind::Bool,
        },
    ];

    fn run(line: &str) -> Result<Vec<(char, String)>> {
        parse(TABLE, line.split(' ').map(OsString::from))
    }

    #[test]
    fn one_dash_and_two_are_the_same_and_values_may_be_joined() {
        for line in ["-mtu 1500", "--mtu 1500", "-mtu=1500", "--mtu=1500"] {
            assert_eq!(run(line).unwrap(), [('m', "1500".to_owned())], "{line}");
        }
        let parsed = run("-debug -mtu=-1 --debug=false").unwrap();
        assert_eq!(parsed, [('d', "true".to_owned()), ('m', "-1".to_owned())]);
    }

    #[test]
    fn errors_have_the_words_of_go() {
        for (line, text) in [
            ("-x 1", "flag provided but not defined: -x"),
            ("-mtu", "flag needs an argument: -mtu"),
            ("-debug=no", "invalid boolean value \"no\" for -debug"),
            ("---mtu 1", "bad flag syntax: ---mtu"),
            ("mtu", "mtu is not a flag"),
        ] {
            let error = run(line).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
