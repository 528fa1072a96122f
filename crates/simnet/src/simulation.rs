//! A simulation: its definition, and its runs.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::resume_unwind;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use fullsend::{Builder, Seed};
use fullsend_sim::TraceEvent;
use fullsend_wire::{Instant, Nanos};
use tokio::runtime::{self, Runtime};

use crate::agenda::Source;
use crate::error::{Failure, RunError, SoftwareResult, replay};
use crate::host::{Configure, Host, HostEntry, Software, State};
use crate::kernel::{CardState, Kernel};
use crate::link::{Link, parse};
use crate::net::Net;
use crate::shared::Shared;
use crate::topology::NodeId;
use crate::wire::Wire;

/// The virtual time after which a run fails, by default.
const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// Hosts with their software, joined by links, in virtual time.
///
/// A simulation runs on the calling thread, with a tokio runtime of its own whose time is virtual:
/// it stands still while any task can run, and then advances to the next event. All randomness
/// derives from the seed, so the same program with the same seed sends the same packets at the same
/// nanoseconds; [`trace_hash`](Self::trace_hash) verifies it.
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
/// When it is dropped by a panic, it prints its seed and its time.
pub struct Simulation {
    seed: u64,
    net: Net,
    time_limit: Duration,
    /// `None` once dropped.
    runtime: Option<Runtime>,
}

/// The event that a run waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The end of the clients' software.
    ClientsEnded,
    /// A time.
    Time,
}

impl Simulation {
    /// Returns a simulation without hosts at time zero. All randomness derives from `seed`.
    ///
    /// # Panics
    /// If the process cannot create a tokio runtime.
    pub fn new(seed: u64) -> Self {
        // The runtime's callback is set before its clock exists.
        let shared = Arc::new(OnceLock::<Arc<Shared>>::new());
        let runtime = build_runtime(seed, shared.clone());
        let context = runtime.enter();
        let kernel = Kernel::new(Seed::from_u64(seed));
        let network = shared.get_or_init(|| Arc::new(Shared::new(kernel)));
        let net = Net::new(network.clone(), runtime.handle().clone());
        drop(context);
        Self {
            seed,
            net,
            time_limit: TIME_LIMIT,
            runtime: Some(runtime),
        }
    }

    /// Adds a host whose software serves others: [`run`](Self::run) does not wait for its end.
    ///
    /// The software starts with the next run, with a stack of its own, and again after
    /// [`Net::restart`]. An error that it returns ends the run.
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

    /// Adds a host whose software runs to its end, for which [`run`](Self::run) waits.
    ///
    /// The software starts with the next run, with a stack of its own. An error that it returns
    /// ends the run.
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
        };
        self.net.inner().hosts.lock().entries.push(entry);
        Ok(())
    }

    /// Adds a switch, which passes packets on between its links. Several hosts then share a
    /// bottleneck, or a path has several links.
    ///
    /// Packets take the path with the fewest links, also if one of these is down.
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

    /// Joins two hosts or switches by a link with the same properties in both directions, in the
    /// words of `tc netem`, e.g. `"delay 20ms 2ms loss 0.1% rate 100mbit limit 1000"`: see
    /// [`Netem`](crate::Netem). Without any, `""`, packets arrive at once.
    ///
    /// # Errors
    /// `InvalidInput` for properties that do not parse, and for nodes that have a link already;
    /// `NotFound` for an unknown name.
    pub fn connect(&mut self, a: &str, b: &str, netem: &str) -> io::Result<Link> {
        let netem = parse(netem)?;
        let shared = self.net.inner().shared.clone();
        let mut kernel = shared.lock();
        let ends = [kernel.topology.find(a)?, kernel.topology.find(b)?];
        let number = kernel.wires.len();
        kernel.topology.connect(ends, number)?;
        let seeds = [kernel.rng.fork(), kernel.rng.fork()];
        kernel.wires.push(Wire::new(ends, netem, seeds));
        drop(kernel);
        Ok(Link::new(shared, number))
    }

    /// Sets how the stack of `host` is built, from its next start on: sysctls, the qdisc, offloads.
    /// The builder has the host's seed and addresses already; its device and timer are replaced.
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
    /// `NotFound` for an unknown name, and `InvalidInput` for a switch. An invalid setting makes
    /// the run fail in which the host starts.
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

    /// Returns a hash over every packet so far: its bytes, host and time, whether it was sent,
    /// arrived or was lost. It is the same for the same seed in every process and on every machine,
    /// as far as the software is deterministic.
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
    /// The first error of a host's software; also if a client has not ended after the
    /// [time limit](Self::set_time_limit). The simulation can be run further.
    ///
    /// # Panics
    /// With the panic of a host's software (tokio catches those of tasks that it spawned), and
    /// within a tokio runtime: call it from a plain `#[test]`.
    pub fn run(&mut self) -> Result<(), RunError> {
        self.run_until(Until::ClientsEnded, self.time_limit)
    }

    /// Runs for a span of virtual time, exact to the nanosecond. Afterwards the test may change the
    /// network, and run on.
    ///
    /// # Errors
    /// The first error of a host's software.
    ///
    /// # Panics
    /// With the panic of a host's software (tokio catches those of tasks that it spawned), and
    /// within a tokio runtime: call it from a plain `#[test]`.
    pub fn run_for(&mut self, span: Duration) -> Result<(), RunError> {
        self.run_until(Until::Time, span)
    }

    fn run_until(&mut self, until: Until, span: Duration) -> Result<(), RunError> {
        let net = self.net.clone();
        let started = net.start_new();
        let end = Instant::ZERO + Nanos::from(net.elapsed()) + Nanos::from(span);
        net.inner().shared.lock().agenda.set(Source::End, Some(end));
        let run = poll_fn(|cx| poll_run(&net, cx, until, end));
        let ended = match (&self.runtime, started) {
            (Some(runtime), Ok(())) => runtime.block_on(run),
            (_, started) => started,
        };
        net.inner().shared.lock().agenda.set(Source::End, None);
        ended.map_err(|failure| RunError {
            seed: self.seed,
            at: net.elapsed(),
            failure,
        })
    }
}

/// Returns the runtime of a simulation.
fn build_runtime(seed: u64, shared: Arc<OnceLock<Arc<Shared>>>) -> Runtime {
    let mut builder = runtime::Builder::new_current_thread();
    // Without I/O, sockets of the operating system fail instead of making results differ.
    builder.enable_time().start_paused(true);
    builder.on_thread_park(move || {
        if let Some(shared) = shared.get() {
            shared.on_idle();
        }
    });
    set_rng_seed(&mut builder, seed);
    builder
        .build()
        .unwrap_or_else(|error| panic!("the simulation has no tokio runtime: {error}"))
}

/// Seeds the random choices of tokio (`select!`), where it allows that.
#[allow(
    unexpected_cfgs,
    reason = "set by programs that use tokio's unstable features"
)]
fn set_rng_seed(builder: &mut runtime::Builder, seed: u64) {
    #[cfg(tokio_unstable)]
    builder.rng_seed(runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    #[cfg(not(tokio_unstable))]
    let _ = (builder, seed);
}

/// Polls for the end of a run.
fn poll_run(
    net: &Net,
    cx: &mut Context<'_>,
    until: Until,
    end: Instant,
) -> Poll<Result<(), Failure>> {
    let shared = &net.inner().shared;
    shared.lock().runner = Some(cx.waker().clone());
    if let Err(failure) = poll_software(net, cx) {
        return Poll::Ready(Err(failure));
    }
    if shared.is_stalled() {
        return Poll::Ready(Err(Failure::Stalled));
    }
    let hosts = net.inner().hosts.lock();
    let mut pending = hosts.pending_clients().peekable();
    if until == Until::ClientsEnded && pending.peek().is_none() {
        return Poll::Ready(Ok(()));
    }
    if shared.now() < end {
        return Poll::Pending;
    }
    Poll::Ready(match until {
        Until::Time => Ok(()),
        Until::ClientsEnded => Err(Failure::TimeLimit {
            clients: pending.map(str::to_owned).collect(),
        }),
    })
}

/// Takes the results of software that has ended.
fn poll_software(net: &Net, cx: &mut Context<'_>) -> Result<(), Failure> {
    loop {
        let mut hosts = net.inner().hosts.lock();
        match hosts.tasks.poll_join_next_with_id(cx) {
            Poll::Ready(Some(Ok((id, (node, result))))) => {
                // The result of a host that has crashed is of no interest.
                let is_running =
                    |state: &State| matches!(state, State::Running(task) if task.id() == id);
                let entry = hosts.entry(node);
                let Some(entry) = entry.filter(|entry| is_running(&entry.state)) else {
                    continue;
                };
                entry.state = State::Ended;
                if let Err(error) = result {
                    let host = entry.name.to_string();
                    return Err(Failure::Software { host, error });
                }
            }
            Poll::Ready(Some(Err(error))) => {
                drop(hosts);
                if let Ok(panic) = error.try_into_panic() {
                    resume_unwind(panic);
                }
            }
            Poll::Ready(None) | Poll::Pending => return Ok(()),
        }
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
        // Dropped without the lock: destructors of user code may use the network.
        let hosts = std::mem::take(&mut *inner.hosts.lock());
        drop(hosts);
        drop(self.runtime.take());
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
