//! The programs that the gateway stands in for, selected by name.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use super::{gvproxy, pasta, pesto, slirp4netns};

/// A program that this one stands in for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Personality {
    Slirp4netns,
    Pasta,
    Passt,
    Pesto,
    Gvproxy,
}

impl Personality {
    /// All personalities, with the names of their programs.
    pub(crate) const ALL: &[(Self, &str)] = &[
        (Self::Slirp4netns, "slirp4netns"),
        (Self::Pasta, "pasta"),
        (Self::Passt, "passt"),
        (Self::Pesto, "pesto"),
        (Self::Gvproxy, "gvproxy"),
    ];

    fn of_name(name: &OsStr) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, known)| name == *known);
        found.map(|(personality, _)| *personality)
    }

    /// Returns the personality that a command line selects, and its arguments.
    ///
    /// The program's file name, or else the first argument, selects the personality.
    pub(crate) fn of_command_line(words: &[OsString]) -> Option<(Self, Vec<OsString>)> {
        let program = words.first()?;
        let name = Path::new(program).file_name()?;
        if let Some(personality) = Self::of_name(name) {
            return Some((personality, words[1..].to_vec()));
        }
        let personality = Self::of_name(words.get(1)?)?;
        Some((personality, words[2..].to_vec()))
    }

    /// Runs the program with its arguments.
    pub(crate) fn run(self, arguments: Vec<OsString>) -> ExitCode {
        match self {
            Self::Slirp4netns => slirp4netns::main(arguments),
            Self::Pasta => pasta::main(arguments),
            Self::Passt => pasta::passt::main(arguments),
            Self::Pesto => pesto::main(arguments),
            Self::Gvproxy => gvproxy::main(arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::Personality;

    fn of(line: &str) -> Option<(Personality, Vec<OsString>)> {
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        Personality::of_command_line(&words)
    }

    #[test]
    fn the_name_of_the_program_or_the_first_argument_selects() {
        let arguments = vec![OsString::from("-c"), OsString::from("42")];
        for line in [
            "slirp4netns -c 42",
            "/usr/bin/slirp4netns -c 42",
            "fullsend slirp4netns -c 42",
        ] {
            assert_eq!(
                of(line),
                Some((Personality::Slirp4netns, arguments.clone())),
                "{line}"
            );
        }
        for line in [
            "fullsend",
            "fullsend perf stream",
            "fullsend-slirp4netns -c",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
