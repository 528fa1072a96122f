//! A simulation: its definition and its runs.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fullsend::{Builder, Seed};
use fullsend_sim::TraceEvent;
use fullsend_wire::Nanos;

use crate::agenda::Source;
use crate::error::{RunError, SoftwareResult, replay};
use crate::host::{Configure, Host, HostEntry, Software, State};
use crate::kernel::{CardState, Kernel};
use crate::link::{Link, parse};
use crate::machine::Machine;
use crate::net::Net;
use crate::scheduler::{Run, Until};
use crate::shared::Shared;
use crate::topology::NodeId;
use crate::wire::Wire;

/// The virtual time after which a run fails, by default.
const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// A network of hosts with their software, joined by links, in virtual time.
///
/// A simulation runs on the calling thread, with a tokio runtime for each host. Time is virtual: it
/// stands still while any task can run, and then advances to the next event. All randomness derives from
/// the seed, so the same program with the same seed sends the same packets at the same nanoseconds;
/// [`trace_hash`](Self::trace_hash) verifies it.
///
/// ```
/// use fullsend::{TcpListener, TcpStream};
/// use fullsend_simnet::Simulation;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let mut sim = Simulation::new(1);
/// sim.host("server", async |host| {
///     let listener = TcpListener::bind(host.stack(), "0.0.0.0:7")?;
///     loop {
///         let (mut stream, _from) = listener.accept().await?;
///         tokio::spawn(async move {
///             let (mut from, mut to) = stream.split();
///             tokio::io::copy(&mut from, &mut to).await
///         });
///     }
/// })?;
/// sim.client("client", async |host| {
///     let mut stream = TcpStream::connect(host.stack(), host.resolve("server:7")?).await?;
///     stream.write_all(b"hello").await?;
///     let mut buf = [0; 5];
///     stream.read_exact(&mut buf).await?;
///     assert_eq!(&buf, b"hello");
///     Ok(())
/// })?;
/// sim.connect("client", "server", "delay 20ms loss 5%")?;
/// sim.run()?;
/// assert!(sim.net().elapsed().as_millis() >= 80, "two round trips");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A panic that drops the simulation prints its seed and its time.
pub struct Simulation {
    seed: u64,
    net: Net,
    time_limit: Duration,
}

impl Simulation {
    /// Returns a simulation without hosts at time zero. All randomness derives from `seed`.
    pub fn new(seed: u64) -> Self {
        let kernel = Kernel::new(Seed::from_u64(seed));
        Self {
            seed,
            net: Net::new(Arc::new(Shared::new(kernel))),
            time_limit: TIME_LIMIT,
        }
    }

    /// Adds a host with a server software: [`run`](Self::run) does not wait for its end.
    ///
    /// The software starts with the next run, with its own stack, and again after [`Net::restart`]. An
    /// error that it returns ends the run.
    ///
    /// # Errors
    /// `InvalidInput` for a name that exists already, is empty or contains a colon.
    pub fn host<F, Fut>(&mut self, name: &str, software: F) -> io::Result<()>
    where
        F: Fn(Host) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = SoftwareResult> + Send + 'static,
    {
        let software = move |host| Box::pin(software(host)) as _;
        self.add_host(name, Software::Server(Arc::new(software)))
    }

    /// Adds a host with a client software: [`run`](Self::run) waits for its end.
    ///
    /// The software starts with the next run, with its own stack. An error that it returns ends the run.
    ///
    /// # Errors
    /// `InvalidInput` for a name that exists already, is empty or contains a colon.
    pub fn client<F, Fut>(&mut self, name: &str, software: F) -> io::Result<()>
    where
        F: FnOnce(Host) -> Fut + Send + 'static,
        Fut: Future<Output = SoftwareResult> + Send + 'static,
    {
        let software = move |host| Box::pin(software(host)) as _;
        self.add_host(name, Software::Client(Some(Box::new(software))))
    }

    fn add_host(&mut self, name: &str, software: Software) -> io::Result<()> {
        let (node, seed) = self.add_node(name, true)?;
        let entry = HostEntry {
            node,
            name: name.into(),
            software,
            configure: None,
            rng: fullsend_wire::Rng::new(seed),
            state: State::New,
            stack: None,
            machine: None,
            task: None,
        };
        self.net.inner().hosts.lock().entries.push(entry);
        Ok(())
    }

    /// Adds a switch, which forwards packets between its links, so that several hosts share a bottleneck,
    /// or a path has several links.
    ///
    /// Packets take the path with the fewest links, even if one of these links is down.
    ///
    /// # Errors
    /// `InvalidInput` for a name that exists already, is empty or contains a colon.
    pub fn switch(&mut self, name: &str) -> io::Result<()> {
        self.add_node(name, false).map(drop)
    }

    fn add_node(&mut self, name: &str, is_host: bool) -> io::Result<(NodeId, Seed)> {
        let mut kernel = self.net.inner().shared.lock();
        let node = kernel.topology.add(name, is_host)?;
        kernel.cards.push(CardState::default());
        Ok((node, kernel.rng.fork()))
    }

    /// Joins two hosts or switches with a link that has the same properties in both directions, in the
    /// words of `tc netem`, e.g. `"delay 20ms 2ms loss 0.1% rate 100mbit limit 1000"`: see
    /// [`Netem`](crate::Netem). With the empty text `""`, packets arrive at once.
    ///
    /// # Errors
    /// `InvalidInput` for properties that do not parse, and for nodes that already have a link;
    /// `NotFound` for an unknown name.
    pub fn connect(&mut self, a: &str, b: &str, netem: &str) -> io::Result<Link> {
        let netem = parse(netem)?;
        let shared = self.net.inner().shared.clone();
        let mut kernel = shared.lock();
        let ends = [kernel.topology.find(a)?, kernel.topology.find(b)?];
        let number = kernel.wires.len();
        kernel.topology.connect(ends, number)?;
        let seeds = [kernel.rng.fork(), kernel.rng.fork()];
        kernel.add_wire(Wire::new(ends, netem, seeds));
        drop(kernel);
        Ok(Link::new(shared, number))
    }

    /// Sets how the stack of `host` is built from its next start on: sysctls, the qdisc, offloads. The
    /// builder already has the host's seed and addresses; its device and timer are replaced.
    ///
    /// ```
    /// # use fullsend_simnet::Simulation;
    /// let mut sim = Simulation::new(1);
    /// sim.host("server", async |_| Ok(()))?;
    /// sim.configure("server", |builder| {
    ///     builder.sysctl("tcp_congestion_control", "bbr").qdisc("fq")
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` for an unknown name, and `InvalidInput` for a switch. An invalid setting makes the run
    /// fail in which the host starts.
    pub fn configure(
        &mut self,
        host: &str,
        settings: impl Fn(Builder) -> Builder + Send + Sync + 'static,
    ) -> io::Result<()> {
        let node = self.net.find_host(host)?;
        if let Some(entry) = self.net.inner().hosts.lock().entry(node) {
            entry.configure = Some(Arc::new(settings));
        }
        Ok(())
    }

    /// Sets how the stacks of all hosts are built, from their next start on. The settings of
    /// [`configure`](Self::configure) are applied after these.
    pub fn configure_all(&mut self, settings: impl Fn(Builder) -> Builder + Send + Sync + 'static) {
        let settings: Configure = Arc::new(settings);
        self.net.inner().hosts.lock().configure_all = Some(settings);
    }

    /// Runs all hosts within one tokio runtime. Call it before the first run. Time then advances from
    /// event to event, however far apart they are; with a runtime for each host, every idle span of the
    /// least delay of any link costs computing time for each host. With a shared runtime, no host can
    /// crash.
    pub fn share_runtime(&mut self) {
        self.net.inner().hosts.lock().shares_machine = true;
    }

    /// Sets the virtual time that a single [`run`](Self::run) may take; by default one hour.
    pub fn set_time_limit(&mut self, limit: Duration) {
        self.time_limit = limit;
    }

    /// Sets a callback for every packet that enters a link, arrives or is lost, with the name of
    /// the host or switch; [`format_packet`](crate::format_packet) formats it as text. The callback
    /// must not use the network, which is locked.
    pub fn set_observer(&mut self, observer: impl FnMut(&str, &TraceEvent<'_>) + Send + 'static) {
        self.net.inner().shared.lock().observer = Some(Box::new(observer));
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the network: its addresses, links and hosts.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Returns a hash over every packet so far: its bytes, host and time, and whether it was sent,
    /// arrived or was lost. With the same seed it is the same in every process and on every machine if
    /// the software is deterministic.
    pub fn trace_hash(&self) -> u64 {
        self.net.inner().shared.lock().hash.value()
    }

    /// Returns the number of packets to an address that no host has, or to which no path leads.
    pub fn unroutable_packets(&self) -> u64 {
        self.net.inner().shared.lock().unroutable
    }

    /// Runs until the software of every client has ended.
    ///
    /// # Errors
    /// The first error of a host's software, or an error if a client has not ended after the [time
    /// limit](Self::set_time_limit). The simulation can then be run further.
    ///
    /// # Panics
    /// Propagates a panic of a host's software (tokio catches those of tasks that it spawned). Panics
    /// within a tokio runtime: call it from a plain `#[test]`.
    pub fn run(&mut self) -> Result<(), RunError> {
        self.run_until(Until::ClientsEnded, self.time_limit)
    }

    /// Runs for a span of virtual time, exact to the nanosecond. Afterwards the test may change the
    /// network, and run again.
    ///
    /// # Errors
    /// The first error of a host's software.
    ///
    /// # Panics
    /// Propagates a panic of a host's software (tokio catches those of tasks that it spawned). Panics
    /// within a tokio runtime: call it from a plain `#[test]`.
    pub fn run_for(&mut self, span: Duration) -> Result<(), RunError> {
        self.run_until(Until::Time, span)
    }

    fn run_until(&mut self, until: Until, span: Duration) -> Result<(), RunError> {
        let net = self.net.clone();
        let started = net.start_new();
        let end = net.inner().shared.now() + Nanos::from(span);
        net.inner().shared.lock().agenda.set(Source::End, Some(end));
        let run = Run {
            net: &net,
            until,
            end,
        };
        let ended = started.and_then(|()| run.run());
        net.inner().shared.lock().agenda.set(Source::End, None);
        ended.map_err(|failure| RunError {
            seed: self.seed,
            at: net.elapsed(),
            failure,
        })
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let at = self.net.elapsed();
            let replay = replay(self.seed);
            eprintln!(
                "the simulation with seed {} ended at {at:?}; {replay}",
                self.seed
            );
        }
        let inner = self.net.inner();
        inner.shared.close();
        // The hosts are dropped without the lock, as destructors of user code may use the network.
        let mut hosts = std::mem::take(&mut *inner.hosts.lock());
        for entry in &mut hosts.entries {
            if let Some(machine) = entry.machine.take() {
                machine.within(|| drop(entry.stack.take()));
                machine.shut_down();
            }
        }
        let machines = hosts.crashed.into_iter().chain(hosts.shared_machine);
        machines.for_each(Machine::shut_down);
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("seed", &self.seed)
            .field("net", &self.net)
            .finish_non_exhaustive()
    }
}
