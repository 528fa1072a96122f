//! The policy's decisions, with a counter and a line in the log for each refusal.

use std::fmt::Write;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use tokio::time::Instant;

use crate::counters::add;
use crate::gateway::Shared;
use crate::message::dns::Query;
use crate::policy::{Flow, FlowProtocol, Verdict};
use crate::route::DNS_PORT;

impl Shared {
    /// Returns the policy's verdict about the flow from `guest` to `destination`.
    pub(crate) fn verdict(
        &self,
        protocol: FlowProtocol,
        guest: SocketAddr,
        destination: SocketAddr,
    ) -> Verdict {
        let policy = &self.config.policy;
        let ip = destination.ip();
        let names = if policy.filters_names() {
            self.address_names.lock().of(ip, Instant::now())
        } else {
            Vec::new()
        };
        let is_query = protocol != FlowProtocol::Ping && destination.port() == DNS_PORT;
        let flow = Flow {
            protocol,
            guest,
            destination,
            names: &names,
            is_dns_relay: is_query && self.config.is_dns(ip),
            is_local: self.config.is_local(ip),
        };
        let verdict = policy.flow(&flow);
        if matches!(verdict, Verdict::Reject | Verdict::Drop) {
            self.deny_flow(&flow);
        }
        verdict
    }

    fn deny_flow(&self, flow: &Flow) {
        add(&self.counters.policy_denied, 1);
        let counter = match flow.protocol {
            FlowProtocol::Tcp => &self.counters.policy_denied_tcp,
            FlowProtocol::Udp => &self.counters.policy_denied_udp,
            FlowProtocol::Ping => &self.counters.policy_denied_ping,
        };
        add(counter, 1);
        self.log_refusal((flow.protocol, flow.destination), || {
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
                // Writing to a string does not fail.
                let _ = write!(line, " ({name}");
                let more = flow.names.len() - 1;
                let _ = match more {
                    0 => write!(line, ")"),
                    _ => write!(line, " and {more} more names)"),
                };
            }
            with_reason(line, self.config.policy.explain_flow(flow))
        });
    }

    /// Counts and logs a query whose name the policy denies.
    pub(crate) fn deny_name(&self, query: &Query<'_>) {
        add(&self.counters.policy_denied, 1);
        add(&self.counters.policy_denied_names, 1);
        self.log_refusal((&query.name, query.query_type), || {
            let (name, query_type) = (&query.name, query.query_type);
            let line = match query_type {
                1 => format!("refused the name {name} (A)"),
                28 => format!("refused the name {name} (AAAA)"),
                other => format!("refused the name {name} (type {other})"),
            };
            with_reason(line, self.config.policy.explain_dns(name, query_type))
        });
    }

    /// Counts and logs an answer that has an address that the policy denies.
    pub(crate) fn deny_answer(&self, name: &str, address: IpAddr) {
        add(&self.counters.policy_denied, 1);
        add(&self.counters.policy_denied_answers, 1);
        self.log_refusal((name, address), || {
            format!(
                "refused the answer for {name} with the local address {address}: no rule with a network \
                 allows it"
            )
        });
    }

    /// Logs that the guest may not open more of `what`, of which it has `max`.
    pub(crate) fn log_full(&self, what: &str, max: usize) {
        self.log_refusal(what, || {
            format!("the guest may not open more {what}: it has {max}")
        });
    }

    /// Removes the names of addresses whose time is over, and logs how many refusals had no line.
    pub(crate) fn expire_names(&self, now: Instant) {
        self.address_names.lock().expire(now);
        self.refusals.write_suppressed(now, false);
    }

    fn log_refusal(&self, subject: impl Hash, line: impl FnOnce() -> String) {
        let suppressed = &self.counters.policy_log_suppressed;
        self.refusals
            .write(Instant::now(), suppressed, subject, line);
    }
}

fn with_reason(line: String, reason: Option<String>) -> String {
    match reason {
        Some(reason) => format!("{line}: {reason}"),
        None => line,
    }
}
