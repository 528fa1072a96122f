//! The counters that every device has.

use crate::TunStats;

fullsend_wire::counters! {
    /// Counters of the packets that a device has dropped, and of the errors at its other end, since its
    /// start. `rx` is the direction to the host. A device counts only what it can detect.
    #[derive(Copy)]
    pub struct DeviceCounters {
        /// Received frames, or chains of descriptors, that were dropped as malformed.
        rx_malformed: "DeviceRxMalformed",
        /// Received frames that were dropped for lack of memory or room.
        rx_dropped: "DeviceRxDropped",
        /// Packets that were dropped because no peer was connected, or because it rejected them.
        tx_dropped: "DeviceTxDropped",
        /// Packets that were dropped because they were longer than all of the peer's buffers together.
        tx_too_long: "DeviceTxTooLong",
        /// Number of times that packets waited for buffers of the peer.
        tx_full: "DeviceTxFull",
        /// Super-segments and checksums that were completed in software because the peer does not accept
        /// them.
        tx_software: "DeviceTxSoftware",
        /// Rings that were stopped because of an invalid index or chain.
        ring_errors: "DeviceRingErrors",
        /// Peers that have connected.
        connections: "DeviceConnections",
        /// Connections that were closed because of an invalid message or length.
        protocol_errors: "DeviceProtocolErrors",
        /// Connections that were closed because a page of the peer's memory was gone.
        memory_faults: "DeviceMemoryFaults",
    }
}

impl From<TunStats> for DeviceCounters {
    fn from(stats: TunStats) -> Self {
        Self {
            rx_dropped: stats.rx_dropped,
            tx_dropped: stats.tx_dropped,
            ..Self::default()
        }
    }
}

impl DeviceCounters {
    /// Adds the counters of another device.
    pub fn add(&mut self, other: &Self) {
        let Self {
            rx_malformed,
            rx_dropped,
            tx_dropped,
            tx_too_long,
            tx_full,
            tx_software,
            ring_errors,
            connections,
            protocol_errors,
            memory_faults,
        } = other;
        self.rx_malformed += rx_malformed;
        self.rx_dropped += rx_dropped;
        self.tx_dropped += tx_dropped;
        self.tx_too_long += tx_too_long;
        self.tx_full += tx_full;
        self.tx_software += tx_software;
        self.ring_errors += ring_errors;
        self.connections += connections;
        self.protocol_errors += protocol_errors;
        self.memory_faults += memory_faults;
    }
}
