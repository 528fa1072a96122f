//! `fullsend top`: a live view of a running stack in the terminal, through its control socket.

mod rates;
mod source;
mod view;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::stat;
use rates::{Rates, Snapshot};
use source::Source;
use view::{Sort, View};

/// Signals that end the program; the terminal is restored first.
const END_SIGNALS: [i32; 4] = [
    nix::libc::SIGTERM,
    nix::libc::SIGINT,
    nix::libc::SIGHUP,
    nix::libc::SIGQUIT,
];
/// Longest wait for a key, after which signals and snapshots are processed.
const KEY_WAIT: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct TopArgs {
    /// The stack's control socket [default: that of the only process that has one in
    /// $XDG_RUNTIME_DIR/fullsend or /run/fullsend].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Seconds between two readings.
    #[arg(short, long, value_name = "S", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,
}

/// Runs the subcommand.
pub(crate) fn run(args: TopArgs) -> Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!(
            "`top` needs a terminal as standard input and output; use `fullsend stat gateway` or \
             `fullsend stat ss` instead"
        );
    }
    let path = stat::socket_path(args.socket)?;
    let mut source = Source::open(&path)?;
    // Errors that do not depend on the terminal are reported before it is changed.
    let first = source.read()?;
    let interval = Duration::from_secs(args.interval.into());
    let snapshots = follow(source, interval);
    let ended = Arc::new(AtomicBool::new(false));
    for signal in END_SIGNALS {
        signal_hook::flag::register(signal, ended.clone()).context("cannot handle signals")?;
    }
    // A panic that ends the program also restores the terminal.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let mut view = View::new(path.display().to_string(), interval);
    let done = show(&mut terminal, &mut view, (first, &snapshots), &ended);
    ratatui::restore();
    done
}

/// Reads a snapshot in each interval on its own thread, so that a stack that does not answer does not
/// block the keys.
fn follow(mut source: Source, interval: Duration) -> Receiver<Result<Snapshot>> {
    // The channel holds one snapshot, so that few are read while the view is busy.
    let (sender, snapshots) = mpsc::sync_channel(1);
    thread::spawn(move || {
        loop {
            thread::sleep(interval);
            let snapshot = source.read();
            let failed = snapshot.is_err();
            if sender.send(snapshot).is_err() || failed {
                return;
            }
        }
    });
    snapshots
}

/// Shows the snapshots until a key or a signal ends the program, or the stack has ended.
fn show(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    (first, snapshots): (Snapshot, &Receiver<Result<Snapshot>>),
    ended: &AtomicBool,
) -> Result<()> {
    let mut rates = Rates::default();
    view.update(rates.update(first));
    while !ended.load(Ordering::Relaxed) {
        while let Ok(snapshot) = snapshots.try_recv() {
            let table = rates.update(snapshot?);
            view.update(table);
        }
        terminal.draw(|frame| view.draw(frame))?;
        let until = Instant::now() + KEY_WAIT;
        while event::poll(until.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && on_key(view, key) == Key::Quit
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The effect of a key on the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Continue,
    Quit,
}

fn on_key(view: &mut View, key: KeyEvent) -> Key {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => return Key::Quit,
        KeyCode::Char('q') | KeyCode::Esc => return Key::Quit,
        KeyCode::Char('p' | ' ') => view.toggle_pause(),
        KeyCode::Char('r') => view.sort_by(Sort::Rate),
        KeyCode::Char('u') => view.sort_by(Sort::TxRate),
        KeyCode::Char('d') => view.sort_by(Sort::RxRate),
        KeyCode::Char('b') => view.sort_by(Sort::Bytes),
        KeyCode::Char('t') => view.sort_by(Sort::Retransmissions),
        KeyCode::Char('s') => view.sort_by(Sort::Queue),
        KeyCode::Down | KeyCode::Char('j') => view.scroll(1),
        KeyCode::Up | KeyCode::Char('k') => view.scroll(-1),
        KeyCode::PageDown => view.scroll_page(1),
        KeyCode::PageUp => view.scroll_page(-1),
        KeyCode::Home => view.scroll(isize::MIN),
        _ => {}
    }
    Key::Continue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_pause_and_quit() {
        let mut view = View::new("stack".to_owned(), Duration::from_secs(1));
        let press = |view: &mut View, c| on_key(view, KeyEvent::from(KeyCode::Char(c)));
        for (c, sort) in [
            ('u', Sort::TxRate),
            ('d', Sort::RxRate),
            ('b', Sort::Bytes),
            ('t', Sort::Retransmissions),
            ('s', Sort::Queue),
            ('r', Sort::Rate),
        ] {
            assert_eq!(press(&mut view, c), Key::Continue);
            assert_eq!(view.sort(), sort);
        }
        assert!(!view.is_paused());
        press(&mut view, 'p');
        assert!(view.is_paused());
        press(&mut view, 'p');
        assert!(!view.is_paused());
        assert_eq!(press(&mut view, 'q'), Key::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(on_key(&mut view, interrupt), Key::Quit);
        assert_eq!(press(&mut view, 'c'), Key::Continue);
    }
}
