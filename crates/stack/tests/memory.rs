//! Socket statistics, memory limits, and when writers are woken for space.

mod common;

use common::{Count, IFACE, Net, Nic, V4, bytes, wake_all};
use fullsend_offload::{Link, Packet};
use fullsend_stack::{Interest, Notice, StackError, TcpId};
use fullsend_tcp::{SocketOption, Sysctl, TcpError, tcp_mem};
use fullsend_wire::ipv4::Ipv4Repr;
use fullsend_wire::numbers::protocol;
use fullsend_wire::{Nanos, Rng, Seed};

#[test]
fn sockstat_counts_sockets_like_linux() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let line = |net: &Net, who: usize| net.hosts[who].sockstat().to_string();
    assert_eq!(line(&net, 0), "TCP: inuse 0 orphan 0 tw 0 alloc 0 mem 0");
    let (client, server, _) = net.connect(&format!("{}:80", V4[1]));
    assert_eq!(line(&net, 1), "TCP: inuse 2 orphan 0 tw 0 alloc 2 mem 0");
    let now = net.now;
    net.hosts[0].tcp(client).write(now, b"x", false).unwrap();
    assert_eq!(line(&net, 0), "TCP: inuse 1 orphan 0 tw 0 alloc 1 mem 1");
    net.run_for(Nanos::from_millis(100));
    assert_eq!(line(&net, 1), "TCP: inuse 2 orphan 0 tw 0 alloc 2 mem 1");
    net.hosts[1].tcp(server).read(net.now, &mut [0; 9]).unwrap();
    net.hosts[0].tcp(client).close(net.now);
    assert_eq!(line(&net, 0), "TCP: inuse 1 orphan 1 tw 0 alloc 1 mem 0");
    net.run_for(Nanos::from_millis(100));
    net.hosts[1].tcp(server).close(net.now);
    net.run_for(Nanos::from_millis(100));
    assert_eq!(line(&net, 0), "TCP: inuse 0 orphan 0 tw 1 alloc 0 mem 0");
    assert_eq!(line(&net, 1), "TCP: inuse 1 orphan 0 tw 0 alloc 1 mem 0");
}

/// Writes until there is no space. Returns the number of bytes accepted.
fn fill(net: &mut Net, id: TcpId, piece: usize) -> usize {
    let data = bytes(piece);
    let mut taken = 0;
    loop {
        match net.hosts[0].tcp(id).write(net.now, &data, false) {
            Ok(n) => taken += n,
            Err(StackError::Tcp(TcpError::WouldBlock)) => return taken,
            Err(error) => panic!("write: {error}"),
        }
    }
}

fn drain(net: &mut Net, id: TcpId) -> usize {
    let mut buf = vec![0; 256 << 10];
    let mut got = 0;
    while let Ok(n) = net.hosts[1].tcp(id).read(net.now, &mut buf) {
        got += n;
    }
    got
}

/// The measurements of a steady flow.
struct Steady {
    wakes: usize,
    /// Packets sent to the device.
    super_segments: usize,
    most_unsent: u32,
}

/// Sends `total` bytes at 1 Gbit/s over a 10 ms path with this TCP_NOTSENT_LOWAT, writing whenever
/// woken.
fn steady_flow(total: usize, lowat: u32, legacy: bool) -> Steady {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    net.delay = Nanos::from_millis(10);
    let (client, server, _) = net.connect(&format!("{}:80", V4[1]));
    #[cfg(feature = "legacy")]
    net.hosts[0].set_legacy(fullsend_tcp::legacy::Legacy {
        pollout_on_every_ack: legacy,
        ..Default::default()
    });
    assert!(cfg!(feature = "legacy") || !legacy);
    net.hosts[0].sysctl_mut().wmem_max = 64 << 20;
    for option in [
        SocketOption::TcpNotsentLowat(lowat),
        SocketOption::SoSndbuf(32 << 20),
        SocketOption::SoMaxPacingRate(125_000_000),
    ] {
        net.hosts[0]
            .tcp(client)
            .set_option(net.now, option)
            .unwrap();
    }
    let (count, waker) = Count::waker();
    let (mut sent, mut got, mut seen, mut most_unsent) = (0, 0, 0, 0);
    sent += fill(&mut net, client, 4096);
    let register = |net: &mut Net| {
        let ready = net.hosts[0]
            .tcp(client)
            .poll_ready(net.now, Interest::Write, &waker);
        ready.unwrap()
    };
    assert!(!register(&mut net));
    assert!(net.run_until(Nanos::from_secs(100), |net| {
        wake_all(&mut net.hosts[0]);
        if count.get() > seen {
            assert_eq!(count.get(), seen + 1, "one wake for one wait");
            seen += 1;
            sent += fill(net, client, 4096);
            assert!(!register(net), "just filled");
        }
        let info = net.hosts[0].tcp(client).info(net.now).unwrap();
        most_unsent = most_unsent.max(info.tcpi_notsent_bytes);
        got += drain(net, server);
        sent >= total
    }));
    Steady {
        wakes: seen,
        super_segments: net.crossed[0],
        most_unsent,
    }
}

#[test]
fn a_writer_is_woken_once_for_each_half_of_notsent_lowat() {
    let (total, lowat) = (128 << 20, 8 << 20);
    let steady = steady_flow(total, lowat, false);
    // The first filling of the buffer needs no wake.
    let expected = (total - lowat as usize) / (lowat as usize / 2);
    println!(
        "{} wakes, {} super-segments",
        steady.wakes, steady.super_segments
    );
    // Unsent data may exceed the limit by the segment that was begun below it.
    assert!(
        steady.most_unsent < lowat + 65_160,
        "{}",
        steady.most_unsent
    );
    assert!(
        steady.wakes.abs_diff(expected) <= 1,
        "{} wakes",
        steady.wakes
    );
}

#[test]
#[cfg(feature = "legacy")]
fn with_the_legacy_rule_every_send_wakes_the_writer() {
    let old = steady_flow(128 << 20, 8 << 20, true);
    println!("{} wakes, {} super-segments", old.wakes, old.super_segments);
    assert!(
        old.wakes > old.super_segments / 2,
        "{} wakes, {} super-segments",
        old.wakes,
        old.super_segments
    );
}

#[test]
fn a_writable_event_needs_less_than_half_of_notsent_lowat() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let (client, _server, _) = net.connect(&format!("{}:80", V4[1]));
    // All packets are dropped, so that unsent data stays.
    net.filter = Some(Box::new(|_, _| false));
    fill(&mut net, client, 4096);
    net.run_for(Nanos::from_millis(1));
    let unsent = net.hosts[0]
        .tcp(client)
        .info(net.now)
        .unwrap()
        .tcpi_notsent_bytes;
    net.hosts[0]
        .set_sysctl(net.now, "tcp_wmem", "4096 4194304 4194304")
        .unwrap();
    let option = SocketOption::SoSndbuf(4 << 20);
    net.hosts[0]
        .tcp(client)
        .set_option(net.now, option)
        .unwrap();
    let (count, waker) = Count::waker();
    let mut wakes_at = |lowat: u32| {
        // The socket has no limit of its own, so the sysctl applies immediately.
        let low = (unsent / 2).to_string();
        net.hosts[0]
            .set_sysctl(net.now, "tcp_notsent_lowat", &low)
            .unwrap();
        let ready = net.hosts[0]
            .tcp(client)
            .poll_ready(net.now, Interest::Write, &waker);
        assert_eq!(ready, Ok(false));
        let before = count.get();
        for _ in 0..3 {
            let value = lowat.to_string();
            net.hosts[0]
                .set_sysctl(net.now, "tcp_notsent_lowat", &value)
                .unwrap();
            wake_all(&mut net.hosts[0]);
        }
        count.get() - before
    };
    assert_eq!(wakes_at(2 * unsent), 0);
    assert_eq!(wakes_at(2 * unsent + 1), 1);
    assert_eq!(wakes_at(2 * unsent + 2), 1);
}

/// Runs one random schedule of a writer that waits edge-triggered, as with epoll.
fn check_writers_make_progress(seed: u64) {
    let mut rng = Rng::new(Seed::from_u64(seed));
    let mut net = Net::new(Link::Ip, Nic::Tso);
    net.delay = Nanos::from_micros(1 << rng.below(14));
    let (client, server, _) = net.connect(&format!("{}:80", V4[1]));
    let lowat = SocketOption::TcpNotsentLowat(rng.below(200_000) as u32);
    net.hosts[0].tcp(client).set_option(net.now, lowat).unwrap();
    if rng.chance(0.5) {
        let sndbuf = SocketOption::SoSndbuf(1 << (12 + rng.below(8)));
        net.hosts[0]
            .tcp(client)
            .set_option(net.now, sndbuf)
            .unwrap();
    }
    if rng.chance(0.3) {
        let pages = 1 + rng.below(64);
        let host = &mut net.hosts[rng.below(2) as usize];
        host.sysctl_mut().tcp_mem = tcp_mem(pages * 4096);
    }
    let loss = [0.0, 0.0, 0.02][rng.below(3) as usize];
    let mut dice = Rng::new(Seed::from_u64(!seed));
    net.filter = Some(Box::new(move |_, _| !dice.chance(loss)));
    let total = 300_000;
    let piece = 1 + rng.below(20_000) as usize;
    let (count, waker) = Count::waker();
    let (mut sent, mut got, mut seen) = (0, 0, 0);
    let mut may_write = true;
    let done = net.run_until(Nanos::from_secs(600), |net| {
        wake_all(&mut net.hosts[0]);
        may_write |= count.get() > seen;
        seen = count.get();
        // The writer continues only after an edge: if one is lost, it is stuck here.
        while may_write && sent < total {
            sent += fill(net, client, piece);
            let ready = net.hosts[0]
                .tcp(client)
                .poll_ready(net.now, Interest::Write, &waker);
            may_write = ready.unwrap();
        }
        // Once all is written, nothing but timers would run.
        if sent >= total || rng.chance(0.7) {
            got += drain(net, server);
        }
        sent >= total && got >= sent
    });
    assert!(done, "seed {seed}: stuck with {sent} bytes sent, {got} got");
}

#[test]
fn a_waiting_writer_is_always_woken() {
    (0..1500).for_each(check_writers_make_progress);
}

#[test]
fn peers_that_write_and_never_read_stay_within_tcp_mem() {
    const CONNS: usize = 300;
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let limits = tcp_mem(1 << 20);
    net.hosts[1].sysctl_mut().tcp_mem = limits;
    let conns: Vec<_> = (0..CONNS)
        .map(|i| {
            let (client, server, _) = net.connect(&format!("{}:{}", V4[1], 1000 + i));
            (client, server)
        })
        .collect();
    let data = bytes(100_000);
    let mut most = 0;
    for _ in 0..20 {
        for &(client, server) in &conns {
            // The server writes without reading, in steps, and the client does not read either.
            let _ = net.hosts[0].tcp(client).write(net.now, &data, false);
            while let Ok(n) = net.hosts[1].tcp(server).write(net.now, &data, false) {
                assert!(n > 0);
                most = most.max(net.hosts[1].sockstat().mem);
            }
        }
        net.run_for(Nanos::from_millis(50));
        most = most.max(net.hosts[1].sockstat().mem);
    }
    let sysctl = net.hosts[1].sysctl();
    let least = 2 * (sysctl.tcp_rmem[0] + sysctl.tcp_wmem[0]) / 4096;
    let bound = u64::from(limits[2]) + 16 + CONNS as u64 * u64::from(least);
    println!("{most} pages of {limits:?}, bound {bound}");
    assert!(most <= bound, "{most} pages, bound {bound}");
    // A connection whose application reads makes progress.
    let mut buf = vec![0; 256 << 10];
    let (client, server) = conns[CONNS - 1];
    let mut got = [0; 2];
    for _ in 0..2000 {
        for (side, id) in [(0, client), (1, server)] {
            while let Ok(n) = net.hosts[side].tcp(id).read(net.now, &mut buf) {
                got[side] += n;
            }
        }
        let _ = net.hosts[1].tcp(server).write(net.now, &data, false);
        net.run_for(Nanos::from_millis(50));
    }
    assert!(got[0] > 100_000 && got[1] >= 100_000, "{got:?}");
}

#[test]
fn connections_continue_while_allocations_fail() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let pairs: Vec<_> = (0..4)
        .map(|i| net.connect(&format!("{}:{}", V4[1], 1000 + i)))
        .collect();
    let data = bytes(1 << 20);
    // The peers of the first three connections never read.
    for &(client, _, _) in &pairs[..3] {
        let _ = net.hosts[0].tcp(client).write(net.now, &data, false);
    }
    net.run_for(Nanos::from_millis(100));
    for host in &net.hosts {
        host.pool().set_reserve(usize::MAX);
    }
    net.run_for(Nanos::from_millis(1));
    for &(client, _, _) in &pairs[..3] {
        let more = fill(&mut net, client, 100_000);
        assert!(more <= 8192, "{more} bytes taken");
    }
    // The connection that reads and writes continues in both directions.
    let (client, server, listener) = pairs[3];
    net.transfer((0, client), (1, server), &data[..100_000]);
    net.transfer((1, server), (0, client), &data[..100_000]);
    // New connections are refused.
    let refused = net.hosts[0].tcp_connect(net.now, None, "10.0.0.2:1003".parse().unwrap());
    assert_eq!(refused, Err(StackError::Tcp(TcpError::OutOfMemory)));
    net.hosts[0].pool().set_reserve(0);
    net.run_for(Nanos::from_millis(10));
    let dropped = net.counter(1, "TcpExtListenDrops");
    let to = format!("{}:1003", V4[1]).parse().unwrap();
    let waits = net.hosts[0].tcp_connect(net.now, None, to).unwrap();
    net.run_for(Nanos::from_millis(100));
    assert_eq!(net.counter(1, "TcpExtListenDrops"), dropped + 1);
    assert!(net.counter(1, "TcpExtPruneCalled") > 0);
    // Memory is available again: the SYN is retransmitted, and the readers get the queued data.
    net.hosts[1].pool().set_reserve(0);
    assert!(net.run_until(Nanos::from_secs(10), |net| {
        net.hosts[1].listener(listener).accept().unwrap().is_some()
    }));
    net.hosts[0].tcp(waits).close(net.now);
    let (client, server, _) = pairs[0];
    let mut got = drain(&mut net, server);
    let mut sent = 0;
    assert!(net.run_until(Nanos::from_secs(100), |net| {
        sent += net.hosts[0]
            .tcp(client)
            .write(net.now, &data[..1000], false)
            .unwrap_or(0);
        got += drain(net, server);
        got > 2 << 20
    }));
    assert!(sent > 0);
}

#[test]
fn a_failed_allocation_is_an_error_only_if_no_ack_will_free_memory() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let (client, ..) = net.connect(&format!("{}:80", V4[1]));
    let host = &mut net.hosts[0];
    host.pool().set_reserve(usize::MAX);
    // The test holds the whole reserve.
    let pool = host.pool().clone();
    let stock: Vec<_> = std::iter::from_fn(|| pool.try_alloc_from_reserve(512)).collect();
    let write = |host: &mut fullsend_stack::Host, now| host.tcp(client).write(now, b"x", false);
    let refused = Err(StackError::Tcp(TcpError::OutOfMemory));
    assert_eq!(write(host, net.now), refused);
    drop(stock);
    assert_eq!(write(host, net.now), Ok(1));
}

#[test]
fn a_connect_after_a_memory_shortage_succeeds_without_traffic() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let (now, host) = (net.now, &mut net.hosts[0]);
    let to = format!("{}:80", V4[1]).parse().unwrap();
    host.pool().set_reserve(usize::MAX);
    host.poll(now);
    let refused = Err(StackError::Tcp(TcpError::OutOfMemory));
    assert_eq!(host.tcp_connect(now, None, to), refused);
    host.pool().set_reserve(0);
    assert!(host.tcp_connect(now, None, to).is_ok());
}

/// Delivers a fragment of 1500 bytes in a chunk of its pool to host 1.
fn receive_fragment(net: &mut Net, ident: u16, index: u16, more: bool) {
    let [src, dst] = V4.map(|ip| ip.parse().unwrap());
    let repr = Ipv4Repr {
        ident,
        dont_fragment: false,
        more_fragments: more,
        fragment_offset: index * 1480,
        ..Ipv4Repr::new(src, dst, protocol::UDP, 1480)
    };
    let mut frame = [0; 1500];
    repr.emit(&mut frame);
    let (now, host) = (net.now, &mut net.hosts[1]);
    let mut buf = host.pool().try_alloc_from_reserve(1500).unwrap();
    assert!(buf.capacity() >= 1500, "the stock is used up");
    buf.write(&frame);
    let packet = Packet::from_frame(buf.freeze());
    host.receive(now, IFACE, &mut vec![packet]);
}

#[test]
fn fragments_hold_no_memory_while_allocations_fail() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    receive_fragment(&mut net, 1, 0, true);
    assert_eq!(net.counter(1, "IpReasmFails"), 0);
    net.hosts[1].pool().set_reserve(usize::MAX);
    net.poll();
    assert_eq!(net.counter(1, "IpReasmFails"), 1);
    for index in 0..200 {
        receive_fragment(&mut net, 2 + index / 40, index % 40, true);
    }
    assert_eq!(net.counter(1, "IpReasmFails"), 201);
    assert_eq!(net.counter(1, "IpReasmReqds"), 201);
    net.hosts[1].pool().set_reserve(0);
    receive_fragment(&mut net, 9, 1, false);
    receive_fragment(&mut net, 9, 0, true);
    assert_eq!(net.counter(1, "IpReasmOKs"), 1);
}

/// The window limits what a hundred peers send to a host with little memory, before data is dropped that
/// they would have to send again.
#[test]
fn many_flows_in_little_memory_are_held_by_their_windows() {
    const FLOWS: usize = 100;
    const BYTES: usize = 50_000;
    let mut net = Net::new(Link::Ip, Nic::Mtu);
    *net.hosts[1].sysctl_mut() = Sysctl::for_memory(15 << 20);
    let flows: Vec<_> = (0..FLOWS)
        .map(|n| net.connect(&format!("{}:{}", V4[1], 1000 + n)))
        .collect();
    let data = bytes(BYTES);
    let mut sent = [0; FLOWS];
    let mut echoes = vec![Vec::new(); FLOWS];
    let mut echoed = [0; FLOWS];
    let mut got = [0; FLOWS];
    let mut buf = vec![0; 64 << 10];
    let done = net.run_until(Nanos::from_secs(100), |net| {
        let now = net.now;
        for (n, &(client, server, _)) in flows.iter().enumerate() {
            let [here, there] = &mut net.hosts;
            if let Ok(more) = here.tcp(client).write(now, &data[sent[n]..], false) {
                sent[n] += more;
            }
            // A server that reads a piece only when it has sent the last one.
            if echoes[n].len() == echoed[n]
                && let Ok(more) = there.tcp(server).read(now, &mut buf)
            {
                echoes[n].extend_from_slice(&buf[..more]);
            }
            if let Ok(more) = there.tcp(server).write(now, &echoes[n][echoed[n]..], false) {
                echoed[n] += more;
            }
            if let Ok(more) = here.tcp(client).read(now, &mut buf) {
                assert_eq!(buf[..more], data[got[n]..got[n] + more]);
                got[n] += more;
            }
        }
        got.iter().all(|got| *got == BYTES)
    });
    let counters = ["TcpExtTCPOFODrop", "TcpExtTCPRcvQDrop", "TcpExtPruneCalled"];
    let dropped = counters.map(|name| net.counter(1, name));
    println!(
        "{dropped:?} dropped, {} of {FLOWS} done",
        got.iter().filter(|got| **got == BYTES).count()
    );
    assert!(done, "{got:?}");
    // Of about 3500 segments.
    assert!(dropped[0] <= 35, "{dropped:?}");
}

#[test]
fn connections_beyond_the_limit_fail_at_once() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    for host in &mut net.hosts {
        host.sysctl_mut().tcp_max_sockets = 2;
    }
    let to = format!("{}:80", V4[1]);
    let (_, _, listener) = net.connect(&to);
    let to = to.parse().unwrap();
    let now = net.now;
    let second = net.hosts[0].tcp_connect(now, None, to).unwrap();
    let refused = net.hosts[0].tcp_connect(now, None, to);
    let error = refused.unwrap_err();
    assert_eq!(error, StackError::TooManySockets { max: 2 });
    assert!(error.to_string().contains("tcp_max_sockets"), "{error}");
    net.run_for(Nanos::from_millis(10));
    assert!(net.hosts[1].listener(listener).accept().unwrap().is_some());
    // The other host has two, and its own limit.
    net.hosts[0].sysctl_mut().tcp_max_sockets = 0;
    let third = net.hosts[0].tcp_connect(net.now, None, to).unwrap();
    net.run_for(Nanos::from_millis(10));
    let state = |net: &mut Net, id| {
        net.hosts[0]
            .tcp(id)
            .info(net.now)
            .map(|info| info.tcpi_state)
    };
    assert!(state(&mut net, second).is_ok());
    let error = net.hosts[0].tcp(third).take_error();
    assert_eq!(error, Ok(Some(TcpError::ConnectionRefused)));
    assert_eq!(net.counter(1, "TcpExtFullsendSocketsLimited"), 1);
    let notices = net.hosts[1].take_notices(net.now);
    let notice = Notice::TooManySockets { max: 2, times: 1 };
    assert!(notices.contains(&notice), "{notices:?}");
}

/// Connections that are open and idle hold no memory, and do not take the window of a busy one.
#[test]
fn idle_connections_do_not_close_the_window_of_a_busy_one() {
    let mut net = Net::new(Link::Ip, Nic::Mtu);
    net.delay = Nanos::from_millis(10);
    *net.hosts[1].sysctl_mut() = Sysctl::for_memory(256 << 20);
    let to = format!("{}:80", V4[1]);
    let listener = net.listen_with(1, &to, 16);
    let data = bytes(2_000_000);
    for _ in 0..500 {
        let (client, server) = net.connect_to(listener, &to);
        net.transfer((0, client), (1, server), &data[..100]);
    }
    let (client, server) = net.connect_to(listener, &to);
    let begin = net.now;
    net.transfer((0, client), (1, server), &data);
    let took = net.now.since(begin);
    // A window of 4 KiB for each round trip would take 10 s.
    assert!(took < Nanos::from_secs(2), "{took:?}");
}
