//! Partitions, crashes and other changes of the network while the software runs.

mod common;

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{echo_client, echo_server, upload};
use fullsend::{TcpListener, TcpStream};
use fullsend_simnet::{Failure, Simulation, TracePoint, format_packet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn a_connect_over_a_partition_times_out_after_its_syn_retries() {
    let mut sim = Simulation::new(1);
    sim.host("server", echo_server).unwrap();
    sim.configure_all(|builder| builder.sysctl("tcp_syn_linear_timeouts", "0"));
    sim.client("client", async |host| {
        let start = Instant::now();
        let error = TcpStream::connect(host.stack(), host.resolve("server:7")?)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        // Six retries, each after twice the time: 1 + 2 + 4 + 8 + 16 + 32 + 64 s. Each timer of the
        // stack is up to 8 us late.
        assert_eq!(start.elapsed().as_millis(), 127_000);
        Ok(())
    })
    .unwrap();
    let link = sim.connect("client", "server", "delay 10ms").unwrap();
    link.down();
    let syns = Arc::new(Mutex::new(Vec::new()));
    let seen = syns.clone();
    sim.set_observer(move |host, event| {
        if event.point == TracePoint::Sent {
            assert_eq!(host, "client");
            seen.lock().unwrap().push(event.at.as_millis());
        }
    });
    sim.run().unwrap();
    let want = [0, 1, 3, 7, 15, 31, 63].map(|secs| secs * 1000);
    assert_eq!(*syns.lock().unwrap(), want);
    let stats = link.stats_from("client").unwrap();
    assert_eq!((stats.sent, stats.cut, stats.arrived), (7, 7, 0));
}

#[test]
fn a_transfer_survives_a_partition() {
    let mut sim = Simulation::new(2);
    sim.host("server", echo_server).unwrap();
    sim.client("client", async |host| echo_client(host, 2_000_000).await)
        .unwrap();
    let link = sim
        .connect("client", "server", "delay 20ms rate 10mbit")
        .unwrap();
    sim.run_for(secs(1)).unwrap();
    link.down();
    sim.run_for(secs(10)).unwrap();
    link.up();
    sim.run().unwrap();
    assert!(link.stats_from("client").unwrap().cut > 0);
    assert!(sim.net().elapsed() > secs(11));
}

#[test]
fn a_crash_is_silent_and_the_restarted_host_resets() {
    let mut sim = Simulation::new(3);
    let starts = Arc::new(AtomicU64::new(0));
    let counted = starts.clone();
    sim.host("server", move |host| {
        counted.fetch_add(1, Ordering::Relaxed);
        echo_server(host)
    })
    .unwrap();
    sim.client("client", async |host| {
        let server = host.resolve("server:7")?;
        let mut stream = TcpStream::connect(host.stack(), server).await?;
        let mut buf = [0; 5];
        stream.write_all(b"hello").await?;
        stream.read_exact(&mut buf).await?;
        host.net().crash("server")?;
        assert!(host.net().stack("server").is_err());
        // Nothing comes from a host without power.
        stream.write_all(b"hello").await?;
        let answer = tokio::time::timeout(secs(5), stream.read_exact(&mut buf)).await;
        assert!(answer.is_err());
        host.net().restart("server")?;
        let error = stream.read_exact(&mut buf).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        echo_client(host, 1000).await
    })
    .unwrap();
    sim.connect("client", "server", "delay 10ms").unwrap();
    sim.run().unwrap();
    assert_eq!(starts.load(Ordering::Relaxed), 2);
}

/// Logs that it is dropped.
struct OnDrop(Arc<Mutex<Vec<String>>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.lock().unwrap().push("dropped".to_owned());
    }
}

#[test]
fn a_crash_ends_the_software_its_tasks_and_its_sockets() {
    let mut sim = Simulation::new(4);
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = events.clone();
    sim.host("server", move |host| {
        let log = log.clone();
        async move {
            let listener = TcpListener::bind(host.stack(), "0.0.0.0:7")?;
            let (mut stream, _) = listener.accept().await?;
            let guard = OnDrop(log.clone());
            tokio::spawn(async move {
                let _ = stream.read_u8().await;
                guard.0.lock().unwrap().push("the task runs".to_owned());
            });
            let _guard = OnDrop(log);
            std::future::pending().await
        }
    })
    .unwrap();
    sim.client("client", async |host| {
        let _stream = TcpStream::connect(host.stack(), host.resolve("server:7")?).await?;
        sleep(secs(1)).await;
        let servers = host.net().stack("server")?;
        host.net().crash("server")?;
        // Another one's handle to a stack without power.
        sleep(secs(1)).await;
        let error = TcpListener::bind(&servers, "0.0.0.0:8").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        sleep(secs(1)).await;
        let error = host.net().crash("server").unwrap_err();
        assert!(error.to_string().contains("does not run"), "{error}");
        Ok(())
    })
    .unwrap();
    sim.connect("client", "server", "delay 10ms").unwrap();
    sim.run().unwrap();
    assert_eq!(*events.lock().unwrap(), ["dropped", "dropped"]);
}

/// The commits of each start of a host: by a timer, by a task of a task, and by a task that another
/// host's message wakes.
#[derive(Clone, Default)]
struct Commits(Arc<Mutex<Vec<[u32; 3]>>>);

impl Commits {
    fn add(&self, start: usize, kind: usize) {
        self.0.lock().unwrap()[start][kind] += 1;
    }

    fn all(&self) -> Vec<[u32; 3]> {
        self.0.lock().unwrap().clone()
    }
}

#[test]
fn a_host_without_power_commits_nothing() {
    let mut sim = Simulation::new(13);
    let commits = Commits::default();
    let log = commits.clone();
    let (send, receive) = tokio::sync::watch::channel(0);
    sim.host("server", move |_| {
        let (log, mut receive) = (log.clone(), receive.clone());
        async move {
            let start = log.0.lock().unwrap().len();
            log.0.lock().unwrap().push([0; 3]);
            let timer = log.clone();
            tokio::spawn(async move {
                let nested = timer.clone();
                tokio::spawn(async move {
                    let mut ticks = tokio::time::interval(Duration::from_millis(10));
                    loop {
                        ticks.tick().await;
                        nested.add(start, 1);
                    }
                });
                loop {
                    sleep(Duration::from_millis(10)).await;
                    timer.add(start, 0);
                }
            });
            tokio::spawn(async move {
                while receive.changed().await.is_ok() {
                    log.add(start, 2);
                }
            });
            Ok(())
        }
    })
    .unwrap();
    let counted = commits.clone();
    sim.client("client", move |host| async move {
        sleep(Duration::from_millis(1005)).await;
        send.send(1)?;
        sleep(Duration::from_millis(10)).await;
        host.net().crash("server")?;
        // Its tasks have ended already.
        send.send(2)?;
        let at_crash = counted.all();
        assert_eq!(at_crash, [[101, 102, 1]]);
        sleep(secs(5)).await;
        assert_eq!(counted.all(), at_crash, "commits by a host without power");
        host.net().restart("server")?;
        sleep(Duration::from_millis(1015)).await;
        assert_eq!(counted.all(), [at_crash[0], [101, 102, 1]]);
        Ok(())
    })
    .unwrap();
    sim.connect("client", "server", "delay 10ms").unwrap();
    sim.run().unwrap();
}

#[test]
fn a_host_that_crashes_itself_runs_no_other_task() {
    let mut sim = Simulation::new(14);
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = events.clone();
    sim.host("server", move |host| {
        let log = log.clone();
        async move {
            for i in 0..100 {
                let log = log.clone();
                tokio::spawn(async move {
                    sleep(secs(2)).await;
                    log.lock().unwrap().push(format!("task {i}"));
                });
            }
            if host.net().elapsed() < secs(1) {
                sleep(secs(2)).await;
                // The timers of all tasks have fired at this instant.
                host.net().crash("server")?;
                host.net().restart("server")?;
                log.lock().unwrap().clear();
                sleep(secs(1)).await;
                log.lock().unwrap().push("the software runs".to_owned());
            }
            std::future::pending().await
        }
    })
    .unwrap();
    sim.run_for(Duration::from_millis(3999)).unwrap();
    assert_eq!(events.lock().unwrap().len(), 0);
    sim.run_for(Duration::from_millis(1)).unwrap();
    assert_eq!(events.lock().unwrap().len(), 100);
    // The test crashes it, too.
    sim.net().crash("server").unwrap();
    sim.run_for(secs(10)).unwrap();
    assert_eq!(events.lock().unwrap().len(), 100);
}

#[test]
fn hosts_that_share_a_runtime_do_not_crash() {
    let mut sim = Simulation::new(15);
    sim.share_runtime();
    sim.host("server", echo_server).unwrap();
    sim.client("client", async |host| {
        let error = host.net().crash("server").unwrap_err();
        assert!(error.to_string().contains("share_runtime()"), "{error}");
        echo_client(host.clone(), 100_000).await?;
        sleep(secs(1_000_000)).await;
        Ok(())
    })
    .unwrap();
    sim.connect("client", "server", "").unwrap();
    sim.set_time_limit(secs(2_000_000));
    sim.run().unwrap();
    assert_eq!(sim.net().elapsed().as_secs(), 1_000_000);
}

#[test]
fn links_change_while_packets_are_on_them() {
    let mut sim = Simulation::new(5);
    sim.host("server", echo_server).unwrap();
    sim.client("client", async |host| {
        let mut stream = TcpStream::connect(host.stack(), host.resolve("server:7")?).await?;
        let mut times = Vec::new();
        for netem in ["delay 5ms", "delay 40ms", "delay 1ms 1us"] {
            host.net().link("client", "server")?.set(netem)?;
            let start = Instant::now();
            stream.write_all(b"x").await?;
            stream.read_u8().await?;
            times.push(start.elapsed().as_micros());
        }
        assert_eq!(times[..2], [10_000, 80_000]);
        assert!((1998..=2002).contains(&times[2]), "{times:?}");
        Ok(())
    })
    .unwrap();
    let link = sim.connect("client", "server", "delay 5ms").unwrap();
    assert!(
        link.set("delay 5 parsecs")
            .unwrap_err()
            .to_string()
            .contains("parsecs")
    );
    let error = link.set_from("other", "delay 5ms").unwrap_err().to_string();
    assert!(error.contains("write one of them"), "{error}");
    sim.run().unwrap();
}

#[test]
fn hosts_behind_a_switch_share_its_uplink() {
    let mut sim = Simulation::new(6);
    sim.host("server", common::discard_server).unwrap();
    sim.switch("lan").unwrap();
    for i in 0..4 {
        let name = format!("client{i}");
        sim.client(&name, async |host| {
            upload(&host, 1_000_000).await?;
            Ok(())
        })
        .unwrap();
        sim.connect(&name, "lan", "delay 1ms").unwrap();
    }
    let uplink = sim
        .connect("lan", "server", "delay 5ms rate 20mbit")
        .unwrap();
    sim.run().unwrap();
    // 4 MB at 20 Mbit/s take 1.6 s, and headers 3 % more.
    let took = sim.net().elapsed().as_secs_f64();
    assert!((1.65..2.2).contains(&took), "{took}");
    assert!(uplink.stats_from("lan").unwrap().arrived_bytes > 4_000_000);
}

#[test]
fn a_link_with_a_small_mtu_reports_it() {
    let mut sim = Simulation::new(7);
    sim.host("server", echo_server).unwrap();
    sim.client("client", async |host| echo_client(host, 100_000).await)
        .unwrap();
    sim.switch("router").unwrap();
    sim.connect("client", "router", "delay 1ms").unwrap();
    let narrow = sim
        .connect("router", "server", "delay 1ms mtu 1280 icmp")
        .unwrap();
    sim.run().unwrap();
    assert!(narrow.stats_from("router").unwrap().too_big > 0);
    assert!(sim.net().elapsed() < secs(1), "no timeout was needed");
}

#[test]
fn errors_and_panics_of_the_software_end_the_run() {
    let mut sim = Simulation::new(8);
    sim.client("client", async |_| {
        sleep(secs(3)).await;
        Err("no answer".into())
    })
    .unwrap();
    let error = sim.run().unwrap_err();
    let text = error.to_string();
    let want = "the software of `client` failed after 3s: no answer (seed 8: FULLSEND_SEEDS=8..9";
    assert!(text.starts_with(want), "{text}");
    assert!(matches!(error.failure(), Failure::Software { host, .. } if host == "client"));

    let mut sim = Simulation::new(9);
    sim.host("server", async |_| panic!("a fault of the server"))
        .unwrap();
    sim.client("client", async |_| std::future::pending().await)
        .unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| sim.run())).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a fault of the server"));

    let mut sim = Simulation::new(10);
    sim.client("client", async |_| Ok(())).unwrap();
    sim.configure("client", |builder| builder.sysctl("tcp_sack", "maybe"))
        .unwrap();
    let text = sim.run().unwrap_err().to_string();
    assert!(
        text.contains("the stack of `client` could not be built"),
        "{text}"
    );
    assert!(text.contains("tcp_sack"), "{text}");
}

#[test]
fn packets_have_the_names_of_their_hosts() {
    let mut sim = Simulation::new(11);
    sim.host("server", echo_server).unwrap();
    sim.client("client", async |host| {
        let server = host.net().address_v6("server")?;
        let mut stream = TcpStream::connect(host.stack(), (server, 9)).await;
        assert_eq!(
            stream.as_mut().unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        Ok(())
    })
    .unwrap();
    sim.connect("client", "server", "delay 10ms").unwrap();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let seen = lines.clone();
    sim.set_observer(move |host, event| {
        seen.lock().unwrap().push(format_packet(host, event));
    });
    sim.run().unwrap();
    let lines = lines.lock().unwrap();
    assert!(
        lines[0].starts_with("0.000000000 client sent    IP6 fd01::2."),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("0.010000000 server arrived IP6"),
        "{lines:?}"
    );
    assert!(lines[2].contains("Flags [R.]"), "{lines:?}");
}

#[test]
fn nothing_outlives_the_simulation() {
    struct Writer(#[expect(dead_code, reason = "only its end matters")] Arc<()>);
    impl std::io::Write for Writer {
        fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
            Ok(data.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let alive = Arc::new(());
    let mut sim = Simulation::new(12);
    let kept = alive.clone();
    sim.host("server", move |host| {
        let kept = kept.clone();
        async move {
            tokio::spawn(async move {
                sleep(secs(1_000_000)).await;
                drop(kept);
            });
            echo_server(host).await
        }
    })
    .unwrap();
    sim.client("client", async |host| {
        let stream = TcpStream::connect(host.stack(), host.resolve("server:7")?).await?;
        tokio::spawn(async move {
            sleep(secs(1_000_000)).await;
            drop(stream);
        });
        Ok(())
    })
    .unwrap();
    let link = sim.connect("client", "server", "delay 10ms").unwrap();
    link.capture(Writer(alive.clone())).unwrap();
    let kept = alive.clone();
    sim.set_observer(move |_, _| {
        let _ = &kept;
    });
    sim.run().unwrap();
    drop((sim, link));
    assert_eq!(Arc::strong_count(&alive), 1);
}
