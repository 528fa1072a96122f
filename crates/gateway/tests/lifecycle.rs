//! The start and the end of a gateway. Needs root.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use common::{
    GUEST, HOST, LIMIT, LOOPBACK, pattern, wait_until, with_gateway, with_port,
    with_waiting_gateway,
};
use fullsend_gateway::{Config, Forward, Protocol, Side};
use socket2::SockRef;

fn forward(protocol: Protocol, port: u16) -> Forward {
    Forward {
        from: Side::Host,
        protocol,
        host: with_port(LOOPBACK[0], 0),
        guest: with_port(GUEST[0], port),
        interface: None,
    }
}

#[test]
fn the_end_of_the_gateway_resets_both_sides() {
    with_gateway(Config::default(), |rig| {
        for host in HOST {
            let listener = TcpListener::bind((host, 0)).unwrap();
            let to = listener.local_addr().unwrap();
            let mut guest = rig.guest.run(move || TcpStream::connect(to).unwrap());
            let (mut server, _) = listener.accept().unwrap();
            guest.write_all(b"data").unwrap();
            server.read_exact(&mut [0; 4]).unwrap();
            // Only the last round stops the gateway.
            if host == HOST[0] {
                continue;
            }
            rig.gateway.stop();
            for stream in [&mut guest, &mut server] {
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                let error = stream.read(&mut [0]).expect_err("a FIN");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
        }
    });
}

#[test]
fn data_that_the_guest_has_ended_is_delivered_after_the_end_of_the_gateway() {
    with_gateway(Config::default(), |rig| {
        let listener = TcpListener::bind((HOST[0], 0)).unwrap();
        // The rest waits in the gateway's socket.
        SockRef::from(&listener).set_recv_buffer_size(4096).unwrap();
        let to = listener.local_addr().unwrap();
        let data = pattern(30_000, 5);
        let written = data.clone();
        let mut guest = rig.guest.run(move || {
            let mut guest = TcpStream::connect(to).unwrap();
            guest.write_all(&written).unwrap();
            guest.shutdown(Shutdown::Write).unwrap();
            guest
        });
        let (mut server, _) = listener.accept().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        wait_until("the guest's data is delivered", || {
            runtime.block_on(rig.gateway.drain(LIMIT))
        });
        rig.gateway.stop();
        let error = guest.read(&mut [0]).expect_err("a FIN");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        assert!(received == data);
    });
}

#[test]
fn nothing_is_relayed_before_the_gateway_runs() {
    with_waiting_gateway(Config::default(), |rig, run| {
        let host = TcpListener::bind((HOST[0], 0)).unwrap();
        let to = host.local_addr().unwrap();
        let connecting = rig.guest.spawn(move || TcpStream::connect(to).unwrap());
        let guest = rig.guest.run(|| TcpListener::bind((GUEST[0], 0)).unwrap());
        let port = guest.local_addr().unwrap().port();
        rig.gateway
            .add_forward(forward(Protocol::Tcp, port))
            .unwrap();
        let bound = rig.gateway.list_forwards()[0].1.host;
        // The host's kernel accepts the client, which waits in the forward's queue.
        let mut client = TcpStream::connect(bound).unwrap();
        client.write_all(b"early").unwrap();
        let udp = rig
            .guest
            .run(|| std::net::UdpSocket::bind((GUEST[0], 0)).unwrap());
        udp.connect(with_port(HOST[0], 9)).unwrap();
        udp.send(b"early").unwrap();
        wait_until("the stack has received the SYN and the datagram", || {
            let counters = rig.gateway.stack().counters();
            counters
                .iter()
                .any(|(n, v)| *n == "UdpInDatagrams" && *v >= 1)
        });
        let before = rig.gateway.counters();
        assert_eq!((before.tcp_open, before.forwarded), (0, 0));
        assert_eq!((before.udp_flows, before.router_advertisements), (0, 0));
        run();
        host.accept().unwrap();
        connecting.join().unwrap();
        let (mut accepted, _) = rig.guest.run(move || guest.accept().unwrap());
        let mut data = [0; 5];
        accepted.read_exact(&mut data).unwrap();
        assert_eq!(&data, b"early");
    });
}

#[test]
fn a_stopped_gateway_refuses_forwards() {
    with_gateway(Config::default(), |rig| {
        rig.gateway.add_forward(forward(Protocol::Tcp, 80)).unwrap();
        let bound = rig.gateway.list_forwards()[0].1.host;
        rig.gateway.stop();
        wait_until("the forward is closed", || {
            rig.gateway.list_forwards().is_empty()
        });
        let error = TcpStream::connect(bound).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let error = rig.gateway.add_forward(forward(Protocol::Udp, 80));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::NotConnected);
    });
}
