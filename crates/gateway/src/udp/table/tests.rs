use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::config::Config;
use crate::guests::{Guest, Guests};
use crate::udp::local_addr::Peer;

const SHARE: GuestShare = GuestShare {
    flows: usize::MAX,
    sockets: usize::MAX,
};

fn owner() -> Arc<Guest> {
    let config = Config::default();
    let guests = Guests::new(&config, &config.memory.shares(), None, Arc::default());
    guests.only().clone()
}

fn flow(n: u16) -> Arc<UdpFlow> {
    let host: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let key = FlowKey {
        guest: SocketAddr::from(([10, 0, 2, 100], n)),
        remote: host,
    };
    let socket = Arc::new(HostUdp::connect(host, &Outbound::default()).unwrap());
    Arc::new(UdpFlow::new(
        (key, owner(), Opener::Guest),
        socket,
        host,
        None,
    ))
}

fn table(flows: usize, forwarded: usize) -> Table {
    Table::new(Bounds {
        flows,
        sockets: 100,
        forwarded,
        spliced: forwarded,
    })
}

fn task() -> AbortHandle {
    tokio::spawn(async {}).abort_handle()
}

/// Adds a flow from port `guest` to `remote`, which is its address for the host, too, as the gateway does
/// with the first datagram. Returns the number of flows that it has replaced.
fn add(table: &mut Table, share: GuestShare, guest: u16, remote: &str) -> usize {
    let (host, outbound) = (remote.parse().unwrap(), Outbound::default());
    let guest = SocketAddr::from(([10, 0, 2, 100], guest));
    let key = FlowKey {
        guest,
        remote: host,
    };
    let new = |id, socket: &Arc<HostUdp>, opener| {
        let peer = PeerKey {
            socket: id,
            peer: host,
            asked: None,
        };
        let to = Peer {
            to: host,
            from: None,
        };
        let parts = (key, owner(), opener);
        Arc::new(UdpFlow::new(parts, socket.clone(), host, Some((peer, to))))
    };
    match table.choose_socket(guest, host, &outbound) {
        SocketChoice::Shared(id, socket, _) => {
            table.insert(&new(id, &socket, Opener::Guest), None, share)
        }
        SocketChoice::New(mapping) => {
            let socket = Arc::new(HostUdp::open(host, &outbound).unwrap());
            let id = SharedSocket::Mapping(mapping);
            let replaced = table.insert_mapping(mapping, (socket.clone(), task()), (None, share));
            replaced + table.insert(&new(id, &socket, Opener::Guest), None, share)
        }
        SocketChoice::Connected => {
            let socket = Arc::new(HostUdp::connect(host, &outbound).unwrap());
            let flow = UdpFlow::new((key, owner(), Opener::Guest), socket, host, None);
            table.insert(&Arc::new(flow), Some(task()), share)
        }
    }
}

/// Adds a flow that `remote` opens to port `guest`, which has sent.
fn add_from_remote(table: &mut Table, guest: u16, remote: &str) -> FlowKey {
    let remote: SocketAddr = remote.parse().unwrap();
    let guest = SocketAddr::from(([10, 0, 2, 100], guest));
    let mapping = MappingKey::new(guest, remote, &Outbound::default());
    let socket = table.mappings[&mapping].socket().clone();
    let peer = PeerKey {
        socket: SharedSocket::Mapping(mapping),
        peer: remote,
        asked: None,
    };
    let to = Peer {
        to: remote,
        from: None,
    };
    let key = FlowKey { guest, remote };
    let flow = UdpFlow::new(
        (key, owner(), Opener::Remote),
        socket,
        remote,
        Some((peer, to)),
    );
    table.insert(&Arc::new(flow), None, SHARE);
    key
}

fn ports(table: &Table) -> Vec<u16> {
    table.flows.keys().map(|key| key.guest.port()).collect()
}

#[tokio::test(start_paused = true)]
async fn idle_flows_end_and_answered_ones_later() {
    let mut table = table(10, 10);
    let flows = [1, 2, 3].map(flow);
    for flow in &flows {
        table.insert(flow, None, SHARE);
    }
    let pass = async |table: &mut Table, seconds| {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        table.expire(Instant::now());
        ports(table)
    };
    assert_eq!(pass(&mut table, 119).await, [1, 2, 3]);
    flows[1].record_rx();
    flows[2].record_tx();
    assert_eq!(pass(&mut table, 1).await, [2, 3]);
    assert_eq!(pass(&mut table, 118).await, [2, 3]);
    assert_eq!(pass(&mut table, 1).await, [2]);
    assert_eq!(pass(&mut table, 59).await, [2]);
    assert_eq!(pass(&mut table, 1).await, [0_u16; 0]);
    assert_eq!(table.len(), 0);
    table.expire(Instant::now());
    assert!(table.orders.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_new_flow_replaces_the_least_recently_used_one_without_an_answer() {
    let mut table = table(3, 3);
    let flows = [1, 2, 3, 4, 5, 6].map(flow);
    for flow in &flows[..3] {
        flow.record_tx();
        assert_eq!(table.insert(flow, None, SHARE), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    flows[0].record_rx();
    tokio::time::advance(Duration::from_millis(1)).await;
    flows[1].record_tx();
    assert_eq!(table.insert(&flows[3], None, SHARE), 1);
    assert_eq!(ports(&table), [1, 2, 4]);
    tokio::time::advance(Duration::from_millis(1)).await;
    flows[1].record_rx();
    flows[3].record_rx();
    // All are answered: the oldest goes.
    assert_eq!(table.insert(&flows[4], None, SHARE), 1);
    assert_eq!(ports(&table), [2, 4, 5]);
    assert_eq!(table.insert(&flows[5], None, SHARE), 1);
    assert_eq!(ports(&table), [2, 4, 6]);
}

#[tokio::test(start_paused = true)]
async fn queues_stay_bounded_when_flows_are_replaced() {
    let mut table = table(4, 4);
    let flows = [1, 2, 3, 4, 5, 6, 7, 8].map(flow);
    for _ in 0..1000 {
        for flow in &flows {
            table.insert(flow, None, SHARE);
        }
    }
    assert_eq!(table.len(), 4);
    let queued = table.orders[&Kind::OfGuest(None)].queued();
    assert!(queued <= 8, "{queued}");
}

/// Another host sends from ever new ports, and the guest answers each, while a flow that is older stays idle.
#[tokio::test]
async fn queues_stay_bounded_behind_an_idle_flow() {
    let mut table = table(4, 4);
    add(&mut table, SHARE, 5000, "192.0.2.1:1");
    add_from_remote(&mut table, 5000, "192.0.2.1:2");
    for port in 3..3000 {
        let key = add_from_remote(&mut table, 5000, &format!("192.0.2.1:{port}"));
        table.promote(&key, SHARE);
    }
    let remotes = &table.orders[&Kind::OfRemotes(None)];
    assert_eq!(remotes.len(), 1);
    assert!(remotes.queued() < 100, "{}", remotes.queued());
}

/// The guest's address that forwards lead to.
fn guest() -> SocketAddr {
    SocketAddr::from(([10, 0, 2, 100], 53))
}

/// A flow of a client of a forward that the guest sees as 10.0.2.2 with `port`.
fn forwarded(table: &mut Table, forward: u64, client: &str, port: u16) -> Arc<UdpFlow> {
    let client: SocketAddr = client.parse().unwrap();
    let host: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let remote = SocketAddr::from(([10, 0, 2, 2], port));
    let key = table.free_key(guest(), remote).unwrap();
    let client_key = PeerKey {
        socket: SharedSocket::Forward(ForwardId(forward)),
        peer: client,
        asked: None,
    };
    let peer = Peer {
        to: client,
        from: None,
    };
    let socket = Arc::new(HostUdp::connect(host, &Outbound::default()).unwrap());
    let flow = Arc::new(UdpFlow::new(
        (key, owner(), Opener::Client),
        socket,
        client,
        Some((client_key, peer)),
    ));
    table.insert(&flow, None, SHARE);
    flow
}

#[tokio::test(start_paused = true)]
async fn clients_of_forwards_do_not_end_the_guests_flows() {
    let mut table = table(2, 3);
    for n in [1, 2] {
        table.insert(&flow(n), None, SHARE);
    }
    for n in 0..100 {
        tokio::time::advance(Duration::from_millis(1)).await;
        forwarded(&mut table, 1, &format!("127.0.1.{n}:4000"), 4000 + n);
    }
    assert_eq!(table.len(), 5);
    assert_eq!(table.peers.len(), 3);
    assert!(ports(&table).starts_with(&[1, 2]));
}

#[tokio::test(start_paused = true)]
async fn clients_with_the_same_visible_address_get_ports_of_their_own() {
    let mut table = table(10, 1000);
    let mut remotes: Vec<_> = (0..200)
        .map(|n| forwarded(&mut table, 1, &format!("127.0.1.{n}:4000"), 4000))
        .map(|flow| flow.key.remote.port())
        .collect();
    assert_eq!(remotes[..3], [4000, 49_152, 49_153]);
    remotes.sort_unstable();
    remotes.dedup();
    assert_eq!(remotes.len(), 200);
    let client = PeerKey {
        socket: SharedSocket::Forward(ForwardId(1)),
        peer: "127.0.1.7:4000".parse().unwrap(),
        asked: None,
    };
    let found = table.of_peer(&client).unwrap().key.remote.port();
    assert_eq!(found, 49_152 + 6);
    let other = PeerKey {
        socket: SharedSocket::Forward(ForwardId(2)),
        ..client
    };
    assert!(table.of_peer(&other).is_none());
    table.remove_forward(ForwardId(2), guest());
    assert_eq!(table.len(), 200);
    table.remove_forward(ForwardId(1), guest());
    assert_eq!((table.len(), table.peers.len()), (0, 0));
}

fn port_of(table: &Table, guest: u16, remote: &str) -> usize {
    let guest = SocketAddr::from(([10, 0, 2, 100], guest));
    let remote = remote.parse().unwrap();
    let flow = table.get(&FlowKey { guest, remote }).unwrap();
    Arc::as_ptr(&flow.socket).addr()
}

#[tokio::test(start_paused = true)]
async fn all_flows_of_a_port_share_a_socket_which_lasts_as_long_as_the_last() {
    let mut table = table(100, 1);
    let remotes = ["192.0.2.1:5", "192.0.2.1:6", "198.51.100.1:5"];
    for remote in remotes {
        assert_eq!(add(&mut table, SHARE, 7, remote), 0);
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    add(&mut table, SHARE, 8, remotes[0]);
    let sockets = remotes.map(|remote| port_of(&table, 7, remote));
    assert_eq!((sockets[0], sockets[0]), (sockets[1], sockets[2]));
    assert_ne!(sockets[0], port_of(&table, 8, remotes[0]));
    assert_eq!(table.socket_count(), 2);
    // 35 s after a request, its answer finds the flow.
    tokio::time::advance(Duration::from_secs(90)).await;
    table.expire(Instant::now());
    assert_eq!((table.len(), table.socket_count()), (3, 2));
    tokio::time::advance(Duration::from_secs(20)).await;
    table.expire(Instant::now());
    assert_eq!((table.len(), table.socket_count()), (1, 1));
    tokio::time::advance(Duration::from_secs(10)).await;
    table.expire(Instant::now());
    assert_eq!((table.len(), table.peers.len()), (0, 0));
    assert_eq!((table.socket_count(), table.mappings.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn destinations_that_lead_to_one_address_have_sockets_of_their_own() {
    let mut table = table(100, 1);
    add(&mut table, SHARE, 7, "192.0.2.1:5");
    let guest = SocketAddr::from(([10, 0, 2, 100], 7));
    let choice = |table: &Table, host: &str| {
        table.choose_socket(guest, host.parse().unwrap(), &Outbound::default())
    };
    // A redirection to the address of another flow.
    assert!(matches!(
        choice(&table, "192.0.2.1:5"),
        SocketChoice::Connected
    ));
    assert!(matches!(
        choice(&table, "192.0.2.1:6"),
        SocketChoice::Shared(..)
    ));
    assert!(matches!(
        choice(&table, "[2001:db8::1]:5"),
        SocketChoice::New(_)
    ));
}

#[tokio::test(start_paused = true)]
async fn sockets_are_bounded_and_the_idlest_flows_end_first() {
    let mut table = Table::new(Bounds {
        flows: 100,
        sockets: 3,
        forwarded: 1,
        spliced: 1,
    });
    for guest in [1, 2, 3] {
        add(&mut table, SHARE, guest, "192.0.2.1:5");
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    // A second flow keeps the socket of the first port.
    add(&mut table, SHARE, 1, "192.0.2.1:6");
    assert_eq!(add(&mut table, SHARE, 4, "192.0.2.1:5"), 2);
    assert_eq!(ports(&table), [1, 3, 4]);
    assert_eq!(table.socket_count(), 3);
    let share = GuestShare {
        sockets: 2,
        ..SHARE
    };
    assert_eq!(add(&mut table, share, 5, "192.0.2.1:5"), 2);
    assert_eq!(ports(&table), [4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_replaces_the_only_other_one_of_its_socket_keeps_it() {
    let mut table = table(1, 1);
    add(&mut table, SHARE, 1, "192.0.2.1:5");
    let socket = port_of(&table, 1, "192.0.2.1:5");
    assert_eq!(add(&mut table, SHARE, 1, "192.0.2.1:6"), 1);
    assert_eq!(port_of(&table, 1, "192.0.2.1:6"), socket);
    assert_eq!((table.len(), table.socket_count()), (1, 1));
    assert_eq!(add(&mut table, SHARE, 2, "192.0.2.1:6"), 1);
    assert_eq!((table.len(), table.socket_count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn flows_of_other_hosts_neither_keep_a_socket_nor_end_the_guests_flows() {
    let mut table = table(3, 1);
    add(&mut table, SHARE, 1, "192.0.2.1:5");
    add(&mut table, SHARE, 2, "192.0.2.1:5");
    let inbound: Vec<_> = (10..100)
        .map(|port| add_from_remote(&mut table, 1, &format!("192.0.2.1:{port}")))
        .collect();
    assert_eq!(table.len(), 5);
    let own = FlowKey {
        guest: SocketAddr::from(([10, 0, 2, 100], 1)),
        remote: "192.0.2.1:5".parse().unwrap(),
    };
    assert!(table.get(&own).is_some());
    // One that the guest answers counts among its own.
    let answered = *inbound.last().unwrap();
    table.get(&answered).unwrap().record_tx();
    assert_eq!(table.promote(&answered, SHARE), 0);
    assert_eq!(table.promote(&answered, SHARE), 0);
    table.remove(&own);
    assert_eq!((table.len(), table.socket_count()), (4, 2));
    // These count, too: the guest has as many as it may.
    let second = inbound[inbound.len() - 2];
    let share = GuestShare { flows: 2, ..SHARE };
    assert_eq!(table.promote(&second, share), 1);
    assert_eq!((table.len(), table.socket_count()), (3, 1));
    table.remove(&answered);
    assert_eq!((table.len(), table.socket_count()), (2, 1));
    table.remove(&second);
    assert_eq!((table.len(), table.socket_count()), (0, 0));
}

/// Returns a flow between loopbacks from port `client` of the side of `opener`.
fn spliced_flow(client: u16, opener: Opener) -> Arc<UdpFlow> {
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let (server, client) = (address(9), address(client));
    let key = FlowKey {
        guest: if opener == Opener::Guest {
            client
        } else {
            server
        },
        remote: if opener == Opener::Guest {
            server
        } else {
            client
        },
    };
    let peer = PeerKey {
        socket: SharedSocket::Forward(ForwardId(1)),
        peer: client,
        asked: Some(server.ip()),
    };
    let to = Peer {
        to: client,
        from: None,
    };
    let socket = || Arc::new(HostUdp::connect(server, &Outbound::default()).unwrap());
    let flow = UdpFlow::new((key, owner(), opener), socket(), server, Some((peer, to)));
    Arc::new(flow.spliced_to(socket()))
}

#[tokio::test(start_paused = true)]
async fn flows_between_loopbacks_end_no_flow_of_the_guest() {
    let mut table = Table::new(Bounds {
        flows: 100,
        sockets: 3,
        forwarded: 5,
        spliced: 3,
    });
    for guest in [1, 2, 3] {
        add(&mut table, SHARE, guest, "192.0.2.1:5");
    }
    let of_host = [11, 12, 13, 14].map(|client| spliced_flow(client, Opener::Client));
    for (n, flow) in of_host.iter().enumerate() {
        tokio::time::advance(Duration::from_millis(1)).await;
        let replaced = table.insert(flow, Some(task()), SHARE);
        assert_eq!(replaced, usize::from(n == 3), "{n}");
    }
    assert!(of_host[0].is_ended());
    assert_eq!((table.len(), table.socket_count()), (6, 3));
    // A client in the guest takes one of the guest's own sockets.
    let of_guest = spliced_flow(15, Opener::Guest);
    assert_eq!(table.insert(&of_guest, Some(task()), SHARE), 1);
    assert_eq!((table.len(), table.socket_count()), (6, 3));
    table.remove_forward(ForwardId(1), "127.0.0.1:9".parse().unwrap());
    assert!(of_guest.is_ended() && of_host.iter().all(|flow| flow.is_ended()));
    assert_eq!((table.len(), table.socket_count()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn flows_of_forwards_have_one_bound_over_the_link_and_between_loopbacks() {
    let mut table = Table::new(Bounds {
        flows: 100,
        sockets: 100,
        forwarded: 3,
        spliced: 3,
    });
    let spliced = [11, 12].map(|client| spliced_flow(client, Opener::Client));
    for flow in &spliced {
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(table.insert(flow, Some(task()), SHARE), 0);
    }
    let over_link = |n: u16| {
        let (key, host) = (flow(n).key, SocketAddr::from(([127, 0, 0, 1], n)));
        let socket = Arc::new(HostUdp::connect(host, &Outbound::default()).unwrap());
        Arc::new(UdpFlow::new(
            (key, owner(), Opener::Client),
            socket,
            host,
            None,
        ))
    };
    assert_eq!(table.insert(&over_link(1), None, SHARE), 0);
    assert_eq!(table.insert(&over_link(2), None, SHARE), 1);
    assert!(spliced[0].is_ended() && !spliced[1].is_ended());
    assert_eq!(table.len(), 3);
}
