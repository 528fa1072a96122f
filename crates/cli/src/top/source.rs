//! Readings of a stack through its control socket: the flows of a gateway, or else the sockets.

use std::path::Path;

use anyhow::Result;
use fullsend::control::{
    Counters, GatewayFlowView, GatewayView, Request, SockStatView, SocketView,
};
use serde::de::DeserializeOwned;

use super::rates::{Flow, Memory, Snapshot};
use crate::stat::connection::Connection;

/// The counter of retransmitted segments.
const RETRANSMISSIONS: &str = "TcpRetransSegs";
/// Size of the page in which the memory of sockets is counted, bytes.
const PAGE_BYTES: u64 = 4096;

/// A connection to a stack.
pub(super) struct Source {
    connection: Connection,
    is_gateway: bool,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut connection = Connection::to(path)?;
        // Other stacks, and gateways of earlier releases, reply with an error.
        let is_gateway = connection.request(&Request::Gateway).is_ok();
        Ok(Self {
            connection,
            is_gateway,
        })
    }

    pub(super) fn read(&mut self) -> Result<Snapshot> {
        let (flows, memory) = if self.is_gateway {
            self.read_gateway()?
        } else {
            self.read_sockets()?
        };
        let counters: Counters = self.one(&Request::Counters)?;
        let found = counters.counters.iter().find(|c| c.0 == RETRANSMISSIONS);
        Ok(Snapshot {
            at_ns: counters.uptime_ns,
            is_gateway: self.is_gateway,
            flows,
            retransmissions: found.map_or(0, |(_, count)| *count),
            memory,
        })
    }

    fn read_gateway(&mut self) -> Result<(Vec<Flow>, Memory)> {
        let flows: Vec<GatewayFlowView> = self.connection.request_list(&Request::GatewayFlows)?;
        let gateway: GatewayView = self.one(&Request::Gateway)?;
        let memory = Memory {
            resident: gateway.resident_memory,
            sockets: gateway.socket_memory,
            relays: Some(gateway.relay_memory),
        };
        Ok((flows.into_iter().map(Flow::from).collect(), memory))
    }

    fn read_sockets(&mut self) -> Result<(Vec<Flow>, Memory)> {
        let sockets: Vec<SocketView> = self.connection.request_list(&Request::Sockets)?;
        let stat: SockStatView = self.one(&Request::Sockstat)?;
        let memory = Memory {
            sockets: stat.mem * PAGE_BYTES,
            ..Memory::default()
        };
        let connected = sockets.into_iter().filter(|socket| socket.peer.is_some());
        Ok((connected.map(Flow::from).collect(), memory))
    }

    fn one<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T> {
        Ok(serde_json::from_value(self.connection.request(request)?)?)
    }
}

impl From<GatewayFlowView> for Flow {
    fn from(flow: GatewayFlowView) -> Self {
        let (guest, host) = (&flow.guest_socket, &flow.host_socket);
        Self {
            tx_bytes: flow.tx.bytes,
            rx_bytes: flow.rx.bytes,
            retransmissions: guest.retrans + host.retrans.unwrap_or(0),
            queue: guest.recv_q + guest.send_q,
            netid: flow.netid,
            state: flow.state,
            local: flow.guest,
            remote: flow.remote,
            held_by: flow.held_by,
        }
    }
}

impl From<SocketView> for Flow {
    fn from(socket: SocketView) -> Self {
        let info = |name: &str| {
            let fields = socket.tcp_info.as_ref();
            let value = fields.and_then(|fields| fields.get(name)?.as_u64());
            value.unwrap_or(0)
        };
        Self {
            tx_bytes: info("tcpi_bytes_acked"),
            rx_bytes: info("tcpi_bytes_received"),
            retransmissions: info("tcpi_total_retrans"),
            queue: socket.recv_q + socket.send_q,
            netid: socket.netid,
            state: socket.state,
            local: socket.local,
            remote: socket.peer.unwrap_or_default(),
            held_by: socket.why.and_then(|why| why.held_by).unwrap_or_default(),
        }
    }
}
