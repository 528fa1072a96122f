//! A pair of queues: the guest's receive ring and its transmit ring, which one device serves.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, epoll, eventfd};
use vhost::vhost_user::{Error, Result};
use vm_memory::GuestMemoryMmap;

use crate::features::Features;
use crate::memory::Memory;
use crate::ring::{Direction, Ring};

/// Token of the event of [`Pair::wake`]; the tokens of the rings are 0 and 1.
pub(crate) const WAKE: u64 = 4;

/// The pairs of queues of one network card.
pub(crate) struct Pairs {
    all: Box<[Pair]>,
    /// A bit for each pair whose receive ring carries packets. It changes only while the pair is locked.
    active: AtomicU64,
    /// Whether a device has found the guest's memory lost, so that the first device must end the
    /// connection.
    has_lost_memory: AtomicBool,
}

impl Pairs {
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        let pairs: io::Result<Vec<_>> = (0..count).map(|_| Pair::new()).collect();
        Ok(Self {
            all: pairs?.into(),
            active: AtomicU64::new(0),
            has_lost_memory: AtomicBool::new(false),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the first pair, which always exists.
    pub(crate) fn first(&self) -> &Pair {
        self.at(0)
    }

    /// Returns an existing pair.
    pub(crate) fn at(&self, index: usize) -> &Pair {
        &self.all[index]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pair> {
        self.all.iter()
    }

    /// Makes the devices in a set readable, which has a bit for each device.
    pub(crate) fn wake_all(&self, devices: u64) -> io::Result<()> {
        let pairs = self.iter().enumerate();
        let mut woken = pairs.filter(|(index, _)| devices & 1 << index != 0);
        woken.try_for_each(|(_, pair)| pair.wake())
    }

    /// Discards all settings of the monitor.
    pub(crate) fn reset(&self) {
        self.change_all(PairState::reset);
        // No device uses the old memory any more.
        self.has_lost_memory.store(false, Ordering::Relaxed);
    }

    /// Changes each pair.
    pub(crate) fn change_all(&self, change: impl Fn(&mut PairState)) {
        for (index, pair) in self.iter().enumerate() {
            let mut state = pair.lock();
            change(&mut state);
            self.update_active(index, &state);
        }
    }

    /// Changes one ring: pair `n` has the rings `2 * n` and `2 * n + 1`. Fails if there is no ring with
    /// this number.
    pub(crate) fn change_ring<T>(
        &self,
        number: u32,
        change: impl FnOnce(&mut Ring, &Arc<OwnedFd>) -> Result<T>,
    ) -> Result<T> {
        let (index, ring) = (number as usize / 2, number as usize % 2);
        let pair = self.all.get(index).ok_or(Error::InvalidParam)?;
        let mut state = pair.lock();
        let changed = state.change_ring(ring, |ring| change(ring, pair.epoll()));
        self.update_active(index, &state);
        changed
    }

    /// Records whether a pair carries packets to the guest. `state` is the pair's locked state after a
    /// change.
    pub(crate) fn update_active(&self, index: usize, state: &PairState) {
        if state.has_guest() {
            self.active.fetch_or(1 << index, Ordering::Relaxed);
        } else {
            self.active.fetch_and(!(1 << index), Ordering::Relaxed);
        }
    }

    /// Stops a pair whose memory is lost, and makes the first device end the connection. `state` is the
    /// pair's locked state.
    pub(crate) fn stop_without_memory(
        &self,
        index: usize,
        state: &mut PairState,
    ) -> io::Result<()> {
        state.break_down();
        self.update_active(index, state);
        self.has_lost_memory.store(true, Ordering::Release);
        self.first().wake()
    }

    /// Returns whether the memory was found lost since the last call.
    pub(crate) fn take_lost_memory(&self) -> bool {
        self.has_lost_memory.load(Ordering::Relaxed)
            && self.has_lost_memory.swap(false, Ordering::Acquire)
    }

    /// Returns the index of the pair through which device `index` sends: its own, or if the guest does
    /// not use that pair, one that the guest uses.
    pub(crate) fn transmit_index(&self, index: usize) -> usize {
        let active = self.active.load(Ordering::Relaxed);
        let is_active = |pair: &usize| active & 1 << pair != 0;
        if active == 0 || is_active(&index) {
            return index;
        }
        let nth = index % active.count_ones() as usize;
        let mut in_use = (0..self.len()).filter(is_active);
        in_use.nth(nth).unwrap_or(index)
    }
}

pub(crate) struct Pair {
    /// The epoll file, which is readable when the pair's device has events.
    epoll: Arc<OwnedFd>,
    /// A file whose new registration makes `epoll` readable.
    event: OwnedFd,
    state: Mutex<PairState>,
}

impl Pair {
    fn new() -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let event = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &event, epoll::EventData::new_u64(WAKE), edge())?;
        Ok(Self {
            epoll,
            event,
            state: Mutex::new(PairState::new()),
        })
    }

    pub(crate) fn epoll(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }

    /// Makes the pair's device readable.
    pub(crate) fn wake(&self) -> io::Result<()> {
        let data = epoll::EventData::new_u64(WAKE);
        Ok(epoll::modify(&self.epoll, &self.event, data, edge())?)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PairState> {
        self.state.lock()
    }
}

fn edge() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::ET
}

/// The state of a pair that the connected monitor has set up.
pub(crate) struct PairState {
    memory: Option<Arc<Memory>>,
    features: Features,
    /// The receive ring and the transmit ring, in virtio's order.
    rings: [Ring; 2],
    /// The devices of other pairs that wait for receive buffers of this pair, a bit for each.
    waiting: u64,
    /// The number of times that the settings were discarded, e.g. at the end of a connection.
    resets: u64,
}

/// The parts of a pair that move packets.
pub(crate) struct Queues<'a> {
    pub(crate) memory: &'a GuestMemoryMmap<()>,
    pub(crate) features: Features,
    pub(crate) to_guest: &'a mut Ring,
    pub(crate) from_guest: &'a mut Ring,
}

impl PairState {
    fn new() -> Self {
        Self {
            memory: None,
            features: Features::default(),
            rings: [
                Ring::new(Direction::ToGuest),
                Ring::new(Direction::FromGuest),
            ],
            waiting: 0,
            resets: 0,
        }
    }

    fn reset(&mut self) {
        *self = Self {
            waiting: self.waiting,
            resets: self.resets + 1,
            ..Self::new()
        };
    }

    /// Returns the number of resets. Packets that a device holds from before a reset are not for the
    /// pair's present guest.
    pub(crate) fn resets(&self) -> u64 {
        self.resets
    }

    /// Returns the queues, or `None` without memory.
    pub(crate) fn queues(&mut self) -> Option<Queues<'_>> {
        let [to_guest, from_guest] = &mut self.rings;
        Some(Queues {
            memory: self.memory.as_ref()?.guest(),
            features: self.features,
            to_guest,
            from_guest,
        })
    }

    /// Returns whether an accessed page of the memory was missing.
    pub(crate) fn has_lost_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_lost())
    }

    /// Stops the receive ring after an error of its driver.
    pub(crate) fn break_down_receive_ring(&mut self) {
        let [to_guest, _] = &mut self.rings;
        to_guest.break_down();
    }

    /// Stops both rings, and releases the memory.
    fn break_down(&mut self) {
        for ring in &mut self.rings {
            ring.break_down();
        }
        self.memory = None;
    }

    /// Returns whether packets reach the guest.
    pub(crate) fn has_guest(&self) -> bool {
        let [to_guest, _] = &self.rings;
        to_guest.is_active()
    }

    pub(crate) fn set_features(&mut self, features: Features) {
        self.features = features;
        for ring in &mut self.rings {
            ring.set_event_idx(features.event_idx());
            if !features.rings_begin_disabled() {
                ring.set_enabled(true);
            }
        }
        self.update();
    }

    pub(crate) fn set_memory(&mut self, memory: Option<Arc<Memory>>) {
        self.memory = memory;
        self.update();
    }

    pub(crate) fn disable(&mut self) {
        for ring in &mut self.rings {
            ring.set_enabled(false);
        }
        self.update();
    }

    fn change_ring<T>(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut Ring) -> Result<T>,
    ) -> Result<T> {
        let changed = change(&mut self.rings[index])?;
        self.update();
        Ok(changed)
    }

    /// Records that the device of another pair waits for receive buffers of this one.
    pub(crate) fn add_waiting(&mut self, device: usize) {
        self.waiting |= 1 << device;
    }

    /// Removes and returns the set of waiting devices, a bit for each.
    pub(crate) fn take_waiting(&mut self) -> u64 {
        std::mem::take(&mut self.waiting)
    }

    fn update(&mut self) {
        let memory = self.memory.as_deref().map(Memory::guest);
        for ring in &mut self.rings {
            ring.update(memory);
        }
    }
}
