//! A shard: a host, its device, and the lock that sockets and the driver share.

#[cfg(feature = "control")]
mod device;
mod group;
mod handover;
#[cfg(feature = "control")]
mod inspect;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use fullsend_device::{Device, Notifier};
use fullsend_driver::{Handover, Pump, TransmitOutcome};
use fullsend_stack::{Host, IfaceId, TcpId, WaitKey, WaitList, WaitOn, Waiter};
use fullsend_tcp::AppendOutcome;
use fullsend_wire::Instant;
use parking_lot::{Mutex, MutexGuard};

#[cfg(feature = "control")]
use self::device::ShardDevice;
pub(crate) use self::group::Group;
#[cfg(feature = "control")]
use self::inspect::Captures;
#[cfg(feature = "control")]
pub(crate) use self::inspect::Inspector;
use crate::callbacks;
use crate::clock::Clock;
use crate::device_file::DeviceFile;
pub(crate) use crate::driver_waker::DriverWaker;

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
    /// Tasks that wait until all written data is acknowledged.
    flush_waiters: WaitList,
    /// Whether all written data had been acknowledged when the stack was shut down.
    was_flushed: bool,
    /// Tasks that wait for the end of the stack.
    close_waiters: WaitList,
    /// Why the stack has stopped.
    stop_reason: Option<(io::ErrorKind, String)>,
}

/// The queue of a shard's device, and with several shards the access to their backlogs.
pub(crate) type ShardQueue = (Box<dyn Device>, Option<Handover>);

/// A shard with its lock. It shares no cache line with another shard's.
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
    /// Lets the device notify its user, without the lock.
    notifier: Option<Notifier>,
    /// The other end of an in-process link.
    peer: OnceLock<(Arc<DriverWaker>, Weak<Engine>)>,
}

/// The waker that a device without a file wakes.
struct DeviceWaker(Arc<DriverWaker>);

impl Wake for DeviceWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

/// Returns a waker of the driver for a device.
pub(crate) fn device_waker(driver_waker: &Arc<DriverWaker>) -> Waker {
    Waker::from(Arc::new(DeviceWaker(driver_waker.clone())))
}

thread_local! {
    /// Spare vector for the wakers that are called after unlocking, to avoid an allocation per
    /// call.
    static WAKERS: Cell<Vec<Waker>> = const { Cell::new(Vec::new()) };
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
        let _ = a.peer.set((b.driver_waker.clone(), Arc::downgrade(b)));
        let _ = b.peer.set((a.driver_waker.clone(), Arc::downgrade(a)));
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

    /// Appends `data` to a segment of a connection that waits already. Returns false, with nothing
    /// written, if there is none or the write needs more than that: then use
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

    /// Transmits what is ready, reading the clock only then, and unlocks.
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

    /// Unlocks, then wakes the tasks that became ready under the lock, and the device's user. Returns
    /// whether there were any tasks.
    #[inline]
    fn unlock_and_wake(
        &self,
        shard: MutexGuard<'_, Shard>,
        wake_driver: bool,
        flush_now: bool,
    ) -> bool {
        let woke = self.unlock_and_wake_tasks(shard, wake_driver, flush_now);
        if let Some(notify) = &self.notifier {
            notify();
        }
        woke
    }

    #[inline]
    fn unlock_and_wake_tasks(
        &self,
        shard: MutexGuard<'_, Shard>,
        wake_driver: bool,
        flush_now: bool,
    ) -> bool {
        let nothing_to_wake =
            !shard.host.has_wakers() && shard.flush_waiters.is_empty() && !wake_driver;
        if !nothing_to_wake
            || self
                .peer
                .get()
                .is_some_and(|(driver_waker, _)| driver_waker.has_deferred_wake())
        {
            return self.wake_after_unlock(shard, wake_driver, flush_now);
        }
        false
    }

    fn wake_after_unlock(
        &self,
        mut shard: MutexGuard<'_, Shard>,
        wake_driver: bool,
        flush_now: bool,
    ) -> bool {
        let (mut wakers, mut spent) = (Vec::new(), Vec::new());
        if shard.host.has_wakers() {
            // Taken only when needed: the peer's engine, which may run below, uses it too.
            wakers = WAKERS.take();
            shard.host.take_replaced_wakers(&mut spent);
            shard.host.take_wakers(&mut wakers);
        }
        if !shard.flush_waiters.is_empty() && (shard.is_flushed() || shard.stop_reason.is_some()) {
            shard.flush_waiters.wake(&mut wakers);
        }
        if shard.stop_reason.is_some() {
            shard.close_waiters.wake(&mut wakers);
        }
        let now = shard.pump.now();
        drop(shard);
        drop(spent);
        if wake_driver {
            self.driver_waker.wake();
        }
        if let Some((driver_waker, peer)) = self.peer.get()
            && driver_waker.take_deferred_wake()
        {
            let delivered = flush_now && peer.upgrade().is_some_and(|peer| peer.try_deliver(now));
            if !delivered {
                driver_waker.wake();
            }
        }
        let woke = !wakers.is_empty();
        if woke {
            wakers.drain(..).for_each(Waker::wake);
            WAKERS.set(wakers);
        }
        woke
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
            return false;
        };
        self.pass_on(host);
        self.unlock_and_wake(shard, transmitted.wake, false);
        self.wake_after_handover();
        true
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
                    &format!("the device failed: {error}; build a new stack"),
                );
                return Err(error);
            }
        };
        self.pass_on(host);
        let notices = host.take_notices(pumped.now);
        let woke = self.unlock_and_wake(shard, false, false);
        self.wake_after_handover();
        for notice in notices {
            tracing::warn!("{notice}");
        }
        Ok(PollResult { pumped, woke })
    }

    /// Records that the driver's timer is about to be set for `at`. Returns false if an earlier
    /// deadline has been set since the driver's last poll.
    pub(crate) fn arm(&self, at: Instant) -> bool {
        let Shard { host, pump, .. } = &mut *self.lock_shard();
        pump.arm(host, at)
    }

    /// Polls until all written data of this shard has been acknowledged. A future that `has_waited`
    /// is also ready when another `shutdown` found this first and stopped the stack.
    fn poll_flushed(
        &self,
        cx: &mut Context<'_>,
        entry: &mut WaitListEntry<'_>,
        has_waited: bool,
    ) -> Poll<io::Result<()>> {
        let shard = self.lock_shard();
        if !(shard.was_flushed && has_waited) {
            shard.check_alive()?;
        }
        if shard.was_flushed || shard.is_flushed() {
            return Poll::Ready(Ok(()));
        }
        entry.register(cx, shard);
        Poll::Pending
    }

    /// Waits until the stack has stopped, and returns why.
    pub(crate) async fn closed(&self) -> io::Error {
        let mut entry = WaitListEntry::new(self, |shard| &mut shard.close_waiters);
        let poll = |cx: &mut Context<'_>| {
            let shard = self.lock_shard();
            if let Err(why) = shard.check_alive() {
                return Poll::Ready(why);
            }
            entry.register(cx, shard);
            Poll::Pending
        };
        poll_fn(poll).await
    }

    /// Waits until all written data of every shard has been acknowledged, then stops the stack.
    pub(crate) async fn flush_and_stop(&self) -> io::Result<()> {
        let engines = self.group.engines();
        let entry = |engine| WaitListEntry::new(engine, |shard| &mut shard.flush_waiters);
        let mut entries: Vec<_> = engines.iter().map(|engine| entry(engine)).collect();
        let mut has_waited = false;
        poll_fn(|cx| {
            let mut flushed = true;
            for (engine, entry) in engines.iter().zip(&mut entries) {
                match engine.poll_flushed(cx, entry, has_waited) {
                    Poll::Ready(result) => result?,
                    Poll::Pending => flushed = false,
                }
                has_waited |= !flushed;
            }
            if flushed {
                Poll::Ready(io::Result::Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await?;
        for engine in &engines {
            engine.lock_shard().was_flushed = true;
        }
        self.stop(
            io::ErrorKind::ConnectionAborted,
            "the stack was shut down; build a new one",
        );
        Ok(())
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

    /// Returns whether no handle of the stack is left and every connection has ended.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.group.is_abandoned(self)
    }

    /// Stops the stack: resets the connections of all its shards and makes every later call fail
    /// with `kind` and `why`, or with the reason of an earlier stop.
    pub(crate) fn stop(&self, kind: io::ErrorKind, why: &str) {
        #[cfg(feature = "control")]
        self.group.control.close_sockets();
        let reason = self.group.stop_reason(kind, why);
        // The first shard stops last: tasks that wait for the end of the stack wait there.
        for engine in self.group.engines().iter().rev() {
            engine.stop_shard(&reason);
        }
    }

    /// Stops this shard, and wakes its driver and all tasks that wait for it.
    fn stop_shard(&self, reason: &(io::ErrorKind, String)) {
        let (mut shard, now) = self.lock();
        if shard.stop_reason.is_none() {
            shard.stop_reason = Some(reason.clone());
            shard.host.abort_all(now);
            let _ = shard.transmit(now, &self.clock);
            shard.pump.device_mut().close();
        }
        self.unlock_and_wake(shard, true, false);
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

/// A future's entry in one of the shard's own lists of waiting tasks. Dropping it removes the
/// entry.
struct WaitListEntry<'a> {
    engine: &'a Engine,
    list: fn(&mut Shard) -> &mut WaitList,
    key: WaitKey,
}

impl<'a> WaitListEntry<'a> {
    fn new(engine: &'a Engine, list: fn(&mut Shard) -> &mut WaitList) -> Self {
        Self {
            engine,
            list,
            key: WaitKey::default(),
        }
    }

    /// Adds the task of `cx` to the list, then unlocks.
    fn register(&mut self, cx: &Context<'_>, mut shard: MutexGuard<'_, Shard>) {
        // Declared first, so that it is dropped without the lock.
        let mut spent = Vec::new();
        let waiter = Waiter::future(cx.waker(), &mut self.key);
        (self.list)(&mut shard).register(waiter, &mut spent);
        drop(shard);
    }
}

impl Drop for WaitListEntry<'_> {
    fn drop(&mut self) {
        // As in `WaitRegistration`.
        if self.key.is_set() && !callbacks::are_running() {
            let waker = (self.list)(&mut self.engine.lock_shard()).remove(Some(&mut self.key));
            drop(waker);
        }
    }
}

/// A reference to an engine that keeps the drivers of its stack running.
pub(crate) struct EngineHandle(Arc<Engine>);

impl EngineHandle {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        engine.group.handles.0.fetch_add(1, Ordering::Relaxed);
        Self(engine)
    }
}

impl EngineHandle {
    /// Closes a socket that is dropped: now, or after the callback that this thread runs. Has no
    /// effect if the stack has stopped.
    pub(crate) fn close<Id: 'static>(&self, id: Id, close: fn(Id, &mut Host, Instant)) {
        if callbacks::are_running() {
            let engine = self.clone();
            return callbacks::defer(move || engine.close(id, close));
        }
        let _ = self.op(|host, now| {
            close(id, host, now);
            Ok(())
        });
    }
}

impl Clone for EngineHandle {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        if self.0.group.handles.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.group.wake_drivers();
        }
    }
}

impl Deref for EngineHandle {
    type Target = Arc<Engine>;
    #[inline]
    fn deref(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Shard {
    #[inline]
    fn check_alive(&self) -> io::Result<()> {
        match &self.stop_reason {
            None => Ok(()),
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
        }
    }

    fn is_flushed(&self) -> bool {
        self.pump.is_drained() && self.host.tcp_unflushed_count() == 0
    }

    #[inline]
    fn transmit(&mut self, now: Instant, clock: &Clock) -> TransmitOutcome {
        self.pump.transmit(&mut self.host, now, clock)
    }
}
