//! Congestion control that a program brings along, in virtual time: it is in control, and no value of it
//! stops a connection.

mod flows;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flows::{Path, Testbed, ms, secs};
use fullsend_tcp::congestion::{Ack, CongestionControl, CongestionEvent, Loss};
use fullsend_wire::{Instant, Rate};

/// 50 Mbit/s and 20 ms, with random loss.
const LOSSY: Path<'static> = Path {
    netem: "delay 10ms rate 50mbit limit 1000 loss 0.5%",
    reverse: "delay 10ms",
};

/// The actions of a control, for the test.
#[derive(Debug, Default)]
struct Record {
    window: AtomicU64,
    events: AtomicU64,
    delivered: AtomicU64,
    lost: AtomicU64,
    restarts: AtomicU64,
}

/// One segment more for each round trip, half of the window after congestion.
#[derive(Debug)]
struct Aimd {
    mss: u64,
    window: u64,
    record: Arc<Record>,
}

impl Aimd {
    fn new(record: Arc<Record>) -> Self {
        Self {
            mss: 0,
            window: 0,
            record,
        }
    }

    fn set_window(&mut self, bytes: u64) {
        self.window = bytes;
        self.record.window.store(bytes, Ordering::Relaxed);
    }
}

impl CongestionControl for Aimd {
    fn name(&self) -> &'static str {
        "aimd"
    }

    fn window_bytes(&self) -> u64 {
        self.window
    }

    fn on_mss(&mut self, mss_bytes: u32) {
        self.mss = mss_bytes.into();
        self.set_window(self.window.max(4 * self.mss));
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.record
            .delivered
            .fetch_add(ack.delivered_bytes, Ordering::Relaxed);
        if ack.window_used && !ack.in_recovery {
            self.set_window(self.window + self.mss * ack.delivered_bytes / self.window);
        }
    }

    fn on_congestion(&mut self, event: CongestionEvent, _: Instant) {
        self.record.events.fetch_add(1, Ordering::Relaxed);
        self.set_window(match event {
            CongestionEvent::Rto => self.mss,
            _ => (self.window / 2).max(2 * self.mss),
        });
    }

    fn on_lost(&mut self, loss: &Loss) {
        self.record
            .lost
            .fetch_add(loss.lost_bytes, Ordering::Relaxed);
    }

    fn on_restart(&mut self, _: Instant) {
        self.record.restarts.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_window_in_tcp_info_is_that_of_the_control_under_loss() {
    let mut testbed = Testbed::new(7, LOSSY);
    let mut flow = testbed.flow("cubic");
    let record = Arc::new(Record::default());
    testbed.set_sender_control(&flow, Box::new(Aimd::new(record.clone())));
    let (mut most, mut least, mut differ) = (0, u64::MAX, 0);
    for _ in 0..400 {
        testbed.run_for(&mut [&mut flow], ms(25));
        let info = testbed.info(&flow);
        let window = record.window.load(Ordering::Relaxed);
        let cwnd = u64::from(info.tcpi_snd_cwnd);
        // After a retransmission timeout the stack sends one segment until the next ACK.
        if cwnd != window / u64::from(info.tcpi_snd_mss) {
            differ += 1;
        }
        (most, least) = (most.max(cwnd), least.min(cwnd));
    }
    let info = testbed.info(&flow);
    let events = record.events.load(Ordering::Relaxed);
    let lost = record.lost.load(Ordering::Relaxed);
    let delivered = record.delivered.load(Ordering::Relaxed);
    println!("cwnd {least}..={most}, {events} events, {lost} of {delivered} bytes lost");
    assert!(differ <= 4, "differs {differ} times");
    assert!(events > 10, "{events}");
    assert!(most > 2 * least, "{least}..={most}");
    // All but a few of the lost segments were lost on the path.
    assert!(lost >= u64::from(info.tcpi_total_retrans) / 2 * u64::from(info.tcpi_snd_mss));
    // The ACKs report what the receiver read: not what came before the control was set (an initial
    // window), and also what is still queued.
    let received = flow.received();
    assert!(
        delivered + (32 << 10) >= received && delivered < received + (4 << 20),
        "{delivered} and {received}"
    );
    // Reno's square-root law (RFC 5348 3.1 without timeouts) gives 1.22 * mss / (rtt * sqrt(loss)).
    let rate = received as f64 / 10.0;
    let expected = 1.22 * f64::from(info.tcpi_snd_mss) / (0.021 * 0.005_f64.sqrt());
    println!("{rate:.0} B/s, {expected:.0} by the square-root law");
    assert!((0.5..1.5).contains(&(rate / expected)), "{rate}");
}

#[test]
fn a_mark_and_a_restart_after_idle_time_are_reported() {
    let path = Path {
        netem: "delay 5ms rate 20mbit limit 1000 ce_threshold 5ms",
        reverse: "delay 5ms",
    };
    let mut testbed = Testbed::new(8, path);
    testbed.sysctl("tcp_ecn", "1");
    let mut flow = testbed.flow("cubic");
    let record = Arc::new(Record::default());
    testbed.set_sender_control(&flow, Box::new(Aimd::new(record.clone())));
    testbed.run_for(&mut [&mut flow], secs(5));
    let events = record.events.load(Ordering::Relaxed);
    println!("{events} marks");
    assert!(events > 3, "{events}");
    assert_eq!(record.lost.load(Ordering::Relaxed), 0);
    assert_eq!(testbed.info(&flow).tcpi_total_retrans, 0);
    let restarts = record.restarts.load(Ordering::Relaxed);
    flow.stop();
    testbed.run_for(&mut [&mut flow], secs(5));
    flow.add_bytes(1);
    testbed.run_for(&mut [&mut flow], ms(10));
    assert!(record.restarts.load(Ordering::Relaxed) > restarts);
}

/// Returns the same values for ever, or others at each call.
#[derive(Debug, Default)]
struct Hostile {
    window: u64,
    ssthresh: Option<u64>,
    rate: Option<u64>,
    /// Whether the values alternate with their complements.
    alternates: bool,
    calls: u64,
}

impl Hostile {
    fn value(&self, value: u64) -> u64 {
        if self.alternates && self.calls % 2 == 1 {
            !value
        } else {
            value
        }
    }
}

impl CongestionControl for Hostile {
    fn name(&self) -> &'static str {
        "hostile"
    }

    fn window_bytes(&self) -> u64 {
        self.value(self.window)
    }

    fn ssthresh_bytes(&self) -> Option<u64> {
        self.ssthresh.map(|bytes| self.value(bytes))
    }

    fn pacing_rate(&self) -> Option<Rate> {
        self.rate.map(|rate| Rate(self.value(rate)))
    }

    fn on_mss(&mut self, _: u32) {
        self.calls += 1;
    }

    fn on_ack(&mut self, _: &Ack) {
        self.calls += 1;
    }

    fn on_congestion(&mut self, _: CongestionEvent, _: Instant) {
        self.calls += 1;
    }

    fn on_spurious(&mut self, _: Instant) {
        self.calls += 1;
    }
}

#[test]
fn no_value_of_a_control_stops_a_connection() {
    for (window, ssthresh, rate) in [
        (0, None, None),
        (0, Some(0), None),
        (1, Some(u64::MAX), Some(u64::MAX)),
        (u64::MAX, None, None),
        (u64::MAX, Some(u64::MAX), Some(u64::MAX)),
        (u64::MAX, Some(0), Some(0)),
    ] {
        for alternates in [false, true] {
            let mut testbed = Testbed::new(9, LOSSY);
            let mut flow = testbed.flow("cubic");
            let control = Hostile {
                window,
                ssthresh,
                rate,
                alternates,
                calls: 0,
            };
            testbed.set_sender_control(&flow, Box::new(control));
            testbed.run_for(&mut [&mut flow], secs(3));
            flow.stop();
            // Data arrives in each period until all has, at least a segment per second.
            for _ in 0..10 {
                let before = flow.received();
                testbed.run_for(&mut [&mut flow], secs(5));
                let info = testbed.info(&flow);
                if (info.tcpi_unacked, info.tcpi_notsent_bytes) == (0, 0) {
                    break;
                }
                assert!(
                    flow.received() > before,
                    "window {window}, ssthresh {ssthresh:?}, rate {rate:?}, alternates \
                     {alternates}: nothing arrived after {before} bytes"
                );
            }
        }
    }
}

#[test]
fn a_host_gives_new_connections_its_control() {
    let path = Path {
        netem: "delay 1ms rate 100mbit limit 1000",
        reverse: "delay 1ms",
    };
    let record = Arc::new(Record::default());
    let mut testbed = Testbed::new(10, path);
    let of_host = record.clone();
    testbed.set_host_control(0, move || Aimd::new(of_host.clone()));
    let mut flow = testbed.flow_with_default();
    assert_eq!(testbed.congestion_of(&flow), ["aimd", "cubic"]);
    // Its own initial window, not that of RFC 6928.
    assert_eq!(testbed.info(&flow).tcpi_snd_cwnd, 4);
    testbed.run_for(&mut [&mut flow], secs(1));
    assert!(record.delivered.load(Ordering::Relaxed) > 0);
    // A name selects a built-in one.
    testbed.set_sender_congestion(&flow, "reno");
    assert_eq!(testbed.congestion_of(&flow), ["reno", "cubic"]);
}

#[test]
fn a_listener_gives_its_connections_its_control() {
    let path = Path {
        netem: "delay 1ms rate 100mbit limit 1000",
        reverse: "delay 1ms",
    };
    let mut testbed = Testbed::new(11, path);
    let record = Arc::new(Record::default());
    let of_listener = record.clone();
    testbed.set_listener_control(move || Aimd::new(of_listener.clone()));
    let flow = testbed.flow_with_default();
    assert_eq!(testbed.congestion_of(&flow), ["cubic", "aimd"]);
}
