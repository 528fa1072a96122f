//! The policy's decisions, with a counter and a log line for each refusal.

use std::fmt::Write;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use tokio::time::Instant;

use crate::counters::add;
use crate::dns::Names;
use crate::gateway::Shared;
use crate::guests::Guest;
use crate::message::dns::Query;
use crate::policy::{Flow, FlowProtocol, Verdict, embedded_v4};
use crate::route::{DNS_OVER_TLS_PORT, DNS_PORT};

impl Shared {
    /// Returns the policy's verdict about the flow from `guest` to `destination`. Counts and logs a
    /// refusal.
    pub(crate) fn verdict(
        &self,
        protocol: FlowProtocol,
        guest: SocketAddr,
        destination: SocketAddr,
    ) -> Verdict {
        self.judge((protocol, guest, destination), true)
    }

    /// Returns the policy's verdict about a flow without counting or logging it.
    pub(crate) fn verdict_quietly(
        &self,
        protocol: FlowProtocol,
        guest: SocketAddr,
        destination: SocketAddr,
    ) -> Verdict {
        self.judge((protocol, guest, destination), false)
    }

    fn judge(
        &self,
        (protocol, guest, destination): (FlowProtocol, SocketAddr, SocketAddr),
        is_reported: bool,
    ) -> Verdict {
        let policy = self.policy();
        let ip = destination.ip();
        let Some(owner) = self.guests.of(guest.ip()) else {
            return Verdict::Drop;
        };
        if !policy.judges_flows() && !policy.filters_names() {
            return Verdict::Allow;
        }
        let names = if policy.filters_names() {
            owner.address_names.lock().of(ip, Instant::now())
        } else {
            Names::default()
        };
        let is_relay = protocol != FlowProtocol::Ping && self.config.is_dns(ip);
        let flow = Flow {
            protocol,
            guest,
            destination,
            names: &names.queried,
            aliases: &names.aliases,
            is_dns_relay: is_relay && destination.port() == DNS_PORT,
            is_local: policy.judges_flows() && self.is_local(ip),
        };
        let verdict = if policy.judges_flows() {
            policy.flow(&flow)
        } else {
            Verdict::Allow
        };
        let is_encrypted = is_relay && destination.port() == DNS_OVER_TLS_PORT;
        match verdict {
            Verdict::Reject | Verdict::Drop => {
                if is_reported {
                    self.deny_flow(&owner, &flow, || policy.explain_flow(&flow));
                }
                verdict
            }
            // The policy could not read the names in the queries.
            Verdict::Allow if is_encrypted && policy.filters_names() => {
                let reason = "the policy cannot read encrypted queries; use port 53";
                if is_reported {
                    self.deny_flow(&owner, &flow, || Some(reason.to_owned()));
                }
                Verdict::Reject
            }
            Verdict::Allow | Verdict::Redirect(_) => verdict,
        }
    }

    /// Returns whether `address`, as the guest sees it, now belongs to the host itself or a private
    /// network; see [`Flow::is_local`].
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        let leads_to_host = |address: IpAddr| {
            let embedded = match address {
                IpAddr::V4(_) => None,
                IpAddr::V6(address) => embedded_v4(address),
            };
            self.own_addresses.contains(address)
                || embedded.is_some_and(|v4| self.own_addresses.contains(v4.into()))
        };
        self.config.is_local(address) || leads_to_host(address)
    }

    fn deny_flow(&self, owner: &Guest, flow: &Flow, reason: impl FnOnce() -> Option<String>) {
        add(&self.counters.policy_denied, 1);
        let counter = match flow.protocol {
            FlowProtocol::Tcp => &self.counters.policy_denied_tcp,
            FlowProtocol::Udp => &self.counters.policy_denied_udp,
            FlowProtocol::Ping => &self.counters.policy_denied_ping,
        };
        add(counter, 1);
        self.log_refusal(owner, (flow.protocol, flow.destination), || {
            let Flow {
                guest, destination, ..
            } = flow;
            let mut line = match flow.protocol {
                FlowProtocol::Tcp => format!("refused TCP from {guest} to {destination}"),
                FlowProtocol::Udp => format!("refused UDP from {guest} to {destination}"),
                FlowProtocol::Ping => {
                    format!("refused a ping from {} to {}", guest.ip(), destination.ip())
                }
            };
            if let Some(name) = flow.names.first() {
                // Writing to a `String` cannot fail.
                let _ = write!(line, " ({name}");
                let more = flow.names.len() - 1;
                let _ = match more {
                    0 => write!(line, ")"),
                    _ => write!(line, " and {more} more names)"),
                };
            }
            with_reason(line, reason())
        });
    }

    /// Counts and logs a query whose name the policy denies.
    pub(crate) fn deny_name(&self, owner: &Guest, query: &Query<'_>) {
        add(&self.counters.policy_denied, 1);
        add(&self.counters.policy_denied_names, 1);
        self.log_refusal(owner, (&query.name, query.query_type), || {
            let (name, query_type) = (&query.name, query.query_type);
            let line = match query_type {
                1 => format!("refused the name {name} (A)"),
                28 => format!("refused the name {name} (AAAA)"),
                other => format!("refused the name {name} (type {other})"),
            };
            with_reason(line, self.policy().explain_dns(name, query_type))
        });
    }

    /// Counts and logs an answer with an address that the policy denies.
    pub(crate) fn deny_answer(
        &self,
        owner: &Guest,
        name: &str,
        (address, is_local): (IpAddr, bool),
    ) {
        add(&self.counters.policy_denied, 1);
        add(&self.counters.policy_denied_answers, 1);
        self.log_refusal(owner, (name, address), || {
            let local = if is_local { "local " } else { "" };
            let line = format!("refused the answer for {name} with the {local}address {address}");
            let policy = self.policy();
            with_reason(line, policy.explain_address(name, address, is_local))
        });
    }

    /// Counts and logs an answer with an alias that the policy denies.
    pub(crate) fn deny_alias(&self, owner: &Guest, name: &str, target: &str) {
        add(&self.counters.policy_denied, 1);
        add(&self.counters.policy_denied_answers, 1);
        self.log_refusal(owner, (name, target), || {
            let line = format!("refused the answer for {name}, which is an alias of {target}");
            with_reason(line, self.policy().explain_alias(name, target))
        });
    }

    /// Logs that a connection of the guest waits because there are too many.
    pub(crate) fn log_tcp_full(&self, owner: &Guest) {
        let max = self.limits.tcp;
        self.log_refusal(owner, "TCP connections", || {
            if self.guests.are_several() {
                return "a TCP connection of a guest waits, as this guest or all together have too many; \
                        raise the limit tcp_connections, or that of open files (RLIMIT_NOFILE), or close some"
                    .to_owned();
            }
            let raise = if max < self.config.limits.tcp_connections {
                "the limit of open files (RLIMIT_NOFILE)"
            } else {
                "the limit tcp_connections"
            };
            format!(
                "a TCP connection of the guest waits: all {max} of this gateway, those of forwards included, \
                 are in use; raise {raise}, or close some"
            )
        });
    }

    /// Removes expired names of addresses, and logs the number of suppressed refusals.
    pub(crate) fn expire_names(&self, now: Instant) {
        self.guests.expire_names(now);
        self.write_suppressed(now, false);
    }

    /// Logs once a minute the number of refusals that had no line; `at_once` without waiting.
    pub(crate) fn write_suppressed(&self, now: Instant, at_once: bool) {
        let number = self.guests.take_suppressed(now, at_once);
        if number > 0 {
            tracing::warn!("{number} more refusals, which are counted and not logged one by one");
        }
    }

    /// Logs a refusal of `subject` of a guest, unless that guest has too many lines: none of several guests
    /// takes those of another.
    pub(crate) fn log_refusal(
        &self,
        owner: &Guest,
        subject: impl Hash,
        line: impl FnOnce() -> String,
    ) {
        let suppressed = &self.counters.log_suppressed;
        let share = (Instant::now(), self.guests.parts());
        owner.refusals.write(share, suppressed, subject, line);
    }
}

fn with_reason(line: String, reason: Option<String>) -> String {
    match reason {
        Some(reason) => format!("{line}: {reason}"),
        None => line,
    }
}
