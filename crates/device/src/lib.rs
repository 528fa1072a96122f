//! TUN, TAP and in-process links that carry super-segments.
//!
//! [`Tun`] is an interface of the kernel or a given descriptor, [`PacketSocket`] an Ethernet interface
//! that this process shares with the kernel, [`XdpSocket`] one whose frames it takes from the kernel,
//! [`FrameLink`] and [`FrameDatagrams`] are links to a virtual machine, [`Switch`] joins the devices of
//! several guests, [`FrameSocket`] is a socket to another process, [`pair()`] a link within the process,
//! [`UserDevice`] a link to the program itself, and [`CapturedDevice`] a packet capture around any
//! device. A driver passes the packets that a host sends to [`Device::transmit`], and the packets from
//! [`Device::receive`] to the host.
//!
//! # Features
//! None is on by default.
//! - `futures`: [`PacketPort`] and its halves are `Stream` and `Sink` of `Bytes`.
//! - `tokio`: the device `AsyncDevice` of any `AsyncRead + AsyncWrite` of packets.
//!
//! # Operating systems
//! All items exist on Linux. Other Unix systems have [`Tun::from_fd`], [`UserDevice`], [`pair()`],
//! captures and `AsyncDevice`; macOS also has `Tun::utun`. Windows has the same without descriptors;
//! `AsyncDevice` accepts the device of the crate `tun`, which is wintun. Systems other than Linux are
//! type-checked and not tested.
#![deny(unsafe_code)]

#[cfg(not(any(unix, windows)))]
compile_error!(
    "fullsend-device needs a Unix system or Windows; on other targets move the packets yourself, \
     with the crates fullsend-stack and fullsend-tcp, which do no I/O"
);

#[cfg(feature = "tokio")]
mod async_device;
mod counters;
mod entropy;
#[cfg(target_os = "linux")]
mod frame_socket;
#[cfg(target_os = "linux")]
mod frames;
#[doc(hidden)]
pub mod fuzzing;
mod log_limit;
mod memory;
mod offload_set;
#[cfg(target_os = "linux")]
mod packet_socket;
mod pair;
mod pcap;
#[cfg(target_os = "linux")]
mod switch;
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "system calls that std does not wrap")]
mod sys;
#[cfg(all(test, target_os = "linux"))]
mod test_packet;
mod tun;
mod user_device;
#[cfg(target_os = "macos")]
#[allow(unsafe_code, reason = "system calls that std does not wrap")]
mod utun;
pub mod vnet;
#[cfg(target_os = "linux")]
mod xdp;

use std::collections::VecDeque;
use std::io;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

use fullsend_offload::{Packet, Pool};

#[cfg(feature = "tokio")]
pub use async_device::AsyncDevice;
pub use counters::DeviceCounters;
pub use entropy::os_seed;
#[cfg(target_os = "linux")]
pub use frame_socket::FrameSocket;
#[cfg(target_os = "linux")]
pub use frames::{
    DatagramListener, DatagramPeer, FrameAttachment, FrameDatagrams, FrameLink, FrameStats,
    Framing, PeerEvent,
};
pub use fullsend_offload::Caps;
pub use log_limit::LogLimit;
pub use memory::process_memory;
pub use offload_set::{OffloadSet, UnknownOffload};
#[cfg(target_os = "linux")]
pub use packet_socket::PacketSocket;
pub use pair::{NicMode, PairConfig, PairEnd, pair};
pub use pcap::{Capture, CaptureInterface, CapturedDevice};
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use switch::fuzz_claims;
#[cfg(target_os = "linux")]
pub use switch::{PortEvent, PortId, Switch, SwitchConfig, SwitchHandle, SwitchStats};
#[cfg(unix)]
pub use tun::{FdConfig, Tun};
pub use tun::{FrameHeader, TunStats, vnet_header, vnet_packet};
#[cfg(target_os = "linux")]
pub use tun::{OpenError, TunBuilder, default_kernel_address};
pub use user_device::{
    PacketPort, PacketReceiver, PacketSender, UserDevice, UserDeviceConfig, user_device,
    user_device_with,
};
#[cfg(target_os = "linux")]
pub use xdp::XdpSocket;

// The types of these crates are in public signatures.
pub use fullsend_offload;
pub use fullsend_wire;

/// A function with which a driver makes a device notify its user; see [`Device::take_notifier`].
pub type Notifier = Arc<dyn Fn() + Send + Sync>;

/// A network device that sends and receives packets in batches, without blocking.
pub trait Device: Send {
    /// Returns the offloads that the device supports.
    fn caps(&self) -> Caps;

    /// Sends packets from the front of `batch` and removes them, until the device accepts no more.
    ///
    /// The rest stays in `batch`: a full queue is not an error. A packet that can never be sent
    /// (malformed, interface down) is removed as well, and counted.
    ///
    /// # Errors
    /// An error means that the device is no longer usable.
    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()>;

    /// Appends at most about `max` frames to `batch`, unparsed, with the checksum state that the
    /// device reports.
    ///
    /// Returns the number of frames read from the device, 0 if it has none now. The number includes
    /// dropped frames (malformed, or no memory), so `batch` may grow by less; it may also grow by more,
    /// by frames that [`has_received`](Self::has_received) reported. A device with a file
    /// ([`fd`](Self::fd)) that returns fewer than `max` must have no more; its end may follow, for which
    /// the file stays readable.
    ///
    /// # Errors
    /// An error means that the device is no longer usable.
    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize>;

    /// Returns whether [`receive`](Self::receive) has packets although the file is not readable.
    fn has_received(&self) -> bool {
        false
    }

    /// Returns the number of packets that were accepted and are not yet completed.
    ///
    /// Packets complete in the order in which they were accepted.
    fn in_flight(&self) -> usize {
        0
    }

    /// Requests a notification, like the one for room after a full queue, when all packets in flight have
    /// completed. Returns `false` if none is in flight.
    fn notify_completion(&mut self) -> bool {
        false
    }

    /// Returns the file to poll for readability, if the device has one.
    #[cfg(unix)]
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Sets the driver's waker. A device without a file wakes it when [`receive`](Self::receive) has
    /// packets after it had none, when there is room after [`transmit`](Self::transmit) left packets
    /// over, and at a [requested](Self::notify_completion) completion. Returns whether the device does
    /// so.
    ///
    /// The waker only schedules the driver, so it may be woken within a call of the device.
    fn set_waker(&mut self, waker: &Waker) -> bool {
        let _ = waker;
        false
    }

    /// Returns the function that notifies the device's user, if the device has one. Afterwards the device
    /// does not notify its user itself. The driver calls the function after each use of the device,
    /// without the lock under which it uses the device, as the user may do anything.
    fn take_notifier(&mut self) -> Option<Notifier> {
        None
    }

    /// Allocates received packets from `pool`, and limits the device's own queues and buffers to about
    /// `max_bytes`. Called once, before the device is used.
    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        let _ = (pool, max_bytes);
    }

    /// Returns the device's counters, which the stack shows with its own.
    fn counters(&mut self) -> DeviceCounters {
        DeviceCounters::default()
    }

    /// Ends the device: the stack has stopped and no longer uses it.
    fn close(&mut self) {}
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn caps(&self) -> Caps {
        (**self).caps()
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        (**self).transmit(batch)
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        (**self).receive(batch, max)
    }

    fn has_received(&self) -> bool {
        (**self).has_received()
    }

    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }

    fn notify_completion(&mut self) -> bool {
        (**self).notify_completion()
    }

    #[cfg(unix)]
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }

    fn set_waker(&mut self, waker: &Waker) -> bool {
        (**self).set_waker(waker)
    }

    fn take_notifier(&mut self) -> Option<Notifier> {
        (**self).take_notifier()
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        (**self).limit_memory(pool, max_bytes);
    }

    fn counters(&mut self) -> DeviceCounters {
        (**self).counters()
    }

    fn close(&mut self) {
        (**self).close();
    }
}
