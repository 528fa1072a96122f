//! The file through which a script's `sysctl` commands change the stack.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use fullsend_blocking::{Config, ConfigError, Stack};

/// Tunables that Linux accepts without any effect: FACK was removed in Linux 4.15, the prequeue in
/// 4.14.
const IGNORED_TUNABLES: [&str; 2] = ["tcp_fack", "tcp_low_latency"];

/// Returns whether a tunable is accepted but has no effect, as on Linux.
pub(crate) fn is_ignored(key: &str) -> bool {
    IGNORED_TUNABLES.contains(&key.strip_prefix("net.ipv4.").unwrap_or(key))
}

/// Metadata that changes when the file is written.
type FileStamp = (i64, i64, u64, u64);

/// A file of `KEY=VALUE` lines, with its metadata at the last reading.
#[derive(Debug)]
pub(crate) struct SettingsFile {
    file: Option<PathBuf>,
    last_stamp: Option<FileStamp>,
    /// Warnings that have been printed.
    warned: BTreeSet<String>,
}

impl SettingsFile {
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self {
            file,
            last_stamp: None,
            warned: BTreeSet::new(),
        }
    }

    /// Applies the file if it has changed. A missing file contains no settings.
    pub(crate) fn refresh(&mut self, stack: &Stack) {
        let Some(file) = &self.file else {
            return;
        };
        let Ok(meta) = fs::metadata(file) else {
            return;
        };
        let stamp = (meta.mtime(), meta.mtime_nsec(), meta.size(), meta.ino());
        if self.last_stamp.replace(stamp) == Some(stamp) {
            return;
        }
        let Ok(text) = fs::read_to_string(file) else {
            return;
        };
        match Config::pairs(&text) {
            Err(error) => self.warn(&error),
            Ok(pairs) => {
                for (key, value) in pairs {
                    if is_ignored(&key) {
                        continue;
                    }
                    if let Err(error) = stack.set(&key, &value) {
                        self.warn(&error);
                    }
                }
            }
        }
    }

    /// Prints each warning once. A script may set tunables that the stack does not have.
    pub(crate) fn warn(&mut self, error: &ConfigError) {
        let text = error.to_string();
        if self.warned.insert(text.clone()) {
            eprintln!("fullsend: {text}");
        }
    }
}
