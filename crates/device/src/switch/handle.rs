//! Access to a switch that a stack owns.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::table::Table;
use super::{PORTS_MAX, PortId, SwitchStats};
use crate::Device;
use crate::frames::{wake, wake_file};

/// The state that a switch and its handles share.
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    wake: OwnedFd,
}

pub(super) struct State {
    pub(super) table: Table,
    pub(super) stats: SwitchStats,
    /// Devices that become ports when the switch is next used.
    pub(super) attached: VecDeque<(PortId, Box<dyn Device>)>,
    /// The number of ports, including the devices in `attached`.
    pub(super) ports: usize,
    last_id: u64,
    is_closed: bool,
}

impl Shared {
    pub(super) fn new(table: Table) -> io::Result<Self> {
        Ok(Self {
            state: Mutex::new(State {
                table,
                stats: SwitchStats::default(),
                attached: VecDeque::new(),
                ports: 0,
                last_id: 0,
                is_closed: false,
            }),
            wake: wake_file()?,
        })
    }

    /// Returns the file that [`wake`](Self::wake) makes readable.
    pub(super) fn wake_file(&self) -> &OwnedFd {
        &self.wake
    }

    pub(super) fn wake(&self) {
        wake(self.wake.as_fd());
    }

    /// Drops the waiting devices, and refuses further ones.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.attached);
        drop(state);
        drop(waiting);
    }
}

/// A handle that changes and inspects a [`Switch`](super::Switch). Clones refer to the same switch.
#[derive(Clone)]
pub struct SwitchHandle(pub(super) Arc<Shared>);

impl SwitchHandle {
    /// Adds a port for a guest's device, which works at the latest when the switch is next used. The port
    /// is removed when the device fails.
    ///
    /// # Errors
    /// `QuotaExceeded` if there are 64 ports, `NotConnected` after the stack has stopped.
    pub fn attach(&self, device: Box<dyn Device>) -> io::Result<PortId> {
        let mut state = self.0.state.lock();
        if state.is_closed {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the stack of the switch has stopped; build another gateway",
            ));
        }
        if state.ports >= PORTS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!("the switch has {PORTS_MAX} ports already; stop a guest first"),
            ));
        }
        state.ports += 1;
        state.last_id += 1;
        let id = PortId(state.last_id);
        state.attached.push_back((id, device));
        drop(state);
        self.0.wake();
        Ok(id)
    }

    /// Returns the number of ports.
    pub fn ports(&self) -> usize {
        self.0.state.lock().ports
    }

    /// Returns the number of ports whose guest has sent a frame.
    pub fn guests(&self) -> usize {
        self.0.state.lock().table.guests()
    }

    /// Returns the port whose guest has used an IP address and may use it.
    pub fn port_of_address(&self, address: IpAddr) -> Option<PortId> {
        self.0.state.lock().table.port_of_ip(address)
    }

    /// Returns the port whose guest has used an Ethernet address and may use it.
    pub fn port_of_mac(&self, mac: [u8; 6]) -> Option<PortId> {
        self.0.state.lock().table.port_of_mac(mac)
    }

    /// Reserves an IP address for the guest with an Ethernet address, for `time`. Another guest that uses
    /// the IP address loses it.
    pub fn lease(&self, address: IpAddr, mac: [u8; 6], time: Duration) {
        let now = now();
        let until = now.checked_add(time).unwrap_or(now);
        self.0.state.lock().table.lease(now, address, mac, until);
    }

    /// Ends the reservation of [`lease`](Self::lease).
    pub fn end_lease(&self, address: IpAddr) {
        self.0.state.lock().table.end_lease(address);
    }

    /// Returns the counters.
    pub fn stats(&self) -> SwitchStats {
        self.0.state.lock().stats
    }
}

#[allow(clippy::disallowed_methods, reason = "the ages of real ports")]
pub(super) fn now() -> Instant {
    Instant::now()
}
