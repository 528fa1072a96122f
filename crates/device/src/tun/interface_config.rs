//! The configuration of the kernel's side of the interface: its MTU, queue, addresses and state.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::OpenError;
use crate::sys::{self, IfName, Iface};

const RTM_NEWADDR: u16 = 20;
const REQUEST_ACK_CREATE_EXCL: u16 = 0x1 | 0x4 | 0x400 | 0x200;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// The flag that disables duplicate address detection: the caller has chosen both addresses of the link.
const IFA_F_NODAD: u8 = 2;

/// The driver's default for `txqueuelen`, and the value to which it is raised: a receive window of 6 MB
/// in packets of 1500 bytes.
///
/// The driver drops further packets, and nothing slows down the kernel's TCP before: 200 bulk flows
/// overflow 500 super-segments repeatedly (measured: every tenth segment retransmitted, at half of the
/// throughput). Any other value was configured and is kept.
const DEFAULT_QUEUE_LEN: u32 = 500;
const RAISED_QUEUE_LEN: u32 = 4096;

/// The settings of the kernel's side.
#[derive(Clone, Default)]
pub(super) struct InterfaceConfig {
    pub(super) mtu: Option<u32>,
    pub(super) addresses: Vec<(IpAddr, u8)>,
}

impl InterfaceConfig {
    /// Applies the settings, and returns the MTU in effect, in bytes.
    ///
    /// A setting that a user without `CAP_NET_ADMIN` may not change becomes a warning: root may have
    /// prepared the interface for that user.
    pub(super) fn apply(&self, name: &str, warnings: &mut Vec<String>) -> Result<u32, OpenError> {
        let if_name = IfName::new(name).ok_or_else(|| OpenError::BadName {
            name: name.to_owned(),
        })?;
        let iface = Iface::new(if_name).map_err(OpenError::Io)?;
        let mut warn_if_denied = |what: String, result: io::Result<()>| match result {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                warnings.push(format!(
                    "{name}: cannot set {what}: {e}; run with CAP_NET_ADMIN, or let root set it"
                ));
                Ok(())
            }
            Err(source) => Err(OpenError::Setting {
                name: name.to_owned(),
                what,
                source,
            }),
        };
        if let Some(mtu) = self.mtu
            && iface.mtu().map_err(OpenError::Io)? != mtu
        {
            warn_if_denied(format!("mtu {mtu}"), iface.set_mtu(mtu))?;
        }
        if iface.queue_len().map_err(OpenError::Io)? == DEFAULT_QUEUE_LEN {
            let result = iface.set_queue_len(RAISED_QUEUE_LEN);
            warn_if_denied(format!("txqueuelen {RAISED_QUEUE_LEN}"), result)?;
        }
        let index = iface.index().map_err(OpenError::Io)?;
        for &(address, prefix) in &self.addresses {
            let result = add_address(index, address, prefix);
            warn_if_denied(format!("address {address}/{prefix}"), result)?;
        }
        warn_if_denied("state up".to_owned(), iface.bring_up())?;
        iface.mtu().map_err(OpenError::Io)
    }
}

/// Adds an address. Succeeds if it already exists.
fn add_address(index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
    match sys::rtnetlink(&new_address(index, address, prefix)) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Returns an rtnetlink message: `nlmsghdr`, `ifaddrmsg` and two attributes, in host byte order.
fn new_address(index: u32, address: IpAddr, prefix: u8) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(a) => (libc::AF_INET, a.octets().to_vec()),
        IpAddr::V6(a) => (libc::AF_INET6, a.octets().to_vec()),
    };
    let mut message = vec![0; 16];
    message.extend([family as u8, prefix, IFA_F_NODAD, 0]);
    message.extend(index.to_ne_bytes());
    for attribute in [IFA_LOCAL, IFA_ADDRESS] {
        message.extend((4 + octets.len() as u16).to_ne_bytes());
        message.extend(attribute.to_ne_bytes());
        message.extend(&octets);
    }
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_NEWADDR.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST_ACK_CREATE_EXCL.to_ne_bytes());
    message
}

/// Returns the default address of the kernel's side for a stack with `ours`/`prefix`: the first one in
/// the subnet that is not `ours`.
///
/// Returns `None` if the subnet has no other address.
///
/// ```
/// use fullsend_device::default_kernel_address;
/// let other = |ours: &str, prefix| default_kernel_address(ours.parse().unwrap(), prefix);
/// assert_eq!(other("10.0.0.2", 24), "10.0.0.1".parse().ok());
/// assert_eq!(other("10.0.0.1", 24), "10.0.0.2".parse().ok());
/// assert_eq!(other("fd00::1", 64), "fd00::2".parse().ok());
/// assert_eq!(other("10.0.0.1", 32), None);
/// ```
pub fn default_kernel_address(ours: IpAddr, prefix: u8) -> Option<IpAddr> {
    let (bits, width) = match ours {
        IpAddr::V4(a) => (u128::from(u32::from(a)), 32),
        IpAddr::V6(a) => (u128::from(a), 128),
    };
    let host_bits = width - u32::from(prefix).min(width);
    let host_mask = 1u128
        .checked_shl(host_bits)
        .map_or(u128::MAX, |size| size - 1);
    let network = bits & !host_mask;
    // A subnet of two addresses has no network or broadcast address (RFC 3021).
    let candidates = match host_bits {
        0 => return None,
        1 => [network, network + 1],
        _ => [network + 1, network + 2],
    };
    let other = candidates.into_iter().find(|&c| c != bits)?;
    Some(match ours {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from(other as u32)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from(other)),
    })
}

#[cfg(test)]
mod tests {
    use super::default_kernel_address;

    #[test]
    fn first_other_address_of_the_subnet() {
        let rows = [
            ("10.1.2.3", 24, Some("10.1.2.1")),
            ("10.1.2.1", 30, Some("10.1.2.2")),
            ("10.1.2.0", 31, Some("10.1.2.1")),
            ("10.1.2.1", 31, Some("10.1.2.0")),
            ("10.1.2.1", 0, Some("0.0.0.1")),
            ("10.1.2.1", 200, None),
            ("fd00::1", 127, Some("fd00::")),
            ("fd00::9", 0, Some("::1")),
            ("fd00::9", 128, None),
        ];
        for (ours, prefix, want) in rows {
            let got = default_kernel_address(ours.parse().unwrap(), prefix);
            assert_eq!(got, want.map(|w| w.parse().unwrap()), "{ours}/{prefix}");
        }
    }
}
