//! A split virtqueue: the chains that the driver makes available, and the chains that the device has
//! used.
//!
//! `virtio-queue` reads the available ring and walks descriptor tables. This module writes the used ring,
//! because the buffers of one packet must become visible at once.

use std::fs::File;
use std::num::Wrapping;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::{retry_on_intr, write};
use vhost::vhost_user::{Error, Result};
use virtio_bindings::bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::memory::close_on_exec;

/// Most entries of a ring (virtio 1.2, 2.7).
const MAX_SIZE: u16 = 32_768;

/// Most descriptors of a chain. Drivers use up to 19 (Linux) or 256 (a ring without indirect tables).
const MAX_CHAIN: usize = 256;

/// Offsets in the available and used rings, in bytes.
const INDEX: u64 = 2;
const ENTRIES: u64 = 4;
const USED_ENTRY_LEN: u64 = 8;

/// An unverified part of a chain in the guest's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) address: GuestAddress,
    pub(crate) len: u32,
}

/// A chain of descriptors that the driver has made available.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// The index with which the chain is returned to the driver.
    pub(crate) head: u16,
    /// The bytes in the chain's buffers, up to 4 GiB.
    pub(crate) len: u32,
    /// Whether the chain loops, is too long, or has a buffer of the other direction.
    pub(crate) malformed: bool,
}

/// The direction of a ring's buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// The guest receives, and the device writes.
    ToGuest,
    /// The guest sends, and the device reads.
    FromGuest,
}

/// An error after which a ring is unusable until the driver sets it up again.
#[derive(Debug)]
pub(crate) struct BrokenRing;

impl From<virtio_queue::Error> for BrokenRing {
    fn from(_: virtio_queue::Error) -> Self {
        Self
    }
}

impl From<vm_memory::GuestMemoryError> for BrokenRing {
    fn from(_: vm_memory::GuestMemoryError) -> Self {
        Self
    }
}

pub(crate) struct Ring {
    direction: Direction,
    queue: Queue,
    enabled: bool,
    broken: bool,
    /// Whether all settings that the ring needs are set and valid. A started ring that is not enabled is
    /// processed without effects.
    started: bool,
    /// Whether the monitor has set the addresses; the initial addresses of `queue` could be valid.
    has_addresses: bool,
    /// The number of used entries that are written but not published.
    staged: u16,
    /// The published index at the last decision about a notification.
    notified: Wrapping<u16>,
    kick: Option<Kick>,
    call: Option<File>,
    error: Option<File>,
}

impl Ring {
    pub(crate) fn new(direction: Direction) -> Self {
        Self {
            direction,
            queue: Queue::new(MAX_SIZE).expect("a power of two"),
            enabled: false,
            broken: false,
            started: false,
            has_addresses: false,
            staged: 0,
            notified: Wrapping(0),
            kick: None,
            call: None,
            error: None,
        }
    }

    /// Returns whether the ring is started, so that its chains must be returned.
    pub(crate) fn is_started(&self) -> bool {
        self.started
    }

    /// Returns whether the ring is started and enabled, so that it carries packets.
    pub(crate) fn is_active(&self) -> bool {
        self.started && self.enabled
    }

    // The setters for control messages. `update` follows each.

    pub(crate) fn set_size(&mut self, size: u32) -> Result<()> {
        let size = u16::try_from(size).map_err(|_| Error::InvalidParam)?;
        let set = self.queue.try_set_size(size);
        set.map_err(|_| Error::InvalidParam)
    }

    pub(crate) fn set_addresses(
        &mut self,
        descriptors: GuestAddress,
        available: GuestAddress,
        used: GuestAddress,
    ) -> Result<()> {
        let queue = &mut self.queue;
        let set = queue
            .try_set_desc_table_address(descriptors)
            .and_then(|()| queue.try_set_avail_ring_address(available))
            .and_then(|()| queue.try_set_used_ring_address(used));
        set.map_err(|_| Error::InvalidParam)?;
        self.has_addresses = true;
        // `update` reads the index of the new used ring.
        self.started = false;
        Ok(())
    }

    pub(crate) fn set_base(&mut self, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.queue.set_next_avail(base);
        Ok(())
    }

    pub(crate) fn set_event_idx(&mut self, on: bool) {
        self.queue.set_event_idx(on);
    }

    pub(crate) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Starts the ring. Its notifications become readable at `epoll` with `token`.
    pub(crate) fn start(&mut self, kick: File, epoll: &Arc<OwnedFd>, token: u64) -> Result<()> {
        self.kick = None;
        self.kick = Some(Kick::register(event_file(kick)?, epoll.clone(), token)?);
        self.queue.set_ready(true);
        self.broken = false;
        self.started = false;
        Ok(())
    }

    /// Stops the ring and returns the index from which it continues.
    pub(crate) fn stop(&mut self) -> u16 {
        self.queue.set_ready(false);
        self.kick = None;
        self.started = false;
        self.queue.next_avail()
    }

    pub(crate) fn set_call(&mut self, file: Option<File>) -> Result<()> {
        self.call = file.map(event_file).transpose()?;
        // The driver may wait for a notification that the last file did not deliver.
        if self.started {
            self.write_call();
        }
        Ok(())
    }

    pub(crate) fn set_error(&mut self, file: Option<File>) -> Result<()> {
        self.error = file.map(event_file).transpose()?;
        Ok(())
    }

    /// Decides whether the ring can be used, after a message has changed it or the memory.
    pub(crate) fn update(&mut self, memory: Option<&GuestMemoryMmap<()>>) {
        let was_started = self.started;
        self.started = !self.broken
            && self.has_addresses
            && self.queue.ready()
            && memory.is_some_and(|memory| self.queue.is_valid(memory));
        let Some(memory) = memory.filter(|_| self.started && !was_started) else {
            return;
        };
        match self.queue.used_idx(memory, Ordering::Acquire) {
            Ok(index) => {
                self.queue.set_next_used(index.0);
                self.notified = index;
                self.staged = 0;
                // Earlier used chains may not have been notified, e.g. after a restart of this process.
                self.write_call();
            }
            Err(_) => self.started = false,
        }
    }

    /// Stops the ring after an error of its driver.
    pub(crate) fn break_down(&mut self) {
        self.broken = true;
        self.started = false;
        if let Some(error) = &self.error {
            signal(error);
        }
    }

    /// Removes and returns the next available chain. Appends its buffers to `buffers`, unless it is
    /// malformed.
    pub(crate) fn pop(
        &mut self,
        memory: &GuestMemoryMmap<()>,
        buffers: &mut Vec<Buffer>,
    ) -> std::result::Result<Option<Chain>, BrokenRing> {
        let size = self.queue.size();
        let Some(chain) = self.queue.iter(memory)?.next() else {
            return Ok(None);
        };
        let head = chain.head_index();
        if head >= size {
            return Err(BrokenRing);
        }
        let first = buffers.len();
        let (mut len, mut ends) = (0u32, false);
        for descriptor in chain {
            // The walk ends silently at an index outside of the table, and after as many descriptors as
            // the table has; the last one then still has a next one.
            ends = !descriptor.has_next();
            let writable = descriptor.is_write_only();
            if writable != (self.direction == Direction::ToGuest)
                || buffers.len() - first == MAX_CHAIN
            {
                ends = false;
                break;
            }
            len = len.saturating_add(descriptor.len());
            buffers.push(Buffer {
                address: descriptor.addr(),
                len: descriptor.len(),
            });
        }
        if !ends {
            buffers.truncate(first);
            len = 0;
        }
        Ok(Some(Chain {
            head,
            len,
            malformed: !ends,
        }))
    }

    /// Returns the position of the next chain, for [`rewind`](Self::rewind).
    pub(crate) fn position(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Makes the chains that were removed since `position` available again.
    pub(crate) fn rewind(&mut self, position: u16) {
        self.queue.set_next_avail(position);
    }

    /// Returns the number of entries.
    pub(crate) fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Returns a chain to the driver with the number of bytes written to it. The chain becomes visible
    /// with [`publish`](Self::publish).
    pub(crate) fn push_used(
        &mut self,
        memory: &GuestMemoryMmap<()>,
        head: u16,
        written: u32,
    ) -> std::result::Result<(), BrokenRing> {
        let index = self.queue.next_used().wrapping_add(self.staged) % self.queue.size();
        let offset = ENTRIES + USED_ENTRY_LEN * u64::from(index);
        let address = ring_address(self.queue.used_ring(), offset)?;
        // The entry is `id` and `len`, 32 bits each, little endian.
        let entry = u64::from(head) | u64::from(written) << 32;
        memory.write_obj(entry.to_le(), address)?;
        self.staged += 1;
        Ok(())
    }

    /// Makes the returned chains visible to the driver.
    pub(crate) fn publish(
        &mut self,
        memory: &GuestMemoryMmap<()>,
    ) -> std::result::Result<(), BrokenRing> {
        if self.staged == 0 {
            return Ok(());
        }
        let index = self.queue.next_used().wrapping_add(self.staged);
        self.staged = 0;
        self.queue.set_next_used(index);
        let address = ring_address(self.queue.used_ring(), INDEX)?;
        memory.store(index.to_le(), address, Ordering::Release)?;
        Ok(())
    }

    /// Notifies the driver of the published chains if it has requested that. Returns whether it did.
    pub(crate) fn notify(
        &mut self,
        memory: &GuestMemoryMmap<()>,
    ) -> std::result::Result<bool, BrokenRing> {
        let new = Wrapping(self.queue.next_used());
        if new == self.notified {
            return Ok(false);
        }
        // The index must be visible before the driver's request is read (virtio 1.2, 2.7.7.2).
        fence(Ordering::SeqCst);
        let available = self.queue.avail_ring();
        let wanted = if self.queue.event_idx_enabled() {
            let offset = ENTRIES + 2 * u64::from(self.queue.size());
            let event: u16 = memory.load(ring_address(available, offset)?, Ordering::Relaxed)?;
            let event = Wrapping(u16::from_le(event));
            new - event - Wrapping(1) < new - self.notified
        } else {
            let flags: u16 = memory.load(ring_address(available, 0)?, Ordering::Relaxed)?;
            u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT == 0
        };
        self.notified = new;
        Ok(wanted && self.write_call())
    }

    fn write_call(&self) -> bool {
        self.call.as_ref().is_some_and(signal)
    }

    /// Requests a notification of the next chain. Returns whether there already is one.
    pub(crate) fn request_kick(
        &mut self,
        memory: &GuestMemoryMmap<()>,
    ) -> std::result::Result<bool, BrokenRing> {
        Ok(self.queue.enable_notification(memory)?)
    }

    /// Requests a notification when chains are added after those available now. Returns whether some have
    /// already been added.
    pub(crate) fn request_kick_for_more(
        &mut self,
        memory: &GuestMemoryMmap<()>,
    ) -> std::result::Result<bool, BrokenRing> {
        let position = self.queue.next_avail();
        let available = self.queue.avail_idx(memory, Ordering::Acquire)?;
        self.queue.set_next_avail(available.0);
        let more = self.queue.enable_notification(memory);
        self.queue.set_next_avail(position);
        Ok(more?)
    }
}

fn ring_address(ring: u64, offset: u64) -> std::result::Result<GuestAddress, BrokenRing> {
    ring.checked_add(offset).map(GuestAddress).ok_or(BrokenRing)
}

/// The file with which the driver notifies the device.
///
/// It is registered edge-triggered, so that it need not be read.
struct Kick {
    file: File,
    epoll: Arc<OwnedFd>,
}

impl Kick {
    fn register(file: File, epoll: Arc<OwnedFd>, token: u64) -> Result<Self> {
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &file, epoll::EventData::new_u64(token), events)
            .map_err(|e| Error::ReqHandlerError(e.into()))?;
        Ok(Self { file, epoll })
    }
}

impl Drop for Kick {
    fn drop(&mut self) {
        // The monitor has the same open file, so closing this descriptor would leave it registered.
        let _ = epoll::delete(&self.epoll, &self.file);
    }
}

/// Returns the file if it is anonymous, like an eventfd, and not a pipe or a file of a network or FUSE
/// file system, to which a write may block. It also cannot be the monitor's own socket, which would then
/// outlive the monitor.
///
/// The file becomes non-blocking, but the monitor has the same open file and can change that.
pub(crate) fn event_file(file: File) -> Result<File> {
    close_on_exec(&file)?;
    let anonymous = fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
    if anonymous.map_err(io_error)? != FileType::Unknown {
        return Err(Error::InvalidParam);
    }
    let flags = fcntl_getfl(&file).map_err(io_error)?;
    fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(io_error)?;
    Ok(file)
}

/// Increments the counter of an eventfd, unless it is at its maximum, which means that the other side was
/// already notified. Returns whether it did.
///
/// A monitor that makes the file blocking, and fills its counter between the two system calls, blocks
/// this thread.
fn signal(file: &File) -> bool {
    let mut poll_file = [PollFd::new(file, PollFlags::OUT)];
    retry_on_intr(|| poll(&mut poll_file, Some(&Timespec::default()))).is_ok()
        && poll_file[0].revents().contains(PollFlags::OUT)
        && write(file, &1u64.to_ne_bytes()).is_ok()
}

fn io_error(error: rustix::io::Errno) -> Error {
    Error::ReqHandlerError(error.into())
}
