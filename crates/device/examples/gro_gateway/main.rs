//! A gateway between two TUN devices that forwards super-segments although packets arrive one by
//! one: the work of a VPN between its socket and its TUN, without the encryption.
//!
//! ```sh
//! cargo build --release -p fullsend-device --example gro_gateway
//! sudo target/release/examples/gro_gateway left none right all
//! ```
//!
//! Each device has a name and its offloads. Packets of the MTU from `left` (none) leave through
//! `right` (all) as super-segments, one `write` for up to 64 KiB. Super-segments from `right` are
//! segmented for `left` by GSO. Put each device into a namespace of its own
//! (`ip link set left netns a`) and give it an address; once a second a line reports what was
//! coalesced.
#![allow(
    clippy::disallowed_methods,
    reason = "reports once a second of real time"
)]

use std::error::Error;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use fullsend_device::{Device, Tun};
use fullsend_offload::Link;

mod forward;
use forward::Forwarder;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [left, left_offload, right, right_offload] = &args[..] else {
        return Err(
            "four arguments are required; write NAME OFFLOAD NAME OFFLOAD, e.g. left none right all"
                .into(),
        );
    };
    let mut left = Tun::tun(left).offload(left_offload.parse()?).open()?;
    let mut right = Tun::tun(right).offload(right_offload.parse()?).open()?;
    let (mut there, mut back) = (Forwarder::new(Link::Ip), Forwarder::new(Link::Ip));
    let mut last_report = Instant::now();
    loop {
        let frames = there.poll(&mut left, &mut right)? + back.poll(&mut right, &mut left)?;
        if frames == 0 {
            wait(&left, &right);
        }
        if last_report.elapsed() > Duration::from_secs(1) {
            last_report = Instant::now();
            for (direction, stats) in [("there", there.stats), ("back", back.stats)] {
                let mean = stats.mean();
                println!("{direction}: {mean:.1} segments per super-segment, {stats:?}");
            }
        }
    }
}

/// Waits until one of the devices is readable, at most a second.
fn wait(left: &Tun, right: &Tun) {
    let files = [left.fd(), right.fd()];
    let mut poll: Vec<libc::pollfd> = files
        .iter()
        .flatten()
        .map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // SAFETY: the pointer and length are those of a live vector.
    unsafe { libc::poll(poll.as_mut_ptr(), poll.len() as libc::nfds_t, 1000) };
}
