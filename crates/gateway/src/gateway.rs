//! A gateway, and its handle.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use fullsend::control::Gateway as ControlledGateway;
use fullsend::{IcmpSocket, Stack, TransparentListener, UdpSocket};
use fullsend_device::{Device, PortId, Switch, SwitchConfig, SwitchHandle};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::config::{Config, Ipv4Config, Ipv6Config, Limits};
use crate::counters::{AtomicCounters, Counters, add};
use crate::descriptors::{SPLICED_DESCRIPTORS, SocketLimits};
use crate::dhcp::{Lease, Leases, open_v4, open_v6, serve_v4, serve_v6};
use crate::dns::{Zone, Zones};
use crate::drain::drain;
use crate::forward::{Forward, ForwardId};
use crate::forwards::Forwards;
use crate::free_memory::release_free_memory;
use crate::guests::{Guests, PortGuests, limits_of_all};
use crate::icmp::{Pings, receive_icmp};
use crate::memory::{MemoryBudget, Shares};
use crate::namespace::{GuestSockets, OwnAddresses};
use crate::payload_memory::PayloadMemory;
use crate::policy::Policy;
use crate::resolvers::Resolvers;
use crate::router::advertise;
use crate::services::Services;
use crate::tcp::{PAGE_BYTES, Pipes, RelayMemory, TcpFlows, accept_outbound};
use crate::udp::{Udp, expire_flows, receive_outbound};
use crate::validate::{validate, validate_for_several};

mod builder;

/// Bounds of the largest buffer of a connection in the stack, bytes: the initial one, and Linux's.
const MIN_BUFFER: u64 = 128 << 10;
const MAX_BUFFER: u64 = 4 << 20;

pub use builder::Builder;
use builder::{Helpers, OnGuest};

/// The state that the tasks of a gateway share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) stack: Stack,
    /// The stack's payload memory.
    pub(crate) pool: PayloadMemory,
    pub(crate) counters: AtomicCounters,
    pub(crate) resolvers: Resolvers,
    /// The domains whose names the DNS relay resolves itself.
    pub(crate) zones: Zones,
    /// The guests, with their parts of the bounds.
    pub(crate) guests: Guests,
    /// The policy, which decides about new flows and queries.
    policy: Mutex<Arc<dyn Policy>>,
    /// The servers of this program, which guests must not reach.
    pub(crate) services: Services,
    /// The lookup of the host's own addresses.
    pub(crate) own_addresses: OwnAddresses,
    pub(crate) forwards: Forwards,
    pub(crate) udp: Udp,
    pub(crate) pings: Pings,
    /// The addresses that DHCP has given out; empty without IPv4.
    pub(crate) leases: Mutex<Leases>,
    /// The TCP flows, for `fullsend stat gateway`.
    pub(crate) tcp_flows: TcpFlows,
    pub(crate) icmp: IcmpSocket,
    /// Notified when the guest requests a router advertisement.
    pub(crate) router_solicited: Notify,
    /// The link-local address of the only guest, once it has used one.
    pub(crate) guest_link_local: Mutex<Option<Ipv6Addr>>,
    /// A permit for each DNS query that may still be relayed.
    pub(crate) dns_permits: Arc<Semaphore>,
    /// A permit for each TCP connection that may still be opened; a spliced one takes several.
    pub(crate) tcp_permits: Arc<Semaphore>,
    /// The part of `tcp_permits` that forwards may use.
    pub(crate) forward_permits: Arc<Semaphore>,
    pub(crate) limits: SocketLimits,
    /// Spliced connections that exist now.
    pub(crate) spliced_open: AtomicUsize,
    /// Spliced connections whose guest has not closed its direction, including those whose host's socket
    /// is still connecting.
    pub(crate) spliced_tx: AtomicUsize,
    pub(crate) pipes: Pipes,
    /// `None` if the gateway has no sockets in the guest's namespace.
    pub(crate) guest_sockets: Option<GuestSockets>,
    /// The budget of the data that the relays hold.
    pub(crate) relay_memory: Arc<RelayMemory>,
    /// The budget of all memory.
    pub(crate) memory: MemoryBudget,
    runtime: tokio::runtime::Handle,
    /// The tasks of all flows; `None` after the gateway has stopped, when none may start.
    tasks: Mutex<Option<JoinSet<()>>>,
    task_spawned: Notify,
    stop: Notify,
}

impl Shared {
    /// Spawns a task that ends with the gateway at the latest. Returns `None` if the gateway has stopped.
    pub(crate) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        let handle = self.tasks.lock().as_mut()?.spawn_on(task, &self.runtime);
        self.task_spawned.notify_one();
        Some(handle)
    }

    /// Returns the counters and the numbers of flows.
    pub(crate) fn counters(&self) -> Counters {
        let permits = self.limits.tcp - self.tcp_permits.available_permits();
        let switch = self.guests.switch_stats();
        let spliced = self.spliced_open.load(Ordering::Relaxed);
        // Other connections have one permit each.
        let tcp_open = permits.saturating_sub(spliced * (SPLICED_DESCRIPTORS as usize - 1));
        Counters {
            udp_open: self.udp.flow_count() as u64,
            udp_sockets: self.udp.socket_count() as u64,
            dns_addresses: self.guests.name_count() as u64,
            tcp_open: tcp_open as u64,
            memory_refused: self.pool.refused() + self.relay_memory.refused(),
            switch_forwarded: switch.forwarded,
            switch_flooded: switch.flooded,
            switch_dropped: switch.dropped,
            switch_refused: switch.refused,
            switch_unreachable: switch.unreachable + switch.malformed,
            ..self.counters.read()
        }
    }

    /// Returns the policy that decides about new flows and queries.
    pub(crate) fn policy(&self) -> Arc<dyn Policy> {
        self.policy.lock().clone()
    }

    /// Returns the gateway's link-local address.
    pub(crate) fn link_local(&self) -> Ipv6Addr {
        link_local(&self.config)
    }

    /// Removes tasks that have ended, and propagates a task's panic. Never returns.
    async fn reap_tasks(&self) {
        loop {
            let ended = poll_fn(|cx| match &mut *self.tasks.lock() {
                Some(tasks) => tasks.poll_join_next(cx),
                None => Poll::Ready(None),
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

/// Returns the gateway's link-local address: the gateway's address in the settings if that is link-local,
/// the configured one, or the one of its Ethernet address (RFC 4291, appendix A).
fn link_local(config: &Config) -> Ipv6Addr {
    if let Some(v6) = &config.ipv6
        && v6.gateway.is_unicast_link_local()
    {
        return v6.gateway;
    }
    if let Some(address) = config.link_local {
        return address;
    }
    let mac = config.mac;
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfe, 0x80]);
    octets[8..11].copy_from_slice(&mac[..3]);
    octets[8] ^= 2;
    octets[11..13].copy_from_slice(&[0xff, 0xfe]);
    octets[13..].copy_from_slice(&mac[3..]);
    octets.into()
}

/// Builds the stack behind the guest's device.
fn build_stack(
    config: &Config,
    device: Box<dyn Device>,
    backlog: usize,
    memory: &Shares,
) -> io::Result<Stack> {
    let mut builder = limit_memory(Stack::builder(), memory)
        .device(device)
        .mtu(config.mtu)
        .mac(config.mac)
        .router(config.proxy_neighbors)
        .sysctl(
            "net.core.somaxconn",
            &backlog.clamp(1, 0xff_ffff).to_string(),
        );
    if let Some(v4) = &config.ipv4 {
        builder = builder
            .address(&format!("{}/{}", v4.gateway, v4.prefix))
            .route("0.0.0.0/0", None);
    }
    if let Some(v6) = &config.ipv6 {
        let link_local = link_local(config);
        builder = builder
            .address(&format!("{}/{}", v6.gateway, v6.prefix))
            .route("::/0", None);
        if link_local != v6.gateway {
            builder = builder.address(&format!("{link_local}/64"));
        }
    }
    for address in further_addresses(config) {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        builder = builder.address(&format!("{address}/{bits}"));
    }
    builder.build()
}

/// Limits the memory of a stack to its shares.
fn limit_memory(builder: fullsend::Builder, memory: &Shares) -> fullsend::Builder {
    let pages = |bytes: u64| (bytes / PAGE_BYTES as u64).min(0x7fff_ffff);
    // The shares of Linux: no pressure up to a half, pressure above two thirds.
    let pages_of = |bytes: u64| {
        let most = pages(bytes);
        format!("{} {} {most}", most / 2, most - most / 3)
    };
    // One connection takes at most an eighth of the data of all.
    let buffer = (memory.tcp_data / 8).clamp(MIN_BUFFER, MAX_BUFFER);
    let entries = memory.tcp_connections.to_string();
    builder
        .memory_bytes(memory.stack)
        .sysctl("tcp_mem", &pages_of(memory.tcp_data))
        .sysctl("tcp_minimum_mem", &pages(memory.tcp_minimum).to_string())
        .sysctl("udp_mem", &pages_of(memory.udp_data))
        .sysctl("tcp_rmem", &format!("4096 131072 {buffer}"))
        .sysctl("tcp_wmem", &format!("4096 16384 {buffer}"))
        // Connections whose relay has ended go on without it until their data is delivered.
        .sysctl(
            "tcp_max_sockets",
            &(memory.tcp_connections * 5 / 4).to_string(),
        )
        .sysctl("tcp_max_orphans", &entries)
        .sysctl("tcp_max_tw_buckets", &entries)
}

/// Returns all addresses that no guest may use: those of the stack and the mapped ones.
fn own_addresses(config: &Config) -> BTreeSet<IpAddr> {
    let gateways = [
        config.ipv4.as_ref().map(|v4| v4.gateway.into()),
        config.ipv6.as_ref().map(|v6| v6.gateway.into()),
        config.ipv6.as_ref().map(|_| link_local(config).into()),
    ];
    let mapped = config.mappings.iter().map(|mapping| mapping.guest);
    let mut all = further_addresses(config);
    all.extend(gateways.into_iter().flatten().chain(mapped));
    all
}

/// Returns the addresses of the stack in addition to the gateway's: those of the DNS relay, and the
/// mapped ones that the guest resolves on its link, where no other host has them.
fn further_addresses(config: &Config) -> BTreeSet<IpAddr> {
    let gateways = [
        config.ipv4.as_ref().map(|v4| v4.gateway.into()),
        config.ipv6.as_ref().map(|v6| v6.gateway.into()),
        config.ipv6.as_ref().map(|_| link_local(config).into()),
    ];
    let dns = [
        config.ipv4.as_ref().and_then(|v4| v4.dns).map(IpAddr::V4),
        config.ipv6.as_ref().and_then(|v6| v6.dns).map(IpAddr::V6),
    ];
    let mapped = config.mappings.iter().map(|mapping| mapping.guest);
    // A router with proxied neighbors answers for all addresses.
    let mapped = mapped.filter(|address| !config.proxy_neighbors && config.is_on_link(*address));
    let all = dns.into_iter().flatten().chain(mapped);
    all.filter(|address| !gateways.contains(&Some(*address)))
        .collect()
}

/// A gateway between a guest behind a device and the host's sockets.
///
/// It relays while [`run`](Self::run) is polled. Dropping it resets all flows. Before `run`, only the
/// stack behind the device works, which answers ARP, neighbor solicitations and pings to the gateway;
/// connections of the guest and clients of forwards wait.
#[must_use = "the gateway relays nothing before `run` is awaited"]
pub struct Gateway {
    shared: Arc<Shared>,
    /// `None` once the gateway runs.
    servers: Option<Servers>,
}

/// The sockets of the stack that tasks own once the gateway runs. Until then, the guest's packets wait in
/// their queues.
struct Servers {
    listener: TransparentListener,
    dhcp_v4: Option<(Ipv4Config, UdpSocket)>,
    dhcp_v6: Option<(Ipv6Config, UdpSocket)>,
}

impl Servers {
    fn open(shared: &Shared) -> io::Result<Self> {
        let (stack, config) = (&shared.stack, &shared.config);
        let v4 = config.ipv4.clone().filter(|v4| v4.dhcp.is_some());
        let v6 = config.ipv6.clone().filter(|v6| v6.dhcp);
        Ok(Self {
            listener: TransparentListener::any(stack, shared.limits.tcp)?,
            dhcp_v4: v4
                .map(|v4| Ok::<_, io::Error>((v4, open_v4(stack)?)))
                .transpose()?,
            dhcp_v6: v6
                .map(|v6| Ok::<_, io::Error>((v6, open_v6(stack)?)))
                .transpose()?,
        })
    }

    fn start(self, shared: &Arc<Shared>) {
        shared.spawn(accept_outbound(shared.clone(), self.listener));
        if let Some((config, socket)) = self.dhcp_v4 {
            shared.spawn(serve_v4(shared.clone(), config, socket));
        }
        if let Some((config, socket)) = self.dhcp_v6 {
            shared.spawn(serve_v6(shared.clone(), config, socket));
        }
    }
}

/// A handle that changes and inspects a gateway while it runs. Clones refer to the same gateway.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Gateway {
    /// Returns a builder with the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Builds a gateway on `device` with these settings; see [`Builder::build`].
    ///
    /// # Errors
    /// The errors of [`Builder::build`].
    pub fn new(config: Config, device: Box<dyn Device>) -> io::Result<Self> {
        let parts = (device, None, Arc::default());
        Self::open(config, parts, Helpers::default())
    }

    /// Builds a gateway for several guests.
    fn open_joined(
        config: Config,
        is_joined: bool,
        (guests, on_guest): (Vec<Box<dyn Device>>, Option<OnGuest>),
        helpers: Helpers,
    ) -> io::Result<Self> {
        validate_for_several(&config)?;
        let (ports, mut on_guest) = (Arc::new(PortGuests::new(is_joined)), on_guest);
        let of_events = ports.clone();
        let switch = Switch::new(SwitchConfig {
            mtu: config.mtu,
            is_joined,
            mac: config.mac,
            addresses: own_addresses(&config),
        })?;
        let switch = switch.on_port(move |event| {
            of_events.on_event(event);
            if let Some(callback) = &mut on_guest {
                callback(event);
            }
        });
        let handle = switch.handle();
        for device in guests {
            handle.attach(device)?;
        }
        Self::open(config, (Box::new(switch), Some(handle), ports), helpers)
    }

    fn open(
        config: Config,
        (device, switch, ports): (Box<dyn Device>, Option<SwitchHandle>, Arc<PortGuests>),
        helpers: Helpers,
    ) -> io::Result<Self> {
        validate(&config)?;
        let memory = match (&switch, config.limits.memory) {
            (None, Some(of_guest)) => config.memory.min(MemoryBudget::new(of_guest)?),
            _ => config.memory,
        };
        let shares = memory.shares();
        let forwarded_udp_flows = usize::try_from(shares.forwarded_udp_flows)
            .unwrap_or(usize::MAX)
            .min(config.limits.forwarded_udp_flows);
        let limits = Limits {
            // Only those between loopbacks have sockets of their own.
            forwarded_udp_flows: match &helpers.guest_sockets {
                Some(_) => forwarded_udp_flows,
                None => 0,
            },
            ..match &switch {
                Some(_) => limits_of_all(&config.limits),
                None => config.limits,
            }
        };
        let limits = SocketLimits::of_process(&limits, &shares);
        let stack = build_stack(&config, device, limits.tcp, &shares)?;
        let leases = Leases::new(config.ipv4.as_ref(), switch.is_some());
        let guests = Guests::new(&config, &shares, switch, ports);
        let relay_memory = guests.relays().clone();
        let shared = Arc::new(Shared {
            pool: PayloadMemory::new(stack.pool()),
            udp: Udp::new(&stack, &limits, forwarded_udp_flows)?,
            icmp: IcmpSocket::open(&stack)?,
            pings: Pings::default(),
            leases: Mutex::new(leases),
            tcp_flows: TcpFlows::default(),
            router_solicited: Notify::new(),
            guest_link_local: Mutex::default(),
            dns_permits: Arc::new(Semaphore::new(limits.dns)),
            stack,
            counters: AtomicCounters::default(),
            resolvers: Resolvers::new(&config.dns, helpers.resolv_conf)?,
            zones: Zones::new(&config.dns.zones)?,
            guests,
            policy: Mutex::new(config.policy.clone()),
            services: Services::default(),
            own_addresses: OwnAddresses::open(),
            forwards: Forwards::default(),
            tcp_permits: Arc::new(Semaphore::new(limits.tcp)),
            forward_permits: Arc::new(Semaphore::new(limits.tcp_of_forwards())),
            spliced_open: AtomicUsize::new(0),
            spliced_tx: AtomicUsize::new(0),
            pipes: Pipes::default(),
            guest_sockets: helpers.guest_sockets,
            limits,
            relay_memory,
            memory,
            runtime: tokio::runtime::Handle::current(),
            tasks: Mutex::new(Some(JoinSet::new())),
            task_spawned: Notify::new(),
            stop: Notify::new(),
            config,
        });
        let as_gateway: Weak<dyn ControlledGateway> = Arc::downgrade(&shared) as _;
        shared.stack.set_gateway(as_gateway);
        let servers = Servers::open(&shared)?;
        let gateway = Self {
            shared,
            servers: Some(servers),
        };
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

    /// Relays until [`Handle::stop`] is called or the device is lost. Then resets all flows and closes
    /// all sockets.
    ///
    /// # Errors
    /// `NetworkDown` if the device was lost, e.g. because the namespace of a TAP has ended.
    pub async fn run(mut self) -> io::Result<()> {
        self.start();
        let shared = self.shared.clone();
        let ended = tokio::select! {
            error = shared.stack.closed() => Err(error),
            () = shared.stop.notified() => Ok(()),
            () = shared.reap_tasks() => Ok(()),
        };
        // Each task resets its connection as it ends.
        let tasks = shared.tasks.lock().take();
        if let Some(mut tasks) = tasks {
            tasks.shutdown().await;
        }
        ended
    }

    /// Starts the tasks that serve the guest and the forwards.
    fn start(&mut self) {
        let shared = &self.shared;
        if let Some(servers) = self.servers.take() {
            servers.start(shared);
        }
        shared.spawn(receive_outbound(shared.clone()));
        shared.spawn(expire_flows(shared.clone()));
        shared.spawn(release_free_memory(shared.clone()));
        shared.spawn(receive_icmp(shared.clone()));
        if let Some(v6) = shared.config.ipv6.clone().filter(|v6| v6.ra) {
            shared.spawn(advertise(shared.clone(), v6));
        }
        shared.forwards.start(shared);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The tasks refer to `Shared`, which refers to them. They are dropped without the lock, as a task
        // may spawn another.
        let tasks = self.shared.tasks.lock().take();
        drop(tasks);
        self.shared.forwards.close();
        self.shared.write_suppressed(Instant::now(), true);
    }
}

impl Handle {
    /// Returns the settings with which the gateway was built.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Adds a guest to a gateway that was built for several ([`Builder::join_guests`],
    /// [`Builder::guest`]). The guest ends with its device, e.g. with the only connection of a link.
    ///
    /// # Errors
    /// `Unsupported` for a gateway with one device; `QuotaExceeded` if there are 64 guests;
    /// `NotConnected` after the gateway has stopped. An unusable device, e.g. one with an MTU smaller
    /// than [`Config::mtu`], is dropped with a line in the log.
    pub fn add_guest(&self, device: Box<dyn Device>) -> io::Result<PortId> {
        self.shared.guests.attach(device)
    }

    /// Returns the port of the guest that has used an address or got it by DHCP. `None` for a gateway
    /// with one device.
    pub fn guest_of(&self, address: IpAddr) -> Option<PortId> {
        self.shared.guests.of(address)?.port
    }

    /// Replaces the policy for new flows and queries. Existing flows and the counters continue.
    pub fn set_policy(&self, policy: Arc<dyn Policy>) {
        *self.shared.policy.lock() = policy;
        add(&self.shared.counters.policy_changes, 1);
    }

    /// Changes [`Limits::rate`](crate::Limits::rate), also for existing flows.
    pub fn set_rate(&self, bytes_per_second: Option<u64>) {
        self.shared.guests.set_rate(bytes_per_second);
    }

    /// Returns the most forwards at a time: [`Limits::forwards`](crate::Limits::forwards), lowered to the
    /// descriptors that the process may have.
    pub fn forwards_max(&self) -> usize {
        self.shared.limits.forwards
    }

    /// Binds a forward. It accepts clients from now on, or from the start of [`Gateway::run`].
    ///
    /// # Errors
    /// - The error of the operating system if it cannot be bound, with the address in the message.
    /// - `InvalidInput` if the forward's target is not the address of one host and port.
    /// - `Unsupported` for clients in the guest if the gateway has no sockets there
    ///   ([`Builder::guest_sockets`]), or if the forward has an interface.
    /// - `AddrNotAvailable` if the gateway has no address of the guest's family.
    /// - `QuotaExceeded` beyond [`Limits::forwards`](crate::Limits::forwards), and `NotConnected`
    ///   after the gateway has stopped.
    pub fn add_forward(&self, forward: Forward) -> io::Result<ForwardId> {
        // The reactor of the gateway's runtime polls the forward's socket.
        let _context = self.shared.runtime.enter();
        self.shared.forwards.add(&self.shared, forward)
    }

    /// Removes a forward. Its TCP connections go on; its UDP flows end, as they share its socket.
    ///
    /// # Errors
    /// `NotFound` if there is no such forward.
    pub fn remove_forward(&self, id: ForwardId) -> io::Result<()> {
        self.shared.forwards.remove(&self.shared, id)
    }

    /// Returns the forwards with the ports that they are bound to, in the order in which they were added.
    pub fn list_forwards(&self) -> Vec<(ForwardId, Forward)> {
        self.shared.forwards.list()
    }

    /// Keeps guests away from a TCP server of the embedding program on the host, e.g. one that configures
    /// the gateway: refuses their connections that lead to it through the host's addresses, a
    /// [mapping](Config::mappings) of the loopback or a forward to the host. A policy may still redirect
    /// to it. The metrics server needs no call.
    pub fn hide_from_guests(&self, listener: SocketAddr) {
        self.shared.services.add(listener);
    }

    /// Adds a domain whose names the DNS relay resolves itself. If a domain of the same name exists, the
    /// new records precede its records, and the new default address replaces its default address.
    ///
    /// # Errors
    /// - `InvalidInput` for an invalid name.
    /// - `QuotaExceeded` beyond 1024 domains, or 4096 records.
    pub fn add_zone(&self, zone: Zone) -> io::Result<()> {
        self.shared.zones.add(zone)
    }

    /// Returns the domains whose names the DNS relay resolves itself; those added last come first.
    pub fn zones(&self) -> Vec<Zone> {
        self.shared.zones.list()
    }

    /// Returns the addresses that DHCP has given to clients and that have not expired.
    pub fn leases(&self) -> Vec<Lease> {
        self.shared.leases.lock().current(Instant::now())
    }

    /// Returns the gateway's counters.
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// Returns the stack behind the guest's device, e.g. for its own counters or a packet capture.
    pub fn stack(&self) -> &Stack {
        &self.shared.stack
    }

    /// Waits until the guest has closed its direction of each TCP connection and the host's kernel has
    /// its data, for at most `limit`, and at most about 1 s in which no data moves and no relay holds
    /// any. Call it between the end of the guest's programs and [`stop`](Self::stop), while
    /// [`Gateway::run`] still relays: otherwise the last data of the programs is lost. Returns whether
    /// the guest has closed all connections; the others are reset when the gateway stops.
    ///
    /// # Example
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(gateway: fullsend_gateway::Handle) {
    /// // The guest's programs have ended.
    /// if !gateway.drain(Duration::from_secs(10)).await {
    ///     eprintln!("some connections of the guest were still open");
    /// }
    /// gateway.stop();
    /// # }
    /// ```
    pub async fn drain(&self, limit: Duration) -> bool {
        drain(&self.shared, limit).await
    }

    /// Ends [`Gateway::run`].
    pub fn stop(&self) {
        self.shared.stop.notify_one();
    }
}
