//! The control socket of a stack, through which `fullsend stat` inspects it and sets options: the
//! protocol, the answers, the path of the socket, and a server on threads. `fullsend::control`
//! describes the protocol; the crate `fullsend` serves it on tokio.

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
