//! The flags of `--so_flags`.

use std::net::IpAddr;
use std::path::PathBuf;

use fullsend_blocking::{Config, ConfigError};

use crate::settings;

/// Limit of free payload memory kept for reuse, in bytes. It is low, as packetdrill locks all
/// memory.
const POOL_BYTES: &str = "2097152";

/// The parsed `--so_flags`.
#[derive(Debug)]
pub(crate) struct Flags {
    pub(crate) config: Config,
    /// File that is read again whenever it changes.
    pub(crate) settings: Option<PathBuf>,
    /// File that is written when a counter changes.
    pub(crate) counters: Option<PathBuf>,
    /// Errors for tunables that the stack does not have.
    pub(crate) unknown: Vec<ConfigError>,
    /// Settings of the link, which are applied once it exists.
    pub(crate) link: Vec<(String, String)>,
}

/// Keys of [`Config`] that are accepted here in addition to tunables.
const CONFIG_KEYS: [&str; 6] = ["mtu", "gso", "gro", "qdisc", "seed", "pool_bytes"];

fn config_error(text: &str) -> ConfigError {
    ConfigError::new(text)
}

impl Flags {
    /// Parses
    /// `local=ADDR,prefix=N,remote=ADDR,mtu=N,tso=off,KEY=VALUE,settings=FILE,counters=FILE`.
    ///
    /// `local` may be given once for each address family; `prefix` applies to the `local` before
    /// it. `remote` is only validated, as there is only one link.
    pub(crate) fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut locals = Vec::<(IpAddr, Option<u8>)>::new();
        let mut config = Config::default();
        config.set("pool_bytes", POOL_BYTES)?;
        config.set("seed", "1")?;
        let (mut settings_file, mut counters) = (None, None);
        let (mut unknown, mut link) = (Vec::new(), Vec::new());
        for (key, value) in Config::pairs(text)? {
            match key.as_str() {
                "local" => locals.push((parse_address(&key, &value)?, None)),
                "remote" => {
                    parse_address(&key, &value)?;
                }
                "prefix" => {
                    let local = locals.last_mut();
                    let local = local.ok_or_else(|| {
                        config_error("prefix= applies to no address; write it after local=ADDR")
                    })?;
                    local.1 = Some(parse_prefix(local.0, &value)?);
                }
                "counters" => counters = Some(PathBuf::from(value)),
                "tso" => link.push((key, value)),
                "settings" => settings_file = Some(PathBuf::from(value)),
                key if CONFIG_KEYS.contains(&key) => config.set(key, &value)?,
                key if settings::is_ignored(key) => {}
                key => unknown.extend(config.set(key, &value).err()),
            }
        }
        if locals.is_empty() {
            return Err(config_error(
                "the flags name no local address; write --so_flags=local=ADDR with the address of \
                 --local_ip",
            ));
        }
        for (address, prefix) in locals {
            let default_prefix = if address.is_ipv4() { 16 } else { 64 };
            config.set(
                "address",
                &format!("{address}/{}", prefix.unwrap_or(default_prefix)),
            )?;
        }
        // Point to point: every address is at the other end.
        config.set("route", "0.0.0.0/0")?;
        config.set("route", "::/0")?;
        Ok(Self {
            config,
            settings: settings_file,
            counters,
            unknown,
            link,
        })
    }
}

fn parse_address(key: &str, value: &str) -> Result<IpAddr, ConfigError> {
    let address = value.parse::<IpAddr>().map(|a| a.to_canonical());
    address.map_err(|_| {
        config_error(&format!(
            "`{key}={value}` is not valid; write an IPv4 or IPv6 address"
        ))
    })
}

fn parse_prefix(of: IpAddr, value: &str) -> Result<u8, ConfigError> {
    let most = if of.is_ipv4() { 32 } else { 128 };
    let prefix = value.trim_start_matches('/').parse().ok();
    let prefix = prefix.filter(|&prefix| prefix <= most);
    prefix.ok_or_else(|| {
        config_error(&format!(
            "`prefix={value}` is not valid; write a number from 0 to {most}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::Flags;

    #[test]
    fn all_flags_are_parsed() {
        let text = "local=192.168.0.1,prefix=24,local=fd3d::1,prefix=48,remote=192.0.2.1,mtu=1460,\
                    tcp_wmem=4096,16384,65536,net.ipv4.tcp_nonsense=1,tcp_fack=0,settings=/tmp/x,gro=off";
        let flags = Flags::parse(text).unwrap();
        assert_eq!(flags.settings.unwrap().to_str(), Some("/tmp/x"));
        assert_eq!(flags.unknown.len(), 1);
        let shown = format!("{:?}", flags.config);
        assert!(
            shown.contains("192.168.0.1") && shown.contains("prefix: 48"),
            "{shown}"
        );
    }

    #[test]
    fn errors_name_the_flag_and_what_to_write() {
        for (text, part) in [
            ("", "write --so_flags=local="),
            ("local=here", "local=here"),
            ("local=10.0.0.1,prefix=33", "0 to 32"),
            ("prefix=8", "after local="),
            ("local=10.0.0.1,mtu=big", "mtu"),
            ("local=10.0.0.1,remote=", "remote="),
        ] {
            let error = Flags::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
