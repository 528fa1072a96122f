//! Makes the same calls on the kernel's sockets over 127.0.0.1 and on ours over a host's loopback.
//! The results must be equal, including errnos and event bits.
#![cfg(target_os = "linux")]

#[path = "kernel/ancillary.rs"]
mod ancillary;
#[path = "kernel/backend.rs"]
mod backend;
#[path = "kernel/datagrams.rs"]
mod datagrams;
#[path = "kernel/epoll.rs"]
mod epoll;
#[path = "kernel/fullsend.rs"]
mod fullsend;
#[path = "kernel/linux.rs"]
mod linux;
#[path = "kernel/options.rs"]
mod options;
#[path = "kernel/streams.rs"]
mod streams;
#[path = "kernel/walk.rs"]
mod walk;

use backend::{Backend, Log};

/// A sequence of calls, whose results are logged.
type Scenario = fn(&mut dyn Backend, &mut Log);

/// Returns why this machine's kernel cannot be compared with.
fn skip_reason() -> Option<&'static str> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let major = release.split('.').next().and_then(|n| n.parse().ok());
    if major.unwrap_or(0) < 6 {
        return Some("the kernel is older than 6.0");
    }
    let six = std::net::TcpListener::bind("[::1]:0");
    six.is_err().then_some("there is no ::1")
}

/// Runs a scenario on both, and returns the differences.
fn difference(name: &str, scenario: impl Fn(&mut dyn Backend, &mut Log)) -> String {
    let mut kernel = Log::default();
    scenario(&mut linux::LinuxBackend::default(), &mut kernel);
    let mut own = Log::default();
    scenario(&mut fullsend::FullsendBackend::new(), &mut own);
    if kernel == own {
        return String::new();
    }
    format!("\n{name}:\n{}", kernel.difference(&own))
}

/// Runs every scenario on both, and prints the differences.
fn compare(scenarios: &[(&str, Scenario)]) {
    if let Some(why) = skip_reason() {
        eprintln!("skipped: {why}");
        return;
    }
    let differences: String = scenarios
        .iter()
        .map(|(name, scenario)| difference(name, scenario))
        .collect();
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn random_walks_match_the_kernel() {
    if let Some(why) = skip_reason() {
        eprintln!("skipped: {why}");
        return;
    }
    for seed in 0..40 {
        for walk in [walk::datagrams, walk::stream] {
            let name = format!("seed {seed}");
            let differs = difference(&name, |b, log| walk(seed, b, log));
            assert!(differs.is_empty(), "{differs}");
        }
    }
}

#[test]
fn streams_match_the_kernel() {
    compare(streams::SCENARIOS);
}

#[test]
fn epoll_sets_match_the_kernel() {
    compare(epoll::SCENARIOS);
}

#[test]
fn options_match_the_kernel() {
    let topics = [
        options::socket::SCENARIOS,
        options::tcp::SCENARIOS,
        options::ip::SCENARIOS,
        options::sharing::SCENARIOS,
        options::reports::SCENARIOS,
    ];
    compare(&topics.concat());
}

#[test]
fn datagrams_match_the_kernel() {
    compare(datagrams::SCENARIOS);
}

#[test]
fn ancillary_data_of_datagrams_matches_the_kernel() {
    compare(ancillary::SCENARIOS);
}
