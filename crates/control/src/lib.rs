//! The control socket of a stack, through which `fullsend stat` inspects it and sets options: the
//! protocol, the answers, the path of the socket, and a server on threads. `fullsend::control`
//! describes the protocol; the crate `fullsend` serves it on tokio.

#[cfg(not(target_os = "linux"))]
compile_error!("fullsend-control needs Linux: it uses system calls that other systems do not have");

mod answer;
mod gateway;
mod inspect;
mod listing;
mod options;
mod path;
mod protocol;
mod server;
mod view;

pub use answer::answer;
pub use gateway::{
    FlowCountView, FlowCursor, FlowDirectionView, ForwardView, Gateway, GatewayFlowView,
    GatewayView, GuestNetworkView, GuestSocketView, HostSocketView, LeaseView,
};
pub use inspect::Inspect;
pub use listing::Listing;
pub use path::{BoundSocket, RunningSocket, SocketFile, default_dir, default_path, running};
pub use protocol::{CaptureRequest, MAX_CLIENTS, MAX_LINE, Reply, Request, VERSION};
pub use server::Server;
pub use view::{
    AddressView, CaptureSummary, Counters, FlowReportView, LinkView, QdiscView, SendLimitView,
    SkMemView, SockStatView, SocketView, TimerView,
};

// Their types are in public signatures.
pub use fullsend_stack;
pub use fullsend_tcp;
pub use fullsend_wire;
