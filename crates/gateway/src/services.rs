//! The servers of this gateway's program, which its guests must not reach through the host's addresses.
//!
//! To a server on the host's loopback, a guest that reaches it looks like a client on the host. Servers
//! of the gateway's own program, such as its metrics and gvproxy's API, trust such clients more than a
//! guest.

use std::net::SocketAddr;

use parking_lot::Mutex;

use crate::counters::add;
use crate::forward::{Forward, Protocol, Side};
use crate::gateway::Shared;
use crate::guests::Guest;
use crate::policy::FlowProtocol;

/// The addresses at which the program listens over TCP.
#[derive(Default)]
pub(crate) struct Services(Mutex<Vec<SocketAddr>>);

impl Services {
    pub(crate) fn add(&self, listener: SocketAddr) {
        self.0.lock().push(listener);
    }
}

impl Shared {
    /// Returns whether a flow of the guest at `guest` to `to`, an address of the host's network, leads to
    /// a server of this program or the forward of another guest. Counts and logs such a flow.
    pub(crate) fn refuses_service(
        &self,
        protocol: FlowProtocol,
        guest: SocketAddr,
        to: SocketAddr,
    ) -> bool {
        let what = match protocol {
            FlowProtocol::Tcp if self.is_service(to) => {
                "the program of this gateway listens there, for the host alone"
            }
            FlowProtocol::Tcp if self.is_of_another_guest(Protocol::Tcp, guest, to) => FORWARD,
            FlowProtocol::Udp if self.is_of_another_guest(Protocol::Udp, guest, to) => FORWARD,
            FlowProtocol::Tcp | FlowProtocol::Udp | FlowProtocol::Ping => return false,
        };
        add(&self.counters.service_refused, 1);
        let owner = self.guests.of_or_unknown(guest.ip());
        self.log_refusal(&owner, (protocol, to), || {
            format!("refused a flow from {guest} to {to} of the host: {what}")
        });
        true
    }

    /// Returns whether a TCP connection from the host to `to` reaches a server of this program.
    fn is_service(&self, to: SocketAddr) -> bool {
        let services = self.services.0.lock();
        let mut at_port = services.iter().filter(|s| s.port() == to.port());
        at_port.any(|service| {
            let (ip, to) = (service.ip().to_canonical(), to.ip().to_canonical());
            // [::] may include IPv4.
            ip == to
                || ip.is_unspecified()
                    && (ip.is_ipv6() || to.is_ipv4())
                    && self.own_addresses.contains(to)
        })
    }

    /// Returns whether datagrams of the guest `owner` from `guest` to `to`, an address of the host's network, reach
    /// another guest, although they are not joined; counts and logs it.
    pub(crate) fn refuses_guest(&self, owner: &Guest, guest: SocketAddr, to: SocketAddr) -> bool {
        let what = if self.is_of_another_guest(Protocol::Udp, guest, to) {
            FORWARD
        } else if self.udp.guest_ports().is_of_another(to, owner.port) && self.is_of_host(to) {
            "it is the socket of another guest"
        } else {
            return false;
        };
        add(&self.counters.service_refused, 1);
        self.log_refusal(owner, (FlowProtocol::Udp, to), || {
            format!("refused datagrams from {guest} to {to} of the host: {what}")
        });
        true
    }

    fn is_of_host(&self, to: SocketAddr) -> bool {
        to.ip().is_loopback() || self.own_addresses.contains(to.ip())
    }

    /// Returns whether `to` is the host's end of a forward to another guest, although the guests are not
    /// joined: only programs of the host should reach it.
    pub(crate) fn is_of_another_guest(
        &self,
        protocol: Protocol,
        guest: SocketAddr,
        to: SocketAddr,
    ) -> bool {
        if !self.guests.are_apart() || !to.ip().is_loopback() {
            return false;
        }
        let is_at = |forward: &Forward| {
            forward.from == Side::Host && forward.protocol == protocol && forward.host == to
        };
        self.forwards.find(is_at).is_some_and(|forward| {
            let port = |ip| self.guests.of(ip).and_then(|guest| guest.port);
            port(forward.guest.ip()) != port(guest.ip())
        })
    }
}

impl Shared {
    /// Ends the UDP flows of other guests to the host's end of a new forward: they were opened to another
    /// program that had the port, and are led to the forward now.
    pub(crate) fn end_flows_of_other_guests(&self, forward: &Forward) {
        let is_for_host = forward.from == Side::Host && forward.host.ip().is_loopback();
        if !self.guests.are_apart() || forward.protocol != Protocol::Udp || !is_for_host {
            return;
        }
        let own = self
            .guests
            .of(forward.guest.ip())
            .and_then(|guest| guest.port);
        self.udp.end_flows_to(forward.host, |port| port == own);
    }
}

const FORWARD: &str = "it is the forward of another guest, for the host alone";
