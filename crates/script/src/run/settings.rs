//! The settings of a run: the `--key=value` lines, and the defaults of the address family.

use std::net::IpAddr;

use fullsend_stack::Cidr;

use crate::error::ScriptError;
use crate::script::{Nanos, Script, Setting};

/// The IP version of a run's packets, and the family of its sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// IPv6 sockets, IPv4 packets (RFC 4291 2.5.5.2).
    Mapped,
}

impl Family {
    /// All three families.
    pub const ALL: [Self; 3] = [Self::V4, Self::V6, Self::Mapped];

    /// Returns the family's name in `--ip_version`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
            Self::Mapped => "ipv4-mapped-ipv6",
        }
    }

    /// Returns whether packets are IPv6.
    pub(crate) fn is_v6_wire(self) -> bool {
        self == Self::V6
    }
}

/// Returns the families a script runs with: that of `--ip_version`, or all.
///
/// # Errors
/// Returns an error if `--ip_version` is not one of the three.
pub fn families(script: &Script) -> Result<Vec<Family>, ScriptError> {
    let Some(setting) = script.settings.iter().find(|s| s.key == "ip_version") else {
        return Ok(Family::ALL.to_vec());
    };
    let family = Family::ALL.iter().find(|f| f.name() == setting.value);
    family.map(|family| vec![*family]).ok_or_else(|| {
        let message = format!(
            "--ip_version={}: expected ipv4, ipv6 or ipv4-mapped-ipv6",
            setting.value
        );
        ScriptError::new(setting.pos, message)
    })
}

#[derive(Clone, Debug)]
pub(crate) struct RunSettings {
    pub(crate) family: Family,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    /// Prefix length of the local network, in bits.
    prefix: u8,
    pub(crate) mtu: u32,
    pub(crate) tolerance: Nanos,
    /// One tick of TSval in ns; 0: TSval is not compared.
    pub(crate) ts_tick: Nanos,
    pub(crate) bind_port: u16,
    pub(crate) connect_port: u16,
    pub(crate) strict_segments: bool,
}

/// Settings of packetdrill without effect in virtual time.
const WITHOUT_EFFECT: [&str; 13] = [
    "tcp_ts_ecr_scaled",
    "mss",
    "ip_version",
    "gateway_ip",
    "speed",
    "verbose",
    "dry_run",
    "non_fatal",
    "init_scripts",
    "send_omit_free",
    "persistent_tun_dev",
    "debug",
    "sysctl_restore",
];

impl RunSettings {
    pub(crate) fn new(script: &Script, family: Family) -> Result<Self, ScriptError> {
        let v6 = family.is_v6_wire();
        let mut settings = Self {
            family,
            local: if v6 {
                [0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1].into()
            } else {
                [192, 168, 0, 1].into()
            },
            remote: if v6 {
                [0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1].into()
            } else {
                [192, 0, 2, 1].into()
            },
            prefix: if v6 { 64 } else { 16 },
            // The MSS is then the same for both versions.
            mtu: if v6 { 1520 } else { 1500 },
            tolerance: 4_000_000,
            ts_tick: 0,
            bind_port: 8080,
            connect_port: 8080,
            strict_segments: false,
        };
        for setting in &script.settings {
            settings.set(setting)?;
        }
        Ok(settings)
    }

    fn set(&mut self, setting: &Setting) -> Result<(), ScriptError> {
        match setting.key.as_str() {
            "local_ip" => self.local = value(setting, "an address")?,
            "remote_ip" => self.remote = value(setting, "an address")?,
            "netmask_ip" => {
                let mask: std::net::Ipv4Addr = value(setting, "a mask such as 255.255.0.0")?;
                if !self.family.is_v6_wire() {
                    self.prefix = u32::from(mask).leading_ones() as u8;
                }
            }
            "mtu" => self.mtu = value(setting, "a number of bytes")?,
            "tolerance_usecs" => self.tolerance = micros(setting)?,
            "tcp_ts_tick_usecs" => self.ts_tick = micros(setting)?,
            "bind_port" => self.bind_port = value(setting, "a port")?,
            "connect_port" => self.connect_port = value(setting, "a port")?,
            "strict_segments" => {
                self.strict_segments = !matches!(setting.value.as_str(), "0" | "false");
            }
            key if WITHOUT_EFFECT.contains(&key) => {}
            key => {
                let message = format!(
                    "--{key} is not a setting; write local_ip, remote_ip, netmask_ip, ip_version, \
                     mtu, tolerance_usecs, tcp_ts_tick_usecs, bind_port, connect_port or \
                     strict_segments"
                );
                return Err(ScriptError::new(setting.pos, message));
            }
        }
        Ok(())
    }

    pub(crate) fn local_net(&self) -> Cidr {
        Cidr {
            addr: self.local,
            prefix: self.prefix,
        }
    }

    pub(crate) fn unspecified(&self) -> IpAddr {
        if self.local.is_ipv4() {
            [0; 4].into()
        } else {
            [0_u16; 8].into()
        }
    }
}

fn value<T: std::str::FromStr>(setting: &Setting, what: &str) -> Result<T, ScriptError> {
    setting.value.parse().map_err(|_| {
        let message = format!("--{}={}: expected {what}", setting.key, setting.value);
        ScriptError::new(setting.pos, message)
    })
}

fn micros(setting: &Setting) -> Result<Nanos, ScriptError> {
    let micros: u32 = value(setting, "microseconds")?;
    Ok(Nanos::from(micros) * 1000)
}
