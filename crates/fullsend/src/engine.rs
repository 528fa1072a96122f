//! A shard: a host, its device, and the lock that sockets and the driver share.

#[cfg(feature = "control")]
mod device;
mod group;
mod handle;
mod handover;
#[cfg(feature = "control")]
mod inspect;
mod stop;
#[cfg(test)]
mod tests;
mod wake;

use std::io;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use fullsend_device::{Device, DeviceCounters, LogLimit, Notifier};
use fullsend_driver::{Handover, Pump, TransmitOutcome};
use fullsend_stack::{Host, IfaceId, TcpId, WaitKey, WaitList, WaitOn};
use fullsend_tcp::AppendOutcome;
use fullsend_wire::{Instant, cold_path};
use parking_lot::{Mutex, MutexGuard};

#[cfg(feature = "control")]
use self::device::ShardDevice;
pub(crate) use self::group::Group;
pub(crate) use self::handle::EngineHandle;
#[cfg(feature = "control")]
use self::inspect::Captures;
#[cfg(feature = "control")]
pub(crate) use self::inspect::Inspector;
use self::wake::Peer;
pub(crate) use self::wake::device_waker;
use crate::callbacks;
use crate::clock::Clock;
use crate::device_file::DeviceFile;
pub(crate) use crate::driver_waker::DriverWaker;

/// The limit of the log lines about events that peers cause.
static NOTICES: LogLimit = LogLimit::new();

/// The device of a shard: without a control socket, no capture wraps it.
#[cfg(not(feature = "control"))]
type ShardDevice = Box<dyn Device>;

/// The result of one driver poll.
#[derive(Clone, Copy)]
pub(crate) struct PollResult {
    pub(crate) pumped: fullsend_driver::PollOutcome,
    /// Whether other tasks were woken.
    pub(crate) woke: bool,
}

pub(crate) struct Shard {
    pub(crate) host: Host,
    pump: Pump<ShardDevice>,
    #[cfg(feature = "control")]
    captures: Captures,
    /// Spare vector for the host's wakers; empty while the shard is not locked.
    wakers: Vec<Waker>,
    /// Tasks that wait until all written data is acknowledged.
    flush_waiters: WaitList,
    /// Whether all written data had been acknowledged when the stack was shut down.
    was_flushed: bool,
    /// Tasks that wait for the end of the stack.
    close_waiters: WaitList,
    /// The reason why the stack has stopped.
    stop_reason: Option<(io::ErrorKind, String)>,
}

/// The queue of a shard's device, and with several shards the access to their backlogs.
pub(crate) type ShardQueue = (Box<dyn Device>, Option<Handover>);

/// A shard with its lock, which shares no cache line with another shard.
#[repr(align(128))]
pub(crate) struct Engine {
    /// Read only while `shard` is locked, as time must never run backwards for the host.
    pub(crate) clock: Clock,
    pub(crate) driver_waker: Arc<DriverWaker>,
    shard: Mutex<Shard>,
    pub(crate) group: Arc<Group>,
    /// The index of the shard.
    pub(crate) index: usize,
    /// The access to the backlogs of the stack's shards; `None` with one shard.
    handover: Option<Handover>,
    /// The function with which the device notifies its user, called without the lock.
    notifier: Option<Notifier>,
    /// The other end of an in-process link.
    peer: OnceLock<Peer>,
}

impl Engine {
    pub(crate) fn new(
        clock: Clock,
        driver_waker: Arc<DriverWaker>,
        (group, index): (Arc<Group>, usize),
        (host, iface): (Host, IfaceId),
        (mut device, handover): ShardQueue,
    ) -> Self {
        let notifier = device.take_notifier();
        #[cfg(feature = "control")]
        let device = ShardDevice::Plain(device);
        let shard = Shard {
            host,
            pump: Pump::new(iface, device),
            #[cfg(feature = "control")]
            captures: Captures::default(),
            wakers: Vec::new(),
            flush_waiters: WaitList::default(),
            was_flushed: false,
            close_waiters: WaitList::default(),
            stop_reason: None,
        };
        Self {
            clock,
            driver_waker,
            shard: Mutex::new(shard),
            group,
            index,
            handover,
            notifier,
            peer: OnceLock::new(),
        }
    }

    /// Connects two engines whose devices are the two ends of one link.
    pub(crate) fn connect_peers(a: &Arc<Self>, b: &Arc<Self>) {
        for (engine, peer) in [(a, b), (b, a)] {
            let _ = engine.peer.set(Peer {
                driver_waker: peer.driver_waker.clone(),
                engine: Arc::downgrade(peer),
            });
        }
    }

    #[inline]
    fn lock_shard(&self) -> MutexGuard<'_, Shard> {
        callbacks::assert_none();
        self.shard.lock()
    }

    /// Locks the shard and returns it with the time read under the lock. A time read before the
    /// lock is acquired may be earlier than that of a packet sent in between: timestamps would then
    /// run backwards along the sequence space, and the peer's PAWS (RFC 7323 5) would drop the
    /// later packet.
    #[inline]
    fn lock(&self) -> (MutexGuard<'_, Shard>, Instant) {
        let shard = self.lock_shard();
        let now = self.clock.now();
        (shard, now)
    }

    /// Runs a socket call on the host, and transmits the packets that it makes ready before it
    /// returns.
    #[inline]
    pub(crate) fn op<R>(
        &self,
        call: impl FnOnce(&mut Host, Instant) -> io::Result<R>,
    ) -> io::Result<R> {
        self.run(false, call)
    }

    /// Runs a socket call on the host as [`op`](Self::op) does. With `flush_now`, the peer should
    /// receive its packets at once: over an in-process link they are delivered within this call,
    /// unless the peer's shard is locked.
    #[inline]
    pub(crate) fn run<R>(
        &self,
        flush_now: bool,
        call: impl FnOnce(&mut Host, Instant) -> io::Result<R>,
    ) -> io::Result<R> {
        let (mut shard, now) = self.lock();
        shard.check_alive()?;
        let result = call(&mut shard.host, now);
        let transmitted = shard.transmit(now, &self.clock);
        self.unlock_and_wake(shard, transmitted.wake, flush_now);
        result
    }

    /// Runs a read or write on the host as [`run`](Self::run) does, at the time of the last packet.
    /// Neither needs the exact time unless it transmits, so the clock is read only then: most small
    /// reads and writes transmit nothing, and reading the clock costs as much as the rest of them.
    #[inline]
    pub(crate) fn run_with_lazy_clock<R>(
        &self,
        flush_now: bool,
        call: impl FnOnce(&mut Host, Instant) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut shard = self.lock_shard();
        shard.check_alive()?;
        let last_time = shard.pump.now();
        let result = call(&mut shard.host, last_time);
        self.transmit_and_unlock(shard, flush_now);
        result
    }

    /// Runs the application's callbacks on the host as
    /// [`run_with_lazy_clock`](Self::run_with_lazy_clock) does, and flushes what they have written.
    /// Returns the panic of a callback for the caller to resume.
    #[inline]
    pub(crate) fn run_callbacks(
        &self,
        callbacks: impl FnOnce(&mut Host, Instant),
    ) -> io::Result<Result<(), callbacks::Panic>> {
        let ran = self.run_with_lazy_clock(true, |host, now| {
            Ok(callbacks::run(|| callbacks(host, now)))
        });
        callbacks::run_deferred();
        ran
    }

    /// Appends `data` to a waiting segment of a connection. Returns false, with nothing written, if there
    /// is none or more than an append is needed: then use
    /// [`run_with_lazy_clock`](Self::run_with_lazy_clock).
    #[inline]
    pub(crate) fn try_append(&self, id: TcpId, data: &[u8]) -> bool {
        let mut shard = self.lock_shard();
        if shard.stop_reason.is_some() {
            return false;
        }
        let appended = shard.host.tcp(id).try_append(data);
        if appended == AppendOutcome::Sendable {
            self.transmit_and_unlock(shard, false);
        }
        appended != AppendOutcome::NotAppended
    }

    /// Transmits ready packets, reading the clock only then, and unlocks.
    #[inline]
    fn transmit_and_unlock(&self, mut shard: MutexGuard<'_, Shard>, flush_now: bool) {
        let Shard { host, pump, .. } = &mut *shard;
        let wake_driver = if pump.needs_transmit(host) {
            pump.transmit(host, self.clock.now(), &self.clock).wake
        } else {
            // Nothing was sent, so no timer was armed either.
            pump.arm_completion_notification(host)
        };
        self.unlock_and_wake(shard, wake_driver, flush_now);
    }

    /// Calls `call` with the host, which it cannot change.
    pub(crate) fn with_host<R>(&self, call: impl FnOnce(&Host) -> R) -> R {
        call(&self.lock_shard().host)
    }

    /// Receives one batch and transmits the answers in place of the driver, if the shard is not
    /// locked. Returns whether it did. `now` is the time at which the peer sent; both engines have
    /// one clock.
    fn try_deliver(&self, now: Instant) -> bool {
        let Some(mut shard) = self.shard.try_lock() else {
            return false;
        };
        let now = now.max(shard.pump.now());
        let Shard { host, pump, .. } = &mut *shard;
        let Ok(transmitted) = pump.receive_at(host, now, &self.clock) else {
            cold_path();
            return false;
        };
        self.pass_on(host);
        self.unlock_and_wake(shard, transmitted.wake, false);
        self.wake_after_handover();
        true
    }

    /// Returns the counters of the device.
    pub(crate) fn device_counters(&self) -> DeviceCounters {
        self.lock_shard().pump.device_mut().counters()
    }

    /// Calls `call` with the host, which it cannot change, and the number of its interface.
    pub(crate) fn with_host_and_iface<R>(&self, call: impl FnOnce(&Host, IfaceId) -> R) -> R {
        let shard = self.lock_shard();
        call(&shard.host, shard.pump.iface())
    }

    /// Polls the device and the timers once: see [`Pump::poll`].
    pub(crate) fn poll(&self, receive: bool) -> io::Result<PollResult> {
        let mut shard = self.lock_shard();
        shard.check_alive()?;
        let Shard { host, pump, .. } = &mut *shard;
        self.receive_messages(host);
        let receive = receive || pump.device().has_received();
        let pumped = match pump.poll(host, &self.clock, receive) {
            Ok(pumped) => pumped,
            Err(error) => {
                drop(shard);
                tracing::error!(%error, "the device failed; the stack stops");
                self.stop(
                    io::ErrorKind::NetworkDown,
                    &format!("the device failed: {error}; its stack has stopped"),
                );
                return Err(error);
            }
        };
        self.pass_on(host);
        let notices = host.take_notices(pumped.now);
        let woke = self.unlock_and_wake(shard, false, false);
        self.wake_after_handover();
        for notice in notices {
            NOTICES.warn(notice.to_string(), || notice.to_string());
        }
        Ok(PollResult { pumped, woke })
    }

    /// Records that the driver's timer is about to be set for `at`. Returns false if an earlier
    /// deadline has been set since the driver's last poll.
    pub(crate) fn arm(&self, at: Instant) -> bool {
        let Shard { host, pump, .. } = &mut *self.lock_shard();
        pump.arm(host, at)
    }

    /// Removes the waker of a future that no longer waits.
    pub(crate) fn stop_waiting(&self, on: WaitOn, key: &mut WaitKey) {
        let waker = self.lock_shard().host.stop_waiting(on, Some(key));
        // Dropped without the lock: it may be the last reference to a task, whose sockets lock it
        // when they are dropped.
        drop(waker);
    }

    /// Removes the waker of a caller that polled and no longer waits.
    pub(crate) fn stop_polling(&self, on: WaitOn) {
        let waker = self.lock_shard().host.stop_waiting(on, None);
        drop(waker);
    }

    /// Returns the device's file, to wait on, or `None` if it has none. Must be called within a
    /// tokio runtime.
    #[cfg(unix)]
    pub(crate) fn device_file(&self) -> io::Result<Option<DeviceFile>> {
        let shard = self.lock_shard();
        let fd = shard.pump.device().fd().map(|fd| fd.try_clone_to_owned());
        drop(shard);
        fd.transpose()?.map(DeviceFile::new).transpose()
    }

    /// Returns no file: devices of this system wake the driver.
    #[cfg(not(unix))]
    #[allow(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "other systems' signature"
    )]
    pub(crate) fn device_file(&self) -> io::Result<Option<DeviceFile>> {
        Ok(None)
    }
}

#[cold]
fn stop_error((kind, text): &(io::ErrorKind, String)) -> io::Error {
    io::Error::new(*kind, text.clone())
}

impl Shard {
    #[inline]
    fn check_alive(&self) -> io::Result<()> {
        match &self.stop_reason {
            None => Ok(()),
            Some(reason) => Err(stop_error(reason)),
        }
    }

    fn is_flushed(&mut self) -> bool {
        self.pump.is_drained() && self.host.tcp_is_flushed()
    }

    #[inline]
    fn transmit(&mut self, now: Instant, clock: &Clock) -> TransmitOutcome {
        self.pump.transmit(&mut self.host, now, clock)
    }
}
