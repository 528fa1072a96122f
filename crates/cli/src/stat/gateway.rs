//! `stat gateway`: the flows of a gateway, in the style of `ss`.

mod summary;

use std::fmt::Write as _;

use anyhow::Result;
use fullsend::control::{ForwardView, GatewayFlowView, Request};

use super::args::GatewayArgs;
use super::connection::Connection;
use super::ss::states::States;

pub(super) fn run(stack: &mut Connection, args: &GatewayArgs, json: bool) -> Result<()> {
    if args.summary {
        return summary::print(stack, json);
    }
    let shown = |netid: &str| match (args.tcp, args.udp) {
        (false, false) => true,
        (tcp, udp) => tcp && netid == "tcp" || udp && netid == "udp",
    };
    if args.listening {
        let mut forwards: Vec<ForwardView> = stack.request_list(&Request::GatewayForwards)?;
        forwards.retain(|forward| shown(&forward.netid));
        return print(&forwards, json, forward_table);
    }
    let states = match &args.filter[..] {
        [] => None,
        filter => Some(States::parse(filter)?),
    };
    let mut flows: Vec<GatewayFlowView> = stack.request_list(&Request::GatewayFlows)?;
    flows.retain(|flow| {
        let in_state = states.is_none_or(|states| states.contains(&flow.state));
        in_state && shown(&flow.netid)
    });
    print(&flows, json, flow_table)
}

fn print<T: serde::Serialize>(items: &[T], json: bool, table: fn(&[T]) -> String) -> Result<()> {
    if json {
        outln!("{}", serde_json::to_string(items)?);
    } else {
        out!("{}", table(items));
    }
    Ok(())
}

/// Returns the width of a column, the longest of its title and its texts.
fn width<T>(title: &str, items: &[T], len: impl Fn(&T) -> usize) -> usize {
    let longest = items.iter().map(len).max().unwrap_or(0);
    longest.max(title.len())
}

const GUEST: &str = "Guest Address:Port";
const REMOTE: &str = "Remote Address:Port";

fn flow_table(flows: &[GatewayFlowView]) -> String {
    let guest_width = width(GUEST, flows, |flow| flow.guest.len());
    let remote_width = width(REMOTE, flows, |flow| flow.remote.len());
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<6}{:<11}{:<8}{:<8}{GUEST:>guest_width$} {REMOTE:>remote_width$} Held by",
        "Netid", "State", "Recv-Q", "Send-Q"
    );
    for flow in flows {
        let GatewayFlowView {
            netid,
            state,
            guest,
            remote,
            held_by,
            ..
        } = flow;
        let _ = writeln!(
            out,
            "{netid:<6}{state:<11}{:<8}{:<8}{guest:>guest_width$} {remote:>remote_width$} {held_by}",
            flow.guest_socket.recv_q, flow.guest_socket.send_q
        );
        let _ = writeln!(out, "\t {}", details(flow));
    }
    out
}

/// Returns the second line of a flow: the host's socket, both directions, and the guest's connection.
fn details(flow: &GatewayFlowView) -> String {
    let host = &flow.host_socket;
    let local = host.local.as_deref().unwrap_or("*");
    // The arrow points from the end that has opened the flow.
    let arrow = if flow.forwarded { "<-" } else { "->" };
    let mut parts = vec![format!("host:{local}{arrow}{}", host.peer)];
    parts.extend(host.state.clone());
    parts.extend(host.fd.map(|fd| format!("fd:{fd}")));
    if let (Some(recv_q), Some(send_q)) = (host.recv_q, host.send_q) {
        parts.push(format!("hostmem:(inq{recv_q},outq{send_q})"));
    }
    parts.push(format!("tx:{},{}", flow.tx.bytes, flow.tx.held_by));
    parts.push(format!("rx:{},{}", flow.rx.bytes, flow.rx.held_by));
    let guest = &flow.guest_socket;
    if guest.rtt_us > 0 {
        parts.push(format!("rtt:{}", ms(guest.rtt_us)));
    }
    if guest.cwnd > 0 {
        parts.push(format!("cwnd:{}", guest.cwnd));
    }
    if guest.retrans > 0 {
        parts.push(format!("retrans:{}", guest.retrans));
    }
    parts.extend(host.rtt_us.map(|us| format!("host_rtt:{}", ms(us))));
    let retransmitted = host.retrans.filter(|count| *count > 0);
    parts.extend(retransmitted.map(|count| format!("host_retrans:{count}")));
    parts.push(format!("age:{}ms", flow.age_ms));
    parts.push(format!("idle:{}ms", flow.idle_ms));
    if !guest.id.is_empty() {
        parts.push(format!("sk:{}", guest.id));
    }
    parts.join(" ")
}

fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

fn forward_table(forwards: &[ForwardView]) -> String {
    let host_title = "Host Address:Port";
    let host_width = width(host_title, forwards, |forward| forward.host.len());
    let guest_width = width(GUEST, forwards, |forward| forward.guest.len());
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<6}{:<8}{:<8}{host_title:>host_width$} {GUEST:>guest_width$}",
        "Netid", "Id", "Clients"
    );
    for forward in forwards {
        let ForwardView {
            id,
            netid,
            clients,
            host,
            guest,
            interface,
        } = forward;
        let _ = write!(
            out,
            "{netid:<6}{id:<8}{clients:<8}{host:>host_width$} {guest:>guest_width$}"
        );
        if let Some(interface) = interface {
            let _ = write!(out, " dev {interface}");
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use fullsend::control::{FlowDirectionView, ForwardView, GuestSocketView, HostSocketView};

    use super::*;

    fn flow() -> GatewayFlowView {
        let direction = |bytes, held_by: &str| FlowDirectionView {
            bytes,
            held_by: held_by.to_owned(),
        };
        GatewayFlowView {
            netid: "tcp".to_owned(),
            guest: "10.0.2.100:40000".to_owned(),
            remote: "10.0.2.2:80".to_owned(),
            state: "ESTAB".to_owned(),
            tx: direction(78, "guest-idle"),
            rx: direction(1_000_000, "guest-window"),
            held_by: "guest-window".to_owned(),
            guest_socket: GuestSocketView {
                id: "1000002".to_owned(),
                send_q: 65_536,
                rtt_us: 50,
                cwnd: 10,
                ..GuestSocketView::default()
            },
            host_socket: HostSocketView {
                fd: Some(21),
                local: Some("127.0.0.1:50000".to_owned()),
                peer: "127.0.0.1:80".to_owned(),
                state: Some("ESTAB".to_owned()),
                recv_q: Some(4096),
                send_q: Some(0),
                rtt_us: Some(30),
                retrans: Some(0),
            },
            age_ms: 1500,
            idle_ms: 3,
            ..GatewayFlowView::default()
        }
    }

    #[test]
    fn a_flow_is_shown_with_both_sockets_and_what_holds_it_back() {
        let text = flow_table(&[flow()]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "Netid State      Recv-Q  Send-Q  Guest Address:Port Remote Address:Port Held by",
                "tcp   ESTAB      0       65536     10.0.2.100:40000         10.0.2.2:80 guest-window",
                "\t host:127.0.0.1:50000->127.0.0.1:80 ESTAB fd:21 hostmem:(inq4096,outq0) \
                 tx:78,guest-idle rx:1000000,guest-window rtt:0.05 cwnd:10 host_rtt:0.03 \
                 age:1500ms idle:3ms sk:1000002",
            ]
        );
    }

    #[test]
    fn forwards_are_shown_with_their_numbers_and_interfaces() {
        let forward = ForwardView {
            id: 3,
            netid: "udp".to_owned(),
            clients: "host".to_owned(),
            host: "0.0.0.0:53".to_owned(),
            guest: "10.0.2.100:53".to_owned(),
            interface: Some("eth0".to_owned()),
        };
        let text = forward_table(&[forward]);
        let row = "udp   3       host           0.0.0.0:53      10.0.2.100:53 dev eth0";
        assert_eq!(text.lines().nth(1), Some(row), "{text}");
    }
}
