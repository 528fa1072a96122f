//! The shards of a stack: their number, their runtimes, and how they start.

use std::io::{self, Error};
use std::sync::Arc;

use fullsend_device::{Device, os_seed};
use fullsend_driver::SteeredDevice;
use fullsend_offload::Pool;
use fullsend_stack::{Host, HostConfig, Steering};
use fullsend_wire::Seed;
use tokio::runtime::Handle;

use super::Builder;
use crate::clock::Clock;
use crate::driver::Driver;
use crate::engine::{DriverWaker, Engine, Group, ShardQueue};
use crate::error::io_error;
use crate::stack::Stack;

impl Builder {
    /// Sets the number of shards, 1 by default: the parts of the stack that run in parallel, each
    /// with its queue of the device, its driver task and its lock (see [`Stack`]). On tokio's
    /// multi-thread runtime, one for each worker thread suits many flows; a single flow is not
    /// faster.
    ///
    /// A TUN or TAP is then opened with as many queues (`IFF_MULTI_QUEUE`). The kernel does not refuse a
    /// second program that does the same, and would divide the packets among both. It knows the queue
    /// of up to 4096 flows; packets of others arrive at any queue, and most of them pass from one
    /// shard to another. A virtual machine's card is offered as many pairs of queues
    /// (`vhost_user`); [`packet_socket`](Self::packet_socket) and [`xdp`](Self::xdp) have one shard.
    ///
    /// The free payload memory ([`pool_bytes`](Self::pool_bytes)) and limits of the whole stack such
    /// as `tcp_mem` are divided among the shards.
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> std::io::Result<()> {
    /// let stack = fullsend::Stack::builder()
    ///     .tun("fs0")
    ///     .address("10.9.0.2/24")
    ///     .shards(4)
    ///     .build()?;
    /// // Accepts the connections of all shards.
    /// let listener = fullsend::TcpListener::bind(&stack, "0.0.0.0:80")?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn shards(mut self, count: usize) -> Self {
        self.shards = count;
        self.runtimes.clear();
        self
    }

    /// Sets one shard for each of `runtimes`, and runs the driver of each shard on its runtime, e.g. a
    /// current-thread runtime for each processor. The I/O and time drivers of all must be enabled. The
    /// stack stops when any of them ends.
    ///
    /// Use [`Stack::shard`] to open and accept the connections of a shard on its runtime.
    #[must_use]
    pub fn shards_on(mut self, runtimes: Vec<Handle>) -> Self {
        self.shards = runtimes.len();
        self.runtimes = runtimes;
        self
    }

    /// Builds the stack over the queues that `open` returns, one for each waker, and spawns its drivers.
    /// `steering_seed` is the secret with which flows are assigned to shards.
    pub(crate) fn start(
        mut self,
        clock: Clock,
        driver_wakers: Vec<Arc<DriverWaker>>,
        steering_seed: Seed,
        open: impl FnOnce(&Self, &[Pool]) -> io::Result<Vec<Box<dyn Device>>>,
    ) -> io::Result<Stack> {
        self.take_error()?;
        self.check_qdisc()?;
        let shards = self.shards;
        let runtimes = self.take_runtimes()?;
        // Control sockets are served on the runtime of the first shard.
        let _context = runtimes[0].enter();
        let seed = self.seed.map_or_else(os_seed, Ok)?;
        let steering = Steering::new(steering_seed, shards);
        let mut hosts: Vec<_> = (0..shards)
            .map(|index| self.host(seed, steering, index))
            .collect();
        let pools: Vec<_> = hosts.iter().map(|host| host.pool().clone()).collect();
        let queues = open(&self, &pools)?;
        let mut ifaces = Vec::new();
        for (host, queue) in hosts.iter_mut().zip(&queues) {
            let caps = queue.caps();
            let iface = self.net.set_up(host, clock.now(), caps, seed.0[3]);
            ifaces.push(iface.map_err(io_error)?);
        }
        let queues = self.limit_memory(steer(steering, queues)?, &pools);
        let handover = queues[0].1.clone();
        let sysctl = self.sysctl.clone();
        let resolver = self.take_resolver();
        let group = Arc::new(Group::new(
            sysctl,
            driver_wakers.clone(),
            handover,
            resolver,
        ));
        let engines: Vec<_> = driver_wakers
            .into_iter()
            .enumerate()
            .zip(hosts.into_iter().zip(ifaces))
            .zip(queues)
            .map(|(((index, driver_waker), host), queue)| {
                let place = (group.clone(), index);
                Arc::new(Engine::new(clock, driver_waker, place, host, queue))
            })
            .collect();
        group.set_engines(&engines);
        #[cfg(feature = "control")]
        {
            group.name_link(&self.link_name);
            if let Some(path) = &self.control {
                group.open_control_socket(path)?;
            }
        }
        let stack = Stack::new(engines);
        self.spawn_drivers(&stack, &runtimes)?;
        Ok(stack)
    }

    /// Returns the runtime of each shard's driver.
    fn take_runtimes(&mut self) -> io::Result<Vec<Handle>> {
        if !self.runtimes.is_empty() {
            return Ok(std::mem::take(&mut self.runtimes));
        }
        let current = Handle::try_current().map_err(|_| {
            Error::other(
                "there is no tokio runtime here; build the stack inside #[tokio::main] or \
                 block_on(..)",
            )
        })?;
        Ok(vec![current; self.shards])
    }

    /// Limits the memory of the devices' queues to their share of the stack's, in equal parts.
    fn limit_memory(&self, mut queues: Vec<ShardQueue>, pools: &[Pool]) -> Vec<ShardQueue> {
        let device_bytes = self.memory_bytes.map_or(usize::MAX, |bytes| {
            usize::try_from(bytes / 32 * 3).unwrap_or(usize::MAX)
        });
        for ((queue, _), pool) in queues.iter_mut().zip(pools) {
            queue.limit_memory(pool, device_bytes / self.shards);
        }
        queues
    }

    /// Spawns the driver of each shard on its runtime, once all could be created.
    fn spawn_drivers(&mut self, stack: &Stack, runtimes: &[Handle]) -> io::Result<()> {
        let mut drivers = Vec::new();
        for (engine, runtime) in stack.engines().iter().zip(runtimes) {
            let _context = runtime.enter();
            let timer = self.timer.take();
            drivers.push(Driver::new(engine.clone(), self.busy_poll, timer)?);
        }
        for (driver, runtime) in drivers.into_iter().zip(runtimes) {
            runtime.spawn(driver);
        }
        Ok(())
    }

    /// Returns the host of a shard, with its share of the stack's limits. All hosts have the same
    /// keys, so that a Fast Open cookie of one is valid on each.
    fn host(&self, seed: Seed, steering: Steering, index: usize) -> Host {
        let shards = steering.shards();
        let mut host = Host::new(HostConfig {
            seed,
            sysctl: self.sysctl.share(shards as u32),
            pool_bytes: self.pool_bytes / shards,
        });
        host.set_shard(steering, index);
        if let Some(bytes) = self.memory_bytes {
            host.limit_memory(bytes / shards as u64);
        }
        host.set_congestion_with(self.congestion.clone());
        host
    }
}

/// Returns the device of each shard. A single shard has the queue itself.
fn steer(steering: Steering, queues: Vec<Box<dyn Device>>) -> io::Result<Vec<ShardQueue>> {
    if steering.shards() == 1 && queues.len() == 1 {
        return Ok(queues.into_iter().map(|queue| (queue, None)).collect());
    }
    let steered = SteeredDevice::for_shards(steering, queues)?.into_iter();
    let with_handover = steered.map(|queue| {
        let handover = queue.handover();
        (Box::new(queue) as Box<dyn Device>, Some(handover))
    });
    Ok(with_handover.collect())
}
