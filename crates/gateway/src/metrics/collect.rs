//! The names, labels and values of the metrics.

use std::fmt;

use fullsend::SockStat;
use fullsend::control::{GatewayView, LinkView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::{Counters, Handle};

/// The values of all metrics at one moment.
#[derive(Debug)]
pub(super) struct GatewayCollector {
    gateway: GatewayView,
    counters: Counters,
    stack: Vec<(&'static str, u64)>,
    sockets: SockStat,
    link: LinkView,
}

impl GatewayCollector {
    pub(super) fn new(handle: &Handle) -> Self {
        let stack = handle.stack();
        let sockets = stack.sockstat();
        Self {
            gateway: handle.shared.summary_with(&sockets),
            counters: handle.counters(),
            stack: stack.counters(),
            sockets,
            link: stack.link(),
        }
    }
}

/// A metric: its name without unit and `_total`, its help, and its unit.
struct Metric<'a> {
    name: &'a str,
    help: &'a str,
    unit: Option<Unit>,
}

impl<'a> Metric<'a> {
    const fn new(name: &'a str, help: &'a str) -> Self {
        let unit = None;
        Self { name, help, unit }
    }

    const fn bytes(name: &'a str, help: &'a str) -> Self {
        let unit = Some(Unit::Bytes);
        Self { name, help, unit }
    }
}

type Values<'a> = &'a [(&'a str, u64)];

/// Encodes a counter for each value of a label.
fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &Metric<'_>,
    label: &str,
    values: Values<'_>,
) -> fmt::Result {
    let (name, unit) = (metric.name, metric.unit.as_ref());
    let mut encoder = encoder.encode_descriptor(name, metric.help, unit, MetricType::Counter)?;
    for (value, count) in values {
        let labels = [(label, *value)];
        ConstCounter::new(*count).encode(encoder.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Encodes a gauge for each value of a label.
fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &Metric<'_>,
    label: &str,
    values: Values<'_>,
) -> fmt::Result {
    let (name, unit) = (metric.name, metric.unit.as_ref());
    let mut encoder = encoder.encode_descriptor(name, metric.help, unit, MetricType::Gauge)?;
    for (value, count) in values {
        let labels = [(label, *value)];
        ConstGauge::new(gauge_value(*count)).encode(encoder.encode_family(&labels)?)?;
    }
    Ok(())
}

fn counter(encoder: &mut DescriptorEncoder<'_>, metric: &Metric<'_>, value: u64) -> fmt::Result {
    let (name, unit) = (metric.name, metric.unit.as_ref());
    let encoder = encoder.encode_descriptor(name, metric.help, unit, MetricType::Counter)?;
    ConstCounter::new(value).encode(encoder)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, metric: &Metric<'_>, value: u64) -> fmt::Result {
    let (name, unit) = (metric.name, metric.unit.as_ref());
    let encoder = encoder.encode_descriptor(name, metric.help, unit, MetricType::Gauge)?;
    ConstGauge::new(gauge_value(value)).encode(encoder)
}

fn gauge_value(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Collector for GatewayCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_tables(&mut encoder)?;
        self.encode_memory(&mut encoder)?;
        self.encode_tcp(&mut encoder)?;
        self.encode_datagrams(&mut encoder)?;
        self.encode_services(&mut encoder)?;
        self.encode_drops(&mut encoder)?;
        self.encode_policy(&mut encoder)?;
        self.encode_stack(&mut encoder)
    }
}

impl GatewayCollector {
    fn encode_tables(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let flows = &self.gateway.flows;
        let open: Vec<_> = flows.iter().map(|of| (&*of.netid, of.open)).collect();
        let max: Vec<_> = flows.iter().map(|of| (&*of.netid, of.max)).collect();
        let help = "Flows that exist, spliced connections and DNS over TCP included";
        let metric = Metric::new("fullsend_gateway_flows", help);
        gauges(encoder, &metric, "protocol", &open)?;
        let help = "Bound of the flows; a spliced connection counts as six, forwards of UDP do not";
        let metric = Metric::new("fullsend_gateway_flows_limit", help);
        gauges(encoder, &metric, "protocol", &max)?;
        let metric = Metric::new("fullsend_gateway_forwards", "Forwards that exist");
        gauge(encoder, &metric, self.gateway.forwards)?;
        let metric = Metric::new(
            "fullsend_gateway_leases",
            "Addresses offered and leased by DHCP",
        );
        gauge(encoder, &metric, self.gateway.leases.len() as u64)
    }

    fn encode_memory(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metric = Metric::bytes(
            "fullsend_gateway_memory",
            "Memory of the data in the stack's sockets, and in the relays to the host's",
        );
        let values = [
            ("sockets", self.gateway.socket_memory),
            ("relays", self.gateway.relay_memory),
        ];
        gauges(encoder, &metric, "of", &values)?;
        let metric = Metric::bytes(
            "fullsend_gateway_memory_limit",
            "Bounds of the gateway's memory without the program, and of the parts of fullsend_gateway_memory",
        );
        let limits = [
            ("all", self.gateway.memory_max),
            ("sockets", self.gateway.socket_memory_max),
            ("relays", self.gateway.relay_memory_max),
        ];
        gauges(encoder, &metric, "of", &limits)?;
        match self.gateway.resident_memory {
            Some(bytes) => {
                let help = "Resident memory of the process";
                gauge(
                    encoder,
                    &Metric::bytes("process_resident_memory", help),
                    bytes,
                )
            }
            None => Ok(()),
        }
    }

    fn encode_tcp(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let own = &self.counters;
        let metric = Metric::new(
            "fullsend_gateway_tcp_connects",
            "Connections of the guest, by the result of the host's connect",
        );
        let results = [
            ("established", own.tcp_established),
            ("refused", own.tcp_refused),
            ("unreachable", own.tcp_unreachable),
            ("timed_out", own.tcp_timed_out),
        ];
        counters(encoder, &metric, "result", &results)?;
        let help = "Connections that ended with a RST from one side";
        let metric = Metric::new("fullsend_gateway_tcp_resets", help);
        counter(encoder, &metric, own.tcp_reset)?;
        let metric = Metric::bytes("fullsend_gateway_tcp_payload", "TCP payload passed on");
        let bytes = [("tx", own.tcp_tx_bytes), ("rx", own.tcp_rx_bytes)];
        counters(encoder, &metric, "direction", &bytes)
    }

    fn encode_datagrams(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let own = &self.counters;
        let metric = Metric::new("fullsend_gateway_udp_flows_opened", "UDP flows opened");
        counter(encoder, &metric, own.udp_flows)?;
        let help = "Flows opened by the clients of forwards";
        let metric = Metric::new("fullsend_gateway_forwarded_flows_opened", help);
        counter(encoder, &metric, own.forwarded)?;
        let help = "Connections of forwards whose data the kernel moves";
        let metric = Metric::new("fullsend_gateway_spliced_connections", help);
        counter(encoder, &metric, own.spliced)?;
        let metric = Metric::new("fullsend_gateway_udp_datagrams", "Datagrams passed on");
        let values = [("tx", own.udp_tx_datagrams), ("rx", own.udp_rx_datagrams)];
        counters(encoder, &metric, "direction", &values)?;
        let help = "Datagrams of other hosts that the filter or the policy did not let in";
        let metric = Metric::new("fullsend_gateway_udp_filtered_datagrams", help);
        counter(encoder, &metric, own.udp_filtered)?;
        let metric = Metric::new("fullsend_gateway_ping_messages", "Echo messages passed on");
        let values = [("tx", own.ping_requests), ("rx", own.ping_replies)];
        counters(encoder, &metric, "direction", &values)
    }

    fn encode_services(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let own = &self.counters;
        let metric = Metric::new("fullsend_gateway_dns_messages", "DNS messages relayed");
        let values = [("query", own.dns_queries), ("answer", own.dns_answers)];
        counters(encoder, &metric, "kind", &values)?;
        let help = "Messages to the guest whose sender is the gateway";
        let metric = Metric::new("fullsend_gateway_own_messages", help);
        let values = [
            ("icmp_error", own.icmp_errors),
            ("dhcp", own.dhcp_answers),
            ("router_advertisement", own.router_advertisements),
        ];
        counters(encoder, &metric, "kind", &values)
    }

    fn encode_drops(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let own = &self.counters;
        let help = "SYNs, datagrams, flows and queries dropped or replaced, by cause";
        let metric = Metric::new("fullsend_gateway_drops", help);
        let causes = [
            ("tcp_dropped", own.tcp_dropped),
            ("udp_dropped", own.udp_dropped),
            ("udp_flow_replaced", own.udp_replaced),
            ("ping_dropped", own.ping_dropped),
            ("ping_flow_replaced", own.ping_replaced),
            ("dns_dropped", own.dns_dropped),
            ("policy_denied", own.policy_denied),
            ("dns_address_replaced", own.dns_addresses_replaced),
        ];
        counters(encoder, &metric, "cause", &causes)
    }

    fn encode_policy(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let own = &self.counters;
        let help = "Flows, DNS names and DNS answers that the policy denied";
        let metric = Metric::new("fullsend_gateway_policy_denials", help);
        let kinds = [
            ("tcp", own.policy_denied_tcp),
            ("udp", own.policy_denied_udp),
            ("ping", own.policy_denied_ping),
            ("name", own.policy_denied_names),
            ("answer", own.policy_denied_answers),
        ];
        counters(encoder, &metric, "kind", &kinds)?;
        let help = "Refusals that are not in the log, as it had many lines already";
        let metric = Metric::new("fullsend_gateway_log_suppressed", help);
        counter(encoder, &metric, own.log_suppressed)?;
        let help = "Pairs of an address and one of its names, known from DNS answers";
        let metric = Metric::new("fullsend_gateway_dns_addresses", help);
        gauge(encoder, &metric, own.dns_addresses)
    }

    fn encode_stack(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let LinkView {
            rx_packets,
            rx_bytes,
            tx_packets,
            tx_bytes,
            ..
        } = self.link;
        // Directions are the guest's: packets that the stack receives were sent by the guest.
        let metric = Metric::new("fullsend_link_packets", "Packets of the guest's link");
        let values = [("tx", rx_packets), ("rx", tx_packets)];
        counters(encoder, &metric, "direction", &values)?;
        let metric = Metric::bytes("fullsend_link", "Bytes of the packets of the guest's link");
        let values = [("tx", rx_bytes), ("rx", tx_bytes)];
        counters(encoder, &metric, "direction", &values)?;
        let metric = Metric::new("fullsend_tcp_sockets", "TCP sockets of the stack");
        let values = [
            ("inuse", self.sockets.inuse as u64),
            ("orphan", self.sockets.orphan as u64),
            ("tw", self.sockets.tw as u64),
        ];
        gauges(encoder, &metric, "kind", &values)?;
        let help = "The stack's counters by their names in Linux's nstat";
        let metric = Metric::new("fullsend_stack_events", help);
        counters(encoder, &metric, "name", &self.stack)
    }
}
