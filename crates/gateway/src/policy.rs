//! Decisions of the embedding program about flows and DNS names.

use std::net::{IpAddr, SocketAddr};

use crate::forward::Protocol;

/// A flow that the guest opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The guest's address.
    pub guest: SocketAddr,
    /// The destination as the guest sees it.
    pub destination: SocketAddr,
}

/// The decision about a [`Flow`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The flow goes to its destination.
    Allow,
    /// The flow is refused: TCP with a RST, UDP with "port unreachable".
    Reject,
    /// The flow gets no answer.
    Drop,
    /// The flow goes to another address of the host's network, whatever
    /// [`Config::mappings`](crate::Config::mappings) says.
    Redirect(SocketAddr),
}

/// The decision about a DNS query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DnsVerdict {
    /// The query goes to the host's resolvers.
    Allow,
    /// The name does not exist (`NXDOMAIN`).
    Deny,
    /// The name has these addresses: queries for A and AAAA get those of their family, other
    /// queries an empty answer.
    Redirect(Vec<IpAddr>),
}

/// Decides about the guest's flows and DNS names.
///
/// The methods are called on the gateway's thread and must not block.
pub trait Policy: Send + Sync {
    /// Decides about a flow, once, when the guest opens it.
    fn flow(&self, flow: &Flow) -> Verdict {
        let _ = flow;
        Verdict::Allow
    }

    /// Decides about a query to the DNS relay. `name` is in lower case, without the final dot;
    /// bytes that are not printable ASCII are written as `\ddd`.
    fn dns(&self, name: &str, query_type: u16) -> DnsVerdict {
        let _ = (name, query_type);
        DnsVerdict::Allow
    }
}

/// The policy that allows everything.
#[derive(Clone, Copy, Debug)]
pub struct AllowAll;

impl Policy for AllowAll {}
