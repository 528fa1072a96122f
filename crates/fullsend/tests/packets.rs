//! Stacks whose packets come from the program: ports, closures, `AsyncRead + AsyncWrite`, and
//! descriptors.

mod common;

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use common::{carry, pattern, paused, threads};
use fullsend::{
    Caps, FdConfig, Link, OffloadSet, PacketPort, PacketReceiver, PacketSender, Slice, Stack,
    TcpListener, TcpStream, UdpSocket, UserDeviceConfig, vnet_header, vnet_packet,
};
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const BYTES: usize = 1_000_000;

/// Transfers data in both directions of a connection between the two stacks.
async fn exchange(a: &Stack, b: &Stack) {
    let listener = TcpListener::bind(b, "10.0.0.2:9").unwrap();
    let client = TcpStream::connect(a, "10.0.0.2:9");
    let (client, server) = tokio::join!(client, listener.accept());
    let (read_a, write_a) = client.unwrap().into_split();
    let (read_b, write_b) = server.unwrap().0.into_split();
    let (there, back) = (pattern(BYTES, 1), pattern(BYTES, 2));
    let (got_there, got_back) = tokio::join!(
        carry(write_a, read_b, &there),
        carry(write_b, read_a, &back)
    );
    assert!(got_there == there && got_back == back);
}

fn build(builder: fullsend::Builder, n: u8) -> Stack {
    let builder = builder.address(&format!("10.0.0.{n}/24"));
    builder.build().unwrap()
}

fn stack_with_port(n: u8, config: UserDeviceConfig) -> (Stack, PacketPort) {
    let (builder, port) = Stack::builder().user_device(config);
    (build(builder, n), port)
}

#[test]
fn a_port_learns_of_the_end_of_its_stack() {
    threads(async {
        let (stack, mut port) = stack_with_port(1, UserDeviceConfig::ip(1420));
        let waits = tokio::spawn(async move {
            assert!(port.receiver.recv_packet().await.is_none());
            port.send(&[0x45; 40]).await.unwrap_err().kind()
        });
        tokio::task::yield_now().await;
        stack.shutdown().await.unwrap();
        assert_eq!(waits.await.unwrap(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn ports_carry_packets() {
    threads(async {
        let config = UserDeviceConfig {
            queue_packets: 16,
            ..UserDeviceConfig::ip(1420)
        };
        let (a, port_a) = stack_with_port(1, config);
        let (b, port_b) = stack_with_port(2, config);
        let forward = |mut from: PacketReceiver, mut to: PacketSender| {
            tokio::spawn(async move {
                let mut packet = [0; 1420];
                while let Ok(len) = from.recv(&mut packet).await {
                    to.send(&packet[..len]).await.unwrap();
                }
            })
        };
        forward(port_a.receiver, port_b.sender);
        forward(port_b.receiver, port_a.sender);
        exchange(&a, &b).await;
    });
}

#[test]
fn streams_and_sinks_carry_packets() {
    threads(async {
        let (a, port_a) = stack_with_port(1, UserDeviceConfig::ip(1420));
        let (b, port_b) = stack_with_port(2, UserDeviceConfig::ip(1420));
        tokio::spawn(port_a.receiver.map(Ok).forward(port_b.sender));
        tokio::spawn(port_b.receiver.map(Ok).forward(port_a.sender));
        exchange(&a, &b).await;
    });
}

#[test]
fn super_segments_pass_with_a_vnet_header() {
    threads(async {
        let config = UserDeviceConfig::new(Caps::offloading(Link::Ip, 1500));
        let (a, port_a) = stack_with_port(1, config);
        let (b, port_b) = stack_with_port(2, config);
        let forward = |mut from: PacketReceiver, mut to: PacketSender| {
            tokio::spawn(async move {
                let mut longest = 0;
                while let Some(packet) = from.recv_packet().await {
                    longest = longest.max(packet.len());
                    let mut frame = vnet_header(&packet).to_vec();
                    packet.append_to(&mut frame);
                    let packet = vnet_packet(Slice::copied_from(&frame)).unwrap();
                    if to.send_packet(packet).await.is_err() {
                        break;
                    }
                }
                longest
            })
        };
        let longest = forward(port_a.receiver, port_b.sender);
        forward(port_b.receiver, port_a.sender);
        exchange(&a, &b).await;
        drop((a, b));
        assert!(longest.await.unwrap() > 20_000);
    });
}

#[test]
fn closures_carry_packets() {
    threads(async {
        let senders: [Arc<OnceLock<Mutex<PacketSender>>>; 2] = [Arc::default(), Arc::default()];
        let stack = |n: u8| {
            let other = senders[usize::from(2 - n)].clone();
            let config = UserDeviceConfig::ip(1420);
            let (builder, sender) = Stack::builder().user_device_with(config, move |packet| {
                let other = other.get().expect("set before the first packet");
                // A full queue drops it, and TCP sends it again.
                other.lock().inject(&packet.to_bytes());
            });
            let own = &senders[usize::from(n - 1)];
            assert!(own.set(Mutex::new(sender)).is_ok());
            build(builder, n)
        };
        let (a, b) = (stack(1), stack(2));
        exchange(&a, &b).await;
    });
}

#[test]
fn a_closure_may_use_sockets_of_its_stack() {
    paused(async {
        let socket = Arc::<OnceLock<UdpSocket>>::default();
        let (again, seen) = (socket.clone(), Arc::new(Mutex::new(Vec::new())));
        let lens = seen.clone();
        let config = UserDeviceConfig::ip(1420);
        let (builder, _sender) = Stack::builder().user_device_with(config, move |packet| {
            lens.lock().push(packet.len() - 28);
            if let Some(socket) = again.get().filter(|_| packet.len() < 33) {
                let more = vec![0; packet.len() - 27];
                socket
                    .try_send_to(&more, ([10, 0, 0, 9], 9).into())
                    .unwrap();
            }
        });
        let stack = build(builder, 1);
        let bound = UdpSocket::bind(&stack, "10.0.0.1:9").unwrap();
        assert!(socket.set(bound).is_ok());
        socket
            .get()
            .unwrap()
            .send_to(b"1", "10.0.0.9:9")
            .await
            .unwrap();
        assert_eq!(*seen.lock(), [1, 2, 3, 4, 5]);
    });
}

#[test]
fn a_dropped_port_stops_its_stack_and_the_reverse() {
    paused(async {
        let (stack, port) = stack_with_port(1, UserDeviceConfig::ip(1420));
        let waiting = UdpSocket::bind(&stack, "10.0.0.1:9").unwrap();
        drop(port);
        let why = stack.closed().await;
        assert_eq!(why.kind(), ErrorKind::NetworkDown);
        assert!(why.to_string().contains("PacketPort"), "{why}");
        let error = waiting.recv_from(&mut [0; 9]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkDown);

        let (stack, mut port) = stack_with_port(1, UserDeviceConfig::ip(1420));
        drop(stack);
        let error = port.recv(&mut [0; 1420]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        let error = port.send(&[0x45; 20]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

/// One end of a pair of datagram sockets, with the interface of `tun::AsyncDevice`.
struct Frames(tokio::net::UnixDatagram);

impl AsyncRead for Frames {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.poll_recv(cx, buf)
    }
}

impl AsyncWrite for Frames {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_send(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let whole: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        self.0.poll_send(cx, &whole)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn asynchronous_devices_carry_packets() {
    threads(async {
        let (a, b) = tokio::net::UnixDatagram::pair().unwrap();
        let a = build(Stack::builder().packet_io(Frames(a), 1500), 1);
        let b = build(Stack::builder().packet_io(Frames(b), 1500), 2);
        exchange(&a, &b).await;
    });
}

#[test]
fn descriptors_carry_packets_with_and_without_headers() {
    for config in [
        FdConfig::ip(1500),
        FdConfig::ip(1500).family_header(),
        FdConfig::ip(1500).vnet_header(OffloadSet::ALL),
    ] {
        threads(async move {
            let (a, b) = UnixDatagram::pair().unwrap();
            let stack = |socket, n| build(Stack::builder().fd(OwnedFd::from(socket), config), n);
            let (a, b) = (stack(a, 1), stack(b, 2));
            exchange(&a, &b).await;
        });
    }
}
