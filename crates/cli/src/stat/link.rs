//! `stat link`: packets and bytes of each link per interval.

use std::time::Duration;

use anyhow::Result;
use fullsend::control::{LinkView, Request};

use super::args::LinkArgs;
use super::connection::Connection;

pub(super) fn run(stack: &mut Connection, args: LinkArgs, json: bool) -> Result<()> {
    if !json {
        outln!(
            "{:>15}{:>9}{:>9}{:>9}{:>9}",
            "LINK",
            "IPKTS",
            "RBYTES",
            "OPKTS",
            "OBYTES"
        );
    }
    let mut before = read_links(stack)?;
    let Some(interval) = args.interval else {
        show(&before, json)?;
        return Ok(());
    };
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        std::thread::sleep(Duration::from_secs(interval.into()));
        let now = read_links(stack)?;
        let grown: Vec<_> = now
            .iter()
            .zip(&before)
            .map(|(n, b)| per_second(n, b, interval))
            .collect();
        show(&grown, json)?;
        before = now;
    }
    Ok(())
}

fn read_links(stack: &mut Connection) -> Result<Vec<LinkView>> {
    Ok(serde_json::from_value(stack.request(&Request::Links)?)?)
}

fn per_second(now: &LinkView, before: &LinkView, seconds: u32) -> LinkView {
    let rate = |now: u64, before: u64| now.saturating_sub(before) / u64::from(seconds);
    LinkView {
        link: now.link.clone(),
        rx_packets: rate(now.rx_packets, before.rx_packets),
        rx_bytes: rate(now.rx_bytes, before.rx_bytes),
        tx_packets: rate(now.tx_packets, before.tx_packets),
        tx_bytes: rate(now.tx_bytes, before.tx_bytes),
        tx_wire_packets: rate(now.tx_wire_packets, before.tx_wire_packets),
        tx_wire_bytes: rate(now.tx_wire_bytes, before.tx_wire_bytes),
    }
}

fn show(links: &[LinkView], json: bool) -> Result<()> {
    if json {
        outln!("{}", serde_json::to_string(links)?);
        return Ok(());
    }
    for link in links {
        outln!(
            "{:>15}{:>9}{:>9}{:>9}{:>9}",
            link.link,
            short(link.rx_packets),
            short(link.rx_bytes),
            short(link.tx_packets),
            short(link.tx_bytes)
        );
    }
    Ok(())
}

/// Formats a number with a decimal unit, like dlstat.
pub(crate) fn short(value: u64) -> String {
    let units = [(1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e3, 'K')];
    let unit = units.iter().find(|(size, _)| value as f64 >= *size);
    unit.map_or_else(
        || value.to_string(),
        |(size, name)| format!("{:.2}{name}", value as f64 / size),
    )
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn units_are_decimal() {
        assert_eq!(short(0), "0");
        assert_eq!(short(999), "999");
        assert_eq!(short(1000), "1.00K");
        assert_eq!(short(101_914), "101.91K");
        assert_eq!(short(118_750_000), "118.75M");
        assert_eq!(short(9_410_000_000), "9.41G");
    }
}
