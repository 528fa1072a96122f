//! Changes to a running interface, as `ip link set`, `ethtool -K` and `tc qdisc replace` make them.

use alloc::format;

use fullsend_offload::Caps;
use fullsend_qdisc::{Qdisc, QdiscConfig};
use fullsend_wire::Instant;
use fullsend_wire::numbers::ethertype;

use crate::error::StackError;
use crate::net_config::checked_mtu;
use crate::{Host, IfaceId};

/// A change to an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfaceChange {
    /// Largest IP packet, bytes. Existing connections keep their MTU.
    Mtu(u32),
    /// Whether the device segments TCP and UDP super-segments, as far as it could when it was
    /// added.
    Tso(bool),
    /// Whether TCP builds super-segments.
    Gso(bool),
    /// The queueing discipline. Packets in the old queue move to the new one.
    Qdisc(QdiscConfig),
}

impl Host {
    /// Changes an interface. Does nothing if there is no such interface.
    ///
    /// # Errors
    /// [`Config`](StackError::Config) for an MTU or a qdisc that cannot work; the message explains how
    /// to fix it.
    pub fn change_interface(
        &mut self,
        now: Instant,
        iface: IfaceId,
        change: IfaceChange,
    ) -> Result<(), StackError> {
        let index = usize::from(iface.0);
        let Some(interface) = self.ifaces.get_mut(index) else {
            return Ok(());
        };
        let config = &mut interface.config;
        match change {
            IfaceChange::Mtu(mtu) => {
                let v6 = self.ip.addresses.has_v6(iface.0);
                config.caps.mtu = checked_mtu(mtu, v6)?;
            }
            IfaceChange::Tso(on) => {
                config.caps = Caps {
                    tso4: on && interface.device.tso4,
                    tso6: on && interface.device.tso6,
                    uso: on && interface.device.uso,
                    ..config.caps
                };
            }
            IfaceChange::Gso(on) => config.gso = on,
            IfaceChange::Qdisc(qdisc) => {
                let checked = qdisc.check();
                checked.map_err(|error| StackError::Config(format!("qdisc: {error}")))?;
                config.qdisc = qdisc;
            }
        }
        self.env.caps[index] = config.device_caps();
        if matches!(change, IfaceChange::Qdisc(_)) {
            self.replace_qdisc(now, iface.0);
        }
        Ok(())
    }

    fn replace_qdisc(&mut self, now: Instant, iface: u16) {
        let interface = &mut self.ifaces[usize::from(iface)];
        let new = Qdisc::new(interface.config.qdisc);
        interface.departure = Instant::FAR_FUTURE;
        let Some(mut old) = core::mem::replace(&mut interface.qdisc, new) else {
            // Without a qdisc before, queued packets stay in the interface's queue.
            return;
        };
        interface.uncharged_bytes = 0;
        while let Some(packet) = old.dequeue(Instant::FAR_FUTURE) {
            let is_v4 = packet.layers.ethertype == ethertype::IPV4;
            self.queue_packet(now, iface, is_v4, packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use fullsend_tcp::Sysctl;
    use fullsend_wire::{Instant, Seed};

    use super::IfaceChange;
    use crate::{Host, HostConfig, IfaceConfig, IfaceId};

    fn host() -> (Host, IfaceId) {
        let mut host = Host::new(HostConfig {
            seed: Seed::from_u64(1),
            sysctl: Sysctl::default(),
            pool_bytes: 0,
        });
        let iface = host.add_interface(IfaceConfig::loopback());
        (host, iface)
    }

    #[test]
    fn offloads_can_be_switched_off_and_on_again() {
        let (mut host, iface) = host();
        let mut change = |change| host.change_interface(Instant::ZERO, iface, change).unwrap();
        change(IfaceChange::Tso(false));
        change(IfaceChange::Mtu(9000));
        change(IfaceChange::Qdisc("fq".parse().unwrap()));
        let (config, caps) = (host.ifaces[0].config, host.env.caps[0]);
        let offloads = [config.caps.tso4, config.caps.tso6, config.caps.uso];
        assert!(offloads == [false; 3] && config.gso);
        assert!(caps.fq && caps.mtu == 9000 && caps.gso_max_segs > 1);
        let mut change = |change| host.change_interface(Instant::ZERO, iface, change).unwrap();
        change(IfaceChange::Tso(true));
        change(IfaceChange::Gso(false));
        change(IfaceChange::Qdisc("noqueue".parse().unwrap()));
        let (config, caps) = (host.ifaces[0].config, host.env.caps[0]);
        let offloads = [config.caps.tso4, config.caps.tso6, config.caps.uso];
        assert_eq!(offloads, [true; 3]);
        assert!(!caps.fq && caps.gso_max_segs == 1);
    }

    #[test]
    fn an_invalid_change_is_rejected_and_changes_nothing() {
        let (mut host, iface) = host();
        let refused = |host: &mut Host, mtu| {
            let refused = host.change_interface(Instant::ZERO, iface, IfaceChange::Mtu(mtu));
            let text = refused.unwrap_err().to_string();
            assert!(text.contains(&mtu.to_string()), "{text}");
        };
        for mtu in [0, 67, 65_536] {
            refused(&mut host, mtu);
        }
        let v6 = "fd00::1/64".parse().unwrap();
        host.add_address(Instant::ZERO, iface, v6).unwrap();
        refused(&mut host, 1279);
        assert_eq!(host.ifaces[0].config, IfaceConfig::loopback());
    }
}
