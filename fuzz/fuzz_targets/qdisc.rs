//! Parses a configuration, then enqueues and dequeues packets: no panic; no packet is lost,
//! duplicated, early or out of its flow's order; and a queue that has packets but returns none has
//! its next departure in the future.
#![no_main]

use std::collections::{HashMap, VecDeque};

use arbitrary::{Arbitrary, Unstructured};
use fullsend_qdisc::{Qdisc, QdiscConfig, QueuedPacket};
use fullsend_wire::{Instant, Nanos};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Step {
    Enqueue { flow: u8, len: u16, delay_us: u32 },
    Dequeue,
    Wait(u32),
    UntilDue,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Packet {
    number: u32,
    flow: u64,
    len: u32,
    departure: Instant,
    ce: bool,
}

impl QueuedPacket for Packet {
    fn wire_len(&self) -> u32 {
        self.len
    }
    fn flow(&self) -> u64 {
        self.flow
    }
    fn departure(&self) -> Instant {
        self.departure
    }
    fn mark_ce(&mut self) -> bool {
        self.ce = true;
        true
    }
}

/// The expected content of the queue: by flow for fq, otherwise in one list. Then the number of
/// packets.
#[derive(Default)]
struct Model(HashMap<u64, VecDeque<u32>>, usize);

fn run(config: QdiscConfig, steps: Vec<Step>) {
    let Some(mut qdisc) = Qdisc::new(config) else {
        return;
    };
    let fq = matches!(config, QdiscConfig::Fq(_));
    let horizon_drop = matches!(config, QdiscConfig::Fq(fq) if fq.horizon_drop);
    let key = |packet: &Packet| if fq { packet.flow } else { 0 };
    let mut model = Model::default();
    let mut now = Instant::from_nanos(1);
    for (number, step) in (0..).zip(steps) {
        match step {
            Step::Enqueue {
                flow,
                len,
                delay_us,
            } => {
                let packet = Packet {
                    number,
                    flow: u64::from(flow % 8),
                    len: u32::from(len) + 1,
                    departure: now + Nanos::from_micros(delay_us.into()),
                    ce: false,
                };
                match qdisc.enqueue(now, packet) {
                    Ok(()) => {
                        model.0.entry(key(&packet)).or_default().push_back(number);
                        model.1 += 1;
                    }
                    Err(back) => assert_eq!(back, packet),
                }
            }
            Step::Dequeue => match qdisc.dequeue(now) {
                Some(packet) => {
                    let first = model.0.get_mut(&key(&packet)).and_then(VecDeque::pop_front);
                    assert_eq!(first, Some(packet.number));
                    model.1 -= 1;
                    let early = packet.departure > now && packet.flow != 0;
                    assert!(!(horizon_drop && early), "left early");
                }
                None => {
                    assert_eq!(qdisc.next_departure().is_some(), model.1 > 0);
                    assert!(qdisc.next_departure().is_none_or(|at| at > now));
                }
            },
            Step::Wait(us) => now += Nanos::from_micros(us.into()),
            Step::UntilDue => now = qdisc.next_departure().map_or(now, |at| at.max(now)),
        }
        assert_eq!(qdisc.is_empty(), model.1 == 0);
        assert_eq!(qdisc.stats().backlog_packets as usize, model.1);
    }
}

fuzz_target!(|data: &[u8]| {
    let mut u = Unstructured::new(data);
    let Ok((text, steps)) = <(&str, Vec<Step>)>::arbitrary(&mut u) else {
        return;
    };
    if let Ok(config) = text.parse::<QdiscConfig>() {
        assert_eq!(config.to_string().parse(), Ok(config));
        run(config, steps);
    } else {
        let known = [
            "fq limit 30 flow_limit 5",
            "tbf rate 1mbit burst 3000",
            "pfifo limit 9",
        ];
        run(known[text.len() % 3].parse().unwrap(), steps);
    }
});
