//! The stack: its lock, its start and end, and the methods for user-driven stacks.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use fullsend_device::Device;
use fullsend_offload::{Caps, Packet};
use fullsend_posix::{Errno, Handle, Posix};
use fullsend_stack::Host;
use fullsend_wire::{Instant, Nanos, Seed};
use parking_lot::{Mutex, MutexGuard};

use crate::Clock;
use crate::c::SocketLoans;
use crate::calls::deadline_after;
use crate::config::{self, Config, DeviceChoice};
#[cfg(feature = "control")]
use crate::control::{self, StackIdentity};
use crate::driver::{self, DriverWaker};
use crate::outbox_drainer::OutboxDrainer;
use crate::shard::Shard;
use crate::user_driven::{Outbox, UserDrivenDevice};
use crate::wait::{self, WaitFor};

/// The handling of a user-driven stack's packets by the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserDrivenOptions {
    /// The program segments super-segments and computes checksums.
    pub offload: bool,
    /// A packet is completed when it enters the outbox, not when the program takes it.
    pub completes_on_output: bool,
    /// The program may keep packets for long, as a TUN does. Data sent with `MSG_ZEROCOPY` is then
    /// copied, which the error queue reports.
    pub retains_packets: bool,
}

/// A TCP/IP stack that threads share, with the BSD socket calls.
///
/// Dropping it resets its connections and wakes the threads that wait in a call with ESHUTDOWN.
pub struct Stack {
    pub(crate) shared: Arc<Shared>,
    outbox: Option<Outbox>,
    pub(crate) outbox_drainer: OutboxDrainer,
    driver: Option<JoinHandle<()>>,
    /// Whether data sent with `MSG_ZEROCOPY` is copied.
    pub(crate) copies_zerocopy: bool,
    /// Memory that C code has lent.
    pub(crate) loans: SocketLoans,
    /// The control socket, which is open while this lives.
    #[cfg(feature = "control")]
    _control: Option<fullsend_control::Server>,
}

/// The state that callers and the driver share.
pub(crate) struct Shared {
    shard: Mutex<Shard>,
    pub(crate) clock: Clock,
    pub(crate) driver_waker: Option<DriverWaker>,
    #[cfg(feature = "control")]
    pub(crate) identity: StackIdentity,
}

impl Shared {
    /// Locks the shard and returns it with the time read under the lock, as time must never run
    /// backwards for the host.
    pub(crate) fn lock(&self) -> (MutexGuard<'_, Shard>, Instant) {
        let shard = self.shard.lock();
        let now = self.clock.now();
        (shard, now)
    }

    /// Transmits pending packets and wakes ready threads and, if needed, the driver. Must follow every
    /// call.
    pub(crate) fn transmit_and_wake(&self, shard: &mut Shard, now: Instant) {
        if shard.transmit_and_wake(now)
            && let Some(driver_waker) = &self.driver_waker
        {
            driver_waker.wake();
        }
    }

    /// Ends the stack: waiting threads and all later calls fail with `why`.
    pub(crate) fn end(&self, why: Errno) {
        let (mut shard, now) = self.lock();
        if shard.end_error.is_none() {
            shard.end_error = Some(why);
            shard.posix.host_mut().abort_all(now);
            shard.transmit_and_wake(now);
            shard.sleepers.wake_all();
        }
        drop(shard);
        if let Some(driver_waker) = &self.driver_waker {
            driver_waker.wake();
        }
    }
}

impl Stack {
    /// Opens the TUN or TAP of the settings, and starts a thread that drives the stack.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid setting, with a message that names it and what to write
    /// instead; the operating system's error if the device or the control socket cannot be opened.
    pub fn open(config: &Config) -> io::Result<Self> {
        let Some(tun) = config.tun() else {
            let text = "the settings name no device; write tun=NAME or tap=NAME, or use a \
                        user-driven stack";
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

    /// Returns a user-driven stack: sent packets wait in [`outbox`](Self::outbox), received ones
    /// are passed to [`input`](Self::input), and [`run_timers`](Self::run_timers) runs timers.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid setting, with a message that names it and what to write
    /// instead.
    pub fn user_driven(
        config: &Config,
        clock: Clock,
        options: UserDrivenOptions,
    ) -> io::Result<Self> {
        let DeviceChoice::UserDriven(link) = config.device else {
            let text = "a user-driven stack has no device; remove tun= and tap= from the settings";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let (host, seed) = config.host()?;
        let outbox = Outbox::new(clock.clone(), options.completes_on_output);
        let caps = if options.offload {
            Caps::offloading(link, config.mtu())
        } else {
            Caps::plain(link, config.mtu())
        };
        let device = UserDrivenDevice {
            outbox: outbox.clone(),
            caps,
        };
        let mut stack = Self::start(config, clock, host, seed, Box::new(device), false)?;
        stack.outbox = Some(outbox);
        stack.copies_zerocopy = options.retains_packets;
        Ok(stack)
    }

    fn start(
        config: &Config,
        clock: Clock,
        mut host: Host,
        seed: Seed,
        device: Box<dyn Device>,
        has_driver: bool,
    ) -> io::Result<Self> {
        let iface = config.set_up(&mut host, seed, device.caps(), clock.now())?;
        let driver_waker = has_driver.then(DriverWaker::new).transpose()?;
        let shared = Arc::new(Shared {
            shard: Mutex::new(Shard::new(host, iface, device, clock.clone())),
            clock,
            driver_waker,
            #[cfg(feature = "control")]
            identity: StackIdentity::new(config, wall_clock()),
        });
        let stack = Self {
            #[cfg(feature = "control")]
            _control: control::open(config, &shared)?,
            shared,
            outbox: None,
            outbox_drainer: OutboxDrainer::default(),
            driver: None,
            copies_zerocopy: false,
            loans: SocketLoans::default(),
        };
        let (epoch, now) = (wall_clock(), stack.shared.clock.now());
        stack.set_epoch(epoch.saturating_sub(now.since(Instant::ZERO)));
        Ok(stack)
    }

    /// Returns the packets that a user-driven stack has sent, or `None` if the stack has a device.
    pub const fn outbox(&self) -> Option<&Outbox> {
        self.outbox.as_ref()
    }

    /// Sets the function that is called with each packet that a user-driven stack sends: on a
    /// thread that is in a call of the stack, one packet at a time, in the order of sending, and
    /// without the stack's lock. It may call the stack, but must not wait in such a call. Only the
    /// first call has an effect.
    pub fn on_output(&self, output: impl Fn(&Packet) + Send + Sync + 'static) {
        self.outbox_drainer.set(Box::new(output));
    }

    /// Passes received packets, unparsed, to a user-driven stack.
    pub fn input(&self, packets: &mut Vec<Packet>) {
        let (mut shard, now) = self.shared.lock();
        shard.input(now, packets);
        self.finish_call(shard, now);
    }

    /// Runs the timers that are due and wakes the threads whose timeout has expired. A stack with a
    /// device needs no such call.
    pub fn run_timers(&self) {
        let (mut shard, now) = self.shared.lock();
        shard.run_timers(now);
        self.finish_call(shard, now);
    }

    /// Sets the time, in ns since the Unix epoch, at which the stack's clock was zero. Receive and
    /// transmit timestamps (`SO_TIMESTAMPING` and similar options) are relative to it. By default
    /// it is derived from the system's clock when the stack starts.
    pub fn set_epoch(&self, epoch: Nanos) {
        self.shared.lock().0.posix.set_epoch(epoch);
    }

    /// Returns whether a thread that waits in a call was woken and has not run since, so that more
    /// calls or packets may follow from it.
    pub fn has_woken(&self) -> bool {
        self.shared.lock().0.sleepers.has_woken()
    }

    /// Returns whether a thread waits in a call.
    pub fn has_sleepers(&self) -> bool {
        self.shared.lock().0.sleepers.has_sleepers()
    }

    /// Advances a [manual](Clock::manual) clock to `at` if that is later.
    pub fn advance_to(&self, at: Instant) {
        self.shared.clock.advance_to(at);
    }

    /// Returns the latest time at which [`run_timers`](Self::run_timers) must be called, or `None`
    /// if no timer is set.
    pub fn deadline(&self) -> Option<Instant> {
        self.shared.lock().0.deadline()
    }

    /// Changes a setting of the running stack: `address`, `route` and `gateway` add one; `mtu`,
    /// `tso`, `gso` and `qdisc` configure the link; any other key is a tunable.
    ///
    /// # Errors
    /// A message that names the setting and what to write instead.
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
        self.finish_call(shard, now);
        Ok(())
    }

    /// Returns the value of a tunable, as Linux writes it.
    ///
    /// # Errors
    /// If there is no tunable of that name; the message suggests the nearest.
    pub fn get(&self, key: &str) -> Result<String, config::ConfigError> {
        let (shard, _) = self.shared.lock();
        let value = shard.posix.host().sysctl().get(key);
        value.map_err(|e| config::ConfigError(e.to_string()))
    }

    /// Returns every counter with its `nstat` name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.shared.lock().0.posix.host().counters()
    }

    /// Returns a file that becomes readable when any socket becomes ready for an event that it was
    /// not ready for at the last call on it. Read its eight bytes, then poll the sockets.
    ///
    /// # Errors
    /// The operating system's error if the file cannot be created.
    pub fn event_fd(&self) -> io::Result<OwnedFd> {
        let (mut shard, _) = self.shared.lock();
        shard.sleepers.event_fd()?.as_fd().try_clone_to_owned()
    }

    /// Waits until the peers have acknowledged all written data and FINs of every connection, closed
    /// sockets included, for at most `timeout`; `None` waits until the connections have timed out. If the
    /// stack is dropped afterwards, no written data is lost. The drop resets open connections, as always.
    ///
    /// # Errors
    /// ETIMEDOUT if there is unacknowledged data after `timeout`. On a stack that has ended, the error
    /// that it ended with.
    pub fn wait_flushed(&self, timeout: Option<Duration>) -> Result<(), Errno> {
        let (mut shard, mut now) = self.shared.lock();
        let deadline = deadline_after(now, timeout.map(Nanos::from));
        let mut may_drain_outbox = true;
        loop {
            shard.check_alive()?;
            self.shared.transmit_and_wake(&mut shard, now);
            if shard.is_flushed() {
                return Ok(());
            }
            // As in `wait`: the peer may answer at once what this thread sends.
            if may_drain_outbox && self.must_drain_outbox() {
                drop(shard);
                may_drain_outbox = self.drain_outbox();
                (shard, now) = self.shared.lock();
                continue;
            }
            if deadline.is_some_and(|at| at <= now) {
                return Err(Errno::ETIMEDOUT);
            }
            let real_now = self.shared.clock.is_real().then_some(now);
            wait::sleep(&mut shard, WaitFor::Flush, deadline, real_now);
            now = self.shared.clock.now();
            may_drain_outbox = true;
        }
    }

    /// Ends the stack as dropping it does, but waiting threads and later calls fail with `why`.
    pub fn end(&self, why: Errno) {
        self.shared.end(why);
        self.drain_outbox();
    }

    /// Runs a call that does not wait.
    pub(crate) fn call<R>(
        &self,
        call: impl FnOnce(&mut Posix, Instant) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let (mut shard, now) = self.shared.lock();
        shard.check_alive()?;
        let result = call(&mut shard.posix, now);
        self.finish_call(shard, now);
        result
    }

    /// Calls `call` until it does not return `Ok(None)`, and waits for the handles `on` in between.
    /// Returns `Ok(None)` when the time that `timeout` returns has passed.
    pub(crate) fn wait<R>(
        &self,
        handles: &[Handle],
        timeout: impl FnOnce(&mut Posix, Instant) -> Option<Instant>,
        mut call: impl FnMut(&mut Posix, Instant) -> Result<Option<R>, Errno>,
    ) -> Result<Option<R>, Errno> {
        let (mut shard, mut now) = self.shared.lock();
        let mut timeout = Some(timeout);
        let mut deadline = None;
        let mut may_drain_outbox = true;
        loop {
            shard.check_alive()?;
            let result = call(&mut shard.posix, now);
            self.shared.transmit_and_wake(&mut shard, now);
            if !matches!(result, Ok(None)) {
                drop(shard);
                self.drain_outbox();
                return result;
            }
            if let Some(timeout) = timeout.take() {
                deadline = timeout(&mut shard.posix, now);
            }
            if deadline.is_some_and(|at| at <= now) {
                drop(shard);
                self.drain_outbox();
                return Ok(None);
            }
            if handles.iter().any(|handle| shard.ready.contains(handle)) {
                // The packets that this call sent over loopback have already been answered.
                now = self.shared.clock.now();
                continue;
            }
            // If another thread is emptying the outbox, this thread tries its call once more, as
            // that may have made it ready, and then sleeps: the other thread passes on the
            // remaining packets.
            if may_drain_outbox && self.must_drain_outbox() {
                drop(shard);
                may_drain_outbox = self.drain_outbox();
                (shard, now) = self.shared.lock();
                continue;
            }
            let real_now = self.shared.clock.is_real().then_some(now);
            wait::sleep(&mut shard, WaitFor::Handles(handles), deadline, real_now);
            now = self.shared.clock.now();
            may_drain_outbox = true;
        }
    }

    pub(crate) fn finish_call(&self, mut shard: MutexGuard<'_, Shard>, now: Instant) {
        self.shared.transmit_and_wake(&mut shard, now);
        drop(shard);
        self.drain_outbox();
    }

    fn must_drain_outbox(&self) -> bool {
        let outbox = self.outbox.as_ref();
        outbox.is_some_and(|outbox| self.outbox_drainer.has_work(outbox))
    }

    /// Empties the outbox until the stack has nothing more to send. Returns false if another thread
    /// is emptying it.
    fn drain_outbox(&self) -> bool {
        let Some(outbox) = &self.outbox else {
            return true;
        };
        while self.outbox_drainer.has_work(outbox) {
            if !self.outbox_drainer.drain_outbox(outbox) {
                return false;
            }
            let (mut shard, now) = self.shared.lock();
            self.shared.transmit_and_wake(&mut shard, now);
        }
        true
    }
}

/// Returns the time of day, in ns since the Unix epoch.
#[allow(
    clippy::disallowed_methods,
    reason = "time stamps that users see are in real time"
)]
fn wall_clock() -> Nanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(Nanos::ZERO, Nanos::from)
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.end(Errno(libc::ESHUTDOWN));
        if let Some(driver) = self.driver.take() {
            // The thread has logged its error.
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
