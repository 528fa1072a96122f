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
    /// The names for which the DNS relay has recently given the guest the destination's address, from the
    /// host's resolvers or [redirected](DnsVerdict::Redirect) by the policy. They are in lower case,
    /// without the final dot. Empty if the policy does not [filter names](Policy::filters_names).
    pub names: &'a [Arc<str>],
    /// The further names in the chains of aliases (CNAME) from [`names`](Self::names) to the address, in
    /// the same form. A rule that forbids flows to a name should consider them; a rule that allows flows
    /// should not, as the guest may not be allowed to resolve them.
    pub aliases: &'a [Arc<str>],
    /// Whether the destination is the DNS relay, about whose queries [`Policy::dns`] decides.
    pub is_dns_relay: bool,
    /// Whether the destination is an address of the host itself or of a private network: an address that
    /// the host's interfaces have now, a loopback, link-local, private or multicast address, the
    /// gateway's own, or one in [`Config::mappings`](crate::Config::mappings). `false` if the policy does
    /// not [judge flows](Policy::judges_flows).
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
    /// The flow goes to another address of the host's network, regardless of
    /// [`Config::mappings`](crate::Config::mappings). With the unspecified address, the flow gets no
    /// answer.
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
    /// The name has these addresses: queries for A and AAAA get those of their family, and other queries
    /// an empty answer.
    Redirect(Vec<IpAddr>),
}

/// Decisions about the guest's flows and DNS names.
///
/// The methods are called on the gateway's thread and must not block.
pub trait Policy: Send + Sync {
    /// Decides about a flow when the guest opens it, for as long as the flow exists. It is called for
    /// each SYN, datagram and echo request of a refused flow, and also for queries to the DNS relay. A
    /// datagram of a host that the guest has not sent to is delivered to a port that has sent to others
    /// only if this allows the guest's flow to that host
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

    /// Returns whether the guest may get a resolver's answer in which `name` has this address. Otherwise
    /// the query is refused, and the address does not get the name in [`Flow::names`]. `is_local` is
    /// [`Flow::is_local`] of the address: the owner of a name can give it local addresses to reach
    /// servers that the guest should not. `true` by default.
    fn allows_address(&self, name: &str, address: IpAddr, is_local: bool) -> bool {
        let _ = (name, address, is_local);
        true
    }

    /// Returns whether the guest may get a resolver's answer in which `name` is an alias (CNAME) of
    /// `target`, directly or through other aliases. Otherwise the query is refused. `true` by default.
    fn allows_alias(&self, name: &str, target: &str) -> bool {
        let _ = (name, target);
        true
    }

    /// Returns whether [`flow`](Self::flow) depends on `target` in [`Flow::aliases`]; other aliases are
    /// not recorded. `true` by default.
    fn uses_alias(&self, target: &str) -> bool {
        let _ = target;
        true
    }

    /// Returns the reason why [`flow`](Self::flow) refuses a flow. Called only for flows whose refusal is
    /// logged.
    fn explain_flow(&self, flow: &Flow) -> Option<String> {
        let _ = flow;
        None
    }

    /// Returns the reason why [`dns`](Self::dns) denies a name. Called only for names whose denial is
    /// logged.
    fn explain_dns(&self, name: &str, query_type: u16) -> Option<String> {
        let _ = (name, query_type);
        None
    }

    /// Returns the reason why [`allows_address`](Self::allows_address) refuses an answer. Called only for
    /// answers whose refusal is logged.
    fn explain_address(&self, name: &str, address: IpAddr, is_local: bool) -> Option<String> {
        let _ = (name, address, is_local);
        None
    }

    /// Returns the reason why [`allows_alias`](Self::allows_alias) refuses an answer. Called only for
    /// answers whose refusal is logged.
    fn explain_alias(&self, name: &str, target: &str) -> Option<String> {
        let _ = (name, target);
        None
    }

    /// Returns whether [`flow`](Self::flow) may return anything but [`Verdict::Allow`]; otherwise it is
    /// not called. `true` by default.
    fn judges_flows(&self) -> bool {
        true
    }

    /// Returns whether the policy depends on names: [`dns`](Self::dns) may deny or redirect one,
    /// [`allows_address`](Self::allows_address) or [`allows_alias`](Self::allows_alias) may refuse an
    /// answer, or [`flow`](Self::flow) uses [`Flow::names`]. Then flows to port 853 of the DNS relay are
    /// refused, as encrypted queries cannot be read. `true` by default.
    fn filters_names(&self) -> bool {
        true
    }
}

/// A policy that allows everything.
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
