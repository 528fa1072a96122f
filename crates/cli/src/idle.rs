//! `perf idle`: the memory of established connections while they are idle.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::args::{Api, IdleArgs, InProcessLink};
use crate::core::HostPair;
use crate::net::NetStack;
use crate::net::embedded::Embedded;
use fullsend_stack::QdiscConfig;

/// Connections opened before measuring, so that one-time allocations do not count.
const WARM_UP: usize = 64;

#[derive(Serialize)]
struct IdleReport {
    test: &'static str,
    connections: usize,
    rss_bytes: i64,
    bytes_per_end: f64,
}

/// Opens the connections, with both ends in this process, and reports their memory.
pub(crate) fn run(args: &IdleArgs) -> Result<()> {
    let rss_bytes = match args.api {
        Api::Core => core(args.connections)?,
        Api::Tokio => crate::perf::runtime()?.block_on(tokio(args.connections))?,
    };
    let report = IdleReport {
        test: "idle",
        connections: args.connections,
        rss_bytes,
        bytes_per_end: (rss_bytes as f64 / (2 * args.connections) as f64 * 10.0).round() / 10.0,
    };
    if args.json {
        outln!("{}", serde_json::to_string(&report)?);
    } else {
        outln!(
            "{} idle connections: {} bytes of resident memory, {:.0} for each end",
            report.connections,
            report.rss_bytes,
            report.bytes_per_end
        );
    }
    Ok(())
}

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> Result<i64> {
    let statm = fs::read_to_string("/proc/self/statm").context("cannot read /proc/self/statm")?;
    let pages: i64 = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .context("cannot parse /proc/self/statm: its second field is not a number")?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?;
    Ok(pages * page.unwrap_or(4096))
}

fn core(connections: usize) -> Result<i64> {
    let mut pair = HostPair::new(InProcessLink::DEFAULT, &[], QdiscConfig::default())?;
    let listener = pair.listen()?;
    let warm = pair.connect(listener, WARM_UP)?;
    let before = resident_bytes()?;
    let connections_held = pair.connect(listener, connections)?;
    let after = resident_bytes()?;
    drop((warm, connections_held, pair));
    Ok(after - before)
}

async fn tokio(connections: usize) -> Result<i64> {
    let (client, server) = Embedded::pair(InProcessLink::DEFAULT, (&[], QdiscConfig::NoQueue))?;
    let on = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), 0));
    let mut listener = server.listen(on).await?;
    let to = Embedded::local_addr(&listener)?;
    let mut connections_held = Vec::with_capacity(WARM_UP + connections);
    let mut before = 0;
    for n in 0..WARM_UP + connections {
        if n == WARM_UP {
            before = resident_bytes()?;
        }
        connections_held.push((
            client.connect(to).await?,
            Embedded::accept(&mut listener).await?,
        ));
    }
    let after = resident_bytes()?;
    drop(connections_held);
    Ok(after - before)
}
