//! The public handle of a stack.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use fullsend_device::{Device, NicMode, PairConfig, PairEnd, os_seed, pair};
use fullsend_offload::Link;
use fullsend_offload::Pool;
use fullsend_stack::{
    AddressState, FastopenServer, Host, OwnAddress, QdiscConfig, QdiscStats, SockStat,
};
use fullsend_wire::{Instant, Seed};
use tokio::runtime::Handle;

use crate::addr::ToAddrs;
use crate::builder::{Builder, check_shards};
use crate::clock::Clock;
use crate::engine::{DriverWaker, Engine, EngineHandle};
use crate::error::{io_error, sysctl_error};
use crate::resolve::Resolve;

/// A TCP/IP stack in this process. Clones are handles to the same stack.
///
/// Its driver task runs on the tokio runtime in which it was built, unless
/// [`Builder::shards_on`] sets another one. The task ends when the last
/// handle and the last socket are dropped and every connection has been closed, with its data
/// delivered or timed out.
///
/// When a stack stops (see [`closed`](Self::closed)), every call on its sockets fails with the same
/// error.
///
/// # Shards
/// A stack may have several shards ([`Builder::shards`]): each has its queue of the device, its
/// driver task and its lock, so that they run in parallel on several processors. Each TCP connection
/// belongs to one of them for its whole life, by a hash of its addresses and ports. The stack opens
/// connections on its shards in turn, and a listener accepts those of every shard. Counters are
/// summed over the shards; limits of the whole stack, such as `tcp_mem`, are divided among them. UDP
/// and ICMP are processed by the first shard.
#[derive(Clone)]
pub struct Stack {
    /// The first shard.
    pub(crate) engine: EngineHandle,
    /// All shards.
    engines: Arc<[Arc<Engine>]>,
    /// The only shard that opens and accepts connections; `None` for all.
    only: Option<EngineHandle>,
}

/// Settings of two stacks joined by an in-process link, for [`Stack::pair`].
#[derive(Clone, Debug)]
pub struct Pair {
    /// The link's network cards: they carry whole super-segments, or only packets of the MTU with
    /// computed and verified checksums.
    pub nic: NicMode,
    /// Size of the largest IP packet, in bytes.
    pub mtu: u32,
    /// Tunables of both stacks, each a Linux name and a value.
    pub sysctl: Vec<(String, String)>,
    /// The queueing discipline in front of each network card; see [`Builder::qdisc`].
    pub qdisc: String,
    /// Whether both stacks coalesce received packets; see [`Builder::gro`].
    pub gro: bool,
    /// The number of shards of each stack; see [`Builder::shards`]. Both have the same, and the two
    /// ends of a connection belong to shards of the same index.
    pub shards: usize,
    /// The runtime of the drivers of each shard, as for [`Builder::shards_on`]; empty for the
    /// current runtime.
    pub runtimes: Vec<Handle>,
    /// The seed of the stacks' random numbers; with `None`, they come from the operating system.
    pub seed: Option<u64>,
}

impl Default for Pair {
    fn default() -> Self {
        Self {
            nic: NicMode::Tso,
            mtu: 1500,
            sysctl: Vec::new(),
            qdisc: "noqueue".to_owned(),
            gro: true,
            shards: 1,
            runtimes: Vec::new(),
            seed: None,
        }
    }
}

impl Stack {
    /// Returns a builder of a stack.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Builds two stacks in this process, joined by a link. The first has 10.0.0.1 and fd00::1, the
    /// second 10.0.0.2 and fd00::2; each routes all other addresses to the other. This needs
    /// neither root nor a device.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// use fullsend::{Pair, Stack, TcpListener, TcpStream};
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// let (here, there) = Stack::pair(&Pair::default())?;
    /// let listener = TcpListener::bind(&there, "10.0.0.2:7")?;
    /// let mut client = TcpStream::connect(&here, "10.0.0.2:7").await?;
    /// let (mut server, _from) = listener.accept().await?;
    /// client.write_all(b"hello").await?;
    /// let mut buf = [0; 5];
    /// server.read_exact(&mut buf).await?;
    /// assert_eq!(&buf, b"hello");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for an invalid setting, and `Other` outside of a tokio runtime.
    pub fn pair(config: &Pair) -> io::Result<(Self, Self)> {
        let shards = match config.runtimes.len() {
            0 => config.shards,
            runtimes => runtimes,
        };
        check_shards(shards)?;
        let links: Vec<_> = (0..shards)
            .map(|_| {
                pair(PairConfig {
                    nic: config.nic,
                    link: Link::Ip,
                    mtu: config.mtu,
                    ..PairConfig::default()
                })
            })
            .collect();
        let clock = Clock::new();
        // Both stacks steer flows with the same key, so that no packet is handed over.
        let steering_seed = config
            .seed
            .map_or_else(os_seed, |seed| Ok(Seed::from_u64(seed)))?;
        let build = |n: u64, ends: Vec<PairEnd>| {
            let queues = ends.into_iter().map(|end| {
                let driver_waker = Arc::<DriverWaker>::default();
                let link_waker = driver_waker.clone();
                end.on_ready(move || link_waker.defer_wake());
                (driver_waker, Box::new(end) as Box<dyn Device>)
            });
            let (driver_wakers, queues): (Vec<_>, Vec<_>) = queues.unzip();
            let mut builder = Self::builder()
                .address(&format!("10.0.0.{n}/24"))
                .address(&format!("fd00::{n}/64"))
                .route("0.0.0.0/0", None)
                .route("::/0", None)
                .qdisc(&config.qdisc)
                .gro(config.gro)
                .shards(config.shards);
            if !config.runtimes.is_empty() {
                builder = builder.shards_on(config.runtimes.clone());
            }
            for (key, value) in &config.sysctl {
                builder = builder.sysctl(key, value);
            }
            if let Some(seed) = config.seed {
                builder = builder.seed(Seed::from_u64(seed.wrapping_mul(2).wrapping_add(n)));
            }
            builder.start(clock, driver_wakers, steering_seed, |_, _| Ok(queues))
        };
        let (ends_a, ends_b) = links.into_iter().unzip();
        let (a, b) = (build(1, ends_a)?, build(2, ends_b)?);
        for (a, b) in a.engines().iter().zip(b.engines()) {
            Engine::connect_peers(a, b);
        }
        Ok((a, b))
    }

    /// Returns the handle to a stack of these shards, of which there is at least one.
    pub(crate) fn new(engines: Vec<Arc<Engine>>) -> Self {
        Self {
            engine: EngineHandle::new(engines[0].clone()),
            engines: engines.into(),
            only: None,
        }
    }

    /// Returns the number of shards.
    pub fn shard_count(&self) -> usize {
        self.engines.len()
    }

    /// Returns a handle whose connections are those of shard `index` only, or `None` if the stack
    /// has no such shard: it opens connections there, and its listeners accept there. Peers whose
    /// connections belong to another shard, on which no listener is bound, are refused. Everything
    /// else is as with a handle to the whole stack.
    ///
    /// A server with a runtime for each processor ([`Builder::shards_on`]) listens on each shard
    /// from its runtime, so that its connections never leave their processor.
    pub fn shard(&self, index: usize) -> Option<Self> {
        let only = EngineHandle::new(self.engines.get(index)?.clone());
        Some(Self {
            only: Some(only),
            ..self.clone()
        })
    }

    /// Returns all shards of the stack.
    pub(crate) fn engines(&self) -> &[Arc<Engine>] {
        &self.engines
    }

    /// Returns the shards on which this handle's listeners accept.
    pub(crate) fn accepting(&self) -> Vec<EngineHandle> {
        match &self.only {
            Some(only) => vec![only.clone()],
            None => self
                .engines
                .iter()
                .cloned()
                .map(EngineHandle::new)
                .collect(),
        }
    }

    /// Returns the Fast Open cookie that a server has sent to any shard, for the shard that connects.
    pub(crate) fn fastopen_server(&self, peer: IpAddr) -> Option<FastopenServer> {
        if self.shard_count() == 1 {
            return None;
        }
        let find = |engine: &Arc<Engine>| engine.with_host(|host| host.fastopen_server(peer));
        self.engines.iter().find_map(find)
    }

    /// Opens a connection from `local`, whose port may be chosen by the host, to `remote`: calls
    /// `open` on the shard that it belongs to, and returns this shard with the result.
    pub(crate) fn open_connection<R>(
        &self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        mut open: impl FnMut(&mut Host, Instant) -> io::Result<R>,
    ) -> io::Result<(EngineHandle, R)> {
        let shards = self.shard_count();
        let only = self.only.as_ref().or((shards == 1).then_some(&self.engine));
        if let Some(engine) = only {
            let opened = engine.op(&mut open)?;
            return Ok((engine.clone(), opened));
        }
        let open_on = |index: usize, open: &mut dyn FnMut(&mut Host, Instant) -> io::Result<R>| {
            let engine = EngineHandle::new(self.engines[index % shards].clone());
            let opened = engine.op(open)?;
            Ok((engine, opened))
        };
        if let Some(local) = local.filter(|local| local.port() != 0) {
            let shard = |host: &mut Host, _| host.tcp_flow_shard(local, remote).map_err(io_error);
            return open_on(self.engine.op(shard)?, &mut open);
        }
        let first = self.engine.group.next_index();
        for index in first..first + shards - 1 {
            match open_on(index, &mut open) {
                // Each shard has its part of the ephemeral ports to a destination.
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
                opened => return opened,
            }
        }
        open_on(first + shards - 1, &mut open)
    }

    /// Returns the value of a tunable by its Linux name (`net.ipv4.` may be omitted), as Linux
    /// writes it.
    ///
    /// # Errors
    /// `InvalidInput` if there is no tunable of that name; the stack's error if it has stopped.
    pub fn sysctl(&self, key: &str) -> io::Result<String> {
        self.engine.op(|_, _| Ok(()))?;
        let value = self.engine.group.sysctl(key);
        value.map_err(|error| sysctl_error(&error))
    }

    /// Sets a tunable by its Linux name (`net.ipv4.` may be omitted). The value applies from now
    /// on, as on Linux.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown name or an invalid value; the message names it and what to
    /// write instead. The stack's error if it has stopped.
    pub fn set_sysctl(&self, key: &str, value: &str) -> io::Result<()> {
        self.engine.group.set_sysctl(key, value)
    }

    /// Sets the resolver of names, such as `TcpStream::connect(&stack, "example.com:80")`, of all
    /// handles to this stack. At first it is that of [`Builder::dns_server`] or [`Builder::resolver`];
    /// without either, the [`SystemResolver`](crate::SystemResolver), which queries *outside* of the
    /// stack, with a warning at the first name.
    pub fn set_resolver(&self, resolver: impl Resolve) {
        self.engine.group.set_resolver(Arc::new(resolver));
    }

    /// Returns the addresses of a host, as the stack's resolver finds them: the twin of
    /// `tokio::net::lookup_host`.
    ///
    /// # Errors
    /// `InvalidInput` for a string that is not a host with a port, `NotFound` for a name without an
    /// address, and those of the resolver.
    pub async fn lookup_host<T: ToAddrs>(
        &self,
        host: T,
    ) -> io::Result<impl Iterator<Item = SocketAddr> + use<T>> {
        let addrs = host.to_addrs()?.resolve(&self.engine).await?;
        Ok(addrs.into_iter())
    }

    /// Returns every tunable: its full Linux name and its value.
    pub fn sysctls(&self) -> Vec<(&'static str, String)> {
        self.engine.group.sysctls()
    }

    /// Returns the stack's addresses with their states. On Ethernet an IPv6 address is `Tentative`
    /// for a second (RFC 4862 5.4), and `Duplicate` if another host on the link has it; sockets can
    /// be bound to it while it is `Preferred`.
    pub fn addresses(&self) -> Vec<OwnAddress> {
        // The first shard detects duplicates, and the others use an address a little later.
        let tentative = |list: &Vec<OwnAddress>| {
            let is_tentative = |own: &&OwnAddress| own.state == AddressState::Tentative;
            list.iter().filter(is_tentative).count()
        };
        let engines = self.engines.iter().rev();
        let lists = engines.map(|engine| engine.with_host(Host::addresses));
        lists.max_by_key(tentative).unwrap_or_default()
    }

    /// Returns every counter since the start of the stack, by its `nstat` name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.engine.group.counters(&self.engines)
    }

    /// Returns the statistics of the queueing discipline, summed over the shards. They are displayed
    /// as `tc -s qdisc` does.
    pub fn qdisc_stats(&self) -> QdiscStats {
        let stats = |engine: &Arc<Engine>| engine.with_host_and_iface(Host::qdisc_stats);
        let mut all = self.engines().iter().filter_map(stats).collect::<Vec<_>>();
        let first = all.pop().unwrap_or(QdiscConfig::NoQueue.empty_stats());
        all.into_iter().fold(first, |mut sum, stats| {
            sum += stats;
            sum
        })
    }

    /// Returns the pool of the stack's payload memory. Data that is read into a
    /// [`WriteBuf`](crate::WriteBuf) from it can be sent without a copy
    /// ([`TcpStream::write_slices`](crate::TcpStream::write_slices)).
    pub fn pool(&self) -> Pool {
        let engine = self.only.as_ref().unwrap_or(&self.engine);
        engine.with_host(|host| host.pool().clone())
    }

    /// Returns the number of TCP sockets and the memory that they use. They are displayed as a line
    /// of `/proc/net/sockstat`.
    pub fn sockstat(&self) -> SockStat {
        let mut all = SockStat::default();
        for engine in self.engines() {
            all += engine.with_host(Host::sockstat);
        }
        all
    }

    /// Waits until all data and FINs of every connection have been acknowledged, then resets the
    /// connections that are still open and stops the stack. Once it has returned, the process can
    /// exit without losing written data.
    ///
    /// If a peer is gone, it waits until that connection times out (about 15 minutes by default,
    /// see `tcp_retries2`). Wrap it in `tokio::time::timeout` to bound the wait; to stop without
    /// waiting, drop all sockets.
    ///
    /// # Errors
    /// If the stack has already stopped, or stops for another reason than a concurrent `shutdown`.
    pub async fn shutdown(&self) -> io::Result<()> {
        self.engine.flush_and_stop().await
    }

    /// Waits until the stack has stopped, and returns the reason: `NetworkDown` if its device
    /// failed or was deleted; `ConnectionAborted` after a [`shutdown`](Self::shutdown), or when the
    /// runtime on which it ran has ended. Every socket of a stopped stack fails with the same
    /// error.
    ///
    /// Servers that report no error, such as `axum::serve`, can use it to end:
    ///
    /// ```no_run
    /// # use fullsend::{Stack, TcpListener};
    /// # async fn serve(stack: Stack, listener: TcpListener) {
    /// tokio::select! {
    ///     why = stack.closed() => eprintln!("the stack has stopped: {why}"),
    ///     _ = listener.accept() => {}
    /// }
    /// # }
    /// ```
    pub async fn closed(&self) -> io::Error {
        self.engine.closed().await
    }

    /// Returns the reason why the stack has stopped, as [`closed`](Self::closed) does, or `None` while it
    /// runs.
    pub fn close_reason(&self) -> Option<io::Error> {
        self.engine.group.close_reason()
    }
}
