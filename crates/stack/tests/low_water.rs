//! Low-water marks against flow control: whatever `SO_RCVLOWAT`, `TCP_NOTSENT_LOWAT`, the buffers, the
//! host's memory and the sizes of reads and writes are, a reader and a writer that call only when they
//! are woken reach the end of the stream.

mod common;

use std::task::Waker;

use common::{Count, Net, Nic, V4, bytes, wake_all};
use fullsend_offload::Link;
use fullsend_stack::{Interest, StackError, TcpId};
use fullsend_tcp::{SocketOption, TcpError};
use fullsend_wire::{Nanos, Rng, Seed};
use proptest::prelude::*;

/// A flow in one direction, and everything that bounds it.
#[derive(Clone, Debug)]
struct Flow {
    rcvlowat: u32,
    /// `SO_RCVBUF`, and the number of bytes read before it is set.
    rcvbuf: Option<(usize, u32)>,
    window_clamp: Option<u32>,
    sndbuf: Option<u32>,
    notsent_lowat: Option<u32>,
    /// `tcp_mem` of the receiving host.
    tcp_mem: &'static str,
    shrink_window: bool,
    autotuning: bool,
    /// Whether MSG_MORE is set in each write.
    more: bool,
    write_bytes: usize,
    /// Most bytes of a read, at most one for each wake-up.
    read_bytes: usize,
    /// One in this number of packets is lost, in both directions.
    lose_one_in: Option<u64>,
    nic: Nic,
    total: usize,
}

const NO_LIMIT: &str = "100000 200000 300000";

impl Flow {
    /// Returns a flow without limits of its own.
    fn plain(total: usize) -> Self {
        Self {
            rcvlowat: 1,
            rcvbuf: None,
            window_clamp: None,
            sndbuf: None,
            notsent_lowat: None,
            tcp_mem: NO_LIMIT,
            shrink_window: false,
            autotuning: true,
            more: false,
            write_bytes: 10_000,
            read_bytes: usize::MAX,
            lose_one_in: None,
            nic: Nic::Tso,
            total,
        }
    }

    /// Runs the flow. Returns the length of the first read, once all data has arrived.
    fn run(&self) -> usize {
        let mut net = Net::new(Link::Ip, self.nic);
        let now = net.now;
        for (name, value) in [
            ("tcp_mem", self.tcp_mem),
            ("tcp_shrink_window", flag(self.shrink_window)),
            ("tcp_moderate_rcvbuf", flag(self.autotuning)),
        ] {
            net.hosts[1].set_sysctl(now, name, value).unwrap();
        }
        let (client, server, _) = net.connect(&format!("{}:80", V4[1]));
        self.set_options(&mut net, client, server);
        if let Some(n) = self.lose_one_in {
            let mut rng = Rng::new(Seed::from_u64(1));
            net.filter = Some(Box::new(move |_, _| rng.below(n) != 0));
        }
        let data = bytes(self.total);
        let mut writer = Writer::new(client);
        let mut reader = Reader::new(server);
        let done = net.run_until(Nanos::from_secs(20_000), |net| {
            net.hosts.iter_mut().for_each(wake_all);
            writer.run(net, self, &data);
            reader.run(net, self);
            reader.ended
        });
        let (written, read) = (writer.written, reader.data.len());
        assert!(done, "stuck after {written} bytes written and {read} read");
        assert!(reader.data == data, "the data differs");
        reader.first
    }

    fn set_options(&self, net: &mut Net, client: TcpId, server: TcpId) {
        let now = net.now;
        let mut set = |who: usize, id, option| {
            net.hosts[who].tcp(id).set_option(now, option).unwrap();
        };
        set(1, server, SocketOption::SoRcvlowat(self.rcvlowat));
        if let Some(bytes) = self.window_clamp {
            set(1, server, SocketOption::TcpWindowClamp(bytes));
        }
        if let Some(bytes) = self.sndbuf {
            set(0, client, SocketOption::SoSndbuf(bytes));
        }
        if let Some(bytes) = self.notsent_lowat {
            set(0, client, SocketOption::TcpNotsentLowat(bytes));
        }
    }
}

fn flag(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}

/// A task that waits for one kind of readiness.
struct Task {
    id: TcpId,
    wakes: std::sync::Arc<Count>,
    waker: Waker,
    seen: usize,
    started: bool,
}

impl Task {
    fn new(id: TcpId) -> Self {
        let (wakes, waker) = Count::waker();
        Self {
            id,
            wakes,
            waker,
            seen: 0,
            started: false,
        }
    }

    /// Returns whether the task may run: it has been woken, or has not run yet.
    fn is_woken(&mut self) -> bool {
        let wakes = self.wakes.get();
        let woken = wakes > self.seen || !self.started;
        (self.seen, self.started) = (wakes, true);
        woken
    }
}

struct Writer {
    task: Task,
    written: usize,
    closed: bool,
}

impl Writer {
    fn new(id: TcpId) -> Self {
        Self {
            task: Task::new(id),
            written: 0,
            closed: false,
        }
    }

    /// Writes until there is no room, if it was woken.
    fn run(&mut self, net: &mut Net, flow: &Flow, data: &[u8]) {
        if self.closed || !self.task.is_woken() {
            return;
        }
        let (id, now) = (self.task.id, net.now);
        let tcp = &mut net.hosts[0];
        loop {
            if self.written == data.len() {
                tcp.tcp(id).shutdown_write(now).unwrap();
                self.closed = true;
                return;
            }
            let ready = tcp
                .tcp(id)
                .poll_ready(now, Interest::Write, &self.task.waker);
            if !ready.unwrap() {
                return;
            }
            let end = data.len().min(self.written + flow.write_bytes);
            match tcp.tcp(id).write(now, &data[self.written..end], flow.more) {
                Ok(n) => self.written += n,
                Err(StackError::Tcp(TcpError::WouldBlock)) => {}
                Err(error) => panic!("write: {error}"),
            }
        }
    }
}

struct Reader {
    task: Task,
    data: Vec<u8>,
    buf: Vec<u8>,
    /// Length of the first read.
    first: usize,
    ended: bool,
    resized: bool,
}

impl Reader {
    fn new(id: TcpId) -> Self {
        Self {
            task: Task::new(id),
            data: Vec::new(),
            buf: vec![0; 8 << 20],
            first: 0,
            ended: false,
            resized: false,
        }
    }

    /// Reads while there is enough data, if it was woken.
    fn run(&mut self, net: &mut Net, flow: &Flow) {
        if let Some((after, bytes)) = flow.rcvbuf
            && self.data.len() >= after
            && !self.resized
        {
            self.resized = true;
            let option = SocketOption::SoRcvbuf(bytes);
            let mut tcp = net.hosts[1].tcp(self.task.id);
            tcp.set_option(net.now, option).unwrap();
        }
        if self.ended || !self.task.is_woken() {
            return;
        }
        let (id, now) = (self.task.id, net.now);
        let tcp = &mut net.hosts[1];
        while tcp
            .tcp(id)
            .poll_ready(now, Interest::Read, &self.task.waker)
            .unwrap()
        {
            let most = flow.read_bytes.min(self.buf.len());
            let n = tcp.tcp(id).read(now, &mut self.buf[..most]).unwrap();
            if n == 0 {
                self.ended = true;
                return;
            }
            if self.first == 0 {
                self.first = n;
            }
            self.data.extend_from_slice(&self.buf[..n]);
        }
    }
}

/// gRPC sets `SO_RCVLOWAT` to the length of the message that it expects. The buffer grows, so that the
/// reader is woken once, for the whole message.
#[test]
fn a_buffer_grows_to_the_low_water_mark() {
    for rcvlowat in [1, 50_000, 150_000, 1_000_000] {
        let flow = Flow {
            rcvlowat,
            ..Flow::plain(2_500_000)
        };
        let first = flow.run();
        assert!(first >= rcvlowat as usize, "{first} bytes, {rcvlowat}");
    }
}

#[test]
fn a_low_water_mark_that_the_window_cannot_reach_delays_but_does_not_stop() {
    let fixed = |bytes| Some((0, bytes));
    let base = Flow {
        rcvlowat: u32::MAX,
        ..Flow::plain(400_000)
    };
    let cases = [
        base.clone(),
        Flow {
            rcvbuf: fixed(2304),
            ..base.clone()
        },
        Flow {
            rcvbuf: fixed(30_000),
            ..base.clone()
        },
        // Made smaller while data waits.
        Flow {
            rcvlowat: 100_000,
            rcvbuf: Some((100_000, 4000)),
            ..base.clone()
        },
        Flow {
            window_clamp: Some(3000),
            ..base.clone()
        },
        Flow {
            autotuning: false,
            shrink_window: true,
            ..base.clone()
        },
        Flow {
            lose_one_in: Some(7),
            nic: Nic::Mtu,
            ..base.clone()
        },
        // Data above a hole fills the buffer that was made smaller.
        Flow {
            rcvbuf: Some((68_000, 1)),
            shrink_window: true,
            autotuning: false,
            write_bytes: 180,
            read_bytes: 180,
            lose_one_in: Some(4),
            nic: Nic::Mtu,
            ..base.clone()
        },
        // Memory pressure, and exhausted memory.
        Flow {
            tcp_mem: "1 2 300000",
            ..base.clone()
        },
        Flow {
            tcp_mem: "1 2 3",
            ..base
        },
    ];
    for flow in cases {
        flow.run();
    }
}

/// A reader that waits for more than has arrived, as `MSG_PEEK | MSG_WAITALL` does: it looks again whenever
/// it is woken, until it has all or no more is admitted.
#[derive(Clone, Copy, Debug)]
struct Peek {
    has_lowat: bool,
    shrink_window: bool,
    tcp_mem: &'static str,
    first: usize,
    delay_ms: u64,
}

impl Peek {
    /// Runs the flow, and another one whose data is not read. Returns whether the reader's wait has ended.
    fn run(self) -> bool {
        const ALL: usize = 200_000;
        let mut net = Net::new(Link::Ip, Nic::Tso);
        let now = net.now;
        net.hosts[1]
            .set_sysctl(now, "tcp_mem", self.tcp_mem)
            .unwrap();
        net.hosts[1].sysctl_mut().tcp_shrink_window = self.shrink_window;
        let (client, server, listener) = net.connect(&format!("{}:80", V4[1]));
        let (other, _) = net.connect_to(listener, &format!("{}:80", V4[1]));
        if self.has_lowat {
            let option = SocketOption::SoRcvlowat(ALL as u32);
            net.hosts[1].tcp(server).set_option(now, option).unwrap();
        }
        let data = bytes(1 << 20);
        let (wakes, waker) = Count::waker();
        let mut seen = None;
        let mut peek = |net: &mut Net| {
            wake_all(&mut net.hosts[1]);
            if seen.replace(wakes.get()) == Some(wakes.get()) {
                return false;
            }
            let now = net.now;
            let mut tcp = net.hosts[1].tcp(server);
            let readiness = tcp.readiness().unwrap();
            if self.has_lowat {
                return tcp.poll_ready(now, Interest::Read, &waker).unwrap();
            }
            tcp.watch(&waker, Waker::noop()).unwrap();
            readiness.receive_limited || tcp.queues().unwrap().readable >= ALL
        };
        net.hosts[0]
            .tcp(client)
            .write(now, &data[..self.first], false)
            .unwrap();
        if net.run_until(Nanos::from_millis(self.delay_ms), &mut peek) {
            return true;
        }
        let now = net.now;
        net.hosts[0].tcp(other).write(now, &data, false).unwrap();
        net.hosts[0]
            .tcp(client)
            .write(now, &data[self.first..ALL], false)
            .unwrap();
        net.run_until(Nanos::from_secs(300), &mut peek)
    }
}

#[test]
fn pressure_by_another_flow_ends_the_wait_for_more() {
    let mut stuck = Vec::new();
    for has_lowat in [true, false] {
        for shrink_window in [false, true] {
            for tcp_mem in ["4 8 300000", "20 40 300000", "4 8 12"] {
                for first in [1, 14_000, 100_000] {
                    for delay_ms in [1, 45] {
                        let peek = Peek {
                            has_lowat,
                            shrink_window,
                            tcp_mem,
                            first,
                            delay_ms,
                        };
                        if !peek.run() {
                            stuck.push(peek);
                        }
                    }
                }
            }
        }
    }
    assert!(stuck.is_empty(), "{} {stuck:?}", stuck.len());
}

#[test]
fn a_notsent_low_water_mark_above_the_send_buffer_is_no_limit() {
    for sndbuf in [2304, 20_000] {
        Flow {
            sndbuf: Some(sndbuf),
            notsent_lowat: Some(10_000_000),
            rcvlowat: 1_000_000,
            ..Flow::plain(400_000)
        }
        .run();
    }
}

/// Returns sizes of about equal probability in each order of magnitude.
fn size(most: u32) -> impl Strategy<Value = u32> {
    let orders = most.ilog2();
    (0..=orders, any::<u32>()).prop_map(move |(bits, random)| {
        let least = 1u32 << bits;
        (least + random % least).min(most)
    })
}

fn flow() -> impl Strategy<Value = Flow> {
    let limits = (
        size(8 << 20),
        prop::option::of((0usize..300_000, size(1 << 20))),
        prop::option::of(size(1 << 20)),
        prop::option::of(size(1 << 20)),
        prop::option::of(size(1 << 20)),
        prop_oneof![
            4 => Just(NO_LIMIT),
            1 => Just("1 2 300000"),
            1 => Just("1 2 3")
        ],
    );
    let calls = (size(200_000), size(200_000), any::<[bool; 4]>());
    let loss = prop::option::weighted(0.3, 4u64..40);
    (limits, calls, loss).prop_map(
        |(
            (rcvlowat, rcvbuf, window_clamp, sndbuf, notsent_lowat, tcp_mem),
            (write, read, [shrink_window, autotuning, more, tso]),
            lose_one_in,
        )| {
            let (write_bytes, read_bytes) = (write as usize, read as usize);
            Flow {
                rcvlowat,
                rcvbuf,
                window_clamp,
                sndbuf,
                notsent_lowat,
                tcp_mem,
                shrink_window,
                autotuning,
                more,
                write_bytes,
                read_bytes,
                lose_one_in,
                nic: if tso { Nic::Tso } else { Nic::Mtu },
                total: 400_000.min(write_bytes.min(read_bytes) * 1000),
            }
        },
    )
}

proptest! {
    #[test]
    fn no_combination_of_limits_stops_a_flow(flow in flow()) {
        flow.run();
    }
}
