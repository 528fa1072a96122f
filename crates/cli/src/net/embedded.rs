//! The implementation of a test's sockets with this stack's public tokio API.

use std::io;
use std::net::SocketAddr;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use fullsend::{NicMode, OffloadSet, Pair, Stack, TcpListener, TcpStream};
use fullsend_stack::QdiscConfig;

use tokio::runtime::Handle;

use super::{NetStack, Socket};
use crate::args::{DeviceConfig, DeviceKind, InProcessLink, NicKind};
use crate::client::ShardRuntime;
use crate::flow::READ_MAX;
use crate::stat::args::ControlArgs;
use crate::usage::Counters;
use fullsend_tcp::FlowReport;

/// Listen backlog that suffices for most values of `--flows`.
const BACKLOG: usize = 4096;

/// The stack of a Fullsend host.
#[derive(Clone)]
pub(crate) struct Embedded(Stack);

impl Embedded {
    /// Returns two linked hosts: one with 10.0.0.1 and fd00::1, the other with 10.0.0.2 and fd00::2. Each
    /// has a shard on each of `runtimes`.
    pub(crate) fn pair(
        link: InProcessLink,
        (set, qdisc): (&[(String, String)], QdiscConfig),
        runtimes: &[Handle],
    ) -> Result<(Self, Self)> {
        let config = Pair {
            nic: match link.nic {
                NicKind::Tso => NicMode::Tso,
                NicKind::Mtu => NicMode::Mtu,
            },
            mtu: link.mtu,
            gro: link.gro,
            sysctl: set.to_vec(),
            qdisc: qdisc.to_string(),
            runtimes: runtimes.to_vec(),
            ..Pair::default()
        };
        let (client, server) = Stack::pair(&config)?;
        Ok((Self(client), Self(server)))
    }

    /// Returns a host behind a device, with a shard on each of `runtimes`. The kernel's side of a TUN
    /// gets the address of `peer` if that is on the link.
    pub(crate) fn behind(
        device: &DeviceConfig,
        (set, qdisc): (&[(String, String)], QdiscConfig),
        peer: Option<SocketAddr>,
        runtimes: &[Handle],
    ) -> Result<Self> {
        let mut builder = Stack::builder()
            .mtu(device.mtu)
            .qdisc(&qdisc.to_string())
            .busy_poll(device.busy_poll)
            .shards_on(runtimes.to_vec());
        builder = match device.kind {
            DeviceKind::Tun => builder.tun(&device.name),
            DeviceKind::Packet => builder.packet_socket(&device.name),
            DeviceKind::Xdp => builder.xdp(&device.name),
        };
        if let Some(gateway) = device.gateway {
            builder = builder.gateway(gateway);
        }
        for cidr in &device.addresses {
            builder = builder.address(&cidr.to_string());
            let there = peer
                .map(|peer| peer.ip())
                .filter(|&ip| cidr.contains(ip))
                .or_else(|| fullsend::default_kernel_address(cidr.addr, cidr.prefix));
            if let Some(addr) = there.filter(|_| device.kind == DeviceKind::Tun) {
                builder = builder.kernel_address(&format!("{addr}/{}", cidr.prefix));
            }
        }
        if device.plain {
            builder = builder.offload(OffloadSet::NONE);
        } else if let Some(list) = &device.offload {
            let set = list
                .parse()
                .map_err(|error| anyhow!("cannot use --offload {list}: {error}"))?;
            builder = builder.offload(set);
        }
        for (key, value) in set {
            builder = builder.sysctl(key, value);
        }
        let stack = builder
            .build()
            .with_context(|| format!("cannot start a stack on {} {}", device.kind, device.name))?;
        Ok(Self(stack))
    }

    /// Returns each shard with its runtime.
    pub(crate) fn shard_runtimes(&self, runtimes: &[Handle]) -> Vec<ShardRuntime<Self>> {
        let shard = |(index, runtime): (usize, &Handle)| {
            let shard = self.0.shard(index)?;
            Some((Self(shard), runtime.clone()))
        };
        runtimes.iter().enumerate().filter_map(shard).collect()
    }

    /// Opens the requested control sockets.
    pub(crate) fn open_control(
        control: &ControlArgs,
        stack: &Self,
        server: Option<&Self>,
    ) -> Result<()> {
        if let Some(path) = control.path()? {
            stack.0.control_socket(&path)?;
            if let Some(server) = server {
                server.0.control_socket(ControlArgs::server_path(&path))?;
            }
        }
        Ok(())
    }
}

impl NetStack for Embedded {
    type Socket = TcpStream;
    type Listener = TcpListener;

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(&self.0, to).await
    }

    async fn listen(&self, on: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind_with(&self.0, on, BACKLOG)
    }

    async fn accept(listener: &mut TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        listener.accept().await
    }

    fn local_addr(listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    fn counters(&self) -> io::Result<Counters> {
        let counters = self.0.counters().into_iter();
        Ok(counters.map(|(n, v)| (n.to_owned(), v as i64)).collect())
    }
}

impl Socket for TcpStream {
    fn set_nodelay(&self) -> io::Result<()> {
        TcpStream::set_nodelay(self, true)
    }

    fn flow_report(&self) -> Option<FlowReport> {
        TcpStream::flow_report(self).ok()
    }

    fn set_congestion(&self, name: &str) -> io::Result<()> {
        TcpStream::set_congestion(self, name)
    }

    async fn write_bytes(&mut self, data: Bytes) -> io::Result<()> {
        TcpStream::write_bytes(self, data).await
    }

    async fn read_chunk(&mut self) -> io::Result<Bytes> {
        let chunk = TcpStream::read_chunk(self, READ_MAX).await?;
        Ok(chunk.unwrap_or_default())
    }
}
