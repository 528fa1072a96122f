//! The handle of a network, for tests and for the software of its hosts.

use std::fmt;
use std::io::{self, Error, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fullsend::{Seed, Stack};
use parking_lot::Mutex;

use crate::card::Card;
use crate::error::Failure;
use crate::host::{Host, Hosts, Start, State};
use crate::link::Link;
use crate::machine::Epoch;
use crate::names::Names;
use crate::shared::Shared;
use crate::topology::{NodeId, addresses, invalid};

/// The limits of each host, fixed to those of a host with 1 GiB. By default they derive from the
/// machine's memory, so that results would differ between machines.
const HOST_LIMITS: [(&str, &str); 6] = [
    ("tcp_mem", "12288 16384 24576"),
    ("udp_mem", "24576 32768 49152"),
    ("tcp_rmem", "4096 131072 6291456"),
    ("tcp_wmem", "4096 16384 4194304"),
    ("tcp_max_orphans", "8192"),
    ("tcp_max_tw_buckets", "8192"),
];

/// Bytes of free payload memory that a host keeps for reuse.
const POOL_BYTES: usize = 4 << 20;

/// The network of a simulation. Clones refer to the same network.
///
/// The test ([`Simulation::net`](crate::Simulation::net)) and the software of the hosts ([`Host::net`])
/// can use it. Its changes take effect at the current virtual time.
#[derive(Clone)]
pub struct Net {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    /// The hosts, which are not locked while user code runs.
    pub(crate) hosts: Mutex<Hosts>,
}

impl Net {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let inner = Inner {
            shared,
            hosts: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Returns the IPv4 address of a host.
    ///
    /// # Errors
    /// `NotFound` for an unknown name, and `InvalidInput` for a switch.
    pub fn address(&self, host: &str) -> io::Result<IpAddr> {
        Ok(addresses(self.find_host(host)?).0.into())
    }

    /// Returns the IPv6 address of a host.
    ///
    /// # Errors
    /// `NotFound` for an unknown name, and `InvalidInput` for a switch.
    pub fn address_v6(&self, host: &str) -> io::Result<IpAddr> {
        Ok(addresses(self.find_host(host)?).1.into())
    }

    /// Returns the IPv4 socket address of a host and port, e.g. `"server:80"`.
    ///
    /// # Errors
    /// `NotFound` for an unknown name, and `InvalidInput` for a switch or without a port.
    pub fn resolve(&self, host_and_port: &str) -> io::Result<SocketAddr> {
        let parts = host_and_port.rsplit_once(':');
        let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = parts.ok_or_else(|| {
            invalid(format!(
                "{host_and_port:?} is not the name of a host with a port; write e.g. \"server:80\""
            ))
        })?;
        Ok(SocketAddr::new(self.address(host)?, port))
    }

    /// Returns the link between two hosts or switches.
    ///
    /// # Errors
    /// `NotFound` for an unknown name, or if they have no link.
    pub fn link(&self, a: &str, b: &str) -> io::Result<Link> {
        let link = self.inner.shared.lock().topology.find_link(a, b)?;
        Ok(Link::new(self.inner.shared.clone(), link))
    }

    /// Returns the stack of a host, e.g. for its counters.
    ///
    /// # Errors
    /// `NotFound` for an unknown name, and `NotConnected` if the host has crashed or not started.
    pub fn stack(&self, host: &str) -> io::Result<Stack> {
        let node = self.find_host(host)?;
        let mut hosts = self.inner.hosts.lock();
        let stack = hosts.entry(node).and_then(|entry| entry.stack.clone());
        stack.ok_or_else(|| {
            let text = format!("`{host}` does not run; start it with run() or restart()");
            Error::new(ErrorKind::NotConnected, text)
        })
    }

    /// Returns the virtual time since the start of the simulation.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.inner.shared.now().as_nanos())
    }

    /// Crashes a host like a power failure: its software and all tasks that it has spawned end at the
    /// points where they wait, and none runs again (a host that crashes itself runs to its next `await`).
    /// Its timers end, and its peers receive no more packets. Sockets of the host that another host or
    /// the test has fail. After a [`restart`](Self::restart) the host answers segments of earlier
    /// connections with a reset. A run does not wait for a crashed client.
    ///
    /// The values that the tasks own are dropped; only their destructors still run. Threads
    /// (`spawn_blocking`) run to their end.
    ///
    /// # Errors
    /// `NotFound` for an unknown name, and `InvalidInput` if the host is not running, or if the hosts
    /// [share a runtime](crate::Simulation::share_runtime).
    pub fn crash(&self, host: &str) -> io::Result<()> {
        let node = self.find_host(host)?;
        let mut hosts = self.inner.hosts.lock();
        if hosts.shares_machine {
            return Err(invalid(format!(
                "`{host}` cannot crash, as the hosts share a runtime; do not call share_runtime()"
            )));
        }
        let entry = hosts.entry(node);
        let Some((entry, stack)) = entry.and_then(|e| e.stack.take().map(|stack| (e, stack)))
        else {
            return Err(invalid(format!(
                "`{host}` cannot crash, as it does not run; start it with run() or restart()"
            )));
        };
        entry.state = State::Crashed;
        let machine = entry.machine.take();
        let is_running = hosts.is_running;
        hosts.crashed.extend(machine.clone());
        drop(hosts);
        Card::disconnect(&self.inner.shared, node);
        if let Some(machine) = machine {
            machine.within(|| drop(stack));
            // The calling task may belong to this machine.
            machine.stop();
        }
        if !is_running {
            self.bury_crashed();
        }
        Ok(())
    }

    /// Ends the tasks of crashed hosts. Must not be called by one of these tasks.
    pub(crate) fn bury_crashed(&self) {
        loop {
            // Destructors of the tasks may use the network, and crash other hosts.
            let Some(machine) = self.inner.hosts.lock().crashed.pop() else {
                return;
            };
            machine.shut_down();
        }
    }

    /// Starts the software of a crashed host again, with a new stack that has the same addresses.
    ///
    /// # Errors
    /// `NotFound` for an unknown name; `InvalidInput` if the host has not crashed or is a client, whose
    /// software runs once; the errors of [`Builder::build`](fullsend::Builder::build).
    pub fn restart(&self, host: &str) -> io::Result<()> {
        let node = self.find_host(host)?;
        let mut hosts = self.inner.hosts.lock();
        let crashed = hosts
            .entry(node)
            .filter(|e| matches!(e.state, State::Crashed));
        let Some(entry) = crashed else {
            return Err(invalid(format!(
                "`{host}` cannot restart, as it has not crashed; call crash(\"{host}\") before"
            )));
        };
        let Some(software) = entry.software.start() else {
            return Err(invalid(format!(
                "`{host}` cannot restart, as a client runs once; define it with Simulation::host"
            )));
        };
        drop(hosts);
        self.start(node, software)
    }

    /// Starts the hosts that have not started yet.
    pub(crate) fn start_new(&self) -> Result<(), Failure> {
        while let Some((node, host, software)) = self.take_new() {
            if let Err(error) = self.start(node, software) {
                if let Some(entry) = self.inner.hosts.lock().entry(node) {
                    // No run waits for this host, and none starts it again.
                    entry.state = State::Ended;
                }
                return Err(Failure::Start { host, error });
            }
        }
        Ok(())
    }

    /// Returns the next host that has not started, with its software, which is removed from a client.
    fn take_new(&self) -> Option<(NodeId, String, Start)> {
        let mut hosts = self.inner.hosts.lock();
        let mut new = hosts
            .entries
            .iter_mut()
            .filter(|entry| matches!(entry.state, State::New));
        new.find_map(|entry| {
            let software = entry.software.start()?;
            Some((entry.node, entry.name.to_string(), software))
        })
    }

    /// Builds the stack of a host, and spawns its software.
    fn start(&self, node: NodeId, software: Start) -> io::Result<()> {
        let inner = &self.inner;
        let mut hosts = inner.hosts.lock();
        let all = hosts.configure_all.clone();
        let Some(entry) = hosts.entry(node) else {
            return Ok(());
        };
        let (name, own) = (entry.name.clone(), entry.configure.clone());
        let (stack_seed, seed) = (entry.rng.fork(), entry.rng.next_u64());
        drop(hosts);
        let machine = inner.hosts.lock().new_machine(inner.shared.now(), seed)?;
        let settings = all.iter().chain(&own);
        let built =
            machine.within(|| self.build_stack(node, stack_seed, machine.epoch(), settings));
        let stack = match built {
            Ok(stack) => stack,
            Err(error) => {
                machine.shut_down();
                return Err(error);
            }
        };
        let host = Host {
            net: self.clone(),
            name,
            stack: stack.clone(),
            seed,
        };
        let future = machine.within(|| software(host));
        let task = machine.start(future);
        if let Some(entry) = inner.hosts.lock().entry(node) {
            entry.state = State::Running;
            entry.stack = Some(stack);
            entry.machine = Some(machine);
            entry.task = Some(task);
        }
        Ok(())
    }

    fn build_stack<'a>(
        &self,
        node: NodeId,
        seed: Seed,
        epoch: Epoch,
        settings: impl Iterator<Item = &'a crate::host::Configure>,
    ) -> io::Result<Stack> {
        let (v4, v6) = addresses(node);
        let mut builder = Stack::builder()
            .pool_bytes(POOL_BYTES)
            .seed(seed)
            .address(&format!("{v4}/16"))
            .address(&format!("{v6}/64"))
            .route("0.0.0.0/0", None)
            .route("::/0", None);
        for (key, value) in HOST_LIMITS {
            builder = builder.sysctl(key, value);
        }
        for configure in settings {
            builder = configure(builder);
        }
        let card = Card::connect(&self.inner.shared, node, epoch);
        let built = builder
            .device(Box::new(card.clone()))
            .timer(Box::new(card))
            .build();
        match &built {
            Ok(stack) => stack.set_resolver(Names(self.inner.shared.clone())),
            Err(_) => Card::disconnect(&self.inner.shared, node),
        }
        built
    }

    pub(crate) fn find_host(&self, name: &str) -> io::Result<NodeId> {
        self.inner.shared.lock().topology.find_host(name)
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net")
            .field("elapsed", &self.elapsed())
            .finish_non_exhaustive()
    }
}
