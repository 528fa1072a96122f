//! Paths with a smaller MTU than the hosts' links, without notifications (RFC 4821, RFC 8899).

mod common;

use common::{Scenario, V4, counter, netem, pair};
use fullsend_sim::{HostId, Sim};
use fullsend_stack::{ListenConfig, Notice, TcpId};
use fullsend_wire::{Instant, Nanos};

/// A sender with some `tcp_mtu_probing`, on a path of some MTU, after some seconds of sending.
struct Run {
    sim: Sim,
    hosts: [HostId; 2],
    sender: TcpId,
    received: usize,
}

impl Run {
    fn new(probing: u32, mtu: u32, seconds: u64) -> Self {
        let scenario = Scenario {
            netem: netem(&format!("delay 10ms rate 50mbit limit 1000 mtu {mtu}")),
            ..Scenario::default()
        };
        let (mut sim, hosts) = pair(&scenario);
        let sysctl = sim.host(hosts[0]).sysctl_mut();
        sysctl.set("tcp_mtu_probing", &probing.to_string()).unwrap();
        let to = format!("{}:80", V4[1]).parse().unwrap();
        let config = ListenConfig {
            backlog: 8,
            defer_syn_ack: false,
            any_destination: false,
        };
        let listener = sim.host(hosts[1]).tcp_listen(to, config).unwrap();
        let sender = sim
            .host(hosts[0])
            .tcp_connect(Instant::ZERO, None, to)
            .unwrap();
        let (mut received, mut receiver) = (0, None);
        let (data, mut buf) = (vec![7; 32_768], vec![0; 65_536]);
        let until = Instant::ZERO + Nanos::from_secs(seconds);
        sim.run_until(until, |sim| {
            let now = sim.now();
            let _ = sim.host(hosts[0]).tcp(sender).write(now, &data, false);
            let host = sim.host(hosts[1]);
            receiver = receiver.or(host.listener(listener).accept().unwrap());
            if let Some(incoming) = receiver
                && let Ok(n) = host.tcp(incoming.id).read(now, &mut buf)
            {
                received += n;
            }
            false
        });
        Self {
            sim,
            hosts,
            sender,
            received,
        }
    }

    fn count(&mut self, name: &str) -> u64 {
        counter(&mut self.sim, self.hosts[0], &format!("TcpExtTCP{name}"))
    }

    fn mss(&mut self) -> u32 {
        let now = self.sim.now();
        let host = self.sim.host(self.hosts[0]);
        host.tcp(self.sender).info(now).unwrap().tcpi_snd_mss
    }
}

#[test]
fn probing_from_below_finds_the_path_mtu() {
    for (path, best) in [(1500, 1448), (1400, 1348), (1234, 1182)] {
        let mut run = Run::new(2, path, 3);
        let mss = run.mss();
        assert!((best - 8..=best).contains(&mss), "{path}: {mss}");
        assert!(run.count("MTUPSuccess") > 0);
        assert_eq!(run.count("MTUPFail") > 0, path < 1500);
        // A lost probe is not a sign of congestion.
        assert_eq!(run.count("SackRecovery") + run.count("Timeouts"), 0);
        assert!(run.received > 5_000_000, "{}", run.received);
    }
}

#[test]
fn a_black_hole_is_detected() {
    for path in [1400, 1000, 600] {
        let mut run = Run::new(1, path, 40);
        let mss = run.mss();
        assert!(mss <= path - 52, "{path}: {mss}");
        assert!(run.received > 10_000_000, "{path}: {}", run.received);
        let (now, host) = (run.sim.now(), run.sim.host(run.hosts[0]));
        let text: String = host
            .take_notices(now)
            .iter()
            .map(Notice::to_string)
            .collect();
        assert!(text.starts_with("path MTU black hole suspected "), "{text}");
    }
    let mut run = Run::new(0, 1400, 40);
    assert_eq!(
        (run.received, run.mss()),
        (0, 1448),
        "tcp_mtu_probing is off"
    );
}
