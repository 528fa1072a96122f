//! The stack: its lock, how it begins and ends, and what whoever drives it by hand calls.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use fullsend_control::{Inspect, Server};
use fullsend_device::Device;
use fullsend_offload::{Caps, Packet};
use fullsend_posix::{Errno, Handle, Posix};
use fullsend_stack::{Host, IfaceId};
use fullsend_units::{Instant, Nanos};
use parking_lot::{Mutex, MutexGuard};

use crate::Clock;
use crate::c::Loans;
use crate::carrier::Carrier;
use crate::config::{self, Config, DeviceChoice};
use crate::driver::{self, Kick};
use crate::hand::{HandDevice, Outbox};
use crate::shard::Shard;
use crate::{signals, wait};

/// What a stack that is driven by hand is told about the way its packets take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hand {
    /// Whoever takes the packets cuts super-segments and completes checksums.
    pub offload: bool,
    /// A packet is sent when it is put into the outbox, not when it is taken out.
    pub completes_at_once: bool,
    /// Whoever takes the packets may keep them for long, as a TUN does: what `MSG_ZEROCOPY` lends
    /// is copied, and the error queue says so.
    pub keeps: bool,
}

/// A TCP/IP stack that threads share. Its calls are BSD's.
///
/// When it is dropped, its connections are reset and whoever sleeps in a call wakes with
/// ESHUTDOWN.
pub struct Stack {
    pub(crate) shared: Arc<Shared>,
    outbox: Option<Outbox>,
    pub(crate) carrier: Carrier,
    driver: Option<JoinHandle<()>>,
    /// Memory is not lent.
    pub(crate) copies: bool,
    /// What C lends.
    pub(crate) lent: Loans,
    /// The control socket, open while this lives.
    _control: Option<Server>,
}

/// What callers and the driver share.
pub(crate) struct Shared {
    shard: Mutex<Shard>,
    pub(crate) clock: Clock,
    pub(crate) kick: Option<Kick>,
    link_name: String,
    /// Nanoseconds since 1970.
    started: u64,
}

impl Inspect for Shared {
    fn look<R>(&self, call: impl FnOnce(&mut Host, IfaceId, Instant) -> R) -> R {
        let (mut shard, now) = self.lock();
        let iface = shard.iface();
        call(shard.posix.host_mut(), iface, now)
    }

    fn change<R>(&self, call: impl FnOnce(&mut Host, Instant) -> R) -> Result<R, String> {
        let (mut shard, now) = self.lock();
        shard.alive().map_err(|error| error.to_string())?;
        let result = call(shard.posix.host_mut(), now);
        self.settle(&mut shard, now);
        Ok(result)
    }

    fn started(&self) -> u64 {
        self.started
    }

    fn link_name(&self) -> &str {
        &self.link_name
    }
}

impl Shared {
    /// The lock, and the time at which it was had: the host must never see time run backwards.
    pub(crate) fn lock(&self) -> (MutexGuard<'_, Shard>, Instant) {
        let shard = self.shard.lock();
        let now = self.clock.now();
        (shard, now)
    }

    /// What follows every call.
    pub(crate) fn settle(&self, shard: &mut Shard, now: Instant) {
        if shard.settle(now)
            && let Some(kick) = &self.kick
        {
            kick.kick();
        }
    }

    /// Ends it: whatever is called or sleeps from here on fails with `why`.
    pub(crate) fn end(&self, why: Errno) {
        let (mut shard, now) = self.lock();
        if shard.dead.is_none() {
            shard.dead = Some(why);
            shard.posix.host_mut().abort_all(now);
            shard.settle(now);
            shard.waiting.wake_all();
        }
        drop(shard);
        if let Some(kick) = &self.kick {
            kick.kick();
        }
    }
}

impl Stack {
    /// Opens the TUN or TAP of the settings, and starts a thread that drives the stack.
    ///
    /// # Errors
    /// What the system says about the device, and `InvalidInput` for a setting that makes no
    /// sense; the text names it and the mend.
    pub fn open(config: &Config) -> io::Result<Self> {
        let Some(tun) = config.tun() else {
            let text = "no device: give tun=NAME or tap=NAME, or drive the stack by hand";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let (host, seed) = config.host()?;
        let tun = tun.pool(host.pool().clone()).open()?;
        let file = tun.fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let file = file.ok_or(io::ErrorKind::Unsupported)?;
        let mut stack = Self::start(config, Clock::real(), host, seed, Box::new(tun), true)?;
        stack.driver = Some(driver::spawn(&stack.shared, file)?);
        Ok(stack)
    }

    /// A stack whose packets the program carries: what it sends waits in [`outbox`](Self::outbox),
    /// what comes in is given to [`input`](Self::input), and [`turn`](Self::turn) runs timers.
    ///
    /// # Errors
    /// `InvalidInput` for a setting that makes no sense; the text names it and the mend.
    pub fn by_hand(config: &Config, clock: Clock, hand: Hand) -> io::Result<Self> {
        let DeviceChoice::Hand(link) = config.device else {
            let text = "a stack that is driven by hand has no device: leave tun= and tap= out";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let (host, seed) = config.host()?;
        let outbox = Outbox::new(clock.clone(), hand.completes_at_once);
        let caps = if hand.offload {
            Caps::offloading(link, config.mtu())
        } else {
            Caps::plain(link, config.mtu())
        };
        let device = HandDevice {
            outbox: outbox.clone(),
            caps,
        };
        let mut stack = Self::start(config, clock, host, seed, Box::new(device), false)?;
        stack.outbox = Some(outbox);
        stack.copies = hand.keeps;
        Ok(stack)
    }

    fn start(
        config: &Config,
        clock: Clock,
        mut host: Host,
        seed: fullsend_units::Seed,
        device: Box<dyn Device>,
        driven: bool,
    ) -> io::Result<Self> {
        let iface = config.set_up(&mut host, seed, device.caps(), clock.now())?;
        let kick = driven.then(Kick::new).transpose()?;
        let shared = Arc::new(Shared {
            shard: Mutex::new(Shard::new(host, iface, device, clock.clone())),
            clock,
            kick,
            link_name: config.link_name().to_owned(),
            started: world_clock().as_nanos(),
        });
        let control = config.control()?;
        let control = control.map(|path| {
            let stack = Arc::downgrade(&shared);
            Server::open(&path, stack, signals::block_all)
        });
        let stack = Self {
            shared,
            outbox: None,
            carrier: Carrier::default(),
            driver: None,
            copies: false,
            lent: Loans::default(),
            _control: control.transpose()?,
        };
        let (epoch, now) = (world_clock(), stack.shared.clock.now());
        stack.set_epoch(epoch.saturating_sub(now.since(Instant::ZERO)));
        Ok(stack)
    }

    /// What left a stack that is driven by hand.
    pub const fn outbox(&self) -> Option<&Outbox> {
        self.outbox.as_ref()
    }

    /// Has `output` called with each packet that leaves a stack driven by hand: on a thread that
    /// calls the stack, by one at a time, in the order of sending, and without the stack's lock. It
    /// may call the stack, but must not wait in a call of it. The first `output` stays.
    pub fn on_output(&self, output: impl Fn(&Packet) + Send + Sync + 'static) {
        self.carrier.set(Box::new(output));
    }

    /// Takes packets that were carried here, as they came (not parsed).
    pub fn input(&self, packets: &mut Vec<Packet>) {
        let (mut shard, now) = self.shared.lock();
        shard.input(now, packets);
        self.finish(shard, now);
    }

    /// Runs the timers that are due and wakes those whose time-out has come. A stack with a device
    /// does that by itself.
    pub fn turn(&self) {
        let (mut shard, now) = self.shared.lock();
        shard.run_timers(now);
        self.finish(shard, now);
    }

    /// What the world's clock (ns since 1970) shows when the stack's shows nought: the times that
    /// `SO_TIMESTAMPING` and its kin tell are in it. Unless told otherwise it fits the system's clock
    /// when the stack begins.
    pub fn set_epoch(&self, epoch: Nanos) {
        self.shared.lock().0.posix.set_epoch(epoch);
    }

    /// A thread that sleeps in a call was woken, and has not looked what for: there is more to
    /// come from it.
    pub fn has_woken(&self) -> bool {
        self.shared.lock().0.waiting.has_woken()
    }

    /// A thread sleeps in a call.
    pub fn has_sleepers(&self) -> bool {
        self.shared.lock().0.waiting.has_sleepers()
    }

    /// Sets the clock, if it is a [manual](Clock::manual) one and that is later than what it shows.
    pub fn advance_to(&self, at: Instant) {
        self.shared.clock.advance_to(at);
    }

    /// When [`turn`](Self::turn) must be called at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        self.shared.lock().0.deadline()
    }

    /// Changes a setting of the running stack: an `address`, `route` or `gateway` is added, `mtu`,
    /// `tso`, `gso` and `qdisc` are those of the link, and every tunable can be set.
    ///
    /// # Errors
    /// What is wrong with it, and the mend.
    pub fn set(&self, key: &str, value: &str) -> Result<(), config::ConfigError> {
        let (mut shard, now) = self.shared.lock();
        let iface = shard.iface();
        let host = shard.posix.host_mut();
        match key {
            "address" => host.add_address(now, iface, config::parse_cidr(value)?)?,
            "route" | "gateway" => {
                let (destination, gateway) = if key == "route" {
                    config::parse_route(value)?
                } else {
                    config::parse_gateway(value)?
                };
                host.add_route(destination, gateway, iface)?;
            }
            "mtu" | "tso" | "gso" | "qdisc" => {
                let changed = host.change_interface(now, iface, config::parse_change(key, value)?);
                changed.map_err(|e| config::ConfigError(e.to_string()))?;
            }
            _ => host
                .set_sysctl(now, key, value)
                .map_err(|e| config::ConfigError(e.to_string()))?,
        }
        self.finish(shard, now);
        Ok(())
    }

    /// The value of a tunable, as Linux writes it.
    ///
    /// # Errors
    /// There is none of that name; the text tells the nearest.
    pub fn get(&self, key: &str) -> Result<String, config::ConfigError> {
        let (shard, _) = self.shared.lock();
        let value = shard.posix.host().sysctl().get(key);
        value.map_err(|e| config::ConfigError(e.to_string()))
    }

    /// Every counter by its `nstat` name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.shared.lock().0.posix.host().counters()
    }

    /// A file that becomes readable whenever any socket becomes ready for something it was not
    /// ready for when it was last asked. Read its eight bytes, then ask the sockets.
    ///
    /// # Errors
    /// What the system says.
    pub fn event_file(&self) -> io::Result<OwnedFd> {
        let (mut shard, _) = self.shared.lock();
        shard.waiting.event()?.as_fd().try_clone_to_owned()
    }

    /// Ends it as dropping does; calls fail with `why` from here on.
    pub fn end(&self, why: Errno) {
        self.shared.end(why);
        self.carry();
    }

    /// One call, which does not wait.
    pub(crate) fn call<R>(
        &self,
        call: impl FnOnce(&mut Posix, Instant) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let (mut shard, now) = self.shared.lock();
        shard.alive()?;
        let result = call(&mut shard.posix, now);
        self.finish(shard, now);
        result
    }

    /// Asks again and again, asleep in between, until `call` gives something else than `None` or
    /// `patience` is over; then `None`.
    pub(crate) fn wait<R>(
        &self,
        on: &[Handle],
        patience: impl FnOnce(&mut Posix, Instant) -> Option<Instant>,
        mut call: impl FnMut(&mut Posix, Instant) -> Result<Option<R>, Errno>,
    ) -> Result<Option<R>, Errno> {
        let (mut shard, mut now) = self.shared.lock();
        let mut patience = Some(patience);
        let mut until = None;
        let mut may_carry = true;
        loop {
            shard.alive()?;
            let result = call(&mut shard.posix, now);
            self.shared.settle(&mut shard, now);
            if !matches!(result, Ok(None)) {
                drop(shard);
                self.carry();
                return result;
            }
            if let Some(patience) = patience.take() {
                until = patience(&mut shard.posix, now);
            }
            if until.is_some_and(|at| at <= now) {
                drop(shard);
                self.carry();
                return Ok(None);
            }
            if on.iter().any(|handle| shard.ready.contains(handle)) {
                // Packets that this call sent were answered already, over loopback.
                now = self.shared.clock.now();
                continue;
            }
            // One that meets another carrier tries again, since that may have made it ready, and
            // sleeps then: the other one carries what was there.
            if may_carry && self.has_to_carry() {
                drop(shard);
                may_carry = self.carry();
                (shard, now) = self.shared.lock();
                continue;
            }
            let real = self.shared.clock.is_real().then_some(now);
            wait::sleep(&mut shard, on, until, real);
            now = self.shared.clock.now();
            may_carry = true;
        }
    }

    pub(crate) fn finish(&self, mut shard: MutexGuard<'_, Shard>, now: Instant) {
        self.shared.settle(&mut shard, now);
        drop(shard);
        self.carry();
    }

    fn has_to_carry(&self) -> bool {
        let outbox = self.outbox.as_ref();
        outbox.is_some_and(|outbox| self.carrier.has_work(outbox))
    }

    /// Empties the outbox, and lets the stack fill it again, until it stays empty. Returns false if
    /// another thread does that.
    fn carry(&self) -> bool {
        let Some(outbox) = &self.outbox else {
            return true;
        };
        while self.carrier.has_work(outbox) {
            if !self.carrier.carry(outbox) {
                return false;
            }
            let (mut shard, now) = self.shared.lock();
            self.shared.settle(&mut shard, now);
        }
        true
    }
}

/// ns since 1970.
#[allow(
    clippy::disallowed_methods,
    reason = "time stamps that users see are in real time"
)]
fn world_clock() -> Nanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(Nanos::ZERO, Nanos::from)
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.end(Errno(libc::ESHUTDOWN));
        if let Some(driver) = self.driver.take() {
            // It has told what went wrong.
            let _ = driver.join();
        }
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack")
            .field("clock", &self.shared.clock)
            .finish_non_exhaustive()
    }
}
