//! The host's resolvers, from a file in the format of resolv.conf(5).

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::DnsConfig;
use crate::message::resolv_conf::parse;

/// How often the file is checked for changes at most.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The resolvers that queries are relayed to.
pub(crate) struct Resolvers {
    path: PathBuf,
    /// Whether the list comes from the settings and not from the file.
    is_fixed: bool,
    state: Mutex<State>,
}

struct State {
    list: Vec<SocketAddr>,
    /// The version of the file that `list` was read from.
    version: Option<FileVersion>,
    checked: Option<Instant>,
}

/// What differs between two versions of a file: device, inode, size, and time of the last change
/// in seconds and nanoseconds.
type FileVersion = (u64, u64, u64, i64, i64);

impl Resolvers {
    pub(crate) fn new(config: &DnsConfig) -> Self {
        Self {
            path: config.resolv_conf.clone(),
            is_fixed: !config.upstream.is_empty(),
            state: Mutex::new(State {
                list: config.upstream.clone(),
                version: None,
                checked: None,
            }),
        }
    }

    /// Returns the resolvers in the order in which they are asked. Reads the file again if it has
    /// changed.
    pub(crate) fn list(&self) -> Vec<SocketAddr> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let is_due = state.checked.is_none_or(|at| now - at >= CHECK_INTERVAL);
        if !self.is_fixed && is_due {
            state.checked = Some(now);
            self.reload(&mut state);
        }
        state.list.clone()
    }

    /// Returns the resolver that is asked first.
    pub(crate) fn first(&self) -> Option<SocketAddr> {
        self.list().first().copied()
    }

    /// Reads the file if it is another version. A file that cannot be read leaves the list as it
    /// is: an editor may be replacing it.
    fn reload(&self, state: &mut State) {
        let Ok(metadata) = fs::metadata(&self.path) else {
            return;
        };
        let version = (
            metadata.dev(),
            metadata.ino(),
            metadata.size(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        );
        if state.version == Some(version) {
            return;
        }
        if let Ok(text) = fs::read_to_string(&self.path) {
            state.list = parse(&text);
            state.version = Some(version);
            tracing::debug!(resolvers = ?state.list, "read {}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[SocketAddr]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_read_again() {
        let path = std::env::temp_dir().join(format!("resolv-{}", std::process::id()));
        fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        let resolvers = Resolvers::new(&DnsConfig {
            resolv_conf: path.clone(),
            ..DnsConfig::default()
        });
        assert_eq!(texts(&resolvers.list()), ["192.0.2.1:53"]);
        fs::write(&path, "nameserver 192.0.2.22\n").unwrap();
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(texts(&resolvers.list()), ["192.0.2.22:53"]);
        // While the file is missing, the last list stays.
        fs::remove_file(&path).unwrap();
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(texts(&resolvers.list()), ["192.0.2.22:53"]);
    }

    #[test]
    fn resolvers_of_the_settings_replace_the_file() {
        let resolvers = Resolvers::new(&DnsConfig {
            upstream: vec!["192.0.2.7:5353".parse().unwrap()],
            ..DnsConfig::default()
        });
        assert_eq!(texts(&resolvers.list()), ["192.0.2.7:5353"]);
    }
}
