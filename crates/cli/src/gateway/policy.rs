//! The policy of a guest: `--policy FILE`.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fullsend_device::LogLimit;
use fullsend_gateway::namespace::{
    FileOpener, Guard, GuardedFile, HangupOrigin, Spawned, StartedOpener,
};
use fullsend_gateway::{Config, Handle, PolicyFile};
use tokio::signal::unix::{SignalKind, signal};

/// The environment variable with the policy's file, for programs whose caller cannot pass an option.
const POLICY: &str = "FULLSEND_POLICY";

/// The limit of the log lines about signals from a command.
static IGNORED: LogLimit = LogLimit::new();

/// The file of a gateway's policy, which is read again at SIGHUP.
pub(super) struct PolicySource {
    path: PathBuf,
    /// The open file; `None` if it is not a regular file.
    file: Option<GuardedFile>,
    has_relay: bool,
}

/// The means to read a [`PolicySource`] again after the sandbox has hidden the file.
pub(super) struct Reloads {
    /// The process that opens the file; `None` if a command runs and the file is not a regular file.
    opener: Option<FileOpener>,
    /// The detector of SIGHUPs from a command, if one runs.
    origin: Option<HangupOrigin>,
    path: PathBuf,
    has_relay: bool,
}

/// Applies the policy of the option `--policy`, or else of the environment. Returns `None` if there is
/// none. Must be called before the sandbox hides the file.
///
/// # Errors
/// Returns an error if the file cannot be used, or if the environment variable is empty: unlike other
/// settings of the environment, this one is never ignored.
pub(super) fn apply(option: Option<&Path>, config: &mut Config) -> Result<Option<PolicySource>> {
    let from_environment = || env::var_os(POLICY).map(PathBuf::from);
    let Some(path) = option.map(Path::to_owned).or_else(from_environment) else {
        return Ok(None);
    };
    if path.as_os_str().is_empty() {
        match option {
            Some(_) => bail!("the policy has no file name; write one"),
            None => bail!("{POLICY} is empty; set it to a file, or unset it"),
        }
    }
    let opened = path.is_file().then(|| GuardedFile::open(&path).ok());
    let source = PolicySource {
        has_relay: has_relay(config),
        file: opened.flatten(),
        // The current directory may change when the program continues in the background.
        path: std::path::absolute(&path).context("the current directory has no path")?,
    };
    let file = match &source.file {
        Some(file) => PolicyFile::read_from(file.file(), &path.display().to_string())?,
        // The path is a pipe, or opening it fails again with the error to report.
        None => PolicyFile::read(&path)?,
    };
    check_relay(&file, &path, source.has_relay)?;
    file.apply(config);
    Ok(Some(source))
}

fn check_relay(file: &PolicyFile, path: &Path, has_relay: bool) -> Result<()> {
    if file.policy().needs_dns_relay() && !has_relay {
        bail!(
            "the policy {} has domains or names, and the guest has no DNS relay that resolves them; add --dns-forward ADDRESS (pasta, passt), or remove --disable-dns (slirp4netns)",
            path.display()
        );
    }
    Ok(())
}

impl PolicySource {
    /// Returns the guard that prevents a command from writing the file.
    pub(super) fn guard(&self) -> Option<Guard> {
        self.file.as_ref().map(GuardedFile::guard)
    }

    /// Starts the process that opens the file, but not if `command` may have written it. Must be called
    /// before the sandbox hides the file, and before the process has threads.
    pub(super) fn reloads(self, command: Option<&Spawned>) -> Result<Reloads> {
        let opener = match (command, self.file) {
            (None, _) => Some(FileOpener::start(&self.path)),
            (Some(command), Some(file)) => Some(FileOpener::start_guarded(&file.beside(command))),
            (Some(_), None) => None,
        };
        let origin = command.map(Spawned::hangup_origin).transpose()?;
        Ok(Reloads {
            opener: opener
                .transpose()
                .context("cannot start the process that opens the policy")?,
            origin,
            path: self.path,
            has_relay: self.has_relay,
        })
    }
}

impl Reloads {
    /// Reads the file at each SIGHUP from now on, as long as the runtime runs. A file with an error does
    /// not change the policy, nor does a SIGHUP from a command.
    pub(super) fn start(self, handle: Handle) -> Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let (path, has_relay) = (self.path, self.has_relay);
        let opener = self.opener.map(FileOpener::started).transpose()?;
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                // An error comes from a command that has ended.
                if let Some(origin) = &self.origin
                    && origin.is_command().await.unwrap_or(true)
                {
                    IGNORED.warn((), || {
                        format!(
                            "ignored a SIGHUP from the command, or of its process group; send it to \
                             process {} alone to read the policy again",
                            std::process::id()
                        )
                    });
                    continue;
                }
                match reload(opener.as_ref(), (&path, has_relay), &handle).await {
                    Ok(unchanged) => log_reload(&path, &unchanged),
                    Err(error) => {
                        tracing::warn!("{error:#}; the policy stays as it was");
                    }
                }
            }
        });
        Ok(())
    }
}

async fn reload(
    opener: Option<&StartedOpener>,
    (path, has_relay): (&Path, bool),
    handle: &Handle,
) -> Result<Vec<&'static str>> {
    let name = path.display().to_string();
    let Some(opener) = opener else {
        bail!("cannot read the policy {name} again: it was no regular file at the start");
    };
    let file = opener.open().await;
    let file = file.with_context(|| format!("cannot read the policy {name}"))?;
    let file = PolicyFile::read_from(&file, &name)?;
    check_relay(&file, path, has_relay)?;
    Ok(file.apply_to(handle))
}

fn log_reload(path: &Path, unchanged: &[&str]) {
    let path = path.display();
    if unchanged.is_empty() {
        tracing::info!("read the policy {path} again");
    } else {
        let names = unchanged.join(", ");
        tracing::warn!("read the policy {path} again; {names} of it needs a new start");
    }
}

/// Applies the policy of the environment, for programs without the option; see [`apply`].
pub(super) fn apply_from_environment(config: &mut Config) -> Result<Option<PolicySource>> {
    apply(None, config).context(POLICY)
}

fn has_relay(config: &Config) -> bool {
    let v4 = config.ipv4.as_ref().and_then(|v4| v4.dns);
    let v6 = config.ipv6.as_ref().and_then(|v6| v6.dns);
    v4.is_some() || v6.is_some()
}
