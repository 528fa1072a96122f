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
//! `sockets` replies with an `item` for each socket, then `end`; `capture` with `data` (a length,
//! with that number of bytes of pcapng after the line), then `end`. The stack is locked for a short
//! time for each reply, and never while waiting for a client.
//!
//! This module is there with the crate's feature `control`.

mod capture;
mod client;
mod filter;
mod server;

use std::io;
use std::path::Path;

pub use fullsend_control::{
    AddressView, CaptureRequest, CaptureSummary, Counters, FlowReportView, LinkView, MAX_CLIENTS,
    MAX_LINE, QdiscView, Reply, Request, RunningSocket, SendLimitView, SkMemView, SockStatView,
    SocketView, TimerView, VERSION, default_dir, default_path, running,
};

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
        self.engine.open_control_socket(path.as_ref())
    }
}
