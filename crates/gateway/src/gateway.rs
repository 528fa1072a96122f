//! A gateway, its builder, and its handle.

use std::future::{Future, poll_fn};
use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::task::Poll;

use fullsend::{IcmpSocket, Pool, Stack, TransparentListener};
use fullsend_device::Device;
use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{AbortHandle, JoinSet};

use crate::config::Config;
use crate::counters::{AtomicCounters, Counters};
use crate::dhcp::{serve_v4, serve_v6};
use crate::forward::{Forward, ForwardId};
use crate::forwards::Forwards;
use crate::icmp::{Pings, receive_icmp};
use crate::rate::RateLimit;
use crate::resolvers::Resolvers;
use crate::router::advertise;
use crate::tcp::accept_outbound;
use crate::udp::{Udp, expire_flows, receive_outbound};

/// Descriptors that are left to everything except flows.
const OTHER_DESCRIPTORS: u64 = 64;

/// What the tasks of a gateway share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) stack: Stack,
    /// The stack's payload memory.
    pub(crate) pool: Pool,
    pub(crate) counters: AtomicCounters,
    pub(crate) resolvers: Resolvers,
    pub(crate) forwards: Forwards,
    pub(crate) udp: Udp,
    pub(crate) pings: Pings,
    pub(crate) icmp: IcmpSocket,
    /// Notified when the guest asks for a router advertisement.
    pub(crate) router_solicited: Notify,
    /// One for each DNS query that may still be relayed.
    pub(crate) dns_permits: Arc<Semaphore>,
    /// One for each TCP connection that may still be opened.
    pub(crate) tcp_permits: Arc<Semaphore>,
    tcp_limit: usize,
    /// Limits of the payload that the guest sends, and of what it receives.
    pub(crate) tx_rate: RateLimit,
    pub(crate) rx_rate: RateLimit,
    runtime: tokio::runtime::Handle,
    /// The tasks of all flows, which end with the gateway.
    tasks: Mutex<JoinSet<()>>,
    task_spawned: Notify,
    stop: Notify,
}

impl Shared {
    /// Spawns a task that ends with the gateway at the latest.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let handle = self.tasks.lock().spawn_on(task, &self.runtime);
        self.task_spawned.notify_one();
        handle
    }

    /// Returns the gateway's link-local address.
    pub(crate) fn link_local(&self) -> Ipv6Addr {
        link_local(self.config.mac)
    }

    /// Removes the tasks that end, until it is dropped. A panic of a task is passed on.
    async fn reap_tasks(&self) {
        loop {
            let ended = poll_fn(|cx| match self.tasks.lock().poll_join_next(cx) {
                Poll::Ready(None) => Poll::Ready(None),
                ended => ended,
            });
            match ended.await {
                Some(Err(error)) if error.is_panic() => {
                    std::panic::resume_unwind(error.into_panic())
                }
                Some(_) => {}
                None => self.task_spawned.notified().await,
            }
        }
    }
}

/// Returns how many flows of TCP and of UDP the descriptors of the process allow, at most the
/// configured numbers.
fn descriptor_limits(config: &Config) -> (usize, usize) {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    let available = usize::try_from(soft.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(usize::MAX);
    let udp = config.limits.udp_flows.min(available / 4);
    let tcp = config.limits.tcp_connections.min(available - udp);
    // Tokio's semaphores have a limit of their own.
    (tcp.min(Semaphore::MAX_PERMITS), udp)
}

/// Returns the link-local address that belongs to an Ethernet address (RFC 4291, appendix A).
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfe, 0x80]);
    octets[8..11].copy_from_slice(&mac[..3]);
    octets[8] ^= 2;
    octets[11..13].copy_from_slice(&[0xff, 0xfe]);
    octets[13..].copy_from_slice(&mac[3..]);
    octets.into()
}

/// Builds the stack behind the guest's device.
fn build_stack(config: &Config, device: Box<dyn Device>, backlog: usize) -> io::Result<Stack> {
    let mut builder = Stack::builder()
        .device(device)
        .mtu(config.mtu)
        .mac(config.mac)
        .router(config.proxy_neighbors)
        .sysctl(
            "net.core.somaxconn",
            &backlog.clamp(1, 0xff_ffff).to_string(),
        );
    if let Some(path) = &config.control_socket {
        builder = builder.control_socket(path);
    }
    if let Some(v4) = &config.ipv4 {
        builder = builder
            .address(&format!("{}/{}", v4.gateway, v4.prefix))
            .route("0.0.0.0/0", None);
        if let Some(dns) = v4.dns.filter(|dns| *dns != v4.gateway) {
            builder = builder.address(&format!("{dns}/32"));
        }
    }
    if let Some(v6) = &config.ipv6 {
        let link_local = link_local(config.mac);
        builder = builder
            .address(&format!("{}/{}", v6.gateway, v6.prefix))
            .route("::/0", None);
        if link_local != v6.gateway {
            builder = builder.address(&format!("{link_local}/64"));
        }
        if let Some(dns) = v6.dns.filter(|dns| *dns != v6.gateway) {
            builder = builder.address(&format!("{dns}/128"));
        }
    }
    builder.build()
}

/// A gateway between a guest behind a device and the host's sockets.
///
/// It works while [`run`](Self::run) is polled. Dropping it resets all flows.
#[must_use = "the gateway does nothing before `run` is awaited"]
pub struct Gateway {
    shared: Arc<Shared>,
}

/// Changes and inspects a gateway while it runs. Clones refer to the same gateway.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

/// Builder of a [`Gateway`]: its [`Config`] and its device.
#[derive(Default)]
pub struct Builder {
    config: Config,
    device: Option<Box<dyn Device>>,
}

impl Builder {
    /// Replaces all settings.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Changes settings in place.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Sets the device behind which the guest is: a TAP in the guest's network namespace
    /// ([`fullsend_device::Tun`]), or any other Ethernet device with a file descriptor.
    #[must_use]
    pub fn device(mut self, device: Box<dyn Device>) -> Self {
        self.device = Some(device);
        self
    }

    /// Builds the gateway; see [`Gateway::new`].
    ///
    /// # Errors
    /// Those of [`Gateway::new`]; `InvalidInput` without a device.
    pub fn build(self) -> io::Result<Gateway> {
        let device = self.device.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the gateway has no device; choose one with .device(..)",
            )
        })?;
        Gateway::new(self.config, device)
    }
}

impl Gateway {
    /// Returns a builder with the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Builds a gateway on `device` and binds its forwards. Must be called within a tokio runtime
    /// whose I/O and time drivers are enabled.
    ///
    /// # Errors
    /// - `InvalidInput` for an invalid setting; the message names the value and what to write
    ///   instead.
    /// - The error of the operating system if a forward cannot be bound.
    pub fn new(config: Config, device: Box<dyn Device>) -> io::Result<Self> {
        let (tcp_limit, udp_limit) = descriptor_limits(&config);
        let stack = build_stack(&config, device, tcp_limit)?;
        let shared = Arc::new(Shared {
            pool: stack.pool(),
            udp: Udp::new(&stack, udp_limit)?,
            icmp: IcmpSocket::open(&stack)?,
            pings: Pings::default(),
            router_solicited: Notify::new(),
            dns_permits: Arc::new(Semaphore::new(config.limits.dns_queries)),
            stack,
            counters: AtomicCounters::default(),
            resolvers: Resolvers::new(&config.dns),
            forwards: Forwards::default(),
            tcp_permits: Arc::new(Semaphore::new(tcp_limit)),
            tcp_limit,
            tx_rate: RateLimit::new(config.limits.rate),
            rx_rate: RateLimit::new(config.limits.rate),
            runtime: tokio::runtime::Handle::current(),
            tasks: Mutex::default(),
            task_spawned: Notify::new(),
            stop: Notify::new(),
            config,
        });
        let listener = TransparentListener::any(&shared.stack, tcp_limit)?;
        shared.spawn(accept_outbound(shared.clone(), listener));
        shared.spawn(receive_outbound(shared.clone()));
        shared.spawn(expire_flows(shared.clone()));
        shared.spawn(receive_icmp(shared.clone()));
        if let Some(v4) = shared.config.ipv4.clone().filter(|v4| v4.dhcp.is_some()) {
            shared.spawn(serve_v4(shared.clone(), v4));
        }
        if let Some(v6) = &shared.config.ipv6 {
            if v6.dhcp {
                shared.spawn(serve_v6(shared.clone(), v6.clone()));
            }
            if v6.ra {
                shared.spawn(advertise(shared.clone(), v6.clone()));
            }
        }
        let gateway = Self { shared };
        for forward in gateway.shared.config.forwards.clone() {
            gateway.handle().add_forward(forward)?;
        }
        Ok(gateway)
    }

    /// Returns a handle.
    pub fn handle(&self) -> Handle {
        Handle {
            shared: self.shared.clone(),
        }
    }

    /// Relays until [`Handle::stop`] is called or the device is lost. Then all flows are reset and
    /// all sockets closed.
    ///
    /// # Errors
    /// `NetworkDown` if the device was lost, e.g. because the namespace of a TAP has ended.
    pub async fn run(self) -> io::Result<()> {
        tokio::select! {
            error = self.shared.stack.closed() => Err(error),
            () = self.shared.stop.notified() => Ok(()),
            () = self.shared.reap_tasks() => Ok(()),
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The tasks refer to the table that holds them.
        self.shared.tasks.lock().abort_all();
    }
}

impl Handle {
    /// Binds a forward, which accepts clients from now on.
    ///
    /// # Errors
    /// The error of the operating system if it cannot be bound, with the address in the message;
    /// `InvalidInput` for a guest address without a family in the configuration; `QuotaExceeded`
    /// beyond [`Limits::forwards`](crate::Limits::forwards).
    pub fn add_forward(&self, forward: Forward) -> io::Result<ForwardId> {
        // The reactor of the gateway's runtime polls the forward's socket.
        let _context = self.shared.runtime.enter();
        self.shared.forwards.add(&self.shared, forward)
    }

    /// Removes a forward. Flows that use it go on.
    ///
    /// # Errors
    /// `NotFound` if there is no such forward.
    pub fn remove_forward(&self, id: ForwardId) -> io::Result<()> {
        self.shared.forwards.remove(id)
    }

    /// Returns the forwards, in the order in which they were added, with the ports that they are
    /// bound to.
    pub fn list_forwards(&self) -> Vec<(ForwardId, Forward)> {
        self.shared.forwards.list()
    }

    /// Returns the gateway's counters.
    pub fn counters(&self) -> Counters {
        let permits = self.shared.tcp_permits.available_permits();
        Counters {
            udp_open: self.shared.udp.flow_count() as u64,
            tcp_open: (self.shared.tcp_limit - permits) as u64,
            ..self.shared.counters.read()
        }
    }

    /// Returns the stack behind the guest's device, e.g. for its own counters or a packet capture.
    pub fn stack(&self) -> &Stack {
        &self.shared.stack
    }

    /// Ends [`Gateway::run`].
    pub fn stop(&self) {
        self.shared.stop.notify_one();
    }
}
