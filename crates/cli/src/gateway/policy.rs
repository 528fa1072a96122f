//! `--policy FILE`: what a guest may reach.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fullsend_device::LogLimit;
use fullsend_gateway::namespace::{
    FileOpener, Guard, GuardedFile, HangupOrigin, Spawned, StartedOpener,
};
use fullsend_gateway::{Config, Handle, PolicyFile};
use tokio::signal::unix::{SignalKind, signal};

/// Requests a policy from programs whose caller cannot pass an option: its file.
const POLICY: &str = "FULLSEND_POLICY";

/// The log lines about signals of a command.
static IGNORED: LogLimit = LogLimit::new();

/// The file of a gateway's policy, which is read again at SIGHUP.
pub(super) struct PolicySource {
    path: PathBuf,
    /// The open file; `None` if it is no regular file.
    file: Option<GuardedFile>,
    has_relay: bool,
}

/// A [`PolicySource`] that can be read after the sandbox has hidden the file.
pub(super) struct Reloads {
    /// `None` if the file beside a command is no regular file.
    opener: Option<FileOpener>,
    /// The origin of SIGHUPs beside a command.
    origin: Option<HangupOrigin>,
    path: PathBuf,
    has_relay: bool,
}

/// Gives a gateway the policy of `--policy`, or without that option of the environment. `None` if there
/// is none. Must be called before the sandbox hides the file.
///
/// # Errors
/// Returns an error if the file cannot be used, or the environment has the setting without a file: unlike
/// other settings of the environment, this one is never left out.
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
        // The directory may change when the program continues in the background.
        path: std::path::absolute(&path).context("the current directory has no path")?,
    };
    let file = match &source.file {
        Some(file) => PolicyFile::read_from(file.file(), &path.display().to_string())?,
        // A pipe, or an error, which has its text here.
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
    /// Returns what keeps a command from writing the file.
    pub(super) fn guard(&self) -> Option<Guard> {
        self.file.as_ref().map(GuardedFile::guard)
    }

    /// Starts the process that opens the file, and beside a command only if that cannot have written it. Must
    /// be called before the sandbox hides the file, and before the process has threads.
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
    /// Reads the file at each SIGHUP from now on, for as long as the runtime runs. A file with an error
    /// leaves the policy as it is, and so does a SIGHUP of a command.
    pub(super) fn start(self, handle: Handle) -> Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let (path, has_relay) = (self.path, self.has_relay);
        let opener = self.opener.map(FileOpener::started).transpose()?;
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                // An error is that of a command that has ended.
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

/// Does the same as [`apply`] for programs that have no such option.
pub(super) fn apply_from_environment(config: &mut Config) -> Result<Option<PolicySource>> {
    apply(None, config).context(POLICY)
}

fn has_relay(config: &Config) -> bool {
    let v4 = config.ipv4.as_ref().and_then(|v4| v4.dns);
    let v6 = config.ipv6.as_ref().and_then(|v6| v6.dns);
    v4.is_some() || v6.is_some()
}
