//! TCP: the guest's connections, forwarded ones, and the relay between the two sockets of each.

mod flow;
mod forward;
mod host_stream;
mod outbound;
mod pipe;
mod relay;
mod relay_memory;
mod splice;
#[cfg(test)]
mod tests;

pub(crate) use flow::{Stage, TcpFlow, TcpFlows};
pub(crate) use forward::{accept_forwarded, accept_in_guest};
pub(crate) use host_stream::HostStream;
pub(crate) use outbound::accept_outbound;
pub(crate) use pipe::Pipes;
pub(crate) use relay_memory::{PAGE_BYTES, RelayMemory};
