//! The control socket, through which tools inspect and configure a running stack (`fullsend stat`).
//!
//! [`Builder::control_socket`](crate::Builder::control_socket) opens it. It is a Unix stream socket
//! of mode 0600; any process that may connect to it can read and set everything. A request is one
//! line of JSON ([`Request`]), and so is each reply ([`Reply`]):
//!
//! ```text
//! > {"v":1,"cmd":"sysctl","key":"tcp_sack"}
//! < {"v":1,"ok":[["tcp_sack","1"]]}
//! > {"v":1,"cmd":"sysctl","key":"tcp_sak"}
//! < {"v":1,"error":"\"tcp_sak\" is not a tunable; the most similar name is net.ipv4.tcp_sack"}
//! ```
//!
//! `sockets`, `gateway_flows` and `gateway_forwards` reply with an `item` for each, then `end`;
//! `capture` with `data` (a length, with that number of bytes of pcapng after the line), then `end`.
//! The stack is locked for a short time for each reply, and never while waiting for a client.
//!
//! This module requires the crate's feature `control`.

mod capture;
mod client;
mod filter;
#[doc(hidden)]
pub mod fuzzing;
mod server;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Weak;

pub use fullsend_control::{
    AddressView, BoundSocket, CaptureRequest, CaptureSummary, Counters, FlowCountView, FlowCursor,
    FlowDirectionView, FlowReportView, ForwardView, Gateway, GatewayFlowView, GatewayView,
    GuestNetworkView, GuestSocketView, HostSocketView, LeaseView, LinkView, MAX_CLIENTS, MAX_LINE,
    QdiscView, Reply, Request, RunningSocket, SendLimitView, SkMemView, SockStatView, SocketFile,
    SocketView, TimerView, VERSION, default_dir, default_path, running,
};

use fullsend_stack::{Host, LinkStats, SocketInfo};

pub(crate) use server::ControlSocket;

use crate::Stack;

impl Stack {
    /// Opens a socket through which `fullsend stat` inspects this stack, as
    /// [`Builder::control_socket`](crate::Builder::control_socket) does. Must be called within the
    /// tokio runtime on which the stack runs.
    ///
    /// # Errors
    /// If `path` is in use or cannot be created; the message names it and what to do.
    pub fn control_socket(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.engine.group.open_control_socket(path.as_ref())
    }

    /// Serves the clients of a control socket that the caller has bound. Must be called within the
    /// tokio runtime on which the stack runs.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn serve_control(&self, socket: BoundSocket) -> io::Result<()> {
        self.engine.group.serve_control(socket)
    }

    #[doc(hidden)] // for `fullsend-gateway`
    /// Sets the gateway that the control socket's requests about one are passed to. Later calls have
    /// no effect.
    pub fn set_gateway(&self, gateway: Weak<dyn Gateway>) {
        self.engine.group.set_gateway(gateway);
    }

    /// Returns the packets and bytes of the stack's link.
    pub fn link(&self) -> LinkView {
        let mut all = LinkStats::default();
        for engine in self.engines() {
            let stats = engine.with_host_and_iface(Host::link_stats);
            all += stats.unwrap_or_default();
        }
        LinkView::new(self.engine.group.link_name(), &all)
    }

    #[doc(hidden)] // for `fullsend-gateway`
    /// Returns the connections with these local addresses and peers, read under one lock of each shard;
    /// `None` for connections that do not exist.
    pub fn connections(&self, addresses: &[(SocketAddr, SocketAddr)]) -> Vec<Option<SocketInfo>> {
        let mut found = vec![None; addresses.len()];
        for engine in self.engines() {
            engine.inspect(|host, now| {
                for (entry, &(local, peer)) in found.iter_mut().zip(addresses) {
                    if entry.is_none() {
                        *entry = host.tcp_socket(now, local, peer);
                    }
                }
            });
        }
        found
    }
}
