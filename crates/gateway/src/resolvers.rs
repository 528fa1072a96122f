//! The host's resolvers, from a file in the format of resolv.conf(5).

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::config::DnsConfig;
use crate::message::resolv_conf::parse;
use crate::namespace::{FileOpener, StartedOpener};

mod health;

pub(crate) use health::ResolverHealth;

/// The file of the host's resolvers.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Most bytes that are read of the file.
const FILE_MAX: u64 = 64 << 10;
/// Shortest interval between checks of the file for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time that a query waits for the file, after which the last list is used.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// The resolvers to which queries are relayed.
pub(crate) struct Resolvers {
    path: PathBuf,
    /// Whether the list comes from the settings instead of the file.
    is_fixed: bool,
    /// The process that opens the file when a sandbox hides it.
    opener: Option<Arc<StartedOpener>>,
    state: Arc<Mutex<State>>,
    health: ResolverHealth,
}

struct State {
    list: Vec<SocketAddr>,
    /// The version of the file that `list` was read from.
    version: Option<FileVersion>,
    checked: Option<Instant>,
    /// Whether another process is opening the file.
    is_checking: bool,
    /// The error of the last check, about which no second warning is logged.
    error: Option<io::ErrorKind>,
}

/// The identity of a version of a file: device, inode, size, and time of the last change in seconds and
/// nanoseconds.
type FileVersion = (u64, u64, u64, i64, i64);

impl Resolvers {
    /// Reads the file, unless the settings name resolvers. Warns if there are none. Must be called within a
    /// tokio runtime if there is an `opener`.
    ///
    /// # Errors
    /// The error of registering the opener with the runtime.
    pub(crate) fn new(config: &DnsConfig, opener: Option<FileOpener>) -> io::Result<Self> {
        let mut state = State {
            list: config.upstream.clone(),
            version: None,
            checked: None,
            is_checking: false,
            error: None,
        };
        let is_fixed = !config.upstream.is_empty();
        let path = config.resolv_conf.clone();
        let opener = opener.filter(|_| !is_fixed);
        if !is_fixed {
            let opened = match &opener {
                Some(opener) => opener.open_now(),
                None => File::open(&path),
            };
            state.warn_of(&path, opened);
        }
        let opener = opener.map(FileOpener::started).transpose()?;
        Ok(Self {
            path,
            is_fixed,
            opener: opener.map(Arc::new),
            state: Arc::new(Mutex::new(state)),
            health: ResolverHealth::default(),
        })
    }

    /// Returns the resolvers in the order of the file, after reading a changed file again.
    pub(crate) async fn list(&self) -> Vec<SocketAddr> {
        if let Some(check) = self.begin_check() {
            let _ = timeout(READ_TIMEOUT, check).await;
        }
        self.state.lock().list.clone()
    }

    /// Returns the record of the resolvers' answers.
    pub(crate) const fn health(&self) -> &ResolverHealth {
        &self.health
    }

    /// Returns the first resolver. If another process must open the file, a change takes effect on the
    /// next call.
    pub(crate) fn first(&self) -> Option<SocketAddr> {
        drop(self.begin_check());
        self.state.lock().list.first().copied()
    }

    /// Starts a check of the file if one is due. Returns the task that waits for another process to open
    /// it.
    fn begin_check(&self) -> Option<JoinHandle<()>> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let is_due = state.checked.is_none_or(|at| now - at >= CHECK_INTERVAL);
        if self.is_fixed || !is_due || state.is_checking {
            return None;
        }
        state.checked = Some(now);
        let Some(opener) = self.opener.clone() else {
            state.warn_of(&self.path, File::open(&self.path));
            return None;
        };
        state.is_checking = true;
        let (shared, path) = (self.state.clone(), self.path.clone());
        // The task is not cancelled with the caller: the answer to a request must not be left for the
        // next one.
        Some(tokio::spawn(async move {
            let opened = opener.open().await;
            let mut state = shared.lock();
            state.is_checking = false;
            state.warn_of(&path, opened);
        }))
    }
}

impl State {
    /// Reads the file if it has changed, and logs an error that differs from that of the last check.
    fn warn_of(&mut self, path: &Path, opened: io::Result<File>) {
        if let Some(warning) = self.check(path, opened) {
            tracing::warn!("{warning}");
        }
    }

    /// Reads the file if it has changed. After an error the list stays, as an editor may be replacing the
    /// file. Returns a warning for an error that differs from that of the last check.
    fn check(&mut self, path: &Path, opened: io::Result<File>) -> Option<String> {
        let error = opened.and_then(|file| self.read(file, path)).err();
        let last = std::mem::replace(&mut self.error, error.as_ref().map(io::Error::kind));
        let error = error.filter(|error| last != Some(error.kind()))?;
        let path = path.display();
        Some(if self.list.is_empty() {
            format!("cannot read {path}: {error}; until it can be read, DNS queries fail")
        } else {
            format!(
                "cannot read {path} any more: {error}; DNS queries go to the resolvers that it had"
            )
        })
    }

    fn read(&mut self, file: File, path: &Path) -> io::Result<()> {
        let metadata = file.metadata()?;
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
        let mut text = String::new();
        file.take(FILE_MAX).read_to_string(&mut text)?;
        self.list = parse(&text);
        self.version = Some(version);
        tracing::debug!(resolvers = ?self.list, "read {}", path.display());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn texts(list: &[SocketAddr]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    fn of_file(path: &Path, opener: Option<FileOpener>) -> Resolvers {
        let config = DnsConfig {
            resolv_conf: path.to_owned(),
            ..DnsConfig::default()
        };
        Resolvers::new(&config, opener).unwrap()
    }

    #[tokio::test]
    async fn a_file_that_only_another_process_can_open_is_followed() {
        let folder = std::env::temp_dir().join(format!("resolv-opener-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("resolv.conf");
        fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        let opener = FileOpener::start(&path).unwrap();
        let config = DnsConfig {
            // A path that this process cannot open.
            resolv_conf: folder.join("hidden"),
            ..DnsConfig::default()
        };
        let resolvers = Resolvers::new(&config, Some(opener)).unwrap();
        assert_eq!(texts(&resolvers.list().await), ["192.0.2.1:53"]);
        // Editors and DHCP clients replace the file, and links may lead elsewhere.
        fs::write(folder.join("new"), "nameserver 192.0.2.2\n").unwrap();
        fs::rename(folder.join("new"), &path).unwrap();
        resolvers.state.lock().checked = None;
        assert_eq!(texts(&resolvers.list().await), ["192.0.2.2:53"]);
        fs::write(folder.join("target"), "nameserver 192.0.2.3\n").unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("target", &path).unwrap();
        resolvers.state.lock().checked = None;
        assert_eq!(texts(&resolvers.list().await), ["192.0.2.3:53"]);
        // While the file is missing, the last list stays.
        fs::remove_file(folder.join("target")).unwrap();
        resolvers.state.lock().checked = None;
        assert_eq!(texts(&resolvers.list().await), ["192.0.2.3:53"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_read_again() {
        let path = std::env::temp_dir().join(format!("resolv-{}", std::process::id()));
        fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        let resolvers = of_file(&path, None);
        assert_eq!(texts(&resolvers.list().await), ["192.0.2.1:53"]);
        fs::write(&path, "nameserver 192.0.2.22\n").unwrap();
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(texts(&resolvers.list().await), ["192.0.2.22:53"]);
        // While the file is missing, the last list stays.
        fs::remove_file(&path).unwrap();
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(texts(&resolvers.list().await), ["192.0.2.22:53"]);
    }

    #[test]
    fn an_error_is_one_warning_until_the_file_can_be_read() {
        let folder = std::env::temp_dir().join(format!("resolv-error-{}", std::process::id()));
        let path = folder.join("resolv.conf");
        let mut state = State {
            list: Vec::new(),
            version: None,
            checked: None,
            is_checking: false,
            error: None,
        };
        let mut check = || state.check(&path, File::open(&path));
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
        let resolvers = of_file(&path, None);
        // A sandbox may hide it from then on.
        fs::remove_file(&path).unwrap();
        assert_eq!(texts(&resolvers.list().await), ["192.0.2.1:53"]);
    }

    #[tokio::test]
    async fn resolvers_of_the_settings_replace_the_file() {
        let config = DnsConfig {
            upstream: vec!["192.0.2.7:5353".parse().unwrap()],
            ..DnsConfig::default()
        };
        let resolvers = Resolvers::new(&config, None).unwrap();
        assert_eq!(texts(&resolvers.list().await), ["192.0.2.7:5353"]);
    }
}
