//! The screen: a summary, the sorted flows, and the keys.

use std::cmp::Ordering;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table as TableWidget};

use super::rates::{Flow, Rate, Table};
use crate::stat::short;

/// Lines above the table.
const HEADER_LINES: u16 = 3;
const KEYS: &str = "q quit  p pause  sort: r rate  u tx  d rx  b bytes  t retrans  s queue  \
                    arrows scroll";

/// The column by which the flows are sorted, largest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    Rate,
    TxRate,
    RxRate,
    Bytes,
    Retransmissions,
    Queue,
}

impl Sort {
    const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::TxRate => "tx",
            Self::RxRate => "rx",
            Self::Bytes => "bytes",
            Self::Retransmissions => "retrans",
            Self::Queue => "queue",
        }
    }

    fn value(self, flow: &Flow, rate: Rate) -> f64 {
        match self {
            Self::Rate => rate.tx + rate.rx,
            Self::TxRate => rate.tx,
            Self::RxRate => rate.rx,
            Self::Bytes => (flow.tx_bytes + flow.rx_bytes) as f64,
            Self::Retransmissions => flow.retransmissions as f64,
            Self::Queue => flow.queue as f64,
        }
    }
}

/// The content and the layout of the screen.
pub(super) struct View {
    name: String,
    interval: Duration,
    sort: Sort,
    paused: bool,
    /// The first row of the table that is shown.
    offset: usize,
    /// The number of rows for which the table had room.
    page: usize,
    table: Table,
}

impl View {
    pub(super) fn new(name: String, interval: Duration) -> Self {
        Self {
            name,
            interval,
            sort: Sort::Rate,
            paused: false,
            offset: 0,
            page: 1,
            table: Table::default(),
        }
    }

    /// Shows another reading, unless the view is paused.
    pub(super) fn update(&mut self, table: Table) {
        if !self.paused {
            self.table = table;
            self.order();
        }
    }

    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.order();
    }

    #[cfg(test)]
    pub(super) const fn sort(&self) -> Sort {
        self.sort
    }

    pub(super) const fn toggle_pause(&mut self) {
        self.paused = !self.paused;
    }

    #[cfg(test)]
    pub(super) const fn is_paused(&self) -> bool {
        self.paused
    }

    /// Moves the table by rows.
    pub(super) fn scroll(&mut self, rows: isize) {
        let last = self.table.rates.len().saturating_sub(1);
        self.offset = self.offset.saturating_add_signed(rows).min(last);
    }

    /// Moves the table by pages.
    pub(super) fn scroll_page(&mut self, pages: isize) {
        self.scroll(pages * self.page as isize);
    }

    /// Sorts the flows. Flows with the same value are sorted by their addresses, so that they keep their
    /// places.
    fn order(&mut self) {
        let (sort, table) = (self.sort, &mut self.table);
        let flows = std::mem::take(&mut table.snapshot.flows);
        let mut rows: Vec<_> = flows.into_iter().zip(table.rates.drain(..)).collect();
        rows.sort_by(|(a, a_rate), (b, b_rate)| {
            let values = sort.value(b, *b_rate).total_cmp(&sort.value(a, *a_rate));
            values.then_with(|| by_address(a, b))
        });
        (table.snapshot.flows, table.rates) = rows.into_iter().unzip();
        self.scroll(0);
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let rows = [
            Constraint::Length(HEADER_LINES),
            Constraint::Min(1),
            Constraint::Length(1),
        ];
        let [top, middle, bottom] = Layout::vertical(rows).areas(frame.area());
        frame.render_widget(self.summary(), top);
        self.draw_flows(frame, middle);
        frame.render_widget(Line::from(KEYS).dim(), bottom);
    }

    fn summary(&self) -> Paragraph<'static> {
        let snapshot = &self.table.snapshot;
        let uptime = snapshot.at_ns / 1_000_000_000;
        let (kind, flows) = if snapshot.is_gateway {
            ("gateway", "flows")
        } else {
            ("stack", "sockets")
        };
        let paused = if self.paused { "  PAUSED" } else { "" };
        let first = format!(
            "fullsend top: {kind} {}  up {}:{:02}:{:02}  every {} s, by {}{paused}",
            self.name,
            uptime / 3600,
            uptime / 60 % 60,
            uptime % 60,
            self.interval.as_secs(),
            self.sort.name(),
        );
        let sum = |of: fn(&Rate) -> f64| bits(self.table.rates.iter().map(of).sum());
        let second = format!(
            "{} {flows}  tx {}bit/s  rx {}bit/s  retransmissions {} ({:.1}/s)",
            snapshot.flows.len(),
            sum(|rate| rate.tx),
            sum(|rate| rate.rx),
            snapshot.retransmissions,
            self.table.retransmission_rate,
        );
        let memory = snapshot.memory;
        let part = |name: &str, bytes: Option<u64>| {
            let bytes = bytes.map(short);
            bytes.map_or_else(String::new, |bytes| format!("  {name} {bytes}"))
        };
        let third = format!(
            "memory{}{}{}",
            part("resident", memory.resident),
            part("sockets", Some(memory.sockets)),
            part("relays", memory.relays)
        );
        Paragraph::new(vec![
            Line::from(first).bold(),
            Line::from(second),
            Line::from(third),
        ])
    }

    fn draw_flows(&mut self, frame: &mut Frame<'_>, area: Rect) {
        self.page = usize::from(area.height).saturating_sub(1).max(1);
        let (flows, rates) = (&self.table.snapshot.flows, &self.table.rates);
        let shown = flows.iter().zip(rates).skip(self.offset).take(self.page);
        let longest = |of: fn(&Flow) -> usize, title: &str| {
            let len = shown.clone().map(|(flow, _)| of(flow)).max();
            let len = len.unwrap_or(0).max(title.len());
            Constraint::Length(u16::try_from(len).unwrap_or(u16::MAX))
        };
        let (guest, remote) = if self.table.snapshot.is_gateway {
            ("GUEST", "REMOTE")
        } else {
            ("LOCAL", "PEER")
        };
        let widths = [
            Constraint::Length(5),
            Constraint::Length(10),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(7),
            Constraint::Length(8),
            Constraint::Length(12),
            longest(|flow| flow.local.len(), guest),
            longest(|flow| flow.remote.len(), remote),
        ];
        let titles = [
            "NETID", "STATE", "TX bit/s", "RX bit/s", "TX", "RX", "RETRANS", "QUEUE", "HELD BY",
            guest, remote,
        ];
        let rows = shown.map(|(flow, rate)| row(flow, *rate));
        let table = TableWidget::new(rows, widths)
            .header(Row::new(titles).style(Style::new().reversed()))
            .column_spacing(1);
        frame.render_widget(table, area);
    }
}

fn by_address(a: &Flow, b: &Flow) -> Ordering {
    (&a.netid, &a.local, &a.remote).cmp(&(&b.netid, &b.local, &b.remote))
}

fn row(flow: &Flow, rate: Rate) -> Row<'static> {
    Row::new([
        flow.netid.clone(),
        flow.state.clone(),
        bits(rate.tx),
        bits(rate.rx),
        short(flow.tx_bytes),
        short(flow.rx_bytes),
        flow.retransmissions.to_string(),
        short(flow.queue),
        flow.held_by.clone(),
        flow.local.clone(),
        flow.remote.clone(),
    ])
}

fn bits(rate: f64) -> String {
    short(rate.round() as u64)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rates::{Memory, Snapshot};
    use super::*;

    fn flow(port: u16, held_by: &str, retransmissions: u64) -> Flow {
        Flow {
            netid: "tcp".to_owned(),
            state: "ESTAB".to_owned(),
            local: format!("10.0.2.100:{port}"),
            remote: "10.0.2.2:80".to_owned(),
            tx_bytes: 1234,
            rx_bytes: 5_000_000,
            retransmissions,
            queue: 65_536,
            held_by: held_by.to_owned(),
        }
    }

    fn table() -> Table {
        let flows = vec![
            flow(40_001, "host-idle", 7),
            flow(40_002, "guest-window", 0),
        ];
        Table {
            snapshot: Snapshot {
                at_ns: 3_725_000_000_000,
                is_gateway: true,
                flows,
                retransmissions: 7,
                memory: Memory {
                    resident: Some(12_345_678),
                    sockets: 4096,
                    relays: Some(0),
                },
            },
            rates: vec![
                Rate {
                    tx: 0.0,
                    rx: 8000.0,
                },
                Rate {
                    tx: 1e3,
                    rx: 9.41e9,
                },
            ],
            retransmission_rate: 1.5,
        }
    }

    fn view() -> View {
        let mut view = View::new("/run/fullsend/7.sock".to_owned(), Duration::from_secs(1));
        view.update(table());
        view
    }

    /// Draws the view, and returns the lines of the screen.
    fn screen(view: &mut View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| {
            let cells = (0..width).map(|x| buffer[(x, y)].symbol());
            cells.collect::<String>().trim_end().to_owned()
        };
        (0..height).map(line).collect()
    }

    #[test]
    fn the_screen_has_totals_flows_by_rate_and_the_keys() {
        let lines = screen(&mut view(), 120, 8);
        let want = [
            "fullsend top: gateway /run/fullsend/7.sock  up 1:02:05  every 1 s, by rate",
            "2 flows  tx 1.00Kbit/s  rx 9.41Gbit/s  retransmissions 7 (1.5/s)",
            "memory  resident 12.35M  sockets 4.10K  relays 0",
            "NETID STATE      TX bit/s RX bit/s TX       RX       RETRANS QUEUE    HELD BY      \
             GUEST            REMOTE",
            "tcp   ESTAB      1.00K    9.41G    1.23K    5.00M    0       65.54K   guest-window \
             10.0.2.100:40002 10.0.2.2:80",
            "tcp   ESTAB      0        8.00K    1.23K    5.00M    7       65.54K   host-idle    \
             10.0.2.100:40001 10.0.2.2:80",
            "",
            KEYS,
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn a_plain_stack_has_sockets() {
        let mut table = table();
        table.snapshot.is_gateway = false;
        table.snapshot.memory = Memory::default();
        let mut view = view();
        view.update(table);
        let lines = screen(&mut view, 120, 8);
        assert!(lines[0].starts_with("fullsend top: stack "), "{lines:?}");
        assert!(lines[1].starts_with("2 sockets"), "{lines:?}");
        assert_eq!(lines[2], "memory  sockets 0");
        assert!(lines[3].contains("LOCAL") && lines[3].ends_with("PEER"));
    }

    fn first_port(view: &mut View) -> String {
        let line = screen(view, 120, 8)[4].clone();
        let guest = line.split_whitespace().nth(9).unwrap();
        guest.split_once(':').unwrap().1.to_owned()
    }

    #[test]
    fn the_order_follows_the_key_and_ties_the_addresses() {
        let mut view = view();
        assert_eq!(first_port(&mut view), "40002");
        view.sort_by(Sort::Retransmissions);
        assert_eq!(first_port(&mut view), "40001");
        view.sort_by(Sort::TxRate);
        assert_eq!(first_port(&mut view), "40002");
        view.sort_by(Sort::Queue);
        assert_eq!(first_port(&mut view), "40001");
    }

    #[test]
    fn a_paused_view_keeps_its_reading() {
        let mut view = view();
        view.toggle_pause();
        view.update(Table::default());
        let lines = screen(&mut view, 120, 8);
        assert!(lines[0].ends_with("PAUSED"), "{lines:?}");
        assert!(lines[1].starts_with("2 flows"));
        view.toggle_pause();
        view.update(Table::default());
        assert!(screen(&mut view, 120, 8)[1].starts_with("0 "));
    }

    #[test]
    fn scrolling_stays_within_the_flows() {
        let mut view = view();
        view.scroll(1);
        assert_eq!(first_port(&mut view), "40001");
        view.scroll_page(5);
        assert_eq!(first_port(&mut view), "40001");
        view.scroll(isize::MIN);
        assert_eq!(first_port(&mut view), "40002");
    }

    #[test]
    fn any_size_of_the_screen_is_drawn() {
        for (width, height) in [(0, 0), (1, 1), (20, 3), (80, 5), (300, 100)] {
            screen(&mut view(), width, height);
        }
    }
}
