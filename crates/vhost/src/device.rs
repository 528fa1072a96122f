//! A device: one pair of a card's queues, and in the first device the connection of the monitor.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use fullsend_device::{Device, DeviceCounters, LogLimit};
use fullsend_offload::{Caps, Link, Packet, Pool};
use rustix::event::epoll;
use rustix::time::Timespec;

use crate::builder::{Endpoint, VhostUserBuilder};
use crate::control::{CONTROL, Control, SOURCE};
use crate::pair::{Pair, Pairs};
use crate::receive::Receiver;
use crate::stats::{StatsHandle, VhostUserStats};
use crate::transmit::{Progress, Transmitter};

/// Most files that are registered at the same time: the listener and its timer, the connection and its
/// timer, two rings, and the event of [`Pair::wake`].
const REGISTRATIONS: usize = 7;
/// The limit of the log lines about invalid rings, which a guest can cause each time that it starts them.
static INVALID: LogLimit = LogLimit::new();

/// Most consecutive calls that handle no events.
const CALLS_WITHOUT_EVENTS: u8 = 16;

/// A virtio-net device that serves one pair of queues of the guest of a virtual machine monitor.
pub struct VhostUser {
    pairs: Arc<Pairs>,
    /// The number of this device's pair.
    index: usize,
    /// The connection of the monitor; only in the first device.
    control: Option<Control>,
    mtu: u32,
    receiver: Receiver,
    transmitter: Transmitter,
    /// The number of resets of the pair when the waiting packets were queued.
    resets: u64,
    /// Whether the guest's transmit ring may have more chains, for which no notification was requested.
    has_more: bool,
    /// The number of calls since the last one that handled events.
    calls_without_events: u8,
    stats: VhostUserStats,
    stats_handle: StatsHandle,
}

impl VhostUser {
    /// Returns a builder for a device that listens at `path`. It serves one monitor at a time; others
    /// wait until its connection ends. It replaces the socket of a process that has ended, and removes
    /// its file when it is dropped.
    pub fn listen(path: impl AsRef<Path>) -> VhostUserBuilder {
        VhostUserBuilder::new(Endpoint::Listen(path.as_ref().to_owned()))
    }

    /// Returns a builder for a device that serves the connections of a listening socket, one at a time.
    /// If the socket has a file, the caller must remove it.
    pub fn from_listener(listener: UnixListener) -> VhostUserBuilder {
        VhostUserBuilder::new(Endpoint::Listener(listener))
    }

    /// Returns a builder for a device that connects to the socket on which a monitor listens. Without a
    /// connection, it tries again five times a second.
    pub fn connect_to(path: impl AsRef<Path>) -> VhostUserBuilder {
        VhostUserBuilder::new(Endpoint::Connect(path.as_ref().to_owned()))
    }

    /// Returns a builder for a device that uses a connected Unix stream socket. The device fails when
    /// this connection ends, unless it [outlives](VhostUserBuilder::outlive_connection) it.
    pub fn from_socket(socket: OwnedFd) -> VhostUserBuilder {
        VhostUserBuilder::new(Endpoint::Connected {
            socket,
            is_outlived: false,
        })
    }

    /// Returns the counters.
    pub fn stats(&self) -> VhostUserStats {
        self.stats
    }

    /// Returns a handle to the counters that stays valid when a stack owns the device.
    pub fn stats_handle(&self) -> StatsHandle {
        self.stats_handle.clone()
    }

    pub(crate) fn new(
        (pairs, index): (Arc<Pairs>, usize),
        control: Option<Control>,
        mtu: u32,
        pool: Pool,
    ) -> Self {
        let mut stats = VhostUserStats::default();
        if let Some(control) = &control {
            control.count(&mut stats);
        }
        Self {
            pairs,
            index,
            control,
            mtu,
            receiver: Receiver::new(pool),
            transmitter: Transmitter::default(),
            resets: 0,
            has_more: false,
            calls_without_events: 0,
            stats,
            stats_handle: StatsHandle::default(),
        }
    }

    fn pair(&self) -> &Pair {
        self.pairs.at(self.index)
    }

    /// Handles the pending events of the sockets.
    fn handle_events(&mut self) -> io::Result<()> {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; REGISTRATIONS];
        let epoll = self.pair().epoll();
        let (events, _) = epoll::wait(epoll, &mut events, Some(&Timespec::default()))?;
        let has = |token| events.iter().any(|event| event.data.u64() == token);
        // Notifications of the rings need no action, as both rings are processed in any case.
        let Some(control) = &mut self.control else {
            return Ok(());
        };
        let mut handled = control.handle(has(CONTROL), has(SOURCE));
        if self.pairs.take_lost_memory() {
            handled = handled.and_then(|()| control.on_lost_memory());
        }
        control.count(&mut self.stats);
        handled
    }

    /// Sends the waiting packets and then `batch`.
    fn send(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let index = self.pairs.transmit_index(self.index);
        let mut pair = self.pairs.at(index).lock();
        if pair.resets() != self.resets {
            self.resets = pair.resets();
            self.stats.tx_no_guest += self.transmitter.clear() as u64;
        }
        let active = pair.has_guest();
        let Some(mut queues) = pair.queues().filter(|_| active) else {
            drop(pair);
            self.drop_packets(batch);
            return Ok(());
        };
        let progress = self
            .transmitter
            .transmit(&mut queues, batch, &mut self.stats);
        if pair.has_lost_memory() {
            let stopped = self.pairs.stop_without_memory(index, &mut pair);
            drop(pair);
            self.drop_packets(batch);
            return stopped;
        }
        match progress {
            Ok(Progress::Done) => {}
            Ok(Progress::Waiting) if index == self.index => {}
            // The other device receives the notification.
            Ok(Progress::Waiting) => pair.add_waiting(self.index),
            Ok(Progress::Retry) => self.pairs.at(self.index).wake()?,
            Err(_) => {
                pair.break_down_receive_ring();
                self.pairs.update_active(index, &pair);
                drop(pair);
                self.stats.ring_errors += 1;
                log_invalid("receive");
                self.drop_packets(batch);
            }
        }
        Ok(())
    }

    /// Drops packets that no guest will receive.
    fn drop_packets(&mut self, batch: &mut VecDeque<Packet>) {
        self.stats.tx_no_guest += (batch.len() + self.transmitter.clear()) as u64;
        batch.clear();
    }

    /// Receives up to `max` packets, and stores whether there may be more, as the ring's last
    /// notification is consumed.
    fn read(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        self.has_more = false;
        let mut pair = self.pairs.at(self.index).lock();
        let waiting = pair.take_waiting();
        let (mut received, earlier) = (0, batch.len());
        if let Some(mut queues) = pair.queues().filter(|q| q.from_guest.is_started()) {
            let result = self
                .receiver
                .receive(&mut queues, batch, max, &mut self.stats);
            if let Ok(count) = result {
                received = count;
                self.has_more = received >= max;
            } else {
                queues.from_guest.break_down();
                self.stats.ring_errors += 1;
                log_invalid("transmit");
            }
        }
        if pair.has_lost_memory() {
            self.pairs.stop_without_memory(self.index, &mut pair)?;
            let dropped = batch.drain(earlier..).len() as u64;
            self.stats.rx_packets -= dropped;
            self.stats.rx_malformed += dropped;
        }
        drop(pair);
        if waiting != 0 {
            self.pairs.wake_all(waiting)?;
        }
        Ok(received)
    }
}

/// Logs that a ring of the guest cannot be used.
fn log_invalid(ring: &str) {
    INVALID.warn(ring, || {
        format!("the guest's {ring} ring is invalid; restart its driver")
    });
}

impl Device for VhostUser {
    fn caps(&self) -> Caps {
        // `Transmitter` does in software what the guest does not accept.
        Caps::offloading(Link::Ethernet, self.mtu)
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let sent = self.send(batch);
        self.stats_handle.publish(&self.stats);
        sent
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        // A ring with chains is served without a system call, for a few calls: the caller calls again,
        // and unhandled events keep the file readable.
        let may_skip_events = self.calls_without_events < CALLS_WITHOUT_EVENTS;
        let (mut received, mut handled) = (0, Ok(()));
        if may_skip_events {
            received = self.read(batch, max)?;
        }
        if may_skip_events && self.has_more {
            self.calls_without_events += 1;
        } else {
            self.calls_without_events = 0;
            handled = self.handle_events();
            received = received.max(self.read(batch, max)?);
        }
        if self.transmitter.has_pending() {
            self.send(&mut VecDeque::new())?;
        }
        self.stats_handle.publish(&self.stats);
        handled.map(|()| received)
    }

    fn has_received(&self) -> bool {
        self.has_more
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        // The only waiting packets to the guest are the segments of one super-segment.
        self.receiver.limit_memory(pool, max_bytes);
    }

    fn counters(&mut self) -> DeviceCounters {
        self.stats.into()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pair().epoll().as_fd())
    }
}
