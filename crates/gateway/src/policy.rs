//! Decisions of the embedding program about flows and DNS names.

use std::net::{IpAddr, SocketAddr};

/// The protocol of a flow that the guest opens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FlowProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Echo requests of ICMP or ICMPv6.
    Ping,
}

/// A flow that the guest opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The protocol.
    pub protocol: FlowProtocol,
    /// The guest's address. The port of a [`FlowProtocol::Ping`] is its identifier.
    pub guest: SocketAddr,
    /// The destination as the guest sees it. The port of a [`FlowProtocol::Ping`] is 0.
    pub destination: SocketAddr,
}

/// The decision about a [`Flow`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The flow goes to its destination.
    Allow,
    /// The flow is refused: TCP with a RST, UDP with "port unreachable". Echo requests are dropped.
    Reject,
    /// The flow gets no answer.
    Drop,
    /// The flow goes to another address of the host's network, whatever
    /// [`Config::mappings`](crate::Config::mappings) says. The unspecified address is no
    /// destination: the flow gets no answer.
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
    /// Decides about a flow when the guest opens it. The decision lasts for as long as the flow
    /// exists. A flow that is refused does not exist: there is a call for each of its SYNs, datagrams
    /// and echo requests. Queries to the DNS relay are flows, too.
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

    /// Returns whether [`dns`](Self::dns) may deny or redirect a name. Port 853 of the DNS relay is
    /// then closed, as the names of encrypted queries cannot be read. `true` by default.
    fn filters_names(&self) -> bool {
        true
    }
}

/// The policy that allows everything.
#[derive(Clone, Copy, Debug)]
pub struct AllowAll;

impl Policy for AllowAll {
    fn filters_names(&self) -> bool {
        false
    }
}
