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
