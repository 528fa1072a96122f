//! The stack as its user holds it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use fullsend_device::{NicMode, PairConfig, pair};
use fullsend_offload::Link;
use fullsend_stack::{OwnAddress, QdiscConfig, QdiscStats, SockStat};
use fullsend_units::Seed;

use crate::builder::Builder;
use crate::clock::Clock;
use crate::engine::{Engine, Handle, Kick};
use crate::error::sysctl_error;

/// A TCP/IP stack in this process. Clones are handles to the same stack.
///
/// Its task runs on the tokio runtime it was built on until the last handle and the last socket
/// are gone and what they left behind has been delivered.
#[derive(Clone)]
pub struct Stack {
    pub(crate) engine: Handle,
}

/// How to build two stacks with a link between them.
#[derive(Clone, Debug)]
pub struct Pair {
    /// What the link's network cards do: carry super-segments whole, or only packets of the MTU
    /// with checksums computed and verified.
    pub nic: NicMode,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Tunables of both, by Linux name.
    pub sysctl: Vec<(String, String)>,
    /// What waits in front of each network card; see [`Builder::qdisc`].
    pub qdisc: String,
    /// Whether both coalesce what they receive; see [`Builder::gro`].
    pub gro: bool,
    /// What both derive their random numbers from; the operating system's when `None`.
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
    /// Starts building one.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Two stacks in this process, joined by a link: the first is 10.0.0.1 and fd00::1, the
    /// second 10.0.0.2 and fd00::2; all other addresses are routed to the other side. No root, no
    /// device.
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
    pub fn pair(config: &Pair) -> io::Result<(Self, Self)> {
        let (a, b) = pair(PairConfig {
            nic: config.nic,
            link: Link::Ip,
            mtu: config.mtu,
            ..PairConfig::default()
        });
        let clock = Clock::new();
        let (kick_a, kick_b) = (Arc::<Kick>::default(), Arc::<Kick>::default());
        let (note_a, note_b) = (kick_a.clone(), kick_b.clone());
        a.on_ready(move || note_a.note());
        b.on_ready(move || note_b.note());
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
        let a = build(1).start(clock, kick_a, |_, _| Ok(Box::new(a)))?;
        let b = build(2).start(clock, kick_b, |_, _| Ok(Box::new(b)))?;
        Engine::join(&a.engine, &b.engine);
        Ok((a, b))
    }

    pub(crate) fn new(engine: Handle) -> Self {
        Self { engine }
    }

    /// A tunable's value by its Linux name, in Linux's text form.
    pub fn sysctl(&self, key: &str) -> io::Result<String> {
        self.engine
            .op(|host, _| host.sysctl().get(key).map_err(|e| sysctl_error(&e)))
    }

    /// Sets a tunable. It holds for what happens from now on, as on Linux.
    pub fn set_sysctl(&self, key: &str, value: &str) -> io::Result<()> {
        self.engine.set_sysctl(key, value)
    }

    /// Opens a socket through which `fullsend stat` looks into this stack, as
    /// [`Builder::control_socket`] does. Must be called within the tokio runtime that drives it.
    ///
    /// # Errors
    /// If the path is taken or cannot be written; the text names it and the mend.
    pub fn control_socket(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.engine.open_control(path.as_ref())
    }

    /// Every tunable: full Linux name and value.
    pub fn sysctls(&self) -> Vec<(&'static str, String)> {
        self.engine.look(|host| host.sysctl().list().collect())
    }

    /// Returns the stack's addresses with their states. On Ethernet an IPv6 address is `Tentative`
    /// for a second (RFC 4862 5.4), and `Duplicate` if another host on the link has it; sockets
    /// can be bound to it while it is `Preferred`.
    pub fn addresses(&self) -> Vec<OwnAddress> {
        self.engine.look(fullsend_stack::Host::addresses)
    }

    /// Every counter by its `nstat` name, since the stack's start.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.engine.look(fullsend_stack::Host::counters)
    }

    /// What the queue in front of the device has done and holds; as text, `tc -s qdisc`'s lines.
    pub fn qdisc_stats(&self) -> QdiscStats {
        self.engine.look_at_iface(|host, iface| {
            let stats = host.qdisc_stats(iface);
            stats.unwrap_or(QdiscConfig::NoQueue.no_stats())
        })
    }

    /// How many TCP sockets there are and what memory they hold; as text, the line of
    /// `/proc/net/sockstat`.
    pub fn sockstat(&self) -> SockStat {
        self.engine.look(fullsend_stack::Host::sockstat)
    }

    /// Waits until every byte written on any connection, and every FIN, has been acknowledged,
    /// then resets what is still open and stops the stack. After it returns, ending the process
    /// loses nothing that was written.
    ///
    /// It ends by itself even if a peer is gone, when that connection times out (about 15 minutes
    /// by default, see `tcp_retries2`); put a `tokio::time::timeout` around it for less, and drop
    /// all sockets to stop without waiting.
    ///
    /// # Errors
    /// If the stack has stopped before, other than by a `shutdown` that this one waited beside.
    pub async fn shutdown(&self) -> io::Result<()> {
        self.engine.flush_and_stop().await
    }

    /// Waits until the stack has stopped, and returns why: `NetworkDown` if its device failed or was
    /// deleted, `ConnectionAborted` after a [`shutdown`](Self::shutdown) or when the runtime that
    /// drove it ended. Every socket of a stopped stack fails with the same error.
    ///
    /// A server that has no error of its own, as `axum::serve`, ends with it:
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

    /// Returns why the stack has stopped, as [`closed`](Self::closed) does, or `None` while it runs.
    pub fn close_reason(&self) -> Option<io::Error> {
        self.engine.close_reason()
    }
}
