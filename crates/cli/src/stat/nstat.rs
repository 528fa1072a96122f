//! `stat nstat`: counters, and their growth since the last call by the same user.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fullsend::control::{self, Counters, Request};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::args::NstatArgs;
use super::connection::Connection;

/// The environment variable with the path of the history.
const HISTORY: &str = "FULLSEND_STAT_HISTORY";
/// Most stacks in the history.
const MAX_STACKS: usize = 32;

/// The counters of the last call, by the start time of each stack.
#[derive(Serialize, Deserialize, Default)]
struct History {
    stacks: BTreeMap<u64, Snapshot>,
}

#[derive(Serialize, Deserialize, Clone, Default)]
struct Snapshot {
    uptime_ns: u64,
    counters: BTreeMap<String, u64>,
}

pub(super) fn run(stack: &mut Connection, args: NstatArgs, json: bool) -> Result<()> {
    let counters: Counters = serde_json::from_value(stack.request(&Request::Counters)?)?;
    let path = history_path()?;
    let mut history = read(&path);
    let snapshot = history.stacks.get(&counters.started);
    let before = snapshot
        .filter(|_| !args.absolute)
        .cloned()
        .unwrap_or_default();
    print(&grown(&counters, &before, args.zeros), json);
    if !args.noupdate {
        history.stacks.insert(
            counters.started,
            Snapshot {
                uptime_ns: counters.uptime_ns,
                counters: counters.counters.into_iter().collect(),
            },
        );
        while history.stacks.len() > MAX_STACKS {
            history.stacks.pop_first();
        }
        write(&path, &history)?;
    }
    Ok(())
}

/// The name, growth, and growth per second of a counter.
type Row = (String, u64, f64);

fn grown(now: &Counters, before: &Snapshot, zeros: bool) -> Vec<Row> {
    let seconds = now.uptime_ns.saturating_sub(before.uptime_ns) as f64 / 1e9;
    now.counters
        .iter()
        .map(|(name, value)| {
            let old = before.counters.get(name).copied().unwrap_or(0);
            // A gauge may fall, and so may the sums of a stack that has lost interfaces.
            let growth = value.saturating_sub(old);
            (name.clone(), growth, growth as f64 / seconds.max(1e-9))
        })
        .filter(|(_, growth, _)| zeros || *growth != 0)
        .collect()
}

fn print(rows: &[Row], json: bool) {
    if json {
        let object = rows
            .iter()
            .map(|(name, growth, _)| (name.clone(), (*growth).into()));
        let object = Value::Object(object.collect());
        outln!("{}", serde_json::json!({ "fullsend": object }));
        return;
    }
    outln!("#fullsend");
    for (name, growth, rate) in rows {
        outln!("{name:<32}{growth:<16}{rate:<6.1}");
    }
}

fn history_path() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(HISTORY) {
        return Ok(path.into());
    }
    let uid = fs::metadata("/proc/self")
        .with_context(|| {
            format!(
                "cannot determine the user for the path of the history; set {HISTORY} to a file"
            )
        })?
        .uid();
    let dir = control::default_dir();
    let dir = if dir.is_dir() && fs::metadata(&dir)?.uid() == uid {
        dir
    } else {
        std::env::temp_dir()
    };
    Ok(dir.join(format!(".nstat.u{uid}")))
}

/// Reads the history. A history that cannot be read, or belongs to another user, counts as empty.
fn read(path: &Path) -> History {
    let ours = || {
        let file = fs::symlink_metadata(path).ok()?;
        let uid = fs::metadata("/proc/self").ok()?.uid();
        (file.is_file() && file.uid() == uid).then_some(())
    };
    ours()
        .and_then(|()| fs::read(path).ok())
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// Writes a new file and renames it to `path`, so that a planted symlink is not followed.
fn write(path: &Path, history: &History) -> Result<()> {
    let temp_path = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temp_path)
        .with_context(|| {
            format!(
                "cannot write the history to {}; set {HISTORY} to another file, or use --noupdate",
                path.display()
            )
        })?;
    file.write_all(&serde_json::to_vec(history)?)?;
    fs::rename(&temp_path, path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use fullsend::control::Counters;

    use super::{Snapshot, grown};

    #[test]
    fn growth_and_its_rate() {
        let now = Counters {
            started: 1,
            uptime_ns: 3_000_000_000,
            counters: vec![("A".into(), 10), ("B".into(), 7), ("C".into(), 0)],
        };
        let before = Snapshot {
            uptime_ns: 1_000_000_000,
            counters: [("A".to_owned(), 4), ("B".to_owned(), 7)].into(),
        };
        assert_eq!(grown(&now, &before, false), [("A".to_owned(), 6, 3.0)]);
        assert_eq!(grown(&now, &before, true).len(), 3);
        assert_eq!(grown(&now, &Snapshot::default(), false).len(), 2);
    }
}
