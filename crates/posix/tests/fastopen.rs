//! Tests of TCP Fast Open: `TCP_FASTOPEN`, `TCP_FASTOPEN_CONNECT`, `MSG_FASTOPEN`.

use fullsend_offload::Slice;
use fullsend_posix::abi::*;
use fullsend_posix::{Errno, Handle, Posix, SockAddr};
use fullsend_stack::{Host, HostConfig};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Instant, Nanos, Seed};

struct Net {
    posix: Posix,
    now: Instant,
    listener: Handle,
    addr: SockAddr,
}

impl Net {
    /// Returns a host with a Fast Open listener; `enabled` is the value of `tcp_fastopen`.
    fn new(enabled: &str) -> Self {
        let mut sysctl = Sysctl::default();
        sysctl.set("tcp_fastopen", enabled).unwrap();
        let config = HostConfig {
            seed: Seed([3; 4]),
            sysctl,
            pool_bytes: 1 << 20,
        };
        let mut posix = Posix::new(Host::new(config));
        let now = Instant::ZERO + Nanos::from_secs(1);
        let addr = SockAddr::V4("127.0.0.1:80".parse().unwrap());
        let listener = posix.socket(AF_INET, SOCK_STREAM, 0).unwrap();
        posix.bind(now, listener, addr).unwrap();
        posix.listen(now, listener, 8).unwrap();
        let mut net = Self {
            posix,
            now,
            listener,
            addr,
        };
        assert_eq!(net.set(listener, TCP_FASTOPEN, 5), Ok(()));
        net
    }

    fn set(&mut self, handle: Handle, name: i32, value: i32) -> Result<(), Errno> {
        let value = value.to_ne_bytes();
        self.posix
            .setsockopt(self.now, handle, IPPROTO_TCP, name, &value)
    }

    fn client(&mut self) -> Handle {
        self.posix.socket(AF_INET, SOCK_STREAM, 0).unwrap()
    }

    fn run(&mut self) {
        for _ in 0..20 {
            self.posix.host_mut().poll(self.now);
            self.now += Nanos::from_millis(5);
        }
    }

    fn accept(&mut self) -> Handle {
        self.posix.accept4(self.listener, 0).unwrap().0
    }

    fn recv(&mut self, handle: Handle) -> Result<Vec<u8>, Errno> {
        let mut data = vec![0; 100];
        let got = self
            .posix
            .recvmsg(self.now, handle, &mut [&mut data], 0, &mut [])?;
        data.truncate(got.len);
        Ok(data)
    }

    fn send_opening(&mut self, handle: Handle, data: &[u8]) -> Result<usize, Errno> {
        let (now, to) = (self.now, Some(self.addr));
        self.posix
            .sendmsg(now, handle, &[data], MSG_FASTOPEN, to, &[])
    }

    /// Makes a first connection, which receives the cookie.
    fn learn_cookie(&mut self) {
        let client = self.client();
        let opened = self.send_opening(client, b"too early");
        assert_eq!(opened, Err(Errno::EINPROGRESS));
        assert_eq!(self.send_opening(client, b"twice"), Err(Errno::EALREADY));
        self.run();
        assert_eq!(self.posix.connect(self.now, client, self.addr), Ok(()));
        assert_eq!(self.send_opening(client, b"late"), Err(Errno::EISCONN));
        let server = self.accept();
        assert_eq!(self.recv(server), Err(Errno::EAGAIN));
        self.posix.close(self.now, client).unwrap();
        self.posix.close(self.now, server).unwrap();
        self.run();
    }
}

#[test]
fn with_a_cookie_the_first_send_puts_data_in_the_syn() {
    let mut net = Net::new("3");
    net.learn_cookie();
    let client = net.client();
    assert_eq!(net.send_opening(client, b"request"), Ok(7));
    // One direction only: the server receives the data before the handshake has ended.
    net.run();
    let server = net.accept();
    assert_eq!(net.recv(server), Ok(b"request".to_vec()));
    let sent = net
        .posix
        .sendmsg(net.now, server, &[b"answer"], 0, None, &[]);
    assert_eq!(sent, Ok(6));
    net.run();
    assert_eq!(net.recv(client), Ok(b"answer".to_vec()));
    assert_eq!(net.posix.poll_events(client), Ok(EPOLLOUT | EPOLLWRNORM));
    assert_eq!(net.posix.poll_events(server), Ok(EPOLLOUT | EPOLLWRNORM));
}

#[test]
fn a_deferred_connect_waits_for_the_first_write() {
    let mut net = Net::new("3");
    net.learn_cookie();
    let client = net.client();
    assert_eq!(net.set(client, TCP_FASTOPEN_CONNECT, 1), Ok(()));
    assert_eq!(net.posix.connect(net.now, client, net.addr), Ok(()));
    let again = net.posix.connect(net.now, client, net.addr);
    assert_eq!(again, Err(Errno::EISCONN));
    net.run();
    assert_eq!(net.posix.poll_events(client), Ok(EPOLLOUT | EPOLLWRNORM));
    let accepted = net.posix.accept4(net.listener, 0);
    assert_eq!(accepted, Err(Errno::EAGAIN));
    let sent = net
        .posix
        .sendmsg(net.now, client, &[b"request"], 0, None, &[]);
    assert_eq!(sent, Ok(7));
    net.run();
    let server = net.accept();
    assert_eq!(net.recv(server), Ok(b"request".to_vec()));
    assert_eq!(net.posix.connect(net.now, client, net.addr), Ok(()));
}

#[test]
fn owned_bytes_are_sent_in_the_syn() {
    let mut net = Net::new("3");
    net.learn_cookie();
    let client = net.client();
    assert_eq!(net.set(client, TCP_FASTOPEN_CONNECT, 1), Ok(()));
    assert_eq!(net.posix.connect(net.now, client, net.addr), Ok(()));
    let lent = Slice::copied_from(b"request");
    let sent = net.posix.send_lent(net.now, client, lent, 0);
    assert_eq!(sent, Ok(7));
    net.run();
    let server = net.accept();
    assert_eq!(net.recv(server), Ok(b"request".to_vec()));
    assert_eq!(net.posix.connect(net.now, client, net.addr), Ok(()));
}

#[test]
fn fast_open_clients_need_the_sysctl() {
    let mut net = Net::new("2");
    let client = net.client();
    let opened = net.send_opening(client, b"request");
    assert_eq!(opened, Err(Errno::EOPNOTSUPP));
    let set = net.set(client, TCP_FASTOPEN_CONNECT, 1);
    assert_eq!(set, Err(Errno::EOPNOTSUPP));
}

#[test]
fn a_server_may_read_the_saved_syn() {
    let mut net = Net::new("3");
    net.learn_cookie();
    let get = |net: &mut Net, handle, room: usize| {
        let mut value = vec![0; room];
        let len = net
            .posix
            .getsockopt(net.now, handle, IPPROTO_TCP, TCP_SAVED_SYN, &mut value)?;
        value.truncate(len);
        Ok::<_, Errno>(value)
    };
    let listener = net.listener;
    assert_eq!(net.set(listener, TCP_SAVE_SYN, 3), Err(Errno::EINVAL));
    assert_eq!(net.set(listener, TCP_SAVE_SYN, 1), Ok(()));
    assert_eq!(get(&mut net, listener, 100), Ok(Vec::new()));
    // Opened by a SYN with data, then by a handshake.
    for opens in [true, false] {
        let client = net.client();
        if opens {
            assert_eq!(net.send_opening(client, b"request"), Ok(7));
        } else {
            let (now, to) = (net.now, net.addr);
            let connecting = net.posix.connect(now, client, to);
            assert_eq!(connecting, Err(Errno::EINPROGRESS));
        }
        net.run();
        let server = net.accept();
        assert_eq!(get(&mut net, server, 39), Err(Errno::EINVAL), "{opens}");
        let syn = get(&mut net, server, 100).unwrap();
        // The IP header, and the TCP header with all its options.
        assert_eq!(syn[0], 0x45);
        assert_eq!(syn[20 + 2..20 + 4], 80_u16.to_be_bytes());
        assert_eq!(syn[20 + 13] & 0x3f, 0x02, "SYN");
        assert_eq!(syn.len(), 20 + usize::from(syn[20 + 12] >> 4) * 4);
        assert_eq!(get(&mut net, server, 100), Ok(Vec::new()), "reported once");
        assert_eq!(get(&mut net, client, 100), Ok(Vec::new()));
    }
}
