//! The device of a shard, which a capture wraps while it runs.

use std::collections::VecDeque;
use std::io;
use std::mem;
#[cfg(unix)]
use std::os::fd::BorrowedFd;

use fullsend_device::{Caps, CaptureInterface, CapturedDevice, Device, DeviceCounters};
use fullsend_offload::{Link, Packet};

/// The device of a shard.
pub(crate) enum ShardDevice {
    Plain(Box<dyn Device>),
    /// The device while a capture runs.
    Captured(Box<CapturedDevice<Box<dyn Device>>>),
}

impl ShardDevice {
    /// Starts recording the device's packets at `capture`.
    pub(crate) fn begin_capture(&mut self, capture: CaptureInterface) {
        let device = self.take();
        *self = Self::Captured(Box::new(CapturedDevice::new(device, capture)));
    }

    /// Stops recording.
    pub(crate) fn end_capture(&mut self) {
        *self = Self::Plain(self.take());
    }

    /// Removes and returns the device without its wrapper.
    fn take(&mut self) -> Box<dyn Device> {
        match mem::replace(self, Self::Plain(Box::new(NoDevice))) {
            Self::Plain(device) => device,
            Self::Captured(captured) => captured.into_inner(),
        }
    }

    #[inline]
    fn current(&self) -> &dyn Device {
        match self {
            Self::Plain(device) => &**device,
            Self::Captured(captured) => &**captured,
        }
    }

    #[inline]
    fn current_mut(&mut self) -> &mut dyn Device {
        match self {
            Self::Plain(device) => &mut **device,
            Self::Captured(captured) => &mut **captured,
        }
    }
}

impl Device for ShardDevice {
    fn caps(&self) -> Caps {
        self.current().caps()
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        self.current_mut().transmit(batch)
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        self.current_mut().receive(batch, max)
    }

    fn has_received(&self) -> bool {
        self.current().has_received()
    }

    fn in_flight(&self) -> usize {
        self.current().in_flight()
    }

    fn notify_completion(&mut self) -> bool {
        self.current_mut().notify_completion()
    }

    #[cfg(unix)]
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.current().fd()
    }

    fn counters(&mut self) -> DeviceCounters {
        self.current_mut().counters()
    }

    fn close(&mut self) {
        self.current_mut().close();
    }
}

/// The placeholder of a device that is being wrapped or unwrapped.
struct NoDevice;

impl Device for NoDevice {
    fn caps(&self) -> Caps {
        Caps::plain(Link::Ip, 0)
    }

    fn transmit(&mut self, _: &mut VecDeque<Packet>) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn receive(&mut self, _: &mut Vec<Packet>, _: usize) -> io::Result<usize> {
        Err(io::ErrorKind::NotConnected.into())
    }

    #[cfg(unix)]
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
