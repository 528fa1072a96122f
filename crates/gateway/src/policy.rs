//! Decisions of the embedding program about flows and DNS names.

mod domains;
mod egress;
#[cfg(feature = "policy-file")]
mod file;
mod local;
mod network;
mod refusals;
mod rule;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use egress::{DeniedNames, EgressPolicy};
#[cfg(feature = "policy-file")]
pub use file::PolicyFile;
pub(crate) use local::{embedded_v4, is_link_local, is_special};
pub(crate) use refusals::RefusalLog;
pub use rule::{Action, PolicyError, Rule};

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
pub struct Flow<'a> {
    /// The protocol.
    pub protocol: FlowProtocol,
    /// The guest's address. The port of a [`FlowProtocol::Ping`] is its identifier.
    pub guest: SocketAddr,
    /// The destination as the guest sees it. The port of a [`FlowProtocol::Ping`] is 0.
    pub destination: SocketAddr,
    /// The names for which the DNS relay has recently given the guest the address of the destination:
    /// those in answers of the host's resolvers, and those that the policy has
    /// [redirected](DnsVerdict::Redirect). They are in lower case, without the final dot. Empty if the
    /// policy does not [filter names](Policy::filters_names).
    pub names: &'a [Arc<str>],
    /// The further names of the chains of aliases (CNAME) that have led from [`names`](Self::names) to the
    /// address, in the same form. A rule that forbids flows to a name should consider them; one that
    /// allows flows should not, as the guest need not be allowed to resolve them.
    pub aliases: &'a [Arc<str>],
    /// Whether the destination is the DNS relay, whose queries [`Policy::dns`] decides about.
    pub is_dns_relay: bool,
    /// Whether the destination is an address of the host itself or of a private network: one of the
    /// host's interfaces at this moment, a loopback, link-local, private or multicast address, one of the
    /// gateway's, or one that [`Config::mappings`](crate::Config::mappings) has. `false` if the policy
    /// does not [judge flows](Policy::judges_flows).
    pub is_local: bool,
}

/// The decision about a [`Flow`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The flow goes to its destination.
    Allow,
    /// The flow is refused: TCP with a RST, UDP and echo requests with the ICMP error
    /// "administratively prohibited".
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
    /// The query is refused (`REFUSED`): the guest's resolver tries its other servers.
    Refuse,
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
    /// A datagram of a host that the guest has not sent to, for a port from which it has sent to others, gets
    /// in only if this allows the guest's own flow to that host
    /// ([`Config::udp_filtering`](crate::Config::udp_filtering)).
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

    /// Returns whether the guest may get the answer of a resolver in which `name` has this address.
    /// Otherwise its query is refused, and the address does not get the name in [`Flow::names`].
    /// `is_local` is that of [`Flow::is_local`]: such addresses of a name that others control lead to
    /// servers that the guest should perhaps not reach. `true` by default.
    fn allows_address(&self, name: &str, address: IpAddr, is_local: bool) -> bool {
        let _ = (name, address, is_local);
        true
    }

    /// Returns whether the guest may get the answer of a resolver in which `name` is an alias (CNAME) of
    /// `target`, directly or by further aliases. Otherwise its query is refused. `true` by default.
    fn allows_alias(&self, name: &str, target: &str) -> bool {
        let _ = (name, target);
        true
    }

    /// Returns whether [`flow`](Self::flow) depends on whether `target` is among [`Flow::aliases`]. Others
    /// are not kept. `true` by default.
    fn uses_alias(&self, target: &str) -> bool {
        let _ = target;
        true
    }

    /// Returns the reason why [`flow`](Self::flow) refuses a flow, for the log. Called for refused
    /// flows whose line is logged.
    fn explain_flow(&self, flow: &Flow) -> Option<String> {
        let _ = flow;
        None
    }

    /// Returns the reason why [`dns`](Self::dns) denies a name, for the log. Called for denied names
    /// whose line is logged.
    fn explain_dns(&self, name: &str, query_type: u16) -> Option<String> {
        let _ = (name, query_type);
        None
    }

    /// Returns the reason why [`allows_address`](Self::allows_address) refuses an answer, for the log.
    /// Called for refused answers whose line is logged.
    fn explain_address(&self, name: &str, address: IpAddr, is_local: bool) -> Option<String> {
        let _ = (name, address, is_local);
        None
    }

    /// Returns the reason why [`allows_alias`](Self::allows_alias) refuses an answer, for the log. Called
    /// for refused answers whose line is logged.
    fn explain_alias(&self, name: &str, target: &str) -> Option<String> {
        let _ = (name, target);
        None
    }

    /// Returns whether [`flow`](Self::flow) may return anything but [`Verdict::Allow`]. Otherwise it is
    /// not called. `true` by default.
    fn judges_flows(&self) -> bool {
        true
    }

    /// Returns whether the policy depends on names: [`dns`](Self::dns) may deny or redirect one,
    /// [`allows_address`](Self::allows_address) and [`allows_alias`](Self::allows_alias) may refuse an
    /// answer, or [`flow`](Self::flow) uses [`Flow::names`]. Port 853 of the DNS relay is then closed, as encrypted queries cannot be read; a
    /// flow to it counts as refused. `true` by default.
    fn filters_names(&self) -> bool {
        true
    }
}

/// The policy that allows everything.
#[derive(Clone, Copy, Debug)]
pub struct AllowAll;

impl Policy for AllowAll {
    fn judges_flows(&self) -> bool {
        false
    }

    fn filters_names(&self) -> bool {
        false
    }
}
