//! The same calls to the kernel's sockets over 127.0.0.1 and to ours over a host's loopback: what
//! they give must be the same, errno and event bits included.

#[path = "kernel/backend.rs"]
mod backend;
#[path = "kernel/datagrams.rs"]
mod datagrams;
#[path = "kernel/epoll.rs"]
mod epoll;
#[path = "kernel/linux.rs"]
mod linux;
#[path = "kernel/options.rs"]
mod options;
#[path = "kernel/ours.rs"]
mod ours;
#[path = "kernel/streams.rs"]
mod streams;

use backend::{Backend, Log};

/// A sequence of calls; what they give goes to the log.
type Scenario = fn(&mut dyn Backend, &mut Log);

/// Runs every scenario on both, and shows where they differ.
fn compare(scenarios: &[(&str, Scenario)]) {
    let mut differences = String::new();
    for &(name, scenario) in scenarios {
        let mut kernel = Log::default();
        scenario(&mut linux::Linux::default(), &mut kernel);
        let mut own = Log::default();
        scenario(&mut ours::Ours::new(), &mut own);
        if kernel != own {
            differences.extend(["\n", name, ":\n", &kernel.difference(&own)]);
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn streams_are_as_the_kernel_has_them() {
    compare(streams::SCENARIOS);
}

#[test]
fn epoll_sets_are_as_the_kernel_has_them() {
    compare(epoll::SCENARIOS);
}

#[test]
fn options_are_as_the_kernel_has_them() {
    compare(options::SCENARIOS);
}

#[test]
fn datagrams_are_as_the_kernel_has_them() {
    compare(datagrams::SCENARIOS);
}
