//! The public handle of a stack.

use std::io;
use std::sync::Arc;

use fullsend_device::{NicMode, PairConfig, pair};
use fullsend_offload::Link;
use fullsend_offload::Pool;
use fullsend_stack::{OwnAddress, QdiscConfig, QdiscStats, SockStat};
use fullsend_wire::Seed;

use crate::builder::Builder;
use crate::clock::Clock;
use crate::engine::{DriverWaker, Engine, EngineHandle};
use crate::error::sysctl_error;

/// A TCP/IP stack in this process. Clones are handles to the same stack.
///
/// Its driver task runs on the tokio runtime in which it was built. The task ends when the last
/// handle and the last socket are dropped and every connection has been closed, with its data
/// delivered or timed out.
///
/// When a stack stops (see [`closed`](Self::closed)), every call on its sockets fails with the same
/// error.
#[derive(Clone)]
pub struct Stack {
    pub(crate) engine: EngineHandle,
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
        let (a, b) = pair(PairConfig {
            nic: config.nic,
            link: Link::Ip,
            mtu: config.mtu,
            ..PairConfig::default()
        });
        let clock = Clock::new();
        let (driver_waker_a, driver_waker_b) =
            (Arc::<DriverWaker>::default(), Arc::<DriverWaker>::default());
        let (link_waker_a, link_waker_b) = (driver_waker_a.clone(), driver_waker_b.clone());
        a.on_ready(move || link_waker_a.defer_wake());
        b.on_ready(move || link_waker_b.defer_wake());
        let build = |n: u64| {
            let mut builder = Self::builder()
                .address(&format!("10.0.0.{n}/24"))
                .address(&format!("fd00::{n}/64"))
                .route("0.0.0.0/0", None)
                .route("::/0", None)
                .qdisc(&config.qdisc)
                .gro(config.gro);
            for (key, value) in &config.sysctl {
                builder = builder.sysctl(key, value);
            }
            match config.seed {
                Some(seed) => builder.seed(Seed::from_u64(seed.wrapping_mul(2).wrapping_add(n))),
                None => builder,
            }
        };
        let a = build(1).start(clock, driver_waker_a, |_, _| Ok(Box::new(a)))?;
        let b = build(2).start(clock, driver_waker_b, |_, _| Ok(Box::new(b)))?;
        Engine::connect_peers(&a.engine, &b.engine);
        Ok((a, b))
    }

    pub(crate) fn new(engine: EngineHandle) -> Self {
        Self { engine }
    }

    /// Returns the value of a tunable by its Linux name (`net.ipv4.` may be omitted), as Linux
    /// writes it.
    ///
    /// # Errors
    /// `InvalidInput` if there is no tunable of that name; the stack's error if it has stopped.
    pub fn sysctl(&self, key: &str) -> io::Result<String> {
        self.engine
            .op(|host, _| host.sysctl().get(key).map_err(|e| sysctl_error(&e)))
    }

    /// Sets a tunable by its Linux name (`net.ipv4.` may be omitted). The value applies from now
    /// on, as on Linux.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown name or an invalid value; the message names it and what to
    /// write instead. The stack's error if it has stopped.
    pub fn set_sysctl(&self, key: &str, value: &str) -> io::Result<()> {
        self.engine.op(|host, now| {
            host.set_sysctl(now, key, value)
                .map_err(|error| sysctl_error(&error))
        })
    }

    /// Returns every tunable: its full Linux name and its value.
    pub fn sysctls(&self) -> Vec<(&'static str, String)> {
        self.engine.with_host(|host| host.sysctl().list().collect())
    }

    /// Returns the stack's addresses with their states. On Ethernet an IPv6 address is `Tentative`
    /// for a second (RFC 4862 5.4), and `Duplicate` if another host on the link has it; sockets can
    /// be bound to it while it is `Preferred`.
    pub fn addresses(&self) -> Vec<OwnAddress> {
        self.engine.with_host(fullsend_stack::Host::addresses)
    }

    /// Returns every counter since the start of the stack, by its `nstat` name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.engine.with_host(fullsend_stack::Host::counters)
    }

    /// Returns the statistics of the queueing discipline. They are displayed as `tc -s qdisc` does.
    pub fn qdisc_stats(&self) -> QdiscStats {
        self.engine.with_host_and_iface(|host, iface| {
            let stats = host.qdisc_stats(iface);
            stats.unwrap_or(QdiscConfig::NoQueue.empty_stats())
        })
    }

    /// Returns the pool of the stack's payload memory. Data that is read into a
    /// [`WriteBuf`](crate::WriteBuf) from it can be sent without a copy
    /// ([`TcpStream::write_slices`](crate::TcpStream::write_slices)).
    pub fn pool(&self) -> Pool {
        self.engine.with_host(|host| host.pool().clone())
    }

    /// Returns the number of TCP sockets and the memory that they use. They are displayed as a line
    /// of `/proc/net/sockstat`.
    pub fn sockstat(&self) -> SockStat {
        self.engine.with_host(fullsend_stack::Host::sockstat)
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

    /// Returns why the stack has stopped, as [`closed`](Self::closed) does, or `None` while it
    /// runs.
    pub fn close_reason(&self) -> Option<io::Error> {
        self.engine.close_reason()
    }
}
