//! A socket through which tools look into a running stack, and set things: `fullsend stat`.
//!
//! [`Builder::control_socket`](crate::Builder::control_socket) opens it. It is a Unix stream
//! socket of mode 0600; whoever may connect may see and set everything. A request is one line of
//! JSON ([`Request`]), and so is each reply ([`Reply`]):
//!
//! ```text
//! > {"v":1,"cmd":"sysctl","key":"tcp_sack"}
//! < {"v":1,"ok":[["tcp_sack","1"]]}
//! > {"v":1,"cmd":"sysctl","key":"tcp_sak"}
//! < {"v":1,"error":"there is no tunable \"tcp_sak\"; the nearest is net.ipv4.tcp_sack"}
//! ```
//!
//! `sockets` replies with an `item` for each, then `end`; `capture` with `data` (its length, and
//! after the line as many bytes of pcapng), then `end`. The stack's lock is held for a short time
//! for each piece, and never while a client is waited for.

mod capture;
mod client;
mod filter;
mod server;

pub use fullsend_control::{
    AddressView, CaptureRequest, CaptureSummary, Counters, LinkView, MAX_CLIENTS, MAX_LINE,
    PidSocket, QdiscView, Reply, Request, SkMemView, SockStatView, SocketView, TimerView, VERSION,
    WhyLimit, WhyView, default_dir, default_path, running,
};

pub(crate) use server::Control;
