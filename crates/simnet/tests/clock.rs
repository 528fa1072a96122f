//! Virtual time: exact to the nanosecond for packets, to the millisecond for tokio's timers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fullsend::UdpSocket;
use fullsend_simnet::Simulation;
use tokio::time::{Instant, sleep};

/// Records times as nanoseconds since the start, with what happened.
#[derive(Clone)]
struct Log(Arc<Mutex<Vec<(u64, &'static str)>>>);

impl Log {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn add(&self, start: Instant, what: &'static str) {
        let at = start.elapsed().as_nanos() as u64;
        self.0.lock().unwrap().push((at, what));
    }

    fn take(&self) -> Vec<(u64, &'static str)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn packets_arrive_at_their_nanosecond_between_timers_at_their_millisecond() {
    let mut sim = Simulation::new(1);
    let log = Log::new();
    let logged = log.clone();
    sim.host("server", move |host| {
        let log = logged.clone();
        async move {
            let start = Instant::now();
            let socket = UdpSocket::bind(host.stack(), "0.0.0.0:9")?;
            let mut buf = [0; 100];
            loop {
                socket.recv_from(&mut buf).await?;
                log.add(start, "packet");
            }
        }
    })
    .unwrap();
    let logged = log.clone();
    sim.client("client", move |host| async move {
        let start = Instant::now();
        let timer = logged.clone();
        tokio::spawn(async move {
            for _ in 0..4 {
                sleep(Duration::from_millis(1)).await;
                timer.add(start, "timer");
            }
        });
        let socket = UdpSocket::bind(host.stack(), "0.0.0.0:0")?;
        let server = host.resolve("server:9")?;
        socket.send_to(b"now", server).await?;
        sleep(Duration::from_millis(2)).await;
        socket.send_to(b"later", server).await?;
        socket.send_to(b"next", server).await?;
        sleep(Duration::from_millis(8)).await;
        logged.add(start, "end");
        Ok(())
    })
    .unwrap();
    // 31 bytes of IP packet at 1 Mbit/s take 248 us; 33 take 264 us.
    sim.connect("client", "server", "delay 1000001ns rate 1mbit")
        .unwrap();
    sim.run().unwrap();
    assert_eq!(
        log.take(),
        [
            (1_000_000, "timer"),
            (1_248_001, "packet"),
            (2_000_000, "timer"),
            (3_000_000, "timer"),
            (3_264_001, "packet"),
            (3_520_001, "packet"),
            (4_000_000, "timer"),
            (10_000_000, "end"),
        ]
    );
}

#[test]
fn a_packet_and_a_timer_at_one_instant_both_come() {
    let mut sim = Simulation::new(1);
    sim.host("server", async |host| {
        let socket = UdpSocket::bind(host.stack(), "0.0.0.0:9")?;
        let mut buf = [0; 100];
        loop {
            let (len, from) = socket.recv_from(&mut buf).await?;
            socket.send_to(&buf[..len], from).await?;
        }
    })
    .unwrap();
    sim.client("client", async |host| {
        let socket = UdpSocket::bind(host.stack(), "0.0.0.0:0")?;
        let start = Instant::now();
        socket.send_to(b"x", host.resolve("server:9")?).await?;
        let mut buf = [0; 1];
        let answer = async {
            socket.recv_from(&mut buf).await.unwrap();
            start.elapsed()
        };
        let timer = async {
            sleep(Duration::from_millis(10)).await;
            start.elapsed()
        };
        let both = tokio::join!(answer, timer);
        assert_eq!(both, (Duration::from_millis(10), Duration::from_millis(10)));
        Ok(())
    })
    .unwrap();
    sim.connect("client", "server", "delay 5ms").unwrap();
    sim.run().unwrap();
}

/// The clocks of the hosts advance on their own, and agree at each event.
#[test]
fn timers_of_several_hosts_and_packets_between_them_are_in_order() {
    let mut sim = Simulation::new(1);
    let log = Log::new();
    for (host, period) in [("a", 7), ("b", 11), ("c", 13)] {
        let log = log.clone();
        sim.host(host, move |host| {
            let log = log.clone();
            async move {
                let socket = UdpSocket::bind(host.stack(), "0.0.0.0:9")?;
                let start = Instant::now();
                let mut ticks = tokio::time::interval(Duration::from_millis(period));
                ticks.tick().await;
                let next = match host.name() {
                    "a" => "b:9",
                    "b" => "c:9",
                    _ => "a:9",
                };
                let mut buf = [0; 9];
                loop {
                    tokio::select! {
                        biased;
                        _ = ticks.tick() => {
                            log.add(start, "timer");
                            socket.send_to(b"x", host.resolve(next)?).await?;
                        }
                        _ = socket.recv_from(&mut buf) => log.add(start, "packet"),
                    }
                    let elapsed = host.net().elapsed().as_nanos();
                    assert_eq!(start.elapsed().as_nanos(), elapsed);
                }
            }
        })
        .unwrap();
    }
    for (from, to) in [("a", "b"), ("b", "c"), ("c", "a")] {
        sim.connect(from, to, "delay 20ms").unwrap();
    }
    sim.run_for(Duration::from_secs(10)).unwrap();
    let log = log.take();
    assert!(log.is_sorted_by_key(|(at, _)| *at), "{log:?}");
    let mut want: Vec<_> = [7, 11, 13]
        .into_iter()
        .flat_map(|period| (1..=10_000 / period).map(move |n| n * period * 1_000_000))
        .flat_map(|at| [(at, "timer"), (at + 20_000_000, "packet")])
        .filter(|(at, _)| *at <= 10_000_000_000)
        .collect();
    want.sort_unstable();
    let mut log = log;
    log.sort_unstable();
    assert_eq!(log, want);
}

#[test]
fn a_host_that_starts_between_two_milliseconds_has_the_timers_of_all() {
    let mut sim = Simulation::new(1);
    let log = Log::new();
    let logged = log.clone();
    sim.host("server", move |host| {
        let log = logged.clone();
        async move {
            sleep(Duration::from_millis(1)).await;
            let at = host.net().elapsed().as_nanos() as u64;
            log.0.lock().unwrap().push((at, "timer"));
            Ok(())
        }
    })
    .unwrap();
    sim.run_for(Duration::from_nanos(1_500_001)).unwrap();
    sim.net().crash("server").unwrap();
    sim.net().restart("server").unwrap();
    sim.run_for(Duration::from_millis(9)).unwrap();
    // Rounded up to the next millisecond of the simulation.
    assert_eq!(log.take(), [(1_000_000, "timer"), (3_000_000, "timer")]);
}

#[test]
fn run_for_is_exact_and_can_be_continued() {
    let mut sim = Simulation::new(1);
    let log = Log::new();
    let logged = log.clone();
    sim.client("client", move |_| async move {
        let start = Instant::now();
        sleep(Duration::from_millis(3)).await;
        logged.add(start, "timer");
        Ok(())
    })
    .unwrap();
    sim.run_for(Duration::from_nanos(1_234_567)).unwrap();
    assert_eq!(sim.net().elapsed(), Duration::from_nanos(1_234_567));
    sim.run_for(Duration::from_nanos(1_765_432)).unwrap();
    assert_eq!(log.take(), [], "a nanosecond is missing");
    sim.run_for(Duration::from_nanos(1)).unwrap();
    assert_eq!(log.take(), [(3_000_000, "timer")]);
    sim.run().unwrap();
    assert_eq!(sim.net().elapsed(), Duration::from_millis(3));
}

#[test]
fn a_run_ends_at_its_time_limit() {
    let mut sim = Simulation::new(77);
    sim.client("patient", async |_| std::future::pending().await)
        .unwrap();
    sim.client("quick", async |_| Ok(())).unwrap();
    sim.set_time_limit(Duration::from_secs(86_400));
    let error = sim.run().unwrap_err();
    assert_eq!(error.at(), Duration::from_secs(86_400));
    let text = error.to_string();
    assert!(
        text.contains("`patient` had not ended after 86400s"),
        "{text}"
    );
    assert!(text.contains("FULLSEND_SEEDS=77..78"), "{text}");
    assert!(!text.contains("quick"), "{text}");
}

#[test]
fn hosts_that_answer_each_other_without_delay_are_stopped() {
    let mut sim = Simulation::new(1);
    let ping = async |host: fullsend_simnet::Host| {
        let socket = UdpSocket::bind(host.stack(), "0.0.0.0:9")?;
        let peer = if host.name() == "a" { "b:9" } else { "a:9" };
        socket.send_to(b"x", host.resolve(peer)?).await?;
        let mut buf = [0; 1];
        loop {
            let (_, from) = socket.recv_from(&mut buf).await?;
            socket.send_to(b"x", from).await?;
        }
    };
    sim.client("a", ping).unwrap();
    sim.client("b", ping).unwrap();
    sim.connect("a", "b", "").unwrap();
    let text = sim.run().unwrap_err().to_string();
    assert!(text.contains("give the links a delay or a rate"), "{text}");
}

#[test]
fn time_stands_still_while_another_thread_works() {
    let mut sim = Simulation::new(1);
    sim.client("client", async |host| {
        let sum = tokio::task::spawn_blocking(|| (0..1_000_000u64).sum::<u64>()).await?;
        assert_eq!(sum, 499_999_500_000);
        assert_eq!(host.net().elapsed(), Duration::ZERO);
        Ok(())
    })
    .unwrap();
    sim.run().unwrap();
}

#[test]
fn sockets_of_the_operating_system_are_not_available() {
    let mut sim = Simulation::new(1);
    sim.client("client", async |_| {
        let _ = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        Ok(())
    })
    .unwrap();
    let run = std::panic::AssertUnwindSafe(|| sim.run());
    let panic = std::panic::catch_unwind(run).unwrap_err();
    let text = panic.downcast_ref::<String>().map_or("", String::as_str);
    assert!(
        text.contains("IO is disabled") || text.contains("I/O is disabled"),
        "{text}"
    );
}
