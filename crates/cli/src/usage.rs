//! The resources that this process uses during a run, and the growth of the stacks' counters.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

/// The CPU time of a process.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(crate) struct CpuTime {
    /// Seconds in user mode.
    pub(crate) user_s: f64,
    /// Seconds in the kernel.
    pub(crate) sys_s: f64,
}

/// Numbers of context switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct ContextSwitches {
    /// Switches because the process waited.
    pub(crate) voluntary: i64,
    /// Switches because the process was preempted.
    pub(crate) involuntary: i64,
}

/// CPU time and context switches of this process since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: CpuTime,
    pub(crate) switches: ContextSwitches,
}

impl Usage {
    /// Returns the usage up to now.
    pub(crate) fn now() -> io::Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
        Ok(Self {
            cpu: CpuTime {
                user_s: seconds(usage.user_time()),
                sys_s: seconds(usage.system_time()),
            },
            switches: ContextSwitches {
                voluntary: usage.voluntary_context_switches(),
                involuntary: usage.involuntary_context_switches(),
            },
        })
    }

    /// Returns the difference between `earlier` and this usage.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        // The fields are in microseconds: without rounding, differences print as
        // 0.19999999999999998.
        let micros = |s: f64| (s * 1e6).round() / 1e6;
        Self {
            cpu: CpuTime {
                user_s: micros(self.cpu.user_s - earlier.cpu.user_s),
                sys_s: micros(self.cpu.sys_s - earlier.cpu.sys_s),
            },
            switches: ContextSwitches {
                voluntary: self.switches.voluntary - earlier.switches.voluntary,
                involuntary: self.switches.involuntary - earlier.switches.involuntary,
            },
        }
    }
}

/// A stack's counters by their `nstat` names.
pub(crate) type Counters = BTreeMap<String, i64>;

/// Returns the differences between two readings of counters, without zeros.
pub(crate) fn delta(before: &Counters, after: &Counters) -> Counters {
    after
        .iter()
        .map(|(name, &value)| (name, value - before.get(name).copied().unwrap_or(0)))
        .filter(|&(_, change)| change != 0)
        .map(|(name, change)| (name.clone(), change))
        .collect()
}

/// Returns the mean size of the IP packets sent, in bytes, with a super-segment as one packet.
pub(crate) fn bytes_per_packet(sender: &Counters) -> Option<f64> {
    let sum = |names: [&str; 2]| -> i64 { names.iter().filter_map(|&n| sender.get(n)).sum() };
    let octets = sum(["IpExtOutOctets", "Ip6OutOctets"]);
    let packets = sum(["IpOutRequests", "Ip6OutRequests"]);
    (packets > 0).then(|| (octets as f64 / packets as f64 * 10.0).round() / 10.0)
}

/// Returns the kernel's counters of this process's network namespace.
pub(crate) fn kernel_counters() -> io::Result<Counters> {
    let mut out = Counters::new();
    for file in ["/proc/self/net/snmp", "/proc/self/net/netstat"] {
        parse_tables(&fs::read_to_string(file)?, &mut out);
    }
    // The file is missing if IPv6 is disabled.
    if let Ok(text) = fs::read_to_string("/proc/self/net/snmp6") {
        parse_list(&text, &mut out);
    }
    Ok(out)
}

/// Parses tables of two lines each: `Tcp: RtoAlgorithm RtoMin ...` and `Tcp: 1 200 ...`.
fn parse_tables(text: &str, out: &mut Counters) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((prefix, names)), Some((_, values))) =
            (names.split_once(':'), values.split_once(':'))
        else {
            continue;
        };
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            if let Ok(value) = value.parse() {
                out.insert(format!("{prefix}{name}"), value);
            }
        }
    }
}

/// Parses one counter per line.
fn parse_list(text: &str, out: &mut Counters) {
    for line in text.lines() {
        if let Some((name, value)) = line.split_once(char::is_whitespace)
            && let Ok(value) = value.trim().parse()
        {
            out.insert(name.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Counters, bytes_per_packet, delta, parse_list, parse_tables};

    #[test]
    fn proc_tables_get_their_nstat_names() {
        let mut counters = Counters::new();
        parse_tables(
            "Ip: Forwarding OutRequests\nIp: 1 20\nTcp: MaxConn OutSegs\nTcp: -1 7\n\
             IpExt: OutOctets\nIpExt: 42000\n",
            &mut counters,
        );
        parse_list(
            "Ip6OutRequests                  \t5\nIp6OutOctets\t500\n",
            &mut counters,
        );
        assert_eq!(counters["IpOutRequests"], 20);
        assert_eq!(counters["TcpMaxConn"], -1);
        assert_eq!(counters["IpExtOutOctets"], 42_000);
        assert_eq!(bytes_per_packet(&counters), Some(1700.0));
    }

    #[test]
    fn deltas_omit_unchanged_counters() {
        let of = |list: &[(&str, i64)]| -> Counters {
            list.iter().map(|&(n, v)| (n.to_owned(), v)).collect()
        };
        let before = of(&[("A", 1), ("B", 2)]);
        let after = of(&[("A", 1), ("B", 5), ("C", 7)]);
        assert_eq!(delta(&before, &after), of(&[("B", 3), ("C", 7)]));
        assert_eq!(bytes_per_packet(&after), None);
    }
}
