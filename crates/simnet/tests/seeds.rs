//! The same seed gives the same packets: in two runs, in two processes, and not with another seed.

mod common;

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{echo_client, echo_server};
use fullsend_simnet::{Simulation, TracePoint};

/// An echo server and many clients over links that lose 5 % of the packets.
fn simulation(seed: u64) -> Simulation {
    let mut sim = Simulation::new(seed);
    sim.host("server", echo_server).unwrap();
    for i in 0..20 {
        let name = format!("client{i}");
        let len = 1000 + i * 1700;
        sim.client(&name, async move |host| echo_client(host, len).await)
            .unwrap();
        let netem = "delay 10ms 1ms loss 5% rate 20mbit limit 50 reorder 1% duplicate 0.5%";
        sim.connect(&name, "server", netem).unwrap();
    }
    sim
}

/// Runs the simulation, and returns its hash and its virtual time.
fn outcome(seed: u64) -> (u64, Duration) {
    let mut sim = simulation(seed);
    sim.run().unwrap();
    (sim.trace_hash(), sim.net().elapsed())
}

#[test]
fn the_same_seed_repeats_every_packet_and_another_does_not() {
    let first = outcome(1);
    assert_eq!(first, outcome(1));
    let other = outcome(2);
    assert_ne!(first.0, other.0);
    assert_ne!(first.1, other.1);
}

/// Prints the outcome for [`another_process_repeats_every_packet`].
#[test]
#[ignore = "run by another test"]
fn print_outcome() {
    println!("outcome {:?}", outcome(3));
}

#[test]
fn another_process_repeats_every_packet() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "print_outcome", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let want = format!("outcome {:?}", outcome(3));
    assert!(
        text.lines().any(|line| line.contains(&want)),
        "{want} is not in {text}"
    );
}

#[test]
fn the_observer_and_the_counters_of_links_see_the_same_packets() {
    let mut sim = simulation(4);
    let counts = Arc::new(Mutex::new([0; 3]));
    let counted = counts.clone();
    sim.set_observer(move |_, event| {
        let index = match event.point {
            TracePoint::Arrived => 1,
            TracePoint::Lost(_) => 2,
            _ => 0,
        };
        counted.lock().unwrap()[index] += 1;
    });
    sim.run().unwrap();
    let [mut sent, mut arrived, mut lost] = [0; 3];
    for i in 0..20 {
        let name = format!("client{i}");
        let link = sim.net().link(&name, "server").unwrap();
        for from in [name.as_str(), "server"] {
            let stats = link.stats_from(from).unwrap();
            sent += stats.sent;
            arrived += stats.arrived;
            lost += stats.lost + stats.queue_full;
            assert!(stats.arrived_bytes <= stats.sent_bytes * 2);
        }
    }
    assert_eq!(*counts.lock().unwrap(), [sent, arrived, lost]);
    let rate = lost as f64 / sent as f64;
    assert!((0.03..0.08).contains(&rate), "{lost} of {sent}");
}

#[test]
fn a_capture_is_the_same_for_the_same_seed() {
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Shared {
        fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(data);
            Ok(data.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let capture = |seed| {
        let mut sim = simulation(seed);
        let out = Shared::default();
        let link = sim.net().link("client3", "server").unwrap();
        link.capture(out.clone()).unwrap();
        sim.run().unwrap();
        let (up, down) = (
            link.stats_from("client3").unwrap(),
            link.stats_from("server").unwrap(),
        );
        let packets = up.sent + up.arrived + down.sent + down.arrived;
        (out.0.lock().unwrap().clone(), packets)
    };
    let (bytes, packets) = capture(5);
    assert_eq!(bytes, capture(5).0);
    // Each block has its type and its length first.
    let (mut at, mut kinds) = (0, Vec::new());
    while let Some(head) = bytes.get(at..at + 8) {
        kinds.push(u32::from_le_bytes(head[..4].try_into().unwrap()));
        at += u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
    }
    assert_eq!(
        kinds[..3],
        [0x0a0d_0d0a, 1, 1],
        "a section with two interfaces"
    );
    assert_eq!(kinds.len() as u64 - 3, packets);
}
