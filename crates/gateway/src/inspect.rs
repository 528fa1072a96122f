//! Reports for tools: the flows with both of their sockets, the forwards, the tables and the
//! memory. Locks are held for a part of a table at a time.

mod host_socket;
mod resident;
mod words;

use std::time::Duration;

use fullsend::control::{
    FlowCountView, FlowCursor, FlowDirectionView, ForwardView, Gateway, GatewayFlowView,
    GatewayView, GuestNetworkView, GuestSocketView, HostSocketView,
};
use fullsend::{SockStat, SocketInfo};
use fullsend_wire::ethernet::Mac;
use tokio::time::Instant;

use crate::forward::{Protocol, Side};
use crate::gateway::Shared;
use crate::icmp::PingInfo;
use crate::tcp::{PAGE_BYTES, Stage, TcpFlow};
use crate::udp::{FlowKey, UdpFlow};

pub(crate) use resident::{open_resident_memory, resident_memory};

/// Entries of a table that are read under one lock.
const ENTRIES_PER_LOCK: usize = 64;

/// The tables of a [`FlowCursor`].
const TCP: u8 = 0;
const UDP: u8 = 1;
const PING: u8 = 2;

impl Gateway for Shared {
    fn summary(&self) -> GatewayView {
        self.summary_with(&self.stack.sockstat())
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Shared::counters(self).list()
    }

    fn flows(&self, from: FlowCursor, out: &mut Vec<GatewayFlowView>) -> Option<FlowCursor> {
        match from.table {
            TCP => Some(self.tcp_flows(from, out)),
            UDP => Some(self.udp_flows(from, out)),
            _ => self.ping_flows(from, out),
        }
    }

    fn forwards(&self, after: u64, out: &mut Vec<ForwardView>) -> Option<u64> {
        let forwards = self.forwards.after(after, ENTRIES_PER_LOCK);
        let next = forwards.last().map(|(id, _)| id.0);
        out.extend(forwards.iter().map(|(id, forward)| ForwardView {
            id: id.0,
            netid: match forward.protocol {
                Protocol::Tcp => "tcp".to_owned(),
                Protocol::Udp => "udp".to_owned(),
            },
            clients: match forward.from {
                Side::Host => "host".to_owned(),
                Side::Guest => "guest".to_owned(),
            },
            host: forward.host.to_string(),
            guest: forward.guest.to_string(),
            interface: forward.interface.clone(),
        }));
        next.filter(|_| forwards.len() == ENTRIES_PER_LOCK)
    }
}

impl Shared {
    /// Returns the summary with the numbers of the stack's sockets, which are counted one by one.
    pub(crate) fn summary_with(&self, sockets: &SockStat) -> GatewayView {
        let counters = self.counters();
        let leases = self.leases.lock().views(Instant::now());
        let count = |netid: &str, open, max: usize| FlowCountView {
            netid: netid.to_owned(),
            open,
            max: max as u64,
        };
        GatewayView {
            mtu: self.config.mtu,
            mac: Mac(self.config.mac).to_string(),
            networks: self.networks(),
            leases,
            flows: vec![
                count("tcp", counters.tcp_open, self.limits.tcp),
                count("udp", counters.udp_open, self.limits.udp_flows),
                count("icmp", self.pings.len() as u64, self.limits.ping),
            ],
            forwards: self.forwards.len() as u64,
            rate: self.guests.rate(),
            socket_memory: sockets.mem * PAGE_BYTES as u64,
            relay_memory: self.relay_memory.held() as u64,
            socket_memory_max: self.memory.shares().tcp_data,
            relay_memory_max: self.relay_memory.budget() as u64,
            memory_max: self.memory.bytes(),
            resident_memory: resident_memory(),
        }
    }

    fn networks(&self) -> Vec<GuestNetworkView> {
        let v4 = self.config.ipv4.iter().map(|v4| GuestNetworkView {
            guest: Some(format!("{}/{}", v4.guest, v4.prefix)),
            gateway: format!("{}/{}", v4.gateway, v4.prefix),
            dns: v4.dns.map(|dns| dns.to_string()),
        });
        let v6 = self.config.ipv6.iter().map(|v6| GuestNetworkView {
            guest: v6.guest.map(|guest| format!("{guest}/{}", v6.prefix)),
            gateway: format!("{}/{}", v6.gateway, v6.prefix),
            dns: v6.dns.map(|dns| dns.to_string()),
        });
        v4.chain(v6).collect()
    }

    fn tcp_flows(&self, from: FlowCursor, out: &mut Vec<GatewayFlowView>) -> FlowCursor {
        let flows = self.tcp_flows.after(from.id, ENTRIES_PER_LOCK);
        let addresses: Vec<_> = flows.iter().map(|(_, f)| (f.remote, f.guest)).collect();
        let sockets = self.stack.connections(&addresses);
        let views = flows.iter().zip(&sockets);
        out.extend(views.map(|((_, flow), socket)| tcp_view(flow, socket.as_ref())));
        let last = flows.last().filter(|_| flows.len() == ENTRIES_PER_LOCK);
        FlowCursor {
            table: if last.is_some() { TCP } else { UDP },
            id: last.map_or(0, |(id, _)| *id),
            addresses: None,
        }
    }

    fn udp_flows(&self, from: FlowCursor, out: &mut Vec<GatewayFlowView>) -> FlowCursor {
        let after = from
            .addresses
            .map(|(guest, remote)| FlowKey { guest, remote });
        let flows = self.udp.after(after, ENTRIES_PER_LOCK);
        out.extend(flows.iter().map(|flow| udp_view(flow)));
        let last = flows.last().filter(|_| flows.len() == ENTRIES_PER_LOCK);
        FlowCursor {
            table: if last.is_some() { UDP } else { PING },
            id: 0,
            addresses: last.map(|flow| (flow.key.guest, flow.key.remote)),
        }
    }

    fn ping_flows(&self, from: FlowCursor, out: &mut Vec<GatewayFlowView>) -> Option<FlowCursor> {
        let pings = self.pings.after(from.addresses, ENTRIES_PER_LOCK);
        out.extend(pings.iter().map(ping_view));
        let last = pings.last().filter(|_| pings.len() == ENTRIES_PER_LOCK)?;
        Some(FlowCursor {
            table: PING,
            id: 0,
            addresses: Some((last.guest, last.remote)),
        })
    }
}

fn tcp_view(flow: &TcpFlow, socket: Option<&SocketInfo>) -> GatewayFlowView {
    let connection = socket.and_then(|socket| socket.tcp.as_deref());
    let limit = words::GuestLimit {
        limit: connection.and_then(|tcp| tcp.report.limited_by),
        unsent: connection.map_or(0, |tcp| tcp.info.tcpi_notsent_bytes.into()),
    };
    let tx_word = words::tx(flow.tx.stage());
    let rx_word = words::rx(flow.rx.stage(), limit);
    let tx = direction(flow.tx.bytes(), tx_word);
    let rx = direction(flow.rx.bytes(), rx_word);
    let age_ms = ms(flow.started.elapsed());
    GatewayFlowView {
        netid: "tcp".to_owned(),
        forwarded: flow.forwarded,
        guest: flow.guest.to_string(),
        remote: flow.remote.to_string(),
        state: socket.map_or("UNCONN", |socket| socket.state).to_owned(),
        held_by: words::of_flow((tx_word, tx.bytes), (rx_word, rx.bytes)).to_owned(),
        tx,
        rx,
        guest_socket: GuestSocketView {
            // A socket in TIME-WAIT has no handle.
            id: match socket.map_or(0, |socket| socket.id) {
                0 => String::new(),
                id => format!("{id:x}"),
            },
            recv_q: socket.map_or(0, |socket| socket.recv_q),
            send_q: socket.map_or(0, |socket| socket.send_q),
            rtt_us: connection.map_or(0, |tcp| tcp.info.tcpi_rtt.into()),
            retrans: connection.map_or(0, |tcp| tcp.info.tcpi_total_retrans.into()),
            cwnd: connection.map_or(0, |tcp| tcp.info.tcpi_snd_cwnd.into()),
        },
        host_socket: match flow.host_socket() {
            Some(socket) => host_socket::tcp(socket.get_ref(), flow.host),
            None => HostSocketView {
                peer: flow.host.to_string(),
                state: (flow.tx.stage() == Stage::Connecting).then(|| "SYN-SENT".to_owned()),
                ..HostSocketView::default()
            },
        },
        age_ms,
        idle_ms: connection.map_or(age_ms, |tcp| {
            let info = &tcp.info;
            let idle = info.tcpi_last_data_recv.min(info.tcpi_last_data_sent);
            u64::from(idle)
        }),
    }
}

fn udp_view(flow: &UdpFlow) -> GatewayFlowView {
    let (answered, forwarded) = (flow.is_answered(), flow.is_forwarded());
    // Datagrams do not wait: those that cannot be sent are dropped.
    let (tx_word, rx_word) = match (answered, flow.is_opened_by_guest()) {
        (true, _) => (words::NONE, words::NONE),
        (false, true) => (words::NONE, "no-answer"),
        (false, false) => ("no-answer", words::NONE),
    };
    let tx = direction(flow.tx_bytes(), tx_word);
    let rx = direction(flow.rx_bytes(), rx_word);
    GatewayFlowView {
        netid: "udp".to_owned(),
        forwarded,
        guest: flow.key.guest.to_string(),
        remote: flow.key.remote.to_string(),
        state: if answered { "ESTAB" } else { "UNCONN" }.to_owned(),
        held_by: words::of_flow((tx_word, tx.bytes), (rx_word, rx.bytes)).to_owned(),
        tx,
        rx,
        guest_socket: GuestSocketView::default(),
        host_socket: host_socket::datagram(flow.host_socket().socket(), flow.host),
        age_ms: ms(flow.started.elapsed()),
        idle_ms: ms(flow.last_used().elapsed()),
    }
}

fn ping_view(ping: &PingInfo) -> GatewayFlowView {
    let answered = ping.rx_bytes > 0;
    let word = if answered { words::NONE } else { "no-answer" };
    GatewayFlowView {
        netid: "icmp".to_owned(),
        guest: ping.guest.to_string(),
        remote: ping.remote.ip().to_string(),
        state: if answered { "ESTAB" } else { "UNCONN" }.to_owned(),
        tx: direction(ping.tx_bytes, words::NONE),
        rx: direction(ping.rx_bytes, word),
        held_by: word.to_owned(),
        host_socket: host_socket::datagram(ping.socket.get_ref(), ping.host),
        age_ms: ms(ping.started.elapsed()),
        idle_ms: ms(ping.last_used.elapsed()),
        ..GatewayFlowView::default()
    }
}

fn direction(bytes: u64, word: &str) -> FlowDirectionView {
    FlowDirectionView {
        bytes,
        held_by: word.to_owned(),
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
