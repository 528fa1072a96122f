//! Overrides of a script from the command line: names and settings.

use std::convert::Infallible;
use std::str::FromStr;

use clap::Args;
use fullsend_script::{Family, Pos, script::Setting};

/// The options of packetdrill. A prefix of a value (`ipv4:`, `ipv6:`, `ipv4-mapped-ipv6:`)
/// restricts it to runs of that family.
#[derive(Args)]
pub(super) struct ScriptOverrides {
    /// Replace NAME by VALUE in the script; of several, the first for the family applies.
    #[arg(short = 'D', long = "define", value_name = "[FAMILY:]NAME=VALUE", value_parser = definition)]
    names: Vec<Scoped<(String, String)>>,
    /// The stack's address.
    #[arg(long = "local_ip", value_name = "ADDRESS")]
    local_ip: Vec<Scoped<String>>,
    /// The remote end's address.
    #[arg(long = "remote_ip", value_name = "ADDRESS")]
    remote_ip: Vec<Scoped<String>>,
    /// The mask of the stack's network.
    #[arg(long = "netmask_ip", value_name = "MASK")]
    netmask_ip: Vec<Scoped<String>>,
    /// Ignored: the device has no neighbours.
    #[arg(long = "gateway_ip", value_name = "ADDRESS")]
    gateway_ip: Vec<Scoped<String>>,
    /// The device's MTU in bytes.
    #[arg(long = "mtu", value_name = "BYTES")]
    mtu: Vec<Scoped<String>>,
    /// Tolerance of times, in microseconds.
    #[arg(long = "tolerance_usecs", value_name = "USECS")]
    tolerance_usecs: Vec<Scoped<String>>,
}

/// A value, and the only family for which it applies, if any.
#[derive(Clone)]
struct Scoped<T> {
    only_family: Option<Family>,
    value: T,
}

impl<'a> Scoped<&'a str> {
    fn new(text: &'a str) -> Self {
        let scope = Family::ALL.into_iter().find_map(|family| {
            let value = text.strip_prefix(family.name())?.strip_prefix(':')?;
            Some((family, value))
        });
        Self {
            only_family: scope.map(|(family, _)| family),
            value: scope.map_or(text, |(_, value)| value),
        }
    }
}

impl FromStr for Scoped<String> {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let Scoped { only_family, value } = Scoped::new(text);
        let value = value.to_owned();
        Ok(Self { only_family, value })
    }
}

fn definition(text: &str) -> Result<Scoped<(String, String)>, String> {
    let Scoped { only_family, value } = Scoped::new(text);
    let (name, value) = value
        .split_once('=')
        .ok_or("not a definition; write NAME=VALUE")?;
    let value = (name.to_owned(), value.to_owned());
    Ok(Scoped { only_family, value })
}

impl<T> Scoped<T> {
    fn is_for(&self, family: Family) -> bool {
        self.only_family
            .is_none_or(|only_family| only_family == family)
    }
}

impl ScriptOverrides {
    /// Returns the defined names for runs of `family`.
    pub(super) fn names(&self, family: Family) -> Vec<(String, String)> {
        let own = self.names.iter().filter(|name| name.is_for(family));
        own.map(|name| name.value.clone()).collect()
    }

    /// Returns the settings for runs of `family`, which override the script's. Addresses of the
    /// other IP version are left out.
    pub(super) fn settings(&self, family: Family) -> Vec<Setting> {
        let lists = [
            ("local_ip", &self.local_ip),
            ("remote_ip", &self.remote_ip),
            ("netmask_ip", &self.netmask_ip),
            ("gateway_ip", &self.gateway_ip),
            ("mtu", &self.mtu),
            ("tolerance_usecs", &self.tolerance_usecs),
        ];
        let v6 = family == Family::V6;
        let fits = |key: &str, value: &str| !key.ends_with("_ip") || value.contains(':') == v6;
        let settings = lists.into_iter().flat_map(|(key, values)| {
            let own = values.iter().filter(move |value| value.is_for(family));
            own.filter(move |value| fits(key, &value.value))
                .map(move |value| Setting {
                    pos: Pos::default(),
                    key: key.to_owned(),
                    value: value.value.clone(),
                })
        });
        settings.collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        overrides: ScriptOverrides,
    }

    #[test]
    fn values_go_to_their_family() {
        let words = [
            "x",
            "-D",
            "ipv6:A=1",
            "-D",
            "A=2",
            "--local_ip=192.0.2.7",
            "--mtu=ipv6:1520",
        ];
        let overrides = CommandLine::parse_from(words).overrides;
        assert_eq!(
            overrides.names(Family::V4),
            [("A".to_owned(), "2".to_owned())]
        );
        assert_eq!(overrides.names(Family::V6)[0].1, "1");
        let keys = |family| -> Vec<String> {
            let settings = overrides.settings(family);
            settings.into_iter().map(|setting| setting.key).collect()
        };
        assert_eq!(keys(Family::Mapped), ["local_ip"]);
        assert_eq!(keys(Family::V6), ["mtu"]);
    }
}
