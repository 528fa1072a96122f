//! Filters by state, in the syntax of `ss`.

use anyhow::{Result, anyhow, bail};

/// The states: the name in filters of `ss`, and the name that `ss` prints.
const STATES: [(&str, &str); 11] = [
    ("established", "ESTAB"),
    ("syn-sent", "SYN-SENT"),
    ("syn-recv", "SYN-RECV"),
    ("fin-wait-1", "FIN-WAIT-1"),
    ("fin-wait-2", "FIN-WAIT-2"),
    ("time-wait", "TIME-WAIT"),
    ("closed", "UNCONN"),
    ("close-wait", "CLOSE-WAIT"),
    ("last-ack", "LAST-ACK"),
    ("listening", "LISTEN"),
    ("closing", "CLOSING"),
];

/// A set of states, one bit for each of [`STATES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::stat) struct States(u16);

impl States {
    const ALL: Self = Self((1 << STATES.len()) - 1);

    /// Returns the states that any number of `state STATE` and `exclude STATE` select. Without `state`,
    /// all states except the excluded ones.
    pub(in crate::stat) fn parse(words: &[String]) -> Result<Self> {
        let (mut wanted, mut excluded) = (None, Self(0));
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(name) = words.next() else {
                bail!("`{word}` has no state; write e.g. `state established`");
            };
            match word.as_str() {
                "state" => wanted = Some(wanted.unwrap_or(Self(0)).or(Self::by_name(name)?)),
                "exclude" | "excl" => excluded = excluded.or(Self::by_name(name)?),
                _ => bail!("`{word}` is not a filter; write `state STATE` or `exclude STATE`"),
            }
        }
        Ok(wanted.unwrap_or(Self::ALL).without(excluded))
    }

    /// Returns the set of one state, or of a group of states.
    fn by_name(name: &str) -> Result<Self> {
        let one = |name: &str| {
            let at = STATES.iter().position(|(state, _)| *state == name);
            at.map(|at| Self(1 << at))
        };
        let all_but = |names: &[&str]| {
            let others = names.iter().filter_map(|name| one(name));
            others.fold(Self::ALL, Self::without)
        };
        let buckets = ["syn-recv", "time-wait"];
        Ok(match name {
            "all" => Self::ALL,
            "connected" => all_but(&["closed", "listening"]),
            "synchronized" => all_but(&["closed", "listening", "syn-sent"]),
            "bucket" => Self::ALL.without(all_but(&buckets)),
            "big" => all_but(&buckets),
            "estab" => Self::by_name("established")?,
            "listen" => Self::by_name("listening")?,
            "unconnected" => Self::by_name("closed")?,
            _ => one(name).ok_or_else(|| {
                let names: Vec<&str> = STATES.iter().map(|(state, _)| *state).collect();
                anyhow!(
                    "`{name}` is not a state; write {}, or a group: all, connected, synchronized, \
                     bucket or big",
                    names.join(", ")
                )
            })?,
        })
    }

    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether the set contains a state, given as it is printed.
    pub(in crate::stat) fn contains(self, printed: &str) -> bool {
        let at = STATES.iter().position(|(_, name)| *name == printed);
        at.is_some_and(|at| self.0 & 1 << at != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::{STATES, States};

    fn states(line: &str) -> Vec<&'static str> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let set = States::parse(&words).unwrap();
        let printed = STATES.iter().map(|(_, printed)| *printed);
        printed.filter(|printed| set.contains(printed)).collect()
    }

    #[test]
    fn states_and_groups() {
        assert_eq!(states("state established"), ["ESTAB"]);
        assert_eq!(
            states("state bucket state listen"),
            ["SYN-RECV", "TIME-WAIT", "LISTEN"]
        );
        assert_eq!(states("state connected").len(), 9);
        assert_eq!(
            states("exclude synchronized"),
            ["SYN-SENT", "UNCONN", "LISTEN"]
        );
        assert_eq!(states("state big exclude connected"), ["UNCONN", "LISTEN"]);
        assert_eq!(states("state all").len(), STATES.len());
    }

    #[test]
    fn errors_name_the_mistake_and_the_syntax() {
        for (line, part) in [
            ("state", "has no state"),
            ("dport 80", "`dport` is not a filter"),
            ("state open", "`open` is not a state; write established"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = States::parse(&words).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
