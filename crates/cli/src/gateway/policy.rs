//! `--policy FILE`: what a guest may reach.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fullsend_gateway::{Config, PolicyFile};

/// Requests a policy from programs whose caller cannot pass an option: its file.
const POLICY: &str = "FULLSEND_POLICY";

/// Gives a gateway the policy of `--policy`, or without that option of the environment. Returns whether
/// there is one. Must be called before the sandbox hides the file.
///
/// # Errors
/// Returns an error if the file cannot be used, or the environment has the setting without a file: unlike
/// other settings of the environment, this one is never left out.
pub(super) fn apply(option: Option<&Path>, config: &mut Config) -> Result<bool> {
    let from_environment = || env::var_os(POLICY).map(PathBuf::from);
    let Some(path) = option.map(Path::to_owned).or_else(from_environment) else {
        return Ok(false);
    };
    if path.as_os_str().is_empty() {
        match option {
            Some(_) => bail!("the policy has no file name; write one"),
            None => bail!("{POLICY} is empty; set it to a file, or unset it"),
        }
    }
    let file = PolicyFile::read(&path)?;
    if file.policy().needs_dns_relay() && !has_relay(config) {
        bail!(
            "the policy {} has domains or names, and the guest has no DNS relay that resolves them; add --dns-forward ADDRESS (pasta, passt), or remove --disable-dns (slirp4netns)",
            path.display()
        );
    }
    file.apply(config);
    Ok(true)
}

/// Does the same as [`apply`] for programs that have no such option.
pub(super) fn apply_from_environment(config: &mut Config) -> Result<bool> {
    apply(None, config).context(POLICY)
}

fn has_relay(config: &Config) -> bool {
    let v4 = config.ipv4.as_ref().and_then(|v4| v4.dns);
    let v6 = config.ipv6.as_ref().and_then(|v6| v6.dns);
    v4.is_some() || v6.is_some()
}
