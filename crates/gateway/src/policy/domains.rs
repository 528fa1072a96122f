//! Sets of domain names.

use std::collections::BTreeSet;

use super::rule::PolicyError;

/// Longest name in its text form, bytes.
const NAME_MAX: usize = 253;

/// A set of domain names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Domains {
    /// Whether the set contains all names.
    all: bool,
    names: BTreeSet<String>,
    /// Domains whose subdomains are in the set, without the domains themselves.
    parents: BTreeSet<String>,
    /// Most labels of an entry in `parents`.
    parent_labels: usize,
}

impl Domains {
    pub(super) fn is_empty(&self) -> bool {
        !self.all && self.names.is_empty() && self.parents.is_empty()
    }

    /// Adds a name, all names below one for `*.NAME`, or all names for `*`.
    pub(super) fn add(&mut self, pattern: &str) -> Result<(), PolicyError> {
        let error = |fix: &str| {
            let shown = pattern.escape_debug();
            PolicyError::new(format!("`{shown}` is not a domain; {fix}"))
        };
        if pattern == "*" {
            self.all = true;
            return Ok(());
        }
        let (name, is_parent) = match pattern.strip_prefix("*.") {
            Some(parent) => (parent, true),
            None => (pattern, false),
        };
        if !name.is_ascii() {
            return Err(error("write it in ASCII, as in xn--bcher-kva.example"));
        }
        let normal = normalize(name);
        let normal = normal.ok_or_else(|| error("write e.g. example.org, *.example.org or *"))?;
        if is_parent {
            self.parent_labels = self.parent_labels.max(normal.split('.').count());
            self.parents.insert(normal);
        } else {
            self.names.insert(normal);
        }
        Ok(())
    }

    /// Returns whether a name in lower case without the final dot is in the set.
    pub(super) fn contains(&self, name: &str) -> bool {
        // The parents are checked from the shortest up to `parent_labels` labels: a name may have 126.
        let parents = name.rmatch_indices('.').map(|(dot, _)| &name[dot + 1..]);
        let mut parents = parents.take(self.parent_labels);
        self.all || self.names.contains(name) || parents.any(|parent| self.parents.contains(parent))
    }
}

/// Returns a name in lower case without the final dot, or `None` if it is not the name of a host or
/// domain.
pub(super) fn normalize(name: &str) -> Option<String> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| (1..=63).contains(&label.len());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = name.bytes().all(is_plain) && name.split('.').all(is_label);
    (is_name && name.len() <= NAME_MAX).then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(patterns: &[&str]) -> Domains {
        let mut domains = Domains::default();
        for pattern in patterns {
            domains.add(pattern).unwrap();
        }
        domains
    }

    #[test]
    fn a_name_is_itself_and_a_wildcard_the_names_below_it() {
        let domains = set(&[
            "Example.ORG.",
            "*.Example.net.",
            "*.test",
            "*.a.b.c.d.example",
        ]);
        for (name, expected) in [
            ("example.org", true),
            ("www.example.org", false),
            ("example.net", false),
            ("a.example.net", true),
            ("a.b.example.net", true),
            ("xexample.net", false),
            ("example.net.evil.example", false),
            ("x.test", true),
            ("x.y.test", true),
            ("a.b.c.d.example", false),
            ("x.a.b.c.d.example", true),
            ("y.x.a.b.c.d.example", true),
            ("x.b.c.d.example", false),
            // A label that contains a dot.
            ("x\\046example.net", false),
            ("net", false),
            ("", false),
        ] {
            assert_eq!(domains.contains(name), expected, "{name}");
        }
        assert!(set(&["*"]).contains("anything.test") && set(&["*"]).contains(""));
        assert!(Domains::default().is_empty() && !Domains::default().contains("x"));
    }

    #[test]
    fn other_texts_are_rejected_with_the_fix() {
        for pattern in [
            "", ".", "*.", "a..b", "*.*.x", "a*.x", "a b", "http://x", "x:80", "a\nb", "a\\046b",
        ] {
            let error = Domains::default().add(pattern).unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{}`", pattern.escape_debug()))
                    && error.contains("*.example.org"),
                "{error}"
            );
        }
        let error = Domains::default().add("bücher.example").unwrap_err();
        assert!(error.to_string().contains("xn--"), "{error}");
        assert!(Domains::default().add(&"x".repeat(64)).is_err());
        assert!(Domains::default().add(&"x.".repeat(128)).is_err());
    }
}
