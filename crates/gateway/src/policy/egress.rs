//! The policy of a sandbox, a list of rules.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::domains::normalize;
use super::rule::{Action, PolicyError, Rule};
use super::{DnsVerdict, Flow, Policy, Verdict};
use crate::dns::ADDRESSES_MAX;

/// The answer to queries for names that an [`EgressPolicy`] denies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeniedNames {
    /// `REFUSED`: the guest's resolver tries its other servers, and then reports a temporary failure.
    #[default]
    Refused,
    /// `NXDOMAIN`: the name does not exist.
    NameError,
}

/// A policy that restricts the guest's flows by domain, network, port and protocol.
///
/// The first [`Rule`] that matches a flow decides about it; otherwise the default, which is to deny.
/// Queries to the DNS relay are allowed for names that the guest may reach: the domains of the rules, and
/// all names if a rule without domains and networks, or the default, allows flows. Rules that deny or
/// redirect judge each name in a chain of aliases (CNAME); rules that allow judge the name that the guest
/// has queried.
///
/// A rule with domains matches an address that the relay has given to the guest in a resolver's answer to
/// a query for such a name, or for an alias of it within the same answer, until the answer's TTL and
/// [`DnsConfig::address_grace`](crate::DnsConfig::address_grace) have passed. Flows that exist then
/// continue.
///
/// The owner of a name chooses its addresses, and could open the host's own services to the guest. A rule
/// that allows domains and has no networks therefore matches a [local](Flow::is_local) address only if
/// the policy itself gives it [the name](Self::name). Answers with local addresses are refused, unless a
/// rule with a network or without domains, or the default, lets the guest reach some port of them.
///
/// The policy has no state, so several gateways can share one.
///
/// ```
/// use std::sync::Arc;
/// use fullsend_gateway::{Config, EgressPolicy, FlowProtocol, Rule};
///
/// let policy = EgressPolicy::new()
///     .rule(Rule::deny().network("local")?)
///     .rule(Rule::allow().domain("*.debian.org")?.protocol(FlowProtocol::Tcp).ports(80..=80))
///     .rule(Rule::allow().network("192.0.2.0/24")?)
///     .name("db.internal", [[192, 0, 2, 7].into()])?;
/// let config = Config { policy: Arc::new(policy), ..Config::default() };
/// # Ok::<(), fullsend_gateway::PolicyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EgressPolicy {
    rules: Vec<Rule>,
    default: Action,
    /// Names that the policy itself resolves, in lower case.
    names: BTreeMap<String, Vec<IpAddr>>,
    denied_names: DeniedNames,
}

impl Default for EgressPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl EgressPolicy {
    /// Returns a policy that denies each flow and name.
    pub const fn new() -> Self {
        Self {
            rules: Vec::new(),
            default: Action::Deny,
            names: BTreeMap::new(),
            denied_names: DeniedNames::Refused,
        }
    }

    /// Appends a rule.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the action for flows that no rule matches. Denied by default.
    #[must_use]
    pub fn otherwise(mut self, action: Action) -> Self {
        self.default = action;
        self
    }

    /// Adds addresses of a name, for which the DNS relay then answers itself. The rules decide whether
    /// the guest may reach them: those that allow the name as a domain match these addresses, also local
    /// ones.
    ///
    /// # Errors
    /// Returns an error if `name` is not the name of a host, or has more than 64 addresses.
    pub fn name(
        mut self,
        name: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Self, PolicyError> {
        let normal = normalize(name).ok_or_else(|| {
            let shown = name.escape_debug();
            PolicyError::new(format!("`{shown}` is not a name; write e.g. db.internal"))
        })?;
        let all = self.names.entry(normal).or_default();
        all.extend(addresses);
        if all.len() > ADDRESSES_MAX {
            let (shown, count) = (name.escape_debug(), all.len());
            return Err(PolicyError::new(format!(
                "`{shown}` has {count} addresses; give a name at most {ADDRESSES_MAX}"
            )));
        }
        Ok(self)
    }

    /// Sets the answer to queries for denied names.
    #[must_use]
    pub const fn denied_names(mut self, answer: DeniedNames) -> Self {
        self.denied_names = answer;
        self
    }

    /// Returns whether a rule has a domain or the policy has a [name](Self::name), which have no effect
    /// without the DNS relay.
    pub fn needs_dns_relay(&self) -> bool {
        !self.names.is_empty() || self.rules.iter().any(Rule::has_domains)
    }

    /// Returns the first rule for which `is_decisive` returns true, with its number from 1.
    fn decisive(&self, is_decisive: impl Fn(&Rule) -> bool) -> Option<(usize, &Rule)> {
        let mut numbered = self.rules.iter().enumerate();
        let (n, rule) = numbered.find(|(_, rule)| is_decisive(rule))?;
        Some((n + 1, rule))
    }

    /// Returns the rule that decides about a flow.
    fn of_flow(&self, flow: &Flow) -> Option<(usize, &Rule)> {
        let ip = flow.destination.ip().to_canonical();
        let is_own = |name: &str| {
            let mut addresses = self.names.get(name).into_iter().flatten();
            addresses.any(|address| address.to_canonical() == ip)
        };
        self.decisive(|rule| rule.matches(flow, is_own))
    }

    /// Returns the reason of a refusal.
    fn explain(rule: Option<(usize, &Rule)>) -> String {
        match rule {
            Some((n, rule)) => match rule.origin() {
                Some(origin) => format!("the rule at {origin} denies it"),
                None => format!("rule {n} denies it"),
            },
            None => "no rule allows it".to_owned(),
        }
    }
}

impl Policy for EgressPolicy {
    fn flow(&self, flow: &Flow) -> Verdict {
        if flow.is_dns_relay {
            return Verdict::Allow;
        }
        let rule = self.of_flow(flow);
        rule.map_or(self.default, |(_, rule)| rule.action())
            .verdict(flow.protocol)
    }

    fn dns(&self, name: &str, _: u16) -> DnsVerdict {
        if let Some(addresses) = self.names.get(name) {
            return DnsVerdict::Redirect(addresses.clone());
        }
        let mut decisions = self.rules.iter().filter_map(|rule| rule.permits_name(name));
        if decisions.next().unwrap_or(self.default != Action::Deny) {
            return DnsVerdict::Allow;
        }
        match self.denied_names {
            DeniedNames::Refused => DnsVerdict::Refuse,
            DeniedNames::NameError => DnsVerdict::Deny,
        }
    }

    fn allows_address(&self, name: &str, address: IpAddr, is_local: bool) -> bool {
        let decide = |rule: &Rule| rule.permits_address(name, address, is_local);
        let mut decisions = self.rules.iter().filter_map(decide);
        !is_local || decisions.next().unwrap_or(self.default != Action::Deny)
    }

    fn allows_alias(&self, name: &str, target: &str) -> bool {
        // A name that the policy itself resolves has no aliases.
        let decide = |rule: &Rule| rule.permits_alias(name, target);
        let mut decisions = self.rules.iter().filter_map(decide);
        decisions.next().unwrap_or(self.default != Action::Deny)
    }

    fn uses_alias(&self, target: &str) -> bool {
        self.rules.iter().any(|rule| rule.uses_alias(target))
    }

    fn explain_alias(&self, name: &str, target: &str) -> Option<String> {
        let rule = self.decisive(|rule| rule.permits_alias(name, target).is_some());
        Some(Self::explain(rule))
    }

    fn judges_flows(&self) -> bool {
        self.default != Action::Allow || !self.rules.is_empty()
    }

    fn explain_address(&self, name: &str, address: IpAddr, is_local: bool) -> Option<String> {
        let decides = |rule: &Rule| rule.permits_address(name, address, is_local).is_some();
        Some(match self.decisive(decides) {
            None => "no rule with its network allows it".to_owned(),
            rule => Self::explain(rule),
        })
    }

    fn explain_flow(&self, flow: &Flow) -> Option<String> {
        Some(Self::explain(self.of_flow(flow)))
    }

    fn explain_dns(&self, name: &str, _: u16) -> Option<String> {
        let rule = self.decisive(|rule| rule.permits_name(name).is_some());
        Some(Self::explain(rule))
    }

    fn filters_names(&self) -> bool {
        self.default != Action::Allow || !self.rules.is_empty() || !self.names.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{FlowProtocol, is_special};
    use super::*;

    /// Returns the verdict about a flow to a destination that the guest knows by these names.
    fn verdict(policy: &EgressPolicy, protocol: FlowProtocol, to: &str, names: &[&str]) -> Verdict {
        let names: Vec<Arc<str>> = names.iter().map(|name| (*name).into()).collect();
        let destination: std::net::SocketAddr = to.parse().unwrap();
        policy.flow(&Flow {
            protocol,
            guest: "10.0.2.100:4000".parse().unwrap(),
            destination,
            names: &names,
            aliases: &[],
            is_dns_relay: false,
            is_local: is_special(destination.ip()),
        })
    }

    fn allows_tcp(policy: &EgressPolicy, to: &str, names: &[&str]) -> bool {
        verdict(policy, FlowProtocol::Tcp, to, names) == Verdict::Allow
    }

    fn allows_name(policy: &EgressPolicy, name: &str) -> bool {
        policy.dns(name, 1) == DnsVerdict::Allow
    }

    fn allows_address(policy: &EgressPolicy, name: &str, address: &str) -> bool {
        let address = address.parse().unwrap();
        policy.allows_address(name, address, is_special(address))
    }

    #[test]
    fn without_rules_each_flow_and_name_is_denied() {
        let policy = EgressPolicy::new();
        assert!(policy.filters_names());
        assert!(!allows_tcp(&policy, "192.0.2.1:80", &["example.org"]));
        assert_eq!(policy.dns("example.org", 1), DnsVerdict::Refuse);
        let policy = policy.denied_names(DeniedNames::NameError);
        assert_eq!(policy.dns("example.org", 1), DnsVerdict::Deny);
        let relay = Flow {
            protocol: FlowProtocol::Udp,
            guest: "10.0.2.100:4000".parse().unwrap(),
            destination: "10.0.2.3:53".parse().unwrap(),
            names: &[],
            aliases: &[],
            is_dns_relay: true,
            is_local: true,
        };
        assert_eq!(policy.flow(&relay), Verdict::Allow);
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = |rules: [Rule; 2]| {
            let policy = EgressPolicy::new();
            rules.into_iter().fold(policy, EgressPolicy::rule)
        };
        let deny = || Rule::deny().network("192.0.2.0/28").unwrap();
        let allow = || Rule::allow().network("192.0.2.0/24").unwrap();
        let policy = rules([deny(), allow()]);
        assert!(!allows_tcp(&policy, "192.0.2.1:80", &[]));
        assert!(allows_tcp(&policy, "192.0.2.16:80", &[]));
        assert!(!allows_tcp(&policy, "192.0.3.16:80", &[]));
        assert!(allows_tcp(&rules([allow(), deny()]), "192.0.2.1:80", &[]));
        // An IPv4 address in IPv6's form does not evade a rule.
        assert!(!allows_tcp(&policy, "[::ffff:192.0.2.1]:80", &[]));
        // Nor one that a translator or a tunnel leads to; and no rule opens these forms.
        let policy = rules([deny(), Rule::allow().network("::/0").unwrap()]);
        for to in ["[64:ff9b::192.0.2.1]:80", "[2002:c000:201::7]:80"] {
            assert!(!allows_tcp(&policy, to, &[]), "{to}");
            assert!(!allows_tcp(&EgressPolicy::new().rule(allow()), to, &[]));
        }
        assert!(allows_tcp(&policy, "[64:ff9b::192.0.2.16]:80", &[]));
        let proxy = "192.0.2.99:3128".parse().unwrap();
        let redirect = Rule::new(Action::Redirect(proxy))
            .network("192.0.2.0/28")
            .unwrap();
        let policy = rules([redirect, Rule::allow().network("::/0").unwrap()]);
        let redirected = verdict(&policy, FlowProtocol::Tcp, "[64:ff9b::192.0.2.1]:80", &[]);
        assert_eq!(redirected, Verdict::Redirect(proxy));
    }

    #[test]
    fn all_kinds_of_conditions_must_be_met() {
        let rule = Rule::allow().domain("*.example.org").unwrap();
        let rule = rule.network("192.0.2.0/24").unwrap();
        let rule = rule.ports(80..=81).ports(443..=443);
        let rule = rule.protocol(FlowProtocol::Tcp);
        let policy = EgressPolicy::new().rule(rule);
        let name: &[&str] = &["other.test", "a.example.org"];
        for to in ["192.0.2.9:80", "192.0.2.9:81", "192.0.2.9:443"] {
            assert!(allows_tcp(&policy, to, name), "{to}");
        }
        for (to, name) in [
            ("192.0.2.9:82", name),
            ("192.0.3.9:80", name),
            ("192.0.2.9:80", &["example.org"]),
            ("192.0.2.9:80", &[]),
        ] {
            assert!(!allows_tcp(&policy, to, name), "{to}");
        }
        let udp = verdict(&policy, FlowProtocol::Udp, "192.0.2.9:80", name);
        assert_eq!(udp, Verdict::Reject);
    }

    #[test]
    fn pings_have_no_ports() {
        let ping = |policy: &EgressPolicy| verdict(policy, FlowProtocol::Ping, "192.0.2.1:0", &[]);
        let ports = EgressPolicy::new().rule(Rule::allow().ports(0..=65_535));
        assert_eq!(ping(&ports), Verdict::Reject);
        assert!(allows_tcp(&ports, "192.0.2.1:9", &[]));
        let pings = EgressPolicy::new().rule(Rule::allow().protocol(FlowProtocol::Ping));
        assert_eq!(ping(&pings), Verdict::Allow);
        assert!(!allows_tcp(&pings, "192.0.2.1:9", &[]));
    }

    #[test]
    fn flows_can_be_redirected() {
        let to = "127.0.0.1:3128".parse().unwrap();
        let rule = Rule::new(Action::Redirect(to))
            .domain("example.org")
            .unwrap();
        let policy = EgressPolicy::new().rule(rule);
        let to_name = verdict(&policy, FlowProtocol::Tcp, "192.0.2.1:80", &["example.org"]);
        assert_eq!(to_name, Verdict::Redirect(to));
        // Pings have no port: a later rule, or the default, decides about them.
        let ping = |policy: &EgressPolicy| {
            verdict(policy, FlowProtocol::Ping, "192.0.2.1:0", &["example.org"])
        };
        assert_eq!(ping(&policy), Verdict::Reject);
        let pings = Rule::allow().protocol(FlowProtocol::Ping);
        assert_eq!(ping(&policy.clone().rule(pings)), Verdict::Allow);
        let default = EgressPolicy::new().otherwise(Action::Redirect(to));
        assert_eq!(ping(&default), Verdict::Reject);
        assert!(allows_name(&policy, "example.org"));
    }

    #[test]
    fn names_are_allowed_that_the_guest_may_reach() {
        let domain = |rule: Rule| rule.domain("*.example.org").unwrap();
        let networks = Rule::allow().network("0.0.0.0/0").unwrap();
        let policy = EgressPolicy::new()
            .rule(
                domain(Rule::deny())
                    .domain("ads.example.net")
                    .unwrap()
                    .ports(80..=80),
            )
            .rule(Rule::deny().domain("secret.example.org").unwrap())
            .rule(networks.clone())
            .rule(domain(Rule::allow()).ports(443..=443));
        assert!(allows_name(&policy, "www.example.org"));
        assert!(!allows_name(&policy, "secret.example.org"));
        assert!(!allows_name(&policy, "example.org"));
        assert!(!allows_name(&policy, "ads.example.net"));
        // A rule about each destination is one about each name.
        let any = EgressPolicy::new()
            .rule(Rule::deny().network("local").unwrap())
            .rule(Rule::allow().ports(443..=443));
        assert!(allows_name(&any, "example.org"));
        assert!(!allows_name(
            &EgressPolicy::new().rule(networks),
            "example.org"
        ));
        let none = EgressPolicy::new()
            .otherwise(Action::Allow)
            .rule(Rule::deny());
        assert!(!allows_name(&none, "example.org"));
    }

    #[test]
    fn what_is_not_denied_may_be_allowed() {
        let policy = EgressPolicy::new().otherwise(Action::Allow);
        assert!(!policy.filters_names());
        // Answers may have an address that a rule denies.
        let local = Rule::deny().network("local").unwrap();
        let denied = policy.clone().rule(local);
        assert!(denied.filters_names());
        assert!(!allows_address(&denied, "example.org", "10.0.0.1"));
        let policy = policy.rule(Rule::deny().domain("ads.example").unwrap());
        assert!(policy.filters_names());
        assert!(allows_name(&policy, "example.org") && !allows_name(&policy, "ads.example"));
        assert!(allows_tcp(&policy, "10.0.0.1:80", &[]));
        assert!(!allows_tcp(&policy, "10.0.0.1:80", &["ads.example"]));
        assert!(allows_address(&policy, "example.org", "10.0.0.1"));
    }

    #[test]
    fn rules_that_deny_judge_aliases_and_the_first_rule_decides() {
        let deny = || Rule::deny().domain("secret.example").unwrap();
        let allow = || Rule::allow().domain("*.alias.example").unwrap();
        let (name, target) = ("a.alias.example", "secret.example");
        let allows = |policy: &EgressPolicy| policy.allows_alias(name, target);
        let policy = EgressPolicy::new().rule(deny()).rule(allow());
        assert!(!allows(&policy) && policy.uses_alias(target));
        assert!(policy.allows_alias(name, "cdn.example") && !policy.uses_alias("cdn.example"));
        let text = policy.explain_alias(name, target);
        assert_eq!(text.as_deref(), Some("rule 1 denies it"));
        assert!(allows(&EgressPolicy::new().rule(allow()).rule(deny())));
        let by_default = EgressPolicy::new().otherwise(Action::Allow).rule(deny());
        assert!(!allows(&by_default));
        // A rule about some flows lets the answer pass, and judges the flows.
        let policy = EgressPolicy::new()
            .rule(deny().ports(22..=22))
            .rule(allow());
        assert!(allows(&policy) && policy.uses_alias(target));
        let to = |port: u16, aliases: &[Arc<str>]| {
            policy.flow(&Flow {
                protocol: FlowProtocol::Tcp,
                guest: "10.0.2.100:4000".parse().unwrap(),
                destination: ([192, 0, 2, 1], port).into(),
                names: &[name.into()],
                aliases,
                is_dns_relay: false,
                is_local: false,
            })
        };
        assert_eq!(to(22, &[target.into()]), Verdict::Reject);
        assert_eq!(to(22, &[]), Verdict::Allow);
        assert_eq!(to(80, &[target.into()]), Verdict::Allow);
        // An alias of an allowed name gives no access.
        assert!(!allows_tcp(&policy, "192.0.2.1:80", &[target]));
    }

    #[test]
    fn local_addresses_of_a_name_need_a_rule_about_their_network() {
        let domain = || Rule::allow().domain("*.example.org").unwrap();
        let policy = EgressPolicy::new().rule(domain());
        let name = "a.example.org";
        assert!(allows_address(&policy, name, "192.0.2.1"));
        for address in [
            "127.0.0.1",
            "10.0.2.2",
            "169.254.169.254",
            "::1",
            "fd00::2",
            "::ffff:10.0.0.1",
        ] {
            assert!(!allows_address(&policy, name, address), "{address}");
        }
        let network = |rule: Rule| rule.network("10.0.0.0/8").unwrap();
        for rule in [network(domain()), network(Rule::allow()), Rule::allow()] {
            let policy = EgressPolicy::new().rule(domain()).rule(rule);
            assert!(allows_address(&policy, name, "10.0.0.1"));
        }
        let other = network(Rule::allow().domain("other.test").unwrap());
        let denied = EgressPolicy::new().rule(Rule::deny().network("local").unwrap());
        for policy in [policy.rule(other), denied.rule(network(Rule::allow()))] {
            assert!(!allows_address(&policy, name, "10.0.0.1"));
        }
    }

    #[test]
    fn an_answer_does_not_open_a_local_address_beyond_the_rule_that_lets_it_pass() {
        let pings = Rule::allow().network("10.0.0.0/8").unwrap();
        let by_name = |ports| {
            let rule = Rule::allow().domain("*.example.org").unwrap();
            EgressPolicy::new().rule(rule.ports(ports))
        };
        let policy = by_name(0..=65_535).rule(pings.protocol(FlowProtocol::Ping));
        let name = "evil.example.org";
        assert!(allows_address(&policy, name, "10.0.0.5"));
        assert!(!allows_tcp(&policy, "10.0.0.5:22", &[name]));
        assert!(!allows_tcp(&policy, "[::ffff:10.0.0.5]:22", &[name]));
        assert!(allows_tcp(&policy, "192.0.2.1:22", &[name]));
        let ping = verdict(&policy, FlowProtocol::Ping, "10.0.0.5:0", &[name]);
        assert_eq!(ping, Verdict::Allow);

        let policy = by_name(80..=80).rule(Rule::allow().ports(443..=443));
        assert!(allows_address(&policy, name, "169.254.169.254"));
        assert!(!allows_tcp(&policy, "169.254.169.254:80", &[name]));
        assert!(allows_tcp(&policy, "169.254.169.254:443", &[name]));

        // The policy's own name opens its own addresses only; a network and a name open both.
        let own = by_name(80..=80).name("db.example.org", [[10, 0, 0, 5].into()]);
        let own = own.unwrap();
        assert!(allows_tcp(&own, "10.0.0.5:80", &["db.example.org"]));
        assert!(allows_tcp(
            &own,
            "[::ffff:10.0.0.5]:80",
            &["db.example.org"]
        ));
        assert!(!allows_tcp(&own, "10.0.0.5:80", &[name]));
        assert!(!allows_tcp(&own, "10.0.0.6:80", &["db.example.org"]));
        let rule = Rule::allow().domain("*.example.org").unwrap();
        let both = EgressPolicy::new().rule(rule.network("10.0.0.0/8").unwrap());
        assert!(allows_tcp(&both, "10.0.0.5:80", &[name]));
        // A rule that denies by name does so for local addresses, too.
        let denies = EgressPolicy::new().otherwise(Action::Allow);
        let denies = denies.rule(Rule::deny().domain("*.example.org").unwrap());
        assert!(!allows_tcp(&denies, "10.0.0.5:80", &[name]));
    }

    #[test]
    fn own_names_have_the_addresses_of_the_policy() {
        let addresses: [IpAddr; 2] = [[10, 0, 2, 2].into(), [192, 0, 2, 1].into()];
        let policy = EgressPolicy::new()
            .name("Host.Internal.", addresses)
            .unwrap();
        let redirect = DnsVerdict::Redirect(addresses.into());
        assert_eq!(policy.dns("host.internal", 1), redirect);
        assert_eq!(policy.dns("x.host.internal", 1), DnsVerdict::Refuse);
        assert!(policy.needs_dns_relay() && !EgressPolicy::new().needs_dns_relay());
        assert!(EgressPolicy::new().name("a b", addresses).is_err());
    }

    #[test]
    fn refusals_name_the_rule() {
        let policy = EgressPolicy::new()
            .rule(Rule::allow().domain("example.org").unwrap())
            .rule(Rule::deny().domain("ads.example").unwrap());
        let explain = |name| policy.explain_dns(name, 1).unwrap();
        assert_eq!(explain("ads.example"), "rule 2 denies it");
        assert_eq!(explain("other.example"), "no rule allows it");
        let address = [10, 0, 0, 1].into();
        let explain = |policy: &EgressPolicy| policy.explain_address("example.org", address, true);
        let reason = explain(&policy).unwrap();
        assert_eq!(reason, "no rule with its network allows it");
        let denied = policy.rule(Rule::deny().network("local").unwrap());
        assert_eq!(explain(&denied).unwrap(), "rule 3 denies it");
    }
}
