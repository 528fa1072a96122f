//! The host's resolvers, from a file in the format of resolv.conf(5).

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::DnsConfig;
use crate::message::resolv_conf::parse;

mod health;

pub(crate) use health::ResolverHealth;

/// The file of the host's resolvers.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Most symbolic links that are followed.
const MAX_LINKS: usize = 8;
/// How often the file is checked for changes at most.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The resolvers that queries are relayed to.
pub(crate) struct Resolvers {
    path: PathBuf,
    /// Whether the list comes from the settings and not from the file.
    is_fixed: bool,
    state: Mutex<State>,
    health: ResolverHealth,
}

struct State {
    list: Vec<SocketAddr>,
    /// The version of the file that `list` was read from.
    version: Option<FileVersion>,
    checked: Option<Instant>,
    /// The error of the last check, whose warning is not repeated.
    error: Option<io::ErrorKind>,
}

/// What differs between two versions of a file: device, inode, size, and time of the last change
/// in seconds and nanoseconds.
type FileVersion = (u64, u64, u64, i64, i64);

impl Resolvers {
    /// Reads the file, unless the settings name resolvers. Warns if there are none.
    pub(crate) fn new(config: &DnsConfig) -> Self {
        let mut state = State {
            list: config.upstream.clone(),
            version: None,
            checked: None,
            error: None,
        };
        let is_fixed = !config.upstream.is_empty();
        let path = config.resolv_conf.clone();
        if !is_fixed && let Some(warning) = state.check(&path) {
            tracing::warn!("{warning}");
        }
        Self {
            path,
            is_fixed,
            state: Mutex::new(state),
            health: ResolverHealth::default(),
        }
    }

    /// Returns the resolvers in the order of the file. Reads it again if it has changed.
    pub(crate) fn list(&self) -> Vec<SocketAddr> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let is_due = state.checked.is_none_or(|at| now - at >= CHECK_INTERVAL);
        if !self.is_fixed && is_due {
            state.checked = Some(now);
            if let Some(warning) = state.check(&self.path) {
                tracing::warn!("{warning}");
            }
        }
        state.list.clone()
    }

    /// Returns which resolvers answer.
    pub(crate) const fn health(&self) -> &ResolverHealth {
        &self.health
    }

    /// Returns the first resolver.
    pub(crate) fn first(&self) -> Option<SocketAddr> {
        self.list().first().copied()
    }
}

impl State {
    /// Reads the file if it is another version. After an error the list is as before: an editor may
    /// be replacing the file. Returns a warning of an error that the last check did not have.
    fn check(&mut self, path: &Path) -> Option<String> {
        let error = self.reload(path).err();
        let last = std::mem::replace(&mut self.error, error.as_ref().map(io::Error::kind));
        let error = error.filter(|error| last != Some(error.kind()))?;
        let path = path.display();
        Some(if self.list.is_empty() {
            format!("cannot read {path}: {error}; until it can be read, DNS queries fail")
        } else {
            format!(
                "cannot read {path} any more: {error}; DNS queries go to the resolvers that it had; if \
                 it is in another directory now, which a sandbox hides, restart the gateway"
            )
        })
    }

    fn reload(&mut self, path: &Path) -> io::Result<()> {
        let metadata = fs::metadata(path)?;
        let version = (
            metadata.dev(),
            metadata.ino(),
            metadata.size(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        );
        if self.version == Some(version) {
            return Ok(());
        }
        self.list = parse(&fs::read_to_string(path)?);
        self.version = Some(version);
        tracing::debug!(resolvers = ?self.list, "read {}", path.display());
        Ok(())
    }
}

/// Returns the directories that must be visible to read a file and the files that its symbolic links
/// lead to, as the links name them.
pub(crate) fn folders_of(path: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Some(folder) = path.parent().map(Path::to_owned) else {
            break;
        };
        let target = fs::read_link(&path);
        if !folders.iter().any(|known| folder.starts_with(known)) {
            folders.push(folder.clone());
        }
        match target {
            Ok(target) => path = without_parents(&folder.join(target)),
            Err(_) => break,
        }
    }
    folders
}

/// Removes `..` and the component before it.
fn without_parents(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
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
    fn an_error_is_one_warning_until_the_file_can_be_read() {
        let folder = std::env::temp_dir().join(format!("resolv-error-{}", std::process::id()));
        let path = folder.join("resolv.conf");
        let mut state = State {
            list: Vec::new(),
            version: None,
            checked: None,
            error: None,
        };
        let mut check = || state.check(&path);
        for part in ["resolv.conf: ", "resolv.conf any more: "] {
            let missing = check().unwrap();
            assert!(missing.contains(part), "{missing}");
            assert_eq!(check(), None);
            // A file in place of the directory is another error.
            fs::write(&folder, "").unwrap();
            let other = check().unwrap();
            assert!(other.contains(part) && other != missing, "{other}");
            assert_eq!(check(), None);
            fs::remove_file(&folder).unwrap();
            fs::create_dir(&folder).unwrap();
            fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
            assert_eq!(check(), None);
            fs::remove_dir_all(&folder).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_file_is_read_before_the_first_query() {
        let path = std::env::temp_dir().join(format!("resolv-early-{}", std::process::id()));
        fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        let resolvers = Resolvers::new(&DnsConfig {
            resolv_conf: path.clone(),
            ..DnsConfig::default()
        });
        // A sandbox may hide it from then on.
        fs::remove_file(&path).unwrap();
        assert_eq!(texts(&resolvers.list()), ["192.0.2.1:53"]);
    }

    #[test]
    fn the_folders_of_a_chain_of_links_are_those_that_the_links_name() {
        let root = std::env::temp_dir().join(format!("resolv-links-{}", std::process::id()));
        let [etc, run, net] = ["etc", "run/systemd/resolve", "net"].map(|name| root.join(name));
        for folder in [&etc, &run, &net] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(net.join("resolv.conf"), "").unwrap();
        let link = |from: &Path, to: &Path| std::os::unix::fs::symlink(to, from).unwrap();
        let first = etc.join("resolv.conf");
        link(&first, Path::new("../run/systemd/resolve/stub.conf"));
        link(&run.join("stub.conf"), &net.join("resolv.conf"));
        assert_eq!(folders_of(&first), [etc, run, net.clone()]);
        assert_eq!(folders_of(&net.join("resolv.conf")), [net]);
        fs::remove_dir_all(&root).unwrap();
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
