//! Policies in files, in TOML.

#[cfg(test)]
mod tests;
mod values;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use toml::de::DeTable;

use super::egress::{DeniedNames, EgressPolicy};
use super::rule::{Action, PolicyError, Rule};
use crate::config::Config;
use crate::gateway::Handle;
use crate::memory::MemoryBudget;
use values::{Source, Table, Value};

/// Longest file, bytes.
const MAX_LEN: u64 = 4 << 20;

/// The policy of a sandbox read from a file, with the limits of its guest.
///
/// ```
/// use fullsend_gateway::{Config, PolicyFile};
///
/// let text = r#"
///     default = "deny"
///
///     [[rules]]
///     action = "allow"
///     domains = ["example.org", "*.example.org"]
///     protocols = "tcp"
///     ports = [80, 443]
///
///     [names]
///     "db.internal" = "192.0.2.7"
///
///     [limits]
///     tcp_connections = 100
/// "#;
/// let mut config = Config::default();
/// PolicyFile::parse(text, "example.toml")?.apply(&mut config);
/// assert_eq!(config.limits.tcp_connections, 100);
///
/// let error = PolicyFile::parse("default = \"ask\"", "example.toml").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "example.toml:1: default = \"ask\" is none of the values; write \"deny\" or \"allow\""
/// );
/// # Ok::<(), fullsend_gateway::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PolicyFile {
    policy: EgressPolicy,
    limits: FileLimits,
    address_grace: Option<Duration>,
}

/// The limits that a file sets.
#[derive(Clone, Copy, Debug, Default)]
struct FileLimits {
    bytes_per_second: Option<u64>,
    tcp_connections: Option<usize>,
    udp_flows: Option<usize>,
    memory: Option<MemoryBudget>,
}

impl PolicyFile {
    /// Reads and parses a file.
    ///
    /// # Errors
    /// One line with the file and its line, the value and the fix; or the error of the operating system.
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| unreadable(&name, &error))?;
        Self::read_from(&file, &name)
    }

    /// Reads an open file. `name` is its name in errors and in the log.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn read_from(mut file: &File, name: &str) -> Result<Self, PolicyError> {
        let text = file.metadata().and_then(|metadata| {
            if metadata.len() > MAX_LEN {
                return Err(io::Error::other(format!(
                    "it has {} bytes, and a policy at most {MAX_LEN}; name networks in place of many \
                     addresses",
                    metadata.len()
                )));
            }
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            Ok(text)
        });
        let text = text.map_err(|error| unreadable(name, &error))?;
        Self::parse(&text, name)
    }

    /// Parses the text of a file. `name` is its name in errors and in the log.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn parse(text: &str, name: &str) -> Result<Self, PolicyError> {
        let source = Source { name, text };
        let parsed = DeTable::parse(text).map_err(|error| source.syntax_error(&error))?;
        let mut file = Self {
            policy: EgressPolicy::new(),
            limits: FileLimits::default(),
            address_grace: None,
        };
        for value in Table::root(source, parsed.get_ref()).entries() {
            file.set(&value)?;
        }
        Ok(file)
    }

    fn set(&mut self, value: &Value<'_>) -> Result<(), PolicyError> {
        match value.key {
            "default" => {
                let action = value.one_of(&[("deny", Action::Deny), ("allow", Action::Allow)])?;
                self.change(|policy| policy.otherwise(action));
            }
            "denied_names" => {
                let answers = [
                    ("refused", DeniedNames::Refused),
                    ("nxdomain", DeniedNames::NameError),
                ];
                let answer = value.one_of(&answers)?;
                self.change(|policy| policy.denied_names(answer));
            }
            "rules" => {
                for rule in value.tables()? {
                    let rule = parse_rule(&rule)?;
                    self.change(|policy| policy.rule(rule));
                }
            }
            "names" => {
                for name in value.table()?.entries() {
                    let items = name.items()?;
                    let addresses: Result<Vec<_>, _> = items.iter().map(Value::address).collect();
                    let policy = std::mem::take(&mut self.policy);
                    let policy = policy.name(name.key, addresses?);
                    self.policy = policy.map_err(|error| name.fault(&error))?;
                }
            }
            "dns" => {
                for value in value.table()?.entries() {
                    match value.key {
                        "grace_seconds" => {
                            let seconds = value.number(0..=u64::from(u32::MAX))?;
                            self.address_grace = Some(Duration::from_secs(seconds));
                        }
                        _ => return Err(value.unknown_key("grace_seconds")),
                    }
                }
            }
            "limits" => {
                for value in value.table()?.entries() {
                    self.limits.set(&value)?;
                }
            }
            _ => {
                return Err(value.unknown_key("default, denied_names, dns, limits, names or rules"));
            }
        }
        Ok(())
    }

    fn change(&mut self, change: impl FnOnce(EgressPolicy) -> EgressPolicy) {
        self.policy = change(std::mem::take(&mut self.policy));
    }

    /// Returns the policy without the limits.
    pub const fn policy(&self) -> &EgressPolicy {
        &self.policy
    }

    /// Sets the policy and the limits of the file in the settings of a gateway.
    pub fn apply(self, config: &mut Config) {
        let limits = &mut config.limits;
        if let Some(rate) = self.limits.bytes_per_second {
            limits.rate = Some(rate);
        }
        if let Some(max) = self.limits.tcp_connections {
            limits.tcp_connections = max;
        }
        if let Some(max) = self.limits.udp_flows {
            limits.udp_flows = max;
        }
        if let Some(memory) = self.limits.memory {
            limits.memory = Some(memory.bytes());
        }
        if let Some(grace) = self.address_grace {
            config.dns.address_grace = grace;
        }
        config.policy = Arc::new(self.policy);
    }

    /// Applies the policy to new flows and queries of a running gateway, and the rate to all flows: no
    /// limit if the file has none. Returns the names of the other limits that differ; they stay until the
    /// gateway is built again.
    pub fn apply_to(self, handle: &Handle) -> Vec<&'static str> {
        let config = handle.config();
        let (limits, grace) = (&config.limits, config.dns.address_grace);
        let is_other = |new: Option<usize>, old: usize| new.is_some_and(|new| new != old);
        let unchanged = [
            (
                "tcp_connections",
                is_other(self.limits.tcp_connections, limits.tcp_connections),
            ),
            (
                "udp_flows",
                is_other(self.limits.udp_flows, limits.udp_flows),
            ),
            (
                "memory",
                self.limits
                    .memory
                    .is_some_and(|new| Some(new.bytes()) != limits.memory),
            ),
            (
                "grace_seconds",
                self.address_grace.is_some_and(|new| new != grace),
            ),
        ];
        handle.set_rate(self.limits.bytes_per_second);
        handle.set_policy(Arc::new(self.policy));
        let names = unchanged.into_iter().filter(|(_, is_other)| *is_other);
        names.map(|(name, _)| name).collect()
    }
}

fn unreadable(name: &str, error: &io::Error) -> PolicyError {
    PolicyError::new(format!("cannot read the policy {name}: {error}"))
}

impl FileLimits {
    fn set(&mut self, value: &Value<'_>) -> Result<(), PolicyError> {
        let number = |value: &Value<'_>| {
            let number = value.number(1..=u64::from(u32::MAX))?;
            Ok::<_, PolicyError>(Some(number as usize))
        };
        match value.key {
            "bytes_per_second" => {
                self.bytes_per_second = Some(value.number(1..=u64::MAX)?);
            }
            "tcp_connections" => self.tcp_connections = number(value)?,
            "udp_flows" => self.udp_flows = number(value)?,
            "memory" => {
                let memory = value.text()?.parse::<MemoryBudget>();
                let fault = |error| value.fault(&PolicyError::new(format!("{error}")));
                self.memory = Some(memory.map_err(fault)?);
            }
            _ => {
                return Err(
                    value.unknown_key("bytes_per_second, memory, tcp_connections or udp_flows")
                );
            }
        }
        Ok(())
    }
}

/// The values of the key `action`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ActionName {
    Allow,
    Deny,
    Redirect,
}

fn parse_rule(table: &Table<'_>) -> Result<Rule, PolicyError> {
    let names = [
        ("allow", ActionName::Allow),
        ("deny", ActionName::Deny),
        ("redirect", ActionName::Redirect),
    ];
    let action = table.get("action").map(|value| value.one_of(&names));
    let to = table.get("to");
    let action = match (action.transpose()?, &to) {
        (Some(ActionName::Allow), None) => Action::Allow,
        (Some(ActionName::Deny), None) => Action::Deny,
        (Some(ActionName::Redirect), Some(to)) => Action::Redirect(to.destination()?),
        (Some(ActionName::Redirect), None) => {
            return Err(table.error("a rule redirects nowhere; add e.g. to = \"127.0.0.1:3128\""));
        }
        (Some(_), Some(to)) => {
            return Err(
                to.error("belongs to action = \"redirect\"; remove it or change the action")
            );
        }
        (None, _) => {
            return Err(table.error(
                "a rule has no action; add action = \"allow\", action = \"deny\" or action = \
                 \"redirect\"",
            ));
        }
    };
    let mut rule = Rule::new(action).written_at(table.position());
    for value in table.entries() {
        rule = add_conditions(rule, &value)?;
    }
    if rule.has_useless_ports() {
        return Err(table.error(
            "a rule has ports or redirects to one, and its only protocol has none; remove ports or write \
             e.g. protocols = \"tcp\"",
        ));
    }
    Ok(rule)
}

/// Adds the conditions of a key to a rule.
fn add_conditions(rule: Rule, value: &Value<'_>) -> Result<Rule, PolicyError> {
    let mut rule = rule;
    match value.key {
        "action" | "to" => {}
        "domains" => {
            for domain in value.items()? {
                let result = rule.domain(domain.text()?);
                rule = result.map_err(|error| domain.fault(&error))?;
            }
        }
        "networks" => {
            for network in value.items()? {
                let result = rule.network(network.text()?);
                rule = result.map_err(|error| network.fault(&error))?;
            }
        }
        "ports" => {
            for ports in value.items()? {
                rule = rule.ports(ports.ports()?);
            }
        }
        "protocols" => {
            for protocol in value.items()? {
                rule = rule.protocol(protocol.one_of(values::PROTOCOLS)?);
            }
        }
        _ => {
            return Err(value.unknown_key("action, domains, networks, ports, protocols or to"));
        }
    }
    Ok(rule)
}
