//! Tests of reports to the caller: readiness, timestamps, completions, queue lengths.

use fullsend_offload::{Caps, Link};
use fullsend_posix::abi::*;
use fullsend_posix::{EpollEvent, Errno, Handle, Posix, SockAddr};
use fullsend_stack::{Host, HostConfig, IfaceConfig, IfaceId, Mac};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Instant, Nanos, Seed};

/// A host whose loopback carries a connection.
struct Net {
    posix: Posix,
    now: Instant,
    client: Handle,
    server: Handle,
}

const EPOCH: Nanos = Nanos::from_secs(1_000_000);

impl Net {
    fn new() -> Self {
        let config = HostConfig {
            seed: Seed([3; 4]),
            sysctl: Sysctl::default(),
            pool_bytes: 1 << 20,
        };
        let mut posix = Posix::new(Host::new(config));
        posix.set_epoch(EPOCH);
        let now = Instant::ZERO + Nanos::from_secs(1);
        let addr = SockAddr::V4("127.0.0.1:80".parse().unwrap());
        let listener = posix.socket(AF_INET, SOCK_STREAM, 0).unwrap();
        posix.bind(now, listener, addr).unwrap();
        posix.listen(now, listener, 4).unwrap();
        let client = posix.socket(AF_INET, SOCK_STREAM, 0).unwrap();
        assert_eq!(posix.connect(now, client, addr), Err(Errno::EINPROGRESS));
        posix.host_mut().poll(now);
        posix.connect(now, client, addr).unwrap();
        let (server, _) = posix.accept4(listener, 0).unwrap();
        let mut net = Self {
            posix,
            now,
            client,
            server,
        };
        net.ready();
        net
    }

    /// Advances the time by `span`, in which all packets arrive.
    fn run(&mut self, span: Nanos) {
        self.posix.host_mut().poll(self.now);
        self.now += span;
        self.posix.host_mut().poll(self.now);
    }

    fn ready(&mut self) -> Vec<Handle> {
        let mut out = Vec::new();
        self.posix.take_ready(&mut out);
        out
    }

    fn set(&mut self, handle: Handle, level: i32, name: i32, value: u32) {
        let value = value.to_ne_bytes();
        self.posix
            .setsockopt(self.now, handle, level, name, &value)
            .unwrap();
    }

    fn send(&mut self, handle: Handle, data: &[u8]) {
        let sent = self.posix.sendmsg(self.now, handle, &[data], 0, None, &[]);
        assert_eq!(sent, Ok(data.len()));
    }

    /// Reads at most `len` bytes. Returns their number and the control messages.
    fn recv(&mut self, handle: Handle, len: usize, flags: i32) -> Result<(usize, Control), Errno> {
        let mut data = vec![0; len];
        let mut control = [0; 256];
        let got = self
            .posix
            .recvmsg(self.now, handle, &mut [&mut data], flags, &mut control)?;
        Ok((got.len, split(&control[..got.control_len])))
    }
}

/// Control messages: level, type, data.
type Control = Vec<(i32, i32, Vec<u8>)>;

fn split(mut control: &[u8]) -> Control {
    let mut out = Vec::new();
    while !control.is_empty() {
        let word = |at| i32::from_ne_bytes(control[at..at + 4].try_into().unwrap());
        let len = word(0) as usize;
        out.push((word(8), word(12), control[16..len].to_vec()));
        control = &control[len.next_multiple_of(8)..];
    }
    out
}

/// Returns fields of a `struct sock_extended_err`: origin, code, info, data.
fn extended(data: &[u8]) -> (u8, u8, u32, u32) {
    let word = |at: usize| u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
    (data[4], data[6], word(8), word(12))
}

/// Returns the first timestamp of a `struct scm_timestamping`, since the host's zero.
fn stamp(data: &[u8]) -> Nanos {
    let word = |at: usize| u64::from_ne_bytes(data[at..at + 8].try_into().unwrap());
    let ns = word(0) * 1_000_000_000 + word(8);
    assert!(data[16..].iter().all(|&byte| byte == 0));
    Nanos::from_nanos(ns).saturating_sub(EPOCH)
}

#[test]
fn waiting_handles_are_reported_once_when_ready() {
    let mut net = Net::new();
    assert_eq!(net.recv(net.server, 10, 0), Err(Errno::EAGAIN));
    assert_eq!(net.ready(), []);
    net.send(net.client, b"abc");
    net.run(Nanos::from_millis(50));
    assert_eq!(net.ready(), [net.server]);
    assert_eq!(net.ready(), []);
    // No call has found the socket empty since.
    net.send(net.client, b"def");
    net.run(Nanos::from_millis(50));
    assert_eq!(net.ready(), []);
    assert_eq!(net.posix.poll_events(net.server), Ok(0x145));
    net.send(net.client, b"ghi");
    net.run(Nanos::from_millis(50));
    assert_eq!(net.ready(), [net.server]);
    // A waiter on a closed socket must be woken.
    net.posix.close(net.now, net.server).unwrap();
    assert_eq!(net.ready(), [net.server]);
    assert_eq!(net.posix.poll_events(net.server), Err(Errno::EBADF));
}

#[test]
fn unread_ready_handles_do_not_accumulate() {
    let mut net = Net::new();
    for _ in 0..10_000 {
        let fd = net.posix.socket(AF_INET, SOCK_STREAM, 0).unwrap();
        net.posix.close(net.now, fd).unwrap();
    }
    assert!(net.ready().len() < 5_000);
}

#[test]
fn transmit_timestamps() {
    let mut net = Net::new();
    net.send(net.client, b"before");
    net.run(Nanos::from_millis(100));
    net.recv(net.server, 100, 0).unwrap();
    net.run(Nanos::from_millis(100));
    let flags = SOF_TIMESTAMPING_TX_SCHED
        | SOF_TIMESTAMPING_TX_SOFTWARE
        | SOF_TIMESTAMPING_TX_ACK
        | SOF_TIMESTAMPING_SOFTWARE
        | SOF_TIMESTAMPING_OPT_ID
        | SOF_TIMESTAMPING_OPT_TSONLY;
    net.set(net.client, SOL_SOCKET, SO_TIMESTAMPING_OLD, flags);
    let sent_at = net.now;
    net.send(net.client, b"0123456789");
    net.run(Nanos::from_millis(100));
    let mut stages = Vec::new();
    while let Ok((len, control)) = net.recv(net.client, 0, MSG_ERRQUEUE) {
        assert_eq!(len, 0);
        let [(level, kind, at), (_, _, error)] = control.as_slice() else {
            panic!("{control:?}");
        };
        assert_eq!(
            (*level, *kind, at.len()),
            (SOL_SOCKET, SO_TIMESTAMPING_OLD, 48)
        );
        let (origin, _, stage, key) = extended(error);
        assert_eq!((origin, key), (SO_EE_ORIGIN_TIMESTAMPING, 9));
        stages.push((stage, stamp(at)));
    }
    let of = |wanted| stages.iter().find(|(stage, _)| *stage == wanted).unwrap().1;
    assert_eq!(stages.len(), 3);
    let sent_at = Nanos::from_nanos(sent_at.as_nanos());
    assert_eq!(of(SCM_TSTAMP_SCHED), sent_at);
    assert!(of(SCM_TSTAMP_SND) >= of(SCM_TSTAMP_SCHED));
    assert!(of(SCM_TSTAMP_ACK) >= of(SCM_TSTAMP_SND));
}

#[test]
fn a_control_message_requests_timestamps_for_one_call() {
    let mut net = Net::new();
    let flags = SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_ID;
    net.set(net.client, SOL_SOCKET, SO_TIMESTAMPING_OLD, flags);
    let mut control = [0; 24];
    control[..8].copy_from_slice(&20_u64.to_ne_bytes());
    control[8..12].copy_from_slice(&SOL_SOCKET.to_ne_bytes());
    control[12..16].copy_from_slice(&SO_TIMESTAMPING_OLD.to_ne_bytes());
    control[16..20].copy_from_slice(&SOF_TIMESTAMPING_TX_ACK.to_ne_bytes());
    let (now, client) = (net.now, net.client);
    let sent = net
        .posix
        .sendmsg(now, client, &[b"abcd"], 0, None, &control);
    assert_eq!(sent, Ok(4));
    net.run(Nanos::from_millis(100));
    let (_, messages) = net.recv(client, 0, MSG_ERRQUEUE).unwrap();
    let (origin, _, stage, key) = extended(&messages[1].2);
    assert_eq!(
        (origin, stage, key),
        (SO_EE_ORIGIN_TIMESTAMPING, SCM_TSTAMP_ACK, 3)
    );
    assert_eq!(net.recv(client, 0, MSG_ERRQUEUE), Err(Errno::EAGAIN));
    control[16..20].copy_from_slice(&SOF_TIMESTAMPING_SOFTWARE.to_ne_bytes());
    let sent = net
        .posix
        .sendmsg(now, client, &[b"abcd"], 0, None, &control);
    assert_eq!(sent, Err(Errno::EINVAL));
}

#[test]
fn receive_timestamps_and_remaining_bytes() {
    let mut net = Net::new();
    net.set(net.server, SOL_SOCKET, SO_TIMESTAMPNS_OLD, 1);
    net.set(net.server, IPPROTO_TCP, TCP_INQ, 1);
    let arrival = net.now;
    net.send(net.client, b"0123456789");
    net.run(Nanos::from_millis(100));
    let (len, control) = net.recv(net.server, 4, 0).unwrap();
    assert_eq!(len, 4);
    let [(level, kind, at), (inq_level, inq, left)] = control.as_slice() else {
        panic!("{control:?}");
    };
    assert_eq!((*level, *kind), (SOL_SOCKET, SO_TIMESTAMPNS_OLD));
    assert_eq!(stamp(at), Nanos::from_nanos(arrival.as_nanos()));
    assert_eq!((*inq_level, *inq), (IPPROTO_TCP, TCP_CM_INQ));
    assert_eq!(left[..], 6_i32.to_ne_bytes());
    net.posix.shutdown(net.now, net.client, SHUT_WR).unwrap();
    net.run(Nanos::from_millis(100));
    // The end of the stream counts as one byte.
    let (len, control) = net.recv(net.server, 100, 0).unwrap();
    assert_eq!((len, &control[1].2[..]), (6, &1_i32.to_ne_bytes()[..]));
}

#[test]
fn a_small_control_buffer_sets_msg_ctrunc() {
    let mut net = Net::new();
    net.set(net.server, IPPROTO_TCP, TCP_INQ, 1);
    net.send(net.client, b"abc");
    net.run(Nanos::from_millis(100));
    let mut data = [0; 1];
    for (room, used) in [(0, 0), (15, 0), (18, 18)] {
        let mut control = vec![0; room];
        let (now, server) = (net.now, net.server);
        let got = net
            .posix
            .recvmsg(now, server, &mut [&mut data], 0, &mut control)
            .unwrap();
        assert_eq!((got.flags, got.control_len), (MSG_CTRUNC, used), "{room}");
    }
}

/// `SO_RCVLOWAT` is more than the buffer holds, which is made smaller before or after data arrives.
#[test]
fn a_low_water_mark_that_cannot_be_reached_notifies_a_set() {
    for data_comes_first in [false, true] {
        let mut net = Net::new();
        let (client, server) = (net.client, net.server);
        net.set(server, SOL_SOCKET, SO_RCVLOWAT, 1 << 30);
        let set = net.posix.epoll_create().unwrap();
        let events = EPOLLIN | EPOLLET;
        let event = EpollEvent { events, data: 0 };
        net.posix
            .epoll_ctl(set, EPOLL_CTL_ADD, server, event)
            .unwrap();
        let mut out = [EpollEvent::default(); 2];
        if data_comes_first {
            net.send(client, &vec![7; 20_000]);
            net.run(Nanos::from_millis(50));
            assert_eq!(net.posix.epoll_wait(net.now, set, &mut out), Ok(0));
            net.set(server, SOL_SOCKET, SO_RCVBUF, 3000);
        } else {
            assert_eq!(net.posix.epoll_wait(net.now, set, &mut out), Ok(0));
            net.set(server, SOL_SOCKET, SO_RCVBUF, 3000);
            let data = [7; 10_000];
            while net
                .posix
                .sendmsg(net.now, client, &[&data], 0, None, &[])
                .is_ok()
            {
                net.run(Nanos::from_millis(50));
            }
        }
        assert_eq!(net.posix.epoll_wait(net.now, set, &mut out), Ok(1));
        assert_eq!(net.posix.poll_events(server), Ok(0x145));
        let (received, _) = net.recv(server, 1 << 20, 0).unwrap();
        assert!(received >= 10_000);
    }
}

#[test]
fn of_exclusive_sets_one_waiting_set_is_notified() {
    let mut net = Net::new();
    let server = net.server;
    let sets: [Handle; 3] = core::array::from_fn(|_| {
        let set = net.posix.epoll_create().unwrap();
        let events = EPOLLIN | EPOLLEXCLUSIVE;
        let event = EpollEvent { events, data: 0 };
        net.posix
            .epoll_ctl(set, EPOLL_CTL_ADD, server, event)
            .unwrap();
        set
    });
    let mut out = [EpollEvent::default(); 4];
    // The caller of the first set is not waiting; those of the others are.
    for set in &sets[1..] {
        assert_eq!(net.posix.epoll_wait(net.now, *set, &mut out), Ok(0));
    }
    net.ready();
    net.send(net.client, b"abc");
    net.run(Nanos::from_millis(50));
    let ready = net.ready();
    assert!(ready.contains(&sets[0]) && ready.contains(&sets[1]));
    assert!(!ready.contains(&sets[2]));
    let found = sets.map(|set| net.posix.epoll_wait(net.now, set, &mut out));
    assert_eq!(found, [Ok(1), Ok(1), Ok(0)]);
}

#[test]
fn splice_moves_memory_and_not_bytes() {
    let mut net = Net::new();
    let (reader, writer) = net.posix.pipe(true).unwrap();
    let data = vec![9; 40_000];
    net.send(net.client, &data);
    net.run(Nanos::from_millis(50));
    let (now, server) = (net.now, net.server);
    let moved = net.posix.splice(now, server, writer, 1 << 20, 0);
    assert_eq!(moved, Ok(40_000));
    // Back to the sender, still in the memory that it wrote to.
    assert_eq!(
        net.posix.splice(now, reader, server, 1 << 20, 0),
        Ok(40_000)
    );
    net.run(Nanos::from_millis(50));
    assert_eq!(net.recv(net.client, 100_000, 0).unwrap().0, 40_000);
}

#[test]
fn queries_of_the_blocking_layer() {
    let mut net = Net::new();
    let (client, server) = (net.client, net.server);
    assert_eq!(net.posix.receive_target(server, 100, 0), Ok(1));
    assert_eq!(net.posix.receive_target(server, 100, MSG_WAITALL), Ok(100));
    net.set(server, SOL_SOCKET, SO_RCVLOWAT, 7);
    assert_eq!(net.posix.receive_target(server, 100, 0), Ok(7));
    assert_eq!(net.posix.receive_target(server, 3, 0), Ok(3));
    assert_eq!(net.posix.timeouts(client), Ok((None, None)));
    assert_eq!(net.posix.linger(client), Ok(None));
    let linger = [1_i32.to_ne_bytes(), 5_i32.to_ne_bytes()].concat();
    let now = net.now;
    net.posix
        .setsockopt(now, client, SOL_SOCKET, SO_LINGER, &linger)
        .unwrap();
    assert_eq!(net.posix.linger(client), Ok(Some(Nanos::from_secs(5))));
    assert_eq!(net.posix.is_flushed(client), Ok(true));
    net.send(client, b"abc");
    assert_eq!(net.posix.is_flushed(client), Ok(false));
    net.run(Nanos::from_millis(100));
    assert_eq!(net.posix.is_flushed(client), Ok(true));
}

/// Returns 10.0.0.`n` on a link.
fn neighbour(n: u8) -> (Posix, IfaceId) {
    let mut host = Host::new(HostConfig {
        seed: Seed([n.into(); 4]),
        sysctl: Sysctl::default(),
        pool_bytes: 0,
    });
    let caps = Caps::offloading(Link::Ip, 1500);
    let iface = host.add_interface(IfaceConfig::new(caps, Mac::local(n.into())));
    let address = format!("10.0.0.{n}/24").parse().unwrap();
    host.add_address(Instant::ZERO, iface, address).unwrap();
    (Posix::new(host), iface)
}

#[test]
fn a_broadcast_request_is_answered_from_a_local_address() {
    let now = Instant::ZERO + Nanos::from_secs(1);
    let ((mut from, out), (mut to, iface)) = (neighbour(1), neighbour(2));
    let [client, server] = [&mut from, &mut to].map(|p| p.socket(AF_INET, SOCK_DGRAM, 0).unwrap());
    let on = 1_u32.to_ne_bytes();
    from.setsockopt(now, client, SOL_SOCKET, SO_BROADCAST, &on)
        .unwrap();
    to.setsockopt(now, server, IPPROTO_IP, IP_PKTINFO, &on)
        .unwrap();
    let any = SockAddr::V4("0.0.0.0:9".parse().unwrap());
    to.bind(now, server, any).unwrap();
    for dest in ["10.0.0.255", "10.0.0.2"] {
        let addr = SockAddr::V4(format!("{dest}:9").parse().unwrap());
        let sent = from.sendmsg(now, client, &[b"all"], 0, Some(addr), &[]);
        assert_eq!(sent, Ok(3));
        let mut packets = Vec::new();
        from.host_mut().transmit(now, out, &mut packets, 8);
        to.host_mut().receive(now, iface, &mut packets);
        let (mut data, mut control) = ([0; 9], [0; 64]);
        let got = to.recvmsg(now, server, &mut [&mut data], 0, &mut control);
        let messages = split(&control[..got.unwrap().control_len]);
        let (level, kind, info) = &messages[0];
        assert_eq!((*level, *kind), (IPPROTO_IP, IP_PKTINFO));
        assert_eq!(info[4..8], [10, 0, 0, 2]);
        let header: std::net::Ipv4Addr = dest.parse().unwrap();
        assert_eq!(info[8..12], header.octets());
    }
}
