//! The rules of a policy.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::domains::Domains;
use super::network::Network;
use super::{Flow, FlowProtocol, Verdict};

/// An invalid setting of a policy; the message names the value and the fix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyError(String);

impl PolicyError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PolicyError {}

/// The effect of a rule on the flows that match it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The flows go to their destinations.
    Allow,
    /// The flows are refused.
    Deny,
    /// The flows go to this address of the host's network, which is not the unspecified one and has a
    /// port other than 0. Echo requests have no port: they do not match such a rule, and are refused if
    /// this is the default.
    Redirect(SocketAddr),
}

impl Action {
    pub(super) fn verdict(self, protocol: FlowProtocol) -> Verdict {
        match self {
            Self::Allow => Verdict::Allow,
            Self::Redirect(to) if protocol != FlowProtocol::Ping => Verdict::Redirect(to),
            Self::Deny | Self::Redirect(_) => Verdict::Reject,
        }
    }
}

/// A rule of an [`EgressPolicy`](super::EgressPolicy): conditions, and the action for flows that meet all
/// of them.
///
/// A flow must match one value of each kind of condition; a rule without that kind matches any value. A
/// rule without conditions matches each flow.
///
/// ```
/// use fullsend_gateway::{FlowProtocol, Rule};
///
/// // HTTPS to the hosts of these domains.
/// let rule = Rule::allow()
///     .domain("example.org")?
///     .domain("*.example.org")?
///     .protocol(FlowProtocol::Tcp)
///     .ports(443..=443);
/// # Ok::<(), fullsend_gateway::PolicyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    action: Action,
    domains: Domains,
    networks: Vec<Network>,
    /// The first and last ports of ranges.
    ports: Vec<(u16, u16)>,
    protocols: Vec<FlowProtocol>,
    /// The rule's position in its file, for the log.
    origin: Option<String>,
}

impl Rule {
    /// Returns a rule that allows flows.
    pub fn allow() -> Self {
        Self::new(Action::Allow)
    }

    /// Returns a rule that refuses flows.
    pub fn deny() -> Self {
        Self::new(Action::Deny)
    }

    /// Returns a rule with this action, without conditions.
    pub fn new(action: Action) -> Self {
        Self {
            action,
            domains: Domains::default(),
            networks: Vec::new(),
            ports: Vec::new(),
            protocols: Vec::new(),
            origin: None,
        }
    }

    /// Adds a domain name, all names below one for `*.NAME`, or all names for `*`.
    ///
    /// A flow matches if the DNS relay has given its destination to the guest as the address of such a
    /// name ([`Flow::names`]). A rule that denies or redirects also matches such a name in the chain of
    /// aliases that led to the address ([`Flow::aliases`]).
    ///
    /// # Errors
    /// Returns an error if `domain` is not a domain name.
    pub fn domain(mut self, domain: &str) -> Result<Self, PolicyError> {
        self.domains.add(domain)?;
        Ok(self)
    }

    /// Adds a network such as `10.0.0.0/8`, an address, or `local` for all addresses that are
    /// [local](Flow::is_local). It is compared with the destination as the guest sees it. In a rule that
    /// denies or redirects, an IPv4 network includes the IPv6 addresses that lead to its addresses: those
    /// of NAT64 (`64:ff9b::/96`) and 6to4 (`2002::/16`).
    ///
    /// # Errors
    /// Returns an error if `network` is none of these.
    pub fn network(mut self, network: &str) -> Result<Self, PolicyError> {
        self.networks.push(Network::parse(network)?);
        Ok(self)
    }

    /// Adds ports of the destination. Echo requests have no port, and do not match.
    #[must_use]
    pub fn ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ports.push((*ports.start(), *ports.end()));
        self
    }

    /// Adds a protocol.
    #[must_use]
    pub fn protocol(mut self, protocol: FlowProtocol) -> Self {
        self.protocols.push(protocol);
        self
    }

    /// Sets the rule's position in its file.
    #[cfg(feature = "policy-file")]
    pub(super) fn written_at(mut self, origin: String) -> Self {
        self.origin = Some(origin);
        self
    }

    /// Returns whether the rule requires a port, but has only protocols without ports.
    #[cfg(feature = "policy-file")]
    pub(super) fn has_useless_ports(&self) -> bool {
        let has_ports = !self.ports.is_empty() || matches!(self.action, Action::Redirect(_));
        has_ports
            && !self.protocols.is_empty()
            && self
                .protocols
                .iter()
                .all(|protocol| *protocol == FlowProtocol::Ping)
    }

    pub(super) fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    pub(super) const fn action(&self) -> Action {
        self.action
    }

    pub(super) fn has_domains(&self) -> bool {
        !self.domains.is_empty()
    }

    /// Returns whether the rule has no conditions except destinations.
    fn is_about_all_flows(&self) -> bool {
        self.ports.is_empty() && self.protocols.is_empty()
    }

    /// Returns whether a flow meets all conditions. `is_own` returns whether the policy itself gives a
    /// name to the destination.
    ///
    /// A name alone opens a [local](Flow::is_local) destination only if the policy itself gives it the
    /// name: another rule may have let a resolver's answer pass for other ports.
    pub(super) fn matches(&self, flow: &Flow, is_own: impl Fn(&str) -> bool) -> bool {
        let trusts_name =
            !flow.is_local || !self.networks.is_empty() || self.action != Action::Allow;
        let is_named =
            |name: &Arc<str>| self.domains.contains(name) && (trusts_name || is_own(name));
        // A guest that may not reach a name must not reach it through an alias either.
        let aliases = match self.action {
            Action::Deny | Action::Redirect(_) => flow.aliases,
            Action::Allow => &[],
        };
        let port = flow.destination.port();
        let is_port = |&(first, last): &(u16, u16)| (first..=last).contains(&port);
        let is_ping = flow.protocol == FlowProtocol::Ping;
        let has_port = !is_ping && self.ports.iter().any(is_port);
        !(is_ping && matches!(self.action, Action::Redirect(_)))
            && (self.protocols.is_empty() || self.protocols.contains(&flow.protocol))
            && (self.ports.is_empty() || has_port)
            && self.matches_address(flow.destination.ip(), flow.is_local)
            && (!self.has_domains() || flow.names.iter().chain(aliases).any(is_named))
    }

    /// Returns whether the rule's networks contain an address. Rules that deny or redirect also match the
    /// IPv6 forms that lead to an IPv4 address; rules that allow must not open them.
    fn matches_address(&self, address: IpAddr, is_local: bool) -> bool {
        let matches = |network: &Network| match self.action {
            Action::Deny | Action::Redirect(_) => network.covers(address, is_local),
            Action::Allow => network.contains(address, is_local),
        };
        self.networks.is_empty() || self.networks.iter().any(matches)
    }

    /// Returns whether queries for a name may be relayed, or `None` if this rule does not decide about
    /// it.
    ///
    /// A rule that lets the guest reach a name permits the query, and a rule that forbids each flow to it
    /// forbids it. Rules with networks but without domains decide about no names.
    pub(super) fn permits_name(&self, name: &str) -> Option<bool> {
        let is_about_name = if self.has_domains() {
            self.domains.contains(name)
        } else {
            self.networks.is_empty()
        };
        match self.action {
            _ if !is_about_name => None,
            Action::Allow | Action::Redirect(_) => Some(true),
            Action::Deny => {
                (self.is_about_all_flows() && self.networks.is_empty()).then_some(false)
            }
        }
    }

    /// Returns whether the rule matches flows by the name `target` in the chain of aliases of their
    /// destination.
    pub(super) fn uses_alias(&self, target: &str) -> bool {
        self.action != Action::Allow && self.domains.contains(target)
    }

    /// Returns whether an answer in which `name` is an alias of `target` may be relayed, or `None` if
    /// this rule does not decide about it. It decides as about queries for `name`; a rule that forbids
    /// each flow to `target` also forbids the answer.
    pub(super) fn permits_alias(&self, name: &str, target: &str) -> Option<bool> {
        match self.action {
            Action::Deny => self
                .permits_name(name)
                .or_else(|| self.permits_name(target)),
            Action::Allow | Action::Redirect(_) => self.permits_name(name),
        }
    }

    /// Returns whether the guest may reach an address of `name`, or `None` if this rule does not decide
    /// about it without trusting the name alone. It decides if it lets the guest reach the address by a
    /// condition on networks or by none, or if it forbids each flow to the address.
    pub(super) fn permits_address(
        &self,
        name: &str,
        address: IpAddr,
        is_local: bool,
    ) -> Option<bool> {
        let by_name = self.has_domains();
        let trusts_name = by_name && self.networks.is_empty();
        let is_about_it =
            (!by_name || self.domains.contains(name)) && self.matches_address(address, is_local);
        match self.action {
            _ if !is_about_it => None,
            Action::Allow | Action::Redirect(_) => (!trusts_name).then_some(true),
            Action::Deny => self.is_about_all_flows().then_some(false),
        }
    }
}
