//! One shard: a host, its device, and the lock that users and the driver share.

mod inspect;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use fullsend_device::{Device, Outbox, Tapped};
use fullsend_offload::Packet;
use fullsend_stack::{Host, IfaceId, WaitKey, WaitList, WaitOn, Waiter};
use fullsend_units::Instant;
use parking_lot::{Mutex, MutexGuard};

use crate::clock::{Clock, wall_clock_ns};
use crate::control::Control;
pub(crate) use crate::kick::Kick;

/// Super-segments asked from the host at once.
const TX_BATCH: usize = 8;
/// Packets sent, or a batch more, before somebody looks at what came in. Where software cuts
/// super-segments into packets, each two bring an ACK, and while nobody reads them the kernel's
/// queue overflows and drops them.
const TX_BUDGET: usize = 256;
/// Frames taken from the device under one hold of the lock.
pub(crate) const RX_BATCH: usize = 64;
/// Frames that a device may have queued, at most: the length that a TUN's queue is raised to. After
/// this many, all that was queued at the first has been received.
const RX_QUEUE: usize = 4096;

/// What one hold of the lock leaves to do after it.
#[derive(Clone, Copy, Default)]
struct After {
    /// The host has more to send than one hold of the lock should.
    more: bool,
    /// The driver must run: an earlier deadline, or packets that the device did not take.
    kick: bool,
}

/// What a turn of the driver found.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    /// Frames received; 0 says that the device has no more.
    pub(crate) received: usize,
    /// Other tasks were made ready.
    pub(crate) woke: bool,
    /// Packets wait for the device to become writable.
    pub(crate) blocked: bool,
    /// The host has more to send.
    pub(crate) more: bool,
    /// When the driver must come back by itself.
    pub(crate) deadline: Option<Instant>,
    /// The same, of what must not be late: a packet's departure from its queue.
    pub(crate) departure: Option<Instant>,
}

pub(crate) struct Shard {
    pub(crate) host: Host,
    iface: IfaceId,
    device: Tapped<Box<dyn Device>>,
    /// Number of the recording that runs.
    tap: Option<u64>,
    /// Recordings begun.
    taps: u64,
    outbox: Outbox,
    /// How often the host had begun to hold writes until a completion.
    throttled: u64,
    clock: Clock,
    /// The time of the last call that sends or receives.
    now: Instant,
    rx: Vec<Packet>,
    /// Frames received since the device was found empty.
    unread: usize,
    /// Packets sent since the device had nothing to receive.
    unanswered: usize,
    /// The device was full, and the driver knows.
    blocked: bool,
    /// When the driver's timer fires at the latest.
    armed: Instant,
    /// Tasks that wait for everything to be acknowledged.
    flushing: WaitList,
    /// Everything was acknowledged when it was shut down.
    was_flushed: bool,
    /// Why nothing works any more.
    dead: Option<(io::ErrorKind, String)>,
}

pub(crate) struct Engine {
    /// Read only under the lock: the host must never see time run backwards.
    pub(crate) clock: Clock,
    pub(crate) kick: Arc<Kick>,
    shard: Mutex<Shard>,
    /// Users' handles; when the last goes, the driver ends what can be ended.
    handles: AtomicUsize,
    /// The other end of an in-process link.
    peer: OnceLock<(Arc<Kick>, Weak<Engine>)>,
    /// When it was made, ns since the epoch.
    started: u64,
    /// What tools call the device.
    link_name: OnceLock<String>,
    /// Control sockets, while it is driven.
    controls: Mutex<Vec<Control>>,
}

thread_local! {
    /// Memory for wakers between unlocking and waking.
    static WAKERS: Cell<Vec<Waker>> = const { Cell::new(Vec::new()) };
}

impl Engine {
    pub(crate) fn new(
        clock: Clock,
        kick: Arc<Kick>,
        host: Host,
        iface: IfaceId,
        device: Box<dyn Device>,
    ) -> Self {
        let shard = Shard {
            host,
            iface,
            device: Tapped::off(device),
            tap: None,
            taps: 0,
            outbox: Outbox::default(),
            throttled: 0,
            clock,
            now: Instant::ZERO,
            rx: Vec::new(),
            unread: 0,
            unanswered: 0,
            blocked: false,
            armed: Instant::FAR_FUTURE,
            flushing: WaitList::default(),
            was_flushed: false,
            dead: None,
        };
        Self {
            clock,
            kick,
            shard: Mutex::new(shard),
            handles: AtomicUsize::new(0),
            peer: OnceLock::new(),
            started: wall_clock_ns(),
            link_name: OnceLock::new(),
            controls: Mutex::default(),
        }
    }

    /// Joins two engines whose devices are the ends of one link.
    pub(crate) fn join(a: &Arc<Self>, b: &Arc<Self>) {
        let _ = a.peer.set((b.kick.clone(), Arc::downgrade(b)));
        let _ = b.peer.set((a.kick.clone(), Arc::downgrade(a)));
    }

    /// The lock, and the time at which it was had. A time read before waiting for the lock may be
    /// earlier than that of a packet which was sent meanwhile: timestamps would run backwards along
    /// the sequence space, and the peer's PAWS (RFC 7323 5) would drop the later packet.
    #[inline]
    fn lock(&self) -> (MutexGuard<'_, Shard>, Instant) {
        let shard = self.shard.lock();
        let now = self.clock.now();
        (shard, now)
    }

    /// A user's call on the host: what it lets go is sent before this returns.
    #[inline]
    pub(crate) fn op<R>(
        &self,
        call: impl FnOnce(&mut Host, Instant) -> io::Result<R>,
    ) -> io::Result<R> {
        self.run(false, call)
    }

    /// The same; if `prompt`, the peer should see at once what it sends: over an in-process link
    /// this very call delivers it, if nobody holds the peer's lock.
    #[inline]
    pub(crate) fn run<R>(
        &self,
        prompt: bool,
        call: impl FnOnce(&mut Host, Instant) -> io::Result<R>,
    ) -> io::Result<R> {
        let (mut shard, now) = self.lock();
        shard.alive()?;
        let result = call(&mut shard.host, now);
        let after = shard.send(now);
        self.finish(shard, after, prompt);
        result
    }

    /// The same for a read or write. Both take no time into account beyond what the next packet
    /// brings, so the clock is read only when something can be sent: most small ones send
    /// nothing, and a look at the clock costs as much as the rest of them.
    #[inline]
    pub(crate) fn run_timeless<R>(
        &self,
        prompt: bool,
        call: impl FnOnce(&mut Host, Instant) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut shard = self.shard.lock();
        shard.alive()?;
        let then = shard.now;
        let result = call(&mut shard.host, then);
        let after = if shard.has_to_send() {
            shard.send(self.clock.now())
        } else {
            // Nothing left, so no timer was set either.
            After {
                kick: shard.awaits_completion(),
                more: false,
            }
        };
        self.finish(shard, after, prompt);
        result
    }

    /// A look at the host that changes nothing.
    pub(crate) fn look<R>(&self, call: impl FnOnce(&Host) -> R) -> R {
        call(&self.shard.lock().host)
    }

    /// Unlocks, then wakes the tasks that became ready under the lock; true if there were any.
    #[inline]
    fn finish(&self, shard: MutexGuard<'_, Shard>, after: After, prompt: bool) -> bool {
        let quiet = !shard.host.has_wakers() && shard.flushing.is_empty() && !after.kick;
        if !quiet || self.peer.get().is_some_and(|(kick, _)| kick.has_note()) {
            return self.finish_and_wake(shard, after, prompt);
        }
        false
    }

    #[inline(never)]
    fn finish_and_wake(
        &self,
        mut shard: MutexGuard<'_, Shard>,
        after: After,
        prompt: bool,
    ) -> bool {
        let (mut wakers, mut spent) = (Vec::new(), Vec::new());
        if shard.host.has_wakers() {
            // Not taken in vain: the peer's engine, which may run below, wants it too.
            wakers = WAKERS.take();
            shard.host.take_spent(&mut spent);
            shard.host.take_wakers(&mut wakers);
        }
        if !shard.flushing.is_empty() && (shard.is_flushed() || shard.dead.is_some()) {
            shard.flushing.wake(&mut wakers);
        }
        let now = shard.now;
        drop(shard);
        drop(spent);
        if after.kick {
            self.kick.kick();
        }
        if let Some((kick, peer)) = self.peer.get()
            && kick.take_note()
        {
            let delivered = prompt && peer.upgrade().is_some_and(|peer| peer.try_deliver(now));
            if !delivered {
                kick.kick();
            }
        }
        let woke = !wakers.is_empty();
        if woke {
            wakers.drain(..).for_each(Waker::wake);
            WAKERS.set(wakers);
        }
        woke
    }

    /// Does the driver's work for one batch in the caller's place, if the lock is free. `now` is
    /// what the peer's clock, which is ours, was when it sent.
    fn try_deliver(&self, now: Instant) -> bool {
        let Some(mut shard) = self.shard.try_lock() else {
            return false;
        };
        let now = now.max(shard.now);
        let Ok(received) = shard.read(RX_BATCH) else {
            return false;
        };
        shard.input(now);
        let mut after = shard.send(now);
        after.kick |= received >= RX_BATCH;
        self.finish(shard, after, false);
        true
    }

    /// The same, and which interface of the host is ours.
    pub(crate) fn look_at_iface<R>(&self, call: impl FnOnce(&Host, IfaceId) -> R) -> R {
        let shard = self.shard.lock();
        call(&shard.host, shard.iface)
    }

    /// One batch of the driver's work: what came in, timers, what may go out.
    ///
    /// Timers run after everything that arrived by their deadline was received: after a pause of
    /// this process, the ACK that stops a retransmission timer may be waiting in the device. What
    /// arrives while the device is read is received at the time after the read, not before it.
    pub(crate) fn turn(&self, receive: bool) -> io::Result<Turn> {
        let (mut shard, begin) = self.lock();
        shard.alive()?;
        let due = |host: &Host| host.poll_deadline().is_some_and(|at| at <= begin);
        let read = receive || due(&shard.host) || shard.unanswered >= TX_BUDGET;
        let mut now = begin;
        let received = if read {
            match shard.read(RX_BATCH) {
                Ok(0) => 0,
                Ok(n) => {
                    now = self.clock.now();
                    shard.input(now);
                    n
                }
                Err(error) => {
                    drop(shard);
                    tracing::error!(%error, "the stack stops: its device failed");
                    self.kill(error.kind(), &format!("the device failed: {error}"));
                    return Err(error);
                }
            }
        } else {
            0
        };
        if (received < RX_BATCH || shard.unread >= RX_QUEUE) && due(&shard.host) {
            shard.unread = 0;
            shard.host.poll_until(now, begin);
        }
        let after = shard.send(now);
        let notices = shard.host.take_notices(now);
        let mut turn = Turn {
            received,
            woke: false,
            blocked: shard.blocked,
            more: after.more,
            deadline: shard.host.poll_deadline(),
            departure: shard.host.next_departure(),
        };
        turn.woke = self.finish(shard, After::default(), false);
        for notice in notices {
            tracing::warn!("{notice}");
        }
        Ok(turn)
    }

    /// The driver's timer is about to be set for `at`. False if an earlier deadline has come up
    /// since its last turn.
    pub(crate) fn arm(&self, at: Instant) -> bool {
        let mut shard = self.shard.lock();
        shard.armed = at;
        shard.host.poll_deadline().is_none_or(|due| due >= at)
    }

    /// Ready when all that was written has been acknowledged. A future that waits is ready, too, when
    /// another one has found it so and has stopped the stack.
    fn poll_flushed(&self, cx: &mut Context<'_>, key: &mut WaitKey) -> Poll<io::Result<()>> {
        let mut spent = Vec::new();
        let mut shard = self.shard.lock();
        if !(shard.was_flushed && key.is_set()) {
            shard.alive()?;
        }
        if shard.was_flushed || shard.is_flushed() {
            return Poll::Ready(Ok(()));
        }
        let waiter = Waiter::future(cx.waker(), key);
        shard.flushing.register(waiter, &mut spent);
        drop(shard);
        Poll::Pending
    }

    /// Waits until all that was written has been acknowledged, then stops the stack.
    pub(crate) async fn flush_and_stop(&self) -> io::Result<()> {
        let mut flushing = Flushing(self, WaitKey::default());
        poll_fn(|cx| self.poll_flushed(cx, &mut flushing.1)).await?;
        self.shard.lock().was_flushed = true;
        self.kill(
            io::ErrorKind::ConnectionAborted,
            "the stack was shut down: build a new one",
        );
        Ok(())
    }

    /// A future no longer waits.
    pub(crate) fn stop_waiting(&self, on: WaitOn, key: &mut WaitKey) {
        let waker = self.shard.lock().host.stop_waiting(on, Some(key));
        // Without the lock: it may be the last reference to a task that has sockets.
        drop(waker);
    }

    /// No user can reach it any more, and nothing is left to finish.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0 && self.look(|host| host.tcp_connections() == 0)
    }

    /// Ends it: every later call fails with this text.
    pub(crate) fn kill(&self, kind: io::ErrorKind, why: &str) {
        self.controls.lock().clear();
        let (mut shard, now) = self.lock();
        if shard.dead.is_none() {
            shard.dead = Some((kind, why.to_owned()));
            shard.host.abort_all(now);
            shard.send(now);
        }
        self.finish(
            shard,
            After {
                kick: true,
                more: false,
            },
            false,
        );
    }

    /// What to wait on for the device, when it is a file.
    pub(crate) fn device_fd(&self) -> io::Result<Option<std::os::fd::OwnedFd>> {
        let shard = self.shard.lock();
        shard
            .device
            .fd()
            .map(|fd| fd.try_clone_to_owned())
            .transpose()
    }
}

/// A future that waits for everything to be acknowledged.
struct Flushing<'a>(&'a Engine, WaitKey);

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        if self.1.is_set() {
            let waker = self.0.shard.lock().flushing.remove(Some(&mut self.1));
            drop(waker);
        }
    }
}

/// A user's hold on an engine.
pub(crate) struct Handle(Arc<Engine>);

impl Handle {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        engine.handles.fetch_add(1, Ordering::Relaxed);
        Self(engine)
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.kick.kick();
        }
    }
}

impl Deref for Handle {
    type Target = Arc<Engine>;
    #[inline]
    fn deref(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Shard {
    #[inline]
    fn alive(&self) -> io::Result<()> {
        match &self.dead {
            None => Ok(()),
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
        }
    }

    fn is_flushed(&self) -> bool {
        self.outbox.is_empty() && self.host.tcp_unflushed() == 0
    }

    /// Reads frames from the device for [`input`](Self::input) and returns their number.
    fn read(&mut self, max: usize) -> io::Result<usize> {
        let received = self.device.receive(&mut self.rx, max)?;
        // A device that has no end must not silence us: what it gave allows as much.
        (self.unanswered, self.unread) = if received < max {
            (0, 0)
        } else {
            let unanswered = self.unanswered.saturating_sub(received);
            (unanswered, self.unread + received)
        };
        Ok(received)
    }

    /// Gives the host what was read.
    fn input(&mut self, now: Instant) {
        self.now = now;
        if !self.rx.is_empty() {
            self.host.receive(now, self.iface, &mut self.rx);
        }
    }

    #[inline]
    fn has_to_send(&self) -> bool {
        !self.outbox.is_empty() || self.host.wants_transmit(self.iface)
    }

    /// Moves what the host lets go to the device, until one of them has enough.
    #[inline]
    fn send(&mut self, now: Instant) -> After {
        let mut after = After::default();
        self.now = now;
        if self.outbox.has_uncompleted() {
            self.complete(now);
        }
        if self.has_to_send() {
            after.more = self.push(now);
            let blocked = !self.outbox.is_empty();
            after.kick = after.more || (blocked && !self.blocked);
            self.blocked = blocked;
        }
        after.kick |= self.host.poll_deadline().is_some_and(|at| at < self.armed);
        after.kick |= self.awaits_completion();
        after
    }

    /// Sees to it that a completion that a held write waits for is not late; true if it has come
    /// already, and the next turn must see to it.
    #[inline]
    fn awaits_completion(&mut self) -> bool {
        let throttled = self.host.throttled();
        throttled != mem::replace(&mut self.throttled, throttled)
            && !self.device.notify_completion()
    }

    /// True if the host may have more to give and the device would take it.
    ///
    /// The clock is read anew for each batch: over a TUN the kernel's TCP runs in our write, and
    /// segments that leave milliseconds after the time that they are stamped with are probed for,
    /// and sent again, that much too early.
    fn push(&mut self, mut now: Instant) -> bool {
        while self.unanswered < TX_BUDGET {
            if self.outbox.has_room() {
                self.unanswered += self
                    .outbox
                    .gather(|out| self.host.transmit(now, self.iface, out, TX_BATCH));
            }
            if self.outbox.is_empty() {
                return false;
            }
            self.outbox.flush(&mut self.device);
            self.complete(now);
            if !self.outbox.is_empty() || !self.host.wants_transmit(self.iface) {
                return false;
            }
            now = self.clock.now();
            self.now = now;
        }
        true
    }

    /// Tells the host of each packet that the device has finished with.
    fn complete(&mut self, now: Instant) {
        let in_flight = self.device.in_flight();
        while let Some(token) = self.outbox.next_completed(in_flight) {
            self.host.complete(now, token);
        }
    }
}
