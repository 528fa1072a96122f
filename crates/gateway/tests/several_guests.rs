//! Several guests of one gateway, which are stacks of this process, apart and joined.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener as HostListener};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fullsend::{PingSocket, Stack, TcpListener, TcpStream, UdpSocket};
use fullsend_device::{FrameLink, Framing, PortEvent};
use fullsend_gateway::{
    Action, Builder, Config, EgressPolicy, Forward, Gateway, Handle, Protocol, Rule, Side,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(20);
const GATEWAY: [&str; 2] = ["10.0.2.2", "fd00::2"];
/// Bytes that guests exchange.
const DATA: usize = 4 << 20;

struct Rig {
    gateway: Handle,
    guests: Vec<Stack>,
    events: Arc<Mutex<Vec<PortEvent>>>,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn address(family: usize, guest: usize) -> IpAddr {
    match family {
        0 => [10, 0, 2, 15 + guest as u8].into(),
        _ => ip(&format!("fd00::{:x}", 0x15 + guest)),
    }
}

const fn mac(guest: usize) -> [u8; 6] {
    [2, 0, 0, 0, 9, guest as u8]
}

/// Returns a guest's stack and the device of its gateway..
fn guest(number: usize, addresses: usize) -> (Stack, FrameLink) {
    let (here, there) = UnixStream::pair().unwrap();
    let link = |socket: UnixStream| FrameLink::connected(socket.into(), Framing::Qemu, 1500);
    let stack = Stack::builder()
        .device(Box::new(link(here).unwrap()))
        .mac(mac(number))
        .address(&format!("{}/24", address(0, addresses)))
        .address(&format!("{}/64", address(1, addresses)))
        .route("0.0.0.0/0", Some(ip(GATEWAY[0])))
        .build()
        .unwrap();
    (stack, link(there).unwrap())
}

fn config() -> Config {
    Config {
        mtu: 1500,
        ..Config::default()
    }
}

/// Starts a gateway with `count` guests.
fn start(config: Config, joined: bool, count: usize) -> Rig {
    let events = Arc::<Mutex<Vec<_>>>::default();
    let reported = events.clone();
    let mut builder: Builder = Gateway::builder()
        .config(config)
        .join_guests(joined)
        .on_guest(move |event| reported.lock().unwrap().push(event));
    let mut guests = Vec::new();
    for number in 0..count {
        let (stack, device) = guest(number, number);
        builder = builder.guest(Box::new(device));
        guests.push(stack);
    }
    let gateway = builder.build().unwrap();
    let handle = gateway.handle();
    tokio::spawn(gateway.run());
    Rig {
        gateway: handle,
        guests,
        events,
    }
}

/// Serves each client what it has sent.
async fn serve_echo(stack: &Stack, at: SocketAddr) {
    let listener = loop {
        match TcpListener::bind(stack, at) {
            // Duplicate address detection takes a second.
            Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            bound => break bound.unwrap(),
        }
    };
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut data = Vec::new();
                stream.read_to_end(&mut data).await.unwrap();
                stream.write_all(&data).await.unwrap();
                stream.shutdown().await.unwrap();
            });
        }
    });
}

/// Sends `len` bytes to an echo server and compares the answer.
async fn exchange(stack: &Stack, to: SocketAddr, len: usize) {
    let data: Vec<u8> = (0..len).map(|n| (n * 7 + n / 251) as u8).collect();
    let stream = TcpStream::connect(stack, to).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let sent = data.clone();
    let writing = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    read.read_to_end(&mut received).await.unwrap();
    writing.await.unwrap();
    assert!(received == data, "{} bytes of {len}", received.len());
}

/// Serves what clients of the host's loopback send. Returns the port.
fn serve_on_host() -> u16 {
    let listener = HostListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut buf = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut buf) {
                    let _ = stream.write_all(&buf[..len]);
                }
            });
        }
    });
    port
}

fn host(port: u16) -> SocketAddr {
    (ip(GATEWAY[0]), port).into()
}

/// Connects and exchanges a line, and returns the open connection.
async fn connect(stack: &Stack, to: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(stack, to).await?;
    stream.write_all(b"line").await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"line");
    Ok(stream)
}

async fn ping(stack: &Stack, to: IpAddr) -> bool {
    let socket = PingSocket::open(stack).unwrap();
    socket.send_to(to, 1, b"data").await.unwrap();
    let reply = timeout(LIMIT, socket.recv()).await.unwrap();
    reply.is_ok_and(|reply| reply.error.is_none())
}

#[tokio::test]
async fn joined_guests_exchange_data_and_reach_the_host() {
    let rig = start(config(), true, 3);
    let port = serve_on_host();
    for family in [0, 1] {
        let to = SocketAddr::new(address(family, 1), 80);
        serve_echo(&rig.guests[1], to).await;
        exchange(&rig.guests[0], to, DATA).await;
        exchange(&rig.guests[2], to, DATA).await;
        assert!(ping(&rig.guests[0], to.ip()).await);
        assert!(ping(&rig.guests[0], ip(GATEWAY[family])).await);
    }
    for guest in &rig.guests {
        connect(guest, host(port)).await.unwrap();
    }
    let counters = rig.gateway.counters();
    assert_eq!((counters.switch_refused, counters.tcp_established), (0, 3));
    assert!(counters.switch_forwarded > 1000);
    // The neighbours of a guest that ends go on, and it is reported.
    let mut rig = rig;
    drop(rig.guests.pop());
    let ended = || {
        let events = rig.events.lock().unwrap();
        let is_end = |event: &&PortEvent| matches!(event, PortEvent::Disconnected { mac: Some(m), .. } if *m == mac(2));
        events.iter().filter(is_end).count() == 1
    };
    while !ended() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    exchange(&rig.guests[0], SocketAddr::new(address(1, 1), 80), 1000).await;
}

#[tokio::test]
async fn guests_that_are_not_joined_reach_the_host_and_no_other_guest() {
    let rig = start(config(), false, 2);
    let port = serve_on_host();
    for family in [0, 1] {
        serve_echo(&rig.guests[1], SocketAddr::new(address(family, 1), 80)).await;
    }
    let unreachable = [0, 1].map(|family| {
        let to = SocketAddr::new(address(family, 1), 80);
        let stack = rig.guests[0].clone();
        tokio::spawn(async move { timeout(LIMIT, TcpStream::connect(&stack, to)).await })
    });
    for guest in &rig.guests {
        connect(guest, host(port)).await.unwrap();
    }
    for connected in unreachable {
        // No guest answers address resolution.
        assert!(!matches!(connected.await.unwrap(), Ok(Ok(_))));
    }
    assert_eq!(rig.gateway.counters().switch_forwarded, 0);
    // A forward leads to each guest by its address.
    let forward = Forward {
        from: Side::Host,
        protocol: Protocol::Tcp,
        host: "127.0.0.1:0".parse().unwrap(),
        guest: SocketAddr::new(address(0, 1), 80),
        interface: None,
    };
    rig.gateway.add_forward(forward).unwrap();
    let bound = rig.gateway.list_forwards()[0].1.host;
    let mut client = tokio::net::TcpStream::connect(bound).await.unwrap();
    client.write_all(b"forwarded").await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "forwarded");
    // It is for the host's programs: the guest itself reaches it as one of them, another one does not.
    let through_host = SocketAddr::new(ip(GATEWAY[0]), bound.port());
    exchange(&rig.guests[1], through_host, 10).await;
    let refused = timeout(LIMIT, TcpStream::connect(&rig.guests[0], through_host));
    let error = refused.await.expect("an answer").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(rig.gateway.counters().service_refused, 1);
}

#[tokio::test]
async fn clients_of_one_guests_forward_leave_room_for_those_of_another() {
    // Forwards together have 64 connections, half of those of 64 guests: each of two guests a third.
    let mut config = config();
    config.limits.tcp_connections = 2;
    let rig = start(config, false, 2);
    let mut forwards = Vec::new();
    for (number, guest) in rig.guests.iter().enumerate() {
        let to = SocketAddr::new(address(0, number), 80);
        serve_echo(guest, to).await;
        // The gateway knows a guest by its address from the first frame on.
        assert!(ping(guest, ip(GATEWAY[0])).await);
        let forward = Forward::new(Side::Host, Protocol::Tcp, ([127, 0, 0, 1], 0).into(), to);
        rig.gateway.add_forward(forward).unwrap();
    }
    forwards.extend(
        rig.gateway
            .list_forwards()
            .into_iter()
            .map(|(_, forward)| forward.host),
    );
    // They stay open, and more than there are permits wait.
    let mut held = Vec::new();
    for _ in 0..70 {
        held.push(tokio::net::TcpStream::connect(forwards[0]).await.unwrap());
    }
    while rig.gateway.counters().forwarded < 21 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let through = async |forward: SocketAddr| {
        let mut client = tokio::net::TcpStream::connect(forward).await.unwrap();
        client.write_all(b"other").await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = timeout(LIMIT, through(forwards[1])).await;
    assert_eq!(answer.expect("an answer"), "other");
    assert_eq!(rig.gateway.counters().forwarded, 22);
    // Those that wait get the places of the others.
    drop(held);
    let answer = timeout(LIMIT, through(forwards[0])).await;
    assert_eq!(answer.expect("an answer"), "other");
}

#[tokio::test]
async fn guests_that_are_not_joined_do_not_send_to_each_others_ports_through_the_loopback() {
    let rig = start(config(), false, 2);
    let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let to_server = host(server.local_addr().unwrap().port());
    let receiver = UdpSocket::bind(&rig.guests[1], "0.0.0.0:0").unwrap();
    receiver.send_to(b"request", to_server).await.unwrap();
    let mut data = [0; 16];
    let received = timeout(LIMIT, server.recv_from(&mut data));
    let (_, port_of_receiver) = received.await.unwrap().unwrap();
    // The guest may answer to the loopback, and its port is that of a socket there.
    let sender = UdpSocket::bind(&rig.guests[0], "0.0.0.0:0").unwrap();
    let through_host = host(port_of_receiver.port());
    sender.send_to(b"other", through_host).await.unwrap();
    let refused = async {
        while rig.gateway.counters().service_refused == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, refused).await.unwrap();
    server.send_to(b"answer", port_of_receiver).await.unwrap();
    let received = timeout(LIMIT, receiver.recv_from(&mut data));
    let (len, from) = received.await.unwrap().unwrap();
    assert_eq!((&data[..len], from), (&b"answer"[..], to_server));
}

/// Waits until a condition is true of the gateway's counters.
async fn wait_for(rig: &Rig, condition: impl Fn(fullsend_gateway::Counters) -> bool) {
    let met = async {
        while !condition(rig.gateway.counters()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, met).await.unwrap();
}

#[tokio::test]
async fn a_udp_flow_does_not_outlive_the_server_to_another_guests_forward() {
    let rig = start(config(), false, 2);
    let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = server.local_addr().unwrap();
    let senders = [0, 1].map(|n| UdpSocket::bind(&rig.guests[n], "0.0.0.0:0").unwrap());
    for sender in &senders {
        sender.send_to(b"request", host(at.port())).await.unwrap();
        let mut data = [0; 16];
        let received = timeout(LIMIT, server.recv_from(&mut data));
        received.await.unwrap().unwrap();
    }
    drop(server);
    // The port that the server had leads to the second guest now.
    let port = senders[1].local_addr().unwrap().port();
    let guest = SocketAddr::new(address(0, 1), port);
    let forward = Forward::new(Side::Host, Protocol::Udp, at, guest);
    rig.gateway.add_forward(forward).unwrap();
    assert_eq!(
        rig.gateway.counters().udp_open,
        1,
        "the flow of the first guest has ended"
    );
    senders[0].send_to(b"other", host(at.port())).await.unwrap();
    wait_for(&rig, |counters| counters.service_refused == 1).await;
    // The first datagram that arrives is that of a program of the host.
    let client = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.send_to(b"host", at).await.unwrap();
    let mut data = [0; 16];
    let received = timeout(LIMIT, senders[1].recv_from(&mut data));
    let (len, _) = received.await.unwrap().unwrap();
    assert_eq!(&data[..len], b"host");
}

#[tokio::test]
async fn the_udp_flows_of_a_guest_end_with_it() {
    let mut rig = start(config(), false, 2);
    let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let to_server = host(server.local_addr().unwrap().port());
    for guest in &rig.guests {
        let sender = UdpSocket::bind(guest, "0.0.0.0:0").unwrap();
        sender.send_to(b"request", to_server).await.unwrap();
        let mut data = [0; 16];
        let received = timeout(LIMIT, server.recv_from(&mut data));
        received.await.unwrap().unwrap();
    }
    let counters = rig.gateway.counters();
    assert_eq!((counters.udp_open, counters.udp_sockets), (2, 2));
    // The last handle ends the stack and its device.
    drop(rig.guests.remove(0));
    wait_for(&rig, |counters| counters.udp_open == 1).await;
    assert_eq!(rig.gateway.counters().udp_sockets, 1);
}

/// Each sends from its socket of the host to the other's, so that neither filters the other.
#[tokio::test]
async fn guests_that_are_not_joined_and_cooperate_have_no_channel_through_the_loopback() {
    let rig = start(config(), false, 2);
    let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let to_server = host(server.local_addr().unwrap().port());
    let mut data = [0; 16];
    let mut sockets = Vec::new();
    for guest in &rig.guests {
        let socket = UdpSocket::bind(guest, "0.0.0.0:0").unwrap();
        socket.send_to(b"request", to_server).await.unwrap();
        let received = timeout(LIMIT, server.recv_from(&mut data));
        let (_, at_host) = received.await.unwrap().unwrap();
        sockets.push((socket, at_host));
    }
    // More datagrams than those after which a flow gets a socket of its own.
    for round in 0..100 {
        for (from, to) in [(0, 1), (1, 0)] {
            let other = host(sockets[to].1.port());
            sockets[from].0.send_to(b"other", other).await.unwrap();
        }
        let refused = async {
            while rig.gateway.counters().service_refused < 2 * (round + 1) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, refused).await.unwrap();
    }
    // The first that arrives is the server's.
    for (socket, at_host) in &sockets {
        server.send_to(b"answer", *at_host).await.unwrap();
        let received = timeout(LIMIT, socket.recv_from(&mut data));
        let (len, from) = received.await.unwrap().unwrap();
        assert_eq!((&data[..len], from), (&b"answer"[..], to_server));
    }
}

#[tokio::test]
async fn guests_do_not_reach_the_servers_of_the_program_through_the_hosts_addresses() {
    let rig = start(config(), false, 1);
    for at in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
        let server = HostListener::bind(at).unwrap();
        let address = server.local_addr().unwrap();
        let to = host(address.port());
        TcpStream::connect(&rig.guests[0], to).await.unwrap();
        rig.gateway.hide_from_guests(address);
        let refused = timeout(LIMIT, TcpStream::connect(&rig.guests[0], to));
        let error = refused.await.expect("an answer").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{at}");
    }
    assert_eq!(rig.gateway.counters().service_refused, 3);
}

#[tokio::test]
async fn a_guest_has_its_own_connections_and_cannot_use_anothers_addresses() {
    let mut config = config();
    config.limits.tcp_connections = 3;
    let rig = start(config, false, 2);
    let port = serve_on_host();
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(connect(&rig.guests[0], host(port)).await.unwrap());
    }
    let fourth = connect(&rig.guests[0], host(port));
    assert!(timeout(Duration::from_millis(300), fourth).await.is_err());
    open.push(connect(&rig.guests[1], host(port)).await.unwrap());

    // A third guest with the second one's addresses.
    let (spoofer, device) = guest(7, 1);
    rig.gateway.add_guest(Box::new(device)).unwrap();
    let spoofed = connect(&spoofer, host(port));
    assert!(timeout(Duration::from_millis(300), spoofed).await.is_err());
    assert!(rig.gateway.counters().switch_refused > 0);
    // One with the first one's Ethernet address, and with the gateway's IP address.
    let (spoofer, device) = guest(0, 9);
    rig.gateway.add_guest(Box::new(device)).unwrap();
    let spoofed = connect(&spoofer, host(port));
    assert!(timeout(Duration::from_millis(300), spoofed).await.is_err());
    assert_ne!(rig.gateway.guest_of(address(0, 0)), None);
    assert_eq!(rig.gateway.guest_of(ip(GATEWAY[0])), None);
    assert_eq!(rig.gateway.guest_of(address(0, 9)), None);
    assert_ne!(
        rig.gateway.guest_of(address(0, 0)),
        rig.gateway.guest_of(address(0, 1))
    );
    // The guests still work.
    for stream in &mut open {
        stream.write_all(b"more").await.unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"more");
    }
    // Its closed connections make room.
    drop(open);
    let again = connect(&rig.guests[0], host(port));
    timeout(LIMIT, again).await.unwrap().unwrap();
}

#[tokio::test]
async fn each_guest_has_the_whole_rate() {
    let mut config = config();
    config.limits.rate = Some(200_000);
    let rig = start(config, false, 2);
    let port = serve_on_host();
    let mut greedy = connect(&rig.guests[0], host(port)).await.unwrap();
    // Far more than passes while the test runs.
    let flood = tokio::spawn(async move {
        let _ = greedy.write_all(&vec![7; 100 << 20]).await;
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Alone it would wait behind the other guest's pieces.
    let mut other = connect(&rig.guests[1], host(port)).await.unwrap();
    for _ in 0..100 {
        other.write_all(&[1; 100]).await.unwrap();
        let mut answer = [0; 100];
        timeout(LIMIT, other.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
    }
    flood.abort();
}

#[tokio::test]
async fn another_policy_decides_about_new_flows_and_counters_go_on() {
    let rig = start(config(), false, 2);
    let port = serve_on_host();
    let mut open = connect(&rig.guests[0], host(port)).await.unwrap();
    let deny = EgressPolicy::new()
        .otherwise(Action::Allow)
        .rule(Rule::deny().network("local").unwrap());
    rig.gateway.set_policy(Arc::new(deny));
    for guest in &rig.guests {
        let error = connect(guest, host(port)).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    }
    open.write_all(b"goes on").await.unwrap();
    let mut answer = [0; 7];
    open.read_exact(&mut answer).await.unwrap();
    let counters = rig.gateway.counters();
    assert_eq!(counters.policy_denied_tcp, 2);
    assert_eq!((counters.tcp_established, counters.policy_changes), (1, 1));
    rig.gateway.set_policy(Arc::new(fullsend_gateway::AllowAll));
    connect(&rig.guests[1], host(port)).await.unwrap();
    assert_eq!(rig.gateway.counters().tcp_established, 2);
}

#[tokio::test]
async fn wrong_settings_of_several_guests_are_errors() {
    let error = |builder: Builder| builder.build().err().unwrap().to_string();
    let (_first, one) = guest(0, 0);
    let (_second, other) = guest(1, 1);
    let both = Gateway::builder()
        .device(Box::new(one))
        .guest(Box::new(other));
    assert!(error(both).contains("use .guest(..) alone"));
    let with_dhcpv6 = Gateway::builder().join_guests(true).configure(|config| {
        let v6 = config.ipv6.as_mut().unwrap();
        (v6.dhcp, v6.guest) = (true, Some("fd00::9".parse().unwrap()));
    });
    assert!(error(with_dhcpv6).contains("fd00::9"));
    let (_third, device) = guest(2, 2);
    let gateway = Gateway::new(config(), Box::new(device)).unwrap();
    let (_fourth, device) = guest(3, 3);
    let error = gateway.handle().add_guest(Box::new(device)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
}

/// A server on the host's loopback that sends without an end to each client. Returns the port.
fn send_on_host() -> u16 {
    let listener = HostListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || while stream.write_all(&[7; 16 << 10]).is_ok() {});
        }
    });
    port
}

#[tokio::test]
async fn a_guest_that_reads_nothing_takes_its_share_of_the_memory() {
    const CONNECTIONS: usize = 60;
    let config = Config {
        memory: "24M".parse().unwrap(),
        ..config()
    };
    let rig = start(config, false, 2);
    let from = SocketAddr::new(ip(GATEWAY[0]), send_on_host());
    let mut unread = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(&rig.guests[0], from).await.unwrap();
        // A window that admits much: congestion and send buffer grow with it.
        stream.set_rcvbuf(2 << 20).unwrap();
        unread.push(stream);
    }
    // Until no more data moves.
    let (mut last, mut idle) = (0, 0);
    let mut most = 0;
    while idle < 20 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        most = most.max(rig.gateway.stack().sockstat().mem * 4096);
        let moved = rig.gateway.counters().tcp_rx_bytes;
        idle = if moved == last { idle + 1 } else { 0 };
        last = moved;
    }
    // An eighth of the memory is for data of all guests, of which each of two has a third.
    let (all, share) = (3 << 20, 1 << 20);
    println!("{most} bytes of {share}");
    assert!(most <= share + share / 2, "{most} bytes of {all}");
    let to = SocketAddr::new(ip(GATEWAY[0]), serve_on_host());
    let exchanged = timeout(LIMIT, exchange(&rig.guests[1], to, DATA)).await;
    assert!(exchanged.is_ok(), "the other guest has no service");
    drop(unread);
}

#[tokio::test]
async fn a_guest_with_many_refusals_leaves_the_others_their_lines_in_the_log() {
    let mut config = config();
    config.policy = Arc::new(EgressPolicy::new().otherwise(Action::Deny));
    let rig = start(config, false, 2);
    let senders = [0, 1].map(|n| UdpSocket::bind(&rig.guests[n], "0.0.0.0:0").unwrap());
    for port in 1..=30 {
        senders[0].send_to(b"denied", host(port)).await.unwrap();
    }
    wait_for(&rig, |counters| counters.policy_denied_udp == 30).await;
    let suppressed = rig.gateway.counters().log_suppressed;
    assert_eq!(suppressed, 30 - 20 / 3);
    senders[1].send_to(b"denied", host(1)).await.unwrap();
    wait_for(&rig, |counters| counters.policy_denied_udp == 31).await;
    assert_eq!(rig.gateway.counters().log_suppressed, suppressed);
}
