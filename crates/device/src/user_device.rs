//! A device whose other end is the program itself, which receives the packets that a stack sends, and
//! passes packets to it.
//!
//! Both directions are queues with limits of packets and bytes. [`UserDevice`] is the stack's end, and
//! [`PacketPort`] the program's.

mod port;
mod queue;
#[cfg(feature = "futures")]
mod streams;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::Waker;

use fullsend_offload::{Link, Packet, Pool};
use parking_lot::Mutex;

pub use port::{PacketPort, PacketReceiver, PacketSender};
use queue::{MAX_PINNED, PacketQueue};

use crate::{Caps, Device, Notifier};

/// The settings of a [`UserDevice`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserDeviceConfig {
    /// The packets that the program accepts: link layer, MTU and offloads. With
    /// [`Caps::plain`] each packet has at most the MTU and a complete checksum; with
    /// [`Caps::offloading`] the stack passes super-segments whole, with checksums to complete.
    pub caps: Caps,
    /// The most packets (or super-segments) queued in each direction; 1024 by default.
    pub queue_packets: usize,
    /// The most memory of the packets queued in each direction, bytes; 2 MiB by default. An empty queue
    /// accepts a packet of any size.
    pub queue_bytes: usize,
}

impl UserDeviceConfig {
    /// Returns the settings of a device for packets as `caps` describes them.
    pub const fn new(caps: Caps) -> Self {
        Self {
            caps,
            queue_packets: 1024,
            queue_bytes: 2 << 20,
        }
    }

    /// Returns the settings of a device for IP packets of at most `mtu` bytes, without offloads.
    pub const fn ip(mtu: u32) -> Self {
        Self::new(Caps::plain(Link::Ip, mtu))
    }
}

/// The closure that receives outgoing packets.
type OnPacket = Mutex<Box<dyn FnMut(Packet) + Send>>;

/// The two queues between a device and its program.
struct Shared {
    /// The queue from the stack to the program.
    outgoing: PacketQueue,
    /// The queue from the program to the stack.
    incoming: PacketQueue,
    /// The closure that receives outgoing packets instead of a [`PacketReceiver`].
    on_packet: Option<OnPacket>,
}

impl Shared {
    fn new(config: &UserDeviceConfig, on_packet: Option<OnPacket>) -> Arc<Self> {
        let queue = || PacketQueue::new(config.queue_packets, config.queue_bytes);
        Arc::new(Self {
            outgoing: queue(),
            incoming: queue(),
            on_packet,
        })
    }

    /// Notifies the program of new packets and of room.
    fn notify_user(&self) {
        self.incoming.wake_sender();
        match &self.on_packet {
            None => self.outgoing.wake_receiver(),
            Some(on_packet) => self.deliver(on_packet),
        }
    }

    /// Passes the outgoing packets to the closure, on one thread at a time, which keeps their order. A
    /// call from within the closure leaves them to the outer call.
    fn deliver(&self, on_packet: &OnPacket) {
        loop {
            // A packet that was queued after the last `pop`, while the closure was still locked, is left
            // to this thread. The fences order the queue's length and the lock: either the other thread
            // locks the closure, or this one finds the packet.
            fence(Ordering::SeqCst);
            if self.outgoing.is_empty() {
                return;
            }
            let Some(mut on_packet) = on_packet.try_lock() else {
                return;
            };
            while let Some(packet) = self.outgoing.pop() {
                on_packet(packet);
            }
            drop(on_packet);
        }
    }
}

/// The stack's end of a user-driven device.
///
/// A packet is completed when the program receives it. While the queue is full, further packets wait in
/// the stack, so that none is lost on the way out. When the program drops its end, the device fails and
/// its stack stops.
pub struct UserDevice {
    caps: Caps,
    shared: Arc<Shared>,
    /// Whether the driver calls the notifier.
    deferred: bool,
}

/// Returns a user-driven device and the program's end of it.
///
/// ```
/// use fullsend_device::{Device, UserDeviceConfig, user_device};
/// use fullsend_offload::{Packet, Slice};
///
/// let (mut device, mut port) = user_device(UserDeviceConfig::ip(1500));
/// // A driver does this with the packets that a stack sends.
/// let packet = Packet::from_frame(Slice::copied_from(&[0x45; 20]));
/// device.transmit(&mut [packet].into())?;
/// let mut buf = [0; 1500];
/// assert_eq!(port.receiver.try_recv(&mut buf)?, 20);
///
/// port.sender.try_send(&[0x45; 40])?;
/// let mut received = Vec::new();
/// assert_eq!(device.receive(&mut received, 64)?, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn user_device(config: UserDeviceConfig) -> (UserDevice, PacketPort) {
    let shared = Shared::new(&config, None);
    let port = PacketPort {
        receiver: PacketReceiver::new(shared.clone()),
        sender: PacketSender::new(shared.clone()),
    };
    (UserDevice::new(config.caps, shared), port)
}

/// Returns a user-driven device that calls `on_packet` with each packet that the stack sends, and
/// the sender that passes packets to the stack.
///
/// The closure runs on the thread of the socket call or of the driver that sends. It is called after the
/// stack's lock is released, in the order of the packets, so it may use sockets. It should be short, and
/// must not block. The device fails when the sender is dropped.
///
/// ```
/// use std::sync::mpsc::sync_channel;
///
/// use fullsend_device::{Device, UserDeviceConfig, user_device_with};
/// use fullsend_offload::{Packet, Slice};
///
/// let (out, sent) = sync_channel(16);
/// let (mut device, mut incoming) = user_device_with(UserDeviceConfig::ip(1500), move |packet| {
///     let _ = out.try_send(packet.to_bytes());
/// });
/// let packet = Packet::from_frame(Slice::copied_from(&[0x45; 20]));
/// device.transmit(&mut [packet].into())?;
/// assert_eq!(sent.recv().unwrap(), [0x45; 20]);
/// assert!(incoming.inject(&[0x45; 40]));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn user_device_with(
    config: UserDeviceConfig,
    on_packet: impl FnMut(Packet) + Send + 'static,
) -> (UserDevice, PacketSender) {
    let shared = Shared::new(&config, Some(Mutex::new(Box::new(on_packet))));
    let sender = PacketSender::new(shared.clone());
    (UserDevice::new(config.caps, shared), sender)
}

impl UserDevice {
    fn new(caps: Caps, shared: Arc<Shared>) -> Self {
        Self {
            caps,
            shared,
            deferred: false,
        }
    }

    /// Returns whether the program has dropped its end.
    fn is_abandoned(&self) -> bool {
        let incoming = self.shared.incoming.is_closed();
        incoming && (self.shared.on_packet.is_some() || self.shared.outgoing.is_closed())
    }

    fn notify_user(&self) {
        if !self.deferred {
            self.shared.notify_user();
        }
    }
}

impl Device for UserDevice {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        self.shared.outgoing.push_all(batch);
        self.notify_user();
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let received = self.shared.incoming.pop_all(batch, max);
        if received == 0 && self.is_abandoned() {
            return Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the program has dropped its end of the user-driven device; keep the PacketPort \
                 as long as the stack",
            ));
        }
        self.notify_user();
        Ok(received)
    }

    fn in_flight(&self) -> usize {
        self.shared.outgoing.len()
    }

    fn notify_completion(&mut self) -> bool {
        self.shared.outgoing.notify_when_empty()
    }

    #[cfg(unix)]
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn set_waker(&mut self, waker: &Waker) -> bool {
        self.shared.outgoing.set_driver(waker);
        self.shared.incoming.set_driver(waker);
        true
    }

    fn take_notifier(&mut self) -> Option<Notifier> {
        self.deferred = true;
        let shared = self.shared.clone();
        Some(Arc::new(move || shared.notify_user()))
    }

    fn limit_memory(&mut self, _: &Pool, max_bytes: usize) {
        // A queued packet may pin `MAX_PINNED` times its length.
        let each = max_bytes / 2 / MAX_PINNED;
        self.shared.outgoing.limit_bytes(each);
        self.shared.incoming.limit_bytes(each);
    }

    fn close(&mut self) {
        self.shared.outgoing.close();
        self.shared.incoming.close();
        self.notify_user();
    }
}

impl Drop for UserDevice {
    fn drop(&mut self) {
        self.shared.outgoing.close();
        self.shared.incoming.close();
        self.shared.notify_user();
    }
}

impl fmt::Debug for UserDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserDevice")
            .field("caps", &self.caps)
            .field("outgoing", &self.shared.outgoing.len())
            .field("incoming", &self.shared.incoming.len())
            .finish_non_exhaustive()
    }
}
