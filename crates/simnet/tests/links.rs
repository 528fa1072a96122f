//! What links do to transfers: rate, loss, and idle time.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{count_datagrams, discard_server, upload};
use fullsend::{TcpStream, UdpSocket};
use fullsend_simnet::{Simulation, TracePoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

/// Returns the rate of an upload of `len` bytes, in Mbit/s.
fn rate(seed: u64, netem: &str, congestion: &'static str, len: usize) -> f64 {
    let mut sim = Simulation::new(seed);
    sim.configure_all(move |builder| builder.sysctl("tcp_congestion_control", congestion));
    sim.host("server", discard_server).unwrap();
    let took = Arc::new(Mutex::new(Duration::ZERO));
    let measured = took.clone();
    sim.client("client", async move |host| {
        let time = upload(&host, len).await?;
        *measured.lock().unwrap() = time;
        Ok(())
    })
    .unwrap();
    sim.connect("client", "server", netem).unwrap();
    sim.run().unwrap();
    let secs = took.lock().unwrap().as_secs_f64();
    len as f64 * 8.0 / secs / 1e6
}

#[test]
fn a_flow_fills_a_link() {
    let mut sim = Simulation::new(1);
    sim.host("server", discard_server).unwrap();
    sim.client("client", async |host| {
        upload(&host, 40_000_000).await?;
        Ok(())
    })
    .unwrap();
    let link = sim
        .connect("client", "server", "delay 20ms rate 100mbit")
        .unwrap();
    // After slow start.
    sim.run_for(Duration::from_secs(1)).unwrap();
    let before = link.stats_from("client").unwrap().arrived_bytes;
    sim.run_for(Duration::from_secs(2)).unwrap();
    let bytes = link.stats_from("client").unwrap().arrived_bytes - before;
    let rate = bytes as f64 * 8.0 / 2.0 / 1e6;
    assert!((99.0..100.01).contains(&rate), "{rate}");
}

#[test]
fn random_loss_limits_reno_as_the_formula_has_it() {
    // Mathis et al.: MSS / RTT * sqrt(3/2 / p), with p = 0.01 and an RTT of 40 ms.
    let formula = 1448.0 * 8.0 / 0.040 * (1.5f64 / 0.01).sqrt() / 1e6;
    let rate = rate(2, "delay 20ms loss 1% rate 1gbit", "reno", 10_000_000);
    assert!(
        (0.7..1.4).contains(&(rate / formula)),
        "{rate} of {formula}"
    );
}

#[test]
fn datagrams_are_lost_at_the_rate_of_the_link() {
    const SENT: u64 = 20_000;
    let mut sim = Simulation::new(3);
    let count = Arc::new(Mutex::new(0));
    let counted = count.clone();
    sim.client("server", async move |host| {
        *counted.lock().unwrap() = count_datagrams(&host).await?;
        Ok(())
    })
    .unwrap();
    sim.client("client", async |host| {
        let socket = UdpSocket::bind(host.stack(), "0.0.0.0:0")?;
        let server = host.resolve("server:9")?;
        for i in 0..SENT {
            socket.send_to(&[1; 100], server).await?;
            if i % 20 == 19 {
                sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(())
    })
    .unwrap();
    let link = sim
        .connect("client", "server", "delay 1ms loss 5%")
        .unwrap();
    sim.run().unwrap();
    let stats = link.stats_from("client").unwrap();
    assert_eq!(stats.sent, SENT);
    assert_eq!(*count.lock().unwrap(), SENT - stats.lost);
    // Three standard deviations of 0.15 % on each side.
    let lost = stats.lost as f64 / SENT as f64;
    assert!((0.0454..0.0546).contains(&lost), "{lost}");
}

#[test]
fn idle_connections_are_kept_alive_for_a_day() {
    let mut sim = Simulation::new(4);
    sim.share_runtime();
    sim.set_time_limit(Duration::from_secs(100_000));
    sim.host("server", discard_server).unwrap();
    for i in 0..10 {
        let name = format!("client{i}");
        sim.client(&name, async |host| {
            let mut stream = TcpStream::connect(host.stack(), host.resolve("server:9")?).await?;
            stream.set_keepalive(true)?;
            stream.set_keepidle(Duration::from_secs(75))?;
            let day = Duration::from_secs(86_400);
            let read = tokio::time::timeout(day, stream.read_u8()).await;
            assert!(read.is_err(), "{read:?}");
            Ok(())
        })
        .unwrap();
        sim.connect(&name, "server", "delay 50ms 500us").unwrap();
    }
    sim.run().unwrap();
    assert_eq!(sim.net().elapsed().as_secs(), 86_400);
    let stats = sim.net().link("client0", "server").unwrap();
    let probes = stats.stats_from("client0").unwrap().sent;
    // Each 75 s and 0.1 s later than the ACK of the one before.
    assert!((1140..1160).contains(&probes), "{probes}");
}

#[test]
fn packets_to_unknown_addresses_are_counted() {
    let mut sim = Simulation::new(6);
    sim.client("client", async |host| {
        let socket = UdpSocket::bind(host.stack(), "0.0.0.0:0")?;
        for to in ["10.1.0.77:9", "192.0.2.1:9"] {
            socket.send_to(b"x", to).await?;
        }
        Ok(())
    })
    .unwrap();
    sim.run().unwrap();
    assert_eq!(sim.unroutable_packets(), 2);
}

#[test]
fn fq_departures_are_exact() {
    let mut sim = Simulation::new(7);
    sim.host("server", discard_server).unwrap();
    sim.client("client", async |host| {
        let mut stream = TcpStream::connect(host.stack(), host.resolve("server:9")?).await?;
        stream.set_max_pacing_rate(1500 * 5000)?;
        stream.write_all(&vec![0; 1_000_000]).await?;
        stream.flushed().await?;
        Ok(())
    })
    .unwrap();
    sim.configure("client", |builder| builder.qdisc("fq"))
        .unwrap();
    sim.connect("client", "server", "delay 1ms").unwrap();
    let times = Arc::new(Mutex::new(Vec::new()));
    let seen = times.clone();
    sim.set_observer(move |host, event| {
        if host == "client" && event.point == TracePoint::Sent && event.packet.len() == 1500 {
            seen.lock().unwrap().push(event.at.as_nanos());
        }
    });
    sim.run().unwrap();
    let times = times.lock().unwrap();
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    // Bursts of ten packets, each of which leaves at its nanosecond: without rounding, the pauses
    // are all the same. The first ones are those of slow start.
    let pauses: Vec<_> = gaps.filter(|gap| *gap > 0).skip(3).collect();
    assert!(pauses.len() > 50, "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause == pauses[0]), "{pauses:?}");
    let rate = 10.0 * 1500.0 * 1e9 / pauses[0] as f64;
    assert!((7_400_000.0..7_500_000.0).contains(&rate), "{rate}");
}
