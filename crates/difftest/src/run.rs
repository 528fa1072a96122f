//! The main loop: runs sequences on both sides, and minimises those that differ.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::compare::{Comparison, Difference};
use crate::event::FuzzEvent;
use crate::generate::Generator;
use crate::kernel::{KernelNetwork, KernelSide, clock};
use crate::known::{TOLERATED, known};
use crate::ours::OurSide;
use crate::side::{EventOutcome, FlowAddresses, LOCAL_PORT, SideRunner, TcpSide};

/// Sysctls of both sides.
const SYSCTLS: &[(&str, &str)] = &[
    ("net.ipv4.tcp_autocorking", "0"),
    ("net.ipv4.tcp_timestamps", "1"),
    ("net.ipv4.tcp_challenge_ack_limit", "2147483647"),
    ("net.ipv4.tcp_invalid_ratelimit", "0"),
    ("net.ipv4.tcp_early_retrans", "0"),
    ("net.ipv4.tcp_rto_min_us", "2000000"),
    ("net.ipv4.tcp_ecn", "0"),
    ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
    // More than a sequence writes: the data that fits depends on the overhead of the kernel's
    // buffers.
    ("net.ipv4.tcp_wmem", "4096 4194304 4194304"),
];
/// Sysctls that only the kernel has, or that have no effect in manual time.
const KERNEL_SYSCTLS: &[(&str, &str)] = &[
    ("net.ipv4.tcp_no_metrics_save", "1"),
    ("net.ipv4.tcp_comp_sack_nr", "0"),
    // Our TCP does not merge segments when it retransmits them.
    ("net.ipv4.tcp_retrans_collapse", "0"),
    ("net.ipv4.tcp_fin_timeout", "5"),
    ("net.ipv4.tcp_orphan_retries", "1"),
    ("net.ipv4.icmp_ratelimit", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.dad_transmits", "0"),
];
const OUR_SYSCTLS: &[(&str, &str)] = &[
    ("net.ipv4.tcp_rst_msgs_per_sec", "1000000"),
    ("net.ipv4.icmp_ratelimit", "0"),
];

/// The condition that ends a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Count(u64),
    Time(Duration),
}

const LOCAL_V4: [u8; 4] = [192, 168, 0, 1];
const LOCAL_V6: [u16; 8] = [0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1];
/// Number of runs of a sequence that differs.
const REPEATS: usize = 20;
/// Number of these runs in which the same difference must occur. In the others the kernel may differ
/// otherwise: its timers (delayed ACKs, the age of a segment in flight) depend on how busy the
/// machine is. With all 20, a fault that occurs in 90 % of runs would be confirmed in 12 % of cases;
/// with 16, in 96 %.
const CONFIRMATIONS: usize = 16;
/// Times between two events, in nanoseconds; these runs use one after the other. Our clock is read a
/// few microseconds before the kernel's, so that a loss by time may be due for one side only: that is
/// no difference of the rules, and depends on the spacing. A difference must occur with each of them,
/// as fewer than a quarter of the runs may be without it.
const SPACINGS: [u64; 4] = [0, 20_000, 50_000, 100_000];

struct Fuzzer {
    network: KernelNetwork,
    /// Number of addresses used; each run of a sequence uses its own remote address and port.
    addresses_used: u64,
    found: BTreeMap<&'static str, u64>,
    /// The sequences that a listed difference ended, and the events skipped because of it, by its
    /// name.
    ended: BTreeMap<&'static str, (u64, u64)>,
    /// Number of sequences whose difference did not occur in the same way often enough.
    unstable: u64,
}

/// The outcomes of a sequence on both sides, up to the first difference that ends it.
struct BothOutcomes {
    kernel: Vec<EventOutcome>,
    ours: Vec<EventOutcome>,
    /// The difference that is not listed.
    difference: Option<Difference>,
    /// The names of the listed differences.
    known: Vec<&'static str>,
    /// The listed difference that ended the sequence.
    ended_by: Option<&'static str>,
}

impl Fuzzer {
    fn addresses(&mut self, seed: u64) -> FlowAddresses {
        self.addresses_used += 1;
        let n = self.addresses_used;
        let port = 1024 + (n % 60_000) as u16;
        let host = (n / 60_000) as u16;
        let (local, remote): (IpAddr, IpAddr) = if seed % 4 == 3 {
            let mut remote = LOCAL_V6;
            remote[7] = 2 + host;
            (LOCAL_V6.into(), remote.into())
        } else {
            let [high, low] = (2 + host).to_be_bytes();
            (LOCAL_V4.into(), [192, 168, high, low].into())
        };
        FlowAddresses {
            local: SocketAddr::new(local, LOCAL_PORT),
            remote: SocketAddr::new(remote, port),
            remote_isn: (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32,
        }
    }

    fn ours(addresses: FlowAddresses) -> anyhow::Result<OurSide> {
        OurSide::new(addresses, &[SYSCTLS, OUR_SYSCTLS].concat(), clock())
    }

    /// Generates the sequence of a seed, using our side's responses.
    fn generate(&mut self, seed: u64) -> anyhow::Result<Vec<FuzzEvent>> {
        let addresses = self.addresses(seed);
        let mut side = Self::ours(addresses)?;
        let mut runner = SideRunner::new(&mut side, addresses);
        let mut generator = Generator::new(seed);
        let mut events = Vec::new();
        while let Some(event) = generator.next() {
            let outcome = runner.step(&event);
            generator.update(&event, &outcome);
            events.push(event);
        }
        Ok(events)
    }

    /// Runs a sequence on both sides, with at least `spacing` nanoseconds before each event, up to
    /// the first difference that ends it.
    fn run_both(
        &mut self,
        seed: u64,
        events: &[FuzzEvent],
        spacing: u64,
    ) -> anyhow::Result<BothOutcomes> {
        let addresses = self.addresses(seed);
        let mut ours = Self::ours(addresses)?;
        let mut kernel = KernelSide::new(&mut self.network, addresses);
        let mut kernel = SideRunner::new(&mut kernel as &mut dyn TcpSide, addresses);
        let mut ours = SideRunner::new(&mut ours, addresses);
        let mut both = BothOutcomes {
            kernel: Vec::new(),
            ours: Vec::new(),
            difference: None,
            known: Vec::new(),
            ended_by: None,
        };
        let mut comparison = Comparison::default();
        for (step, event) in events.iter().enumerate() {
            let due = clock() + spacing;
            while clock() < due {
                std::hint::spin_loop();
            }
            // Both sides use the same time, so that round-trip times, and RACK with them, agree.
            let now = clock();
            both.kernel.push(kernel.step(event));
            both.ours.push(ours.step_at(now, event));
            let (kernel, ours) = (&both.kernel[step], &both.ours[step]);
            let difference = comparison.step(step, event, kernel, ours);
            let known = (difference.as_ref())
                .and_then(|d| known().find(|known| (known.matches)(events, d)));
            if let Some(known) = known {
                both.known.push(known.name);
            }
            match known {
                Some(known) if known.continues => {}
                Some(known) => {
                    both.ended_by = Some(known.name);
                    break;
                }
                None => both.difference = difference,
            }
            if both.difference.is_some() {
                break;
            }
        }
        Ok(both)
    }

    /// Returns the outcomes of a sequence whose difference is not listed and occurs in the same way
    /// in [`CONFIRMATIONS`] of [`REPEATS`] runs.
    fn unlisted(
        &mut self,
        seed: u64,
        events: &[FuzzEvent],
    ) -> anyhow::Result<Option<BothOutcomes>> {
        let first = self.run_both(seed, events, 0)?;
        let Some(difference) = &first.difference else {
            self.count(events, &first);
            return Ok(None);
        };
        let mut others = 0;
        for run in 1..REPEATS {
            let again = self.run_both(seed, events, SPACINGS[run % SPACINGS.len()])?;
            others += usize::from(!again.difference.is_some_and(|d| d.is_same(difference)));
            if others > REPEATS - CONFIRMATIONS {
                self.unstable += 1;
                return Ok(None);
            }
        }
        Ok(Some(first))
    }

    /// Counts the listed differences of a sequence.
    fn count(&mut self, events: &[FuzzEvent], both: &BothOutcomes) {
        for name in &both.known {
            *self.found.entry(name).or_default() += 1;
        }
        if let Some(name) = both.ended_by {
            let (sequences, left_out) = self.ended.entry(name).or_default();
            *sequences += 1;
            *left_out += (events.len() - both.kernel.len()) as u64;
        }
    }

    /// Removes the events that the difference does not need. Returns `None` if it does not occur
    /// again.
    fn minimise(
        &mut self,
        seed: u64,
        events: &[FuzzEvent],
    ) -> anyhow::Result<Option<(Vec<FuzzEvent>, BothOutcomes)>> {
        let mut best = events.to_vec();
        let Some(mut both) = self.unlisted(seed, &best)? else {
            return Ok(None);
        };
        let mut at = best.len();
        while at > 0 {
            at -= 1;
            if matches!(&best[at], FuzzEvent::Call(call) if call.opens()) {
                continue;
            }
            let mut fewer = best.clone();
            fewer.remove(at);
            if let Some(differs) = self.unlisted(seed, &fewer)? {
                let end = differs
                    .difference
                    .as_ref()
                    .map_or(fewer.len(), |d| d.step + 1);
                fewer.truncate(end);
                at = at.min(fewer.len());
                best = fewer;
                both = differs;
            }
        }
        Ok(Some((best, both)))
    }

    /// Prints the differences that were ignored, and how often.
    fn summary(&self) {
        println!(
            "{:8} sequences differed, but not in the same way in {CONFIRMATIONS} of {REPEATS} runs",
            self.unstable
        );
        let (sequences, events) =
            (self.ended.values()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        println!(
            "{sequences:8} sequences were ended by a listed difference, {events} events early"
        );
        for (what, why) in TOLERATED {
            println!("not compared: {what}: {why}");
        }
        for known in known() {
            let count = self.found.get(known.name).copied().unwrap_or(0);
            let (ended, _) = self.ended.get(known.name).copied().unwrap_or_default();
            let (name, reason) = (known.name, known.reason);
            println!("{count:8} listed, {ended} ended the sequence: {name}: {reason}");
        }
    }

    fn print(seed: u64, events: &[FuzzEvent], both: &BothOutcomes) {
        println!("# seed {seed}: difference in {} events", events.len());
        println!(
            "--ip_version={}",
            if seed % 4 == 3 { "ipv6" } else { "ipv4" }
        );
        let last = both.kernel.len() - 1;
        for (step, event) in events.iter().take(last).enumerate() {
            for line in both.kernel[step].lines(event) {
                println!("{line}");
            }
        }
        for (name, outcomes) in [("kernel", &both.kernel), ("ours", &both.ours)] {
            println!("// {name}:");
            for line in outcomes[last].lines(&events[last]) {
                println!("{line}");
            }
        }
    }
}

/// Runs sequences from `seed` on until the limit, or until `most` unlisted differences. Returns
/// their number.
///
/// # Errors
/// If the network or a side cannot be set up.
pub(crate) fn run(seed: u64, limit: Limit, most: usize, verbose: bool) -> anyhow::Result<usize> {
    let local = [LOCAL_V4.into(), LOCAL_V6.into()];
    let network = KernelNetwork::new(&local, &[SYSCTLS, KERNEL_SYSCTLS].concat())?;
    let mut fuzzer = Fuzzer {
        network,
        addresses_used: 0,
        found: BTreeMap::new(),
        ended: BTreeMap::new(),
        unstable: 0,
    };
    let started = Instant::now();
    let (mut done, mut differences) = (0, 0);
    loop {
        let over = match limit {
            Limit::Count(count) => done >= count,
            Limit::Time(time) => started.elapsed() >= time,
        };
        if over || differences >= most {
            break;
        }
        let this = seed + done;
        done += 1;
        let events = fuzzer.generate(this)?;
        if verbose {
            let both = fuzzer.run_both(this, &events, 0)?;
            Fuzzer::print(this, &events, &both);
        }
        if fuzzer.unlisted(this, &events)?.is_some()
            && let Some((events, both)) = fuzzer.minimise(this, &events)?
        {
            Fuzzer::print(this, &events, &both);
            println!();
            differences += 1;
        }
    }
    println!(
        "{done} sequences, {differences} differences, {:?}",
        started.elapsed()
    );
    fuzzer.summary();
    Ok(differences)
}
