//! The counters of a device.

use std::sync::Arc;

use fullsend_device::DeviceCounters;
use parking_lot::Mutex;

/// The counters of a vhost-user device, which serves one pair of queues. `rx` counts packets from the
/// guest, and `tx` packets to the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VhostUserStats {
    /// Packets and super-segments received from the guest, without dropped ones.
    pub rx_packets: u64,
    /// Packets that were dropped because their descriptor chain loops, is too long or points outside of
    /// the guest's memory, or because no driver may send such a frame or header.
    pub rx_malformed: u64,
    /// Packets that were dropped for lack of memory.
    pub rx_no_memory: u64,
    /// Packets that were dropped because the monitor has disabled the guest's transmit ring.
    pub rx_disabled: u64,
    /// Packets and super-segments written to the guest's buffers.
    pub tx_packets: u64,
    /// Super-segments that were segmented, and packets whose checksum was completed, because the guest
    /// does not accept them.
    pub tx_software: u64,
    /// Packets that were dropped because no guest was connected, or its driver was not running.
    pub tx_no_guest: u64,
    /// Packets that were dropped because they need more than all of the guest's receive buffers, or more
    /// than 1024.
    pub tx_too_long: u64,
    /// Number of times that packets waited for receive buffers of the guest.
    pub tx_full: u64,
    /// Notifications written to the guest, each a system call.
    pub notifications: u64,
    /// Rings that were stopped because of an invalid index, or an invalid chain of receive buffers. They
    /// work again after a restart of the driver.
    pub ring_errors: u64,
    /// Connections of a virtual machine monitor, counted by the device of the first pair.
    pub connections: u64,
    /// Connections that were closed because of an invalid or unsupported message, counted by the device
    /// of the first pair.
    pub protocol_errors: u64,
    /// Connections that were closed because a page of the guest's memory was gone, counted by the device
    /// of the first pair, also in `protocol_errors`.
    pub memory_faults: u64,
}

impl From<VhostUserStats> for DeviceCounters {
    fn from(stats: VhostUserStats) -> Self {
        Self {
            rx_malformed: stats.rx_malformed,
            rx_dropped: stats.rx_no_memory + stats.rx_disabled,
            tx_dropped: stats.tx_no_guest,
            tx_too_long: stats.tx_too_long,
            tx_full: stats.tx_full,
            tx_software: stats.tx_software,
            ring_errors: stats.ring_errors,
            connections: stats.connections,
            protocol_errors: stats.protocol_errors,
            memory_faults: stats.memory_faults,
        }
    }
}

/// A handle to the counters of a device that a stack owns.
#[derive(Clone, Debug, Default)]
pub struct StatsHandle(Arc<Mutex<VhostUserStats>>);

impl StatsHandle {
    /// Returns the counters at the device's last call.
    pub fn get(&self) -> VhostUserStats {
        *self.0.lock()
    }

    pub(crate) fn publish(&self, stats: &VhostUserStats) {
        *self.0.lock() = *stats;
    }
}
