//! `perf idle`: the memory of established connections while they are idle.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::args::{Api, IdleArgs, Inside};
use crate::core::Wire;
use crate::net::Net;
use crate::net::embedded::Embedded;
use fullsend_stack::QdiscConfig;

/// Connections opened before measuring, so that one-time allocations do not count.
const WARM_UP: usize = 64;

#[derive(Serialize)]
struct Report {
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
    let report = Report {
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
fn resident() -> Result<i64> {
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
    let mut wire = Wire::new(Inside::DEFAULT, &[], QdiscConfig::default())?;
    let listener = wire.listen()?;
    let warm = wire.connect(listener, WARM_UP)?;
    let before = resident()?;
    let held = wire.connect(listener, connections)?;
    let after = resident()?;
    drop((warm, held, wire));
    Ok(after - before)
}

async fn tokio(connections: usize) -> Result<i64> {
    let (client, server) = Embedded::pair(Inside::DEFAULT, (&[], QdiscConfig::NoQueue))?;
    let on = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), 0));
    let mut listener = server.listen(on).await?;
    let to = Embedded::local_addr(&listener)?;
    let mut held = Vec::with_capacity(WARM_UP + connections);
    let mut before = 0;
    for n in 0..WARM_UP + connections {
        if n == WARM_UP {
            before = resident()?;
        }
        held.push((
            client.connect(to).await?,
            Embedded::accept(&mut listener).await?,
        ));
    }
    let after = resident()?;
    drop(held);
    Ok(after - before)
}
