//! `--memory SIZE`: the memory of a gateway.

use std::env;

use anyhow::{Context, Result};
use fullsend_gateway::{Config, MemoryBudget};

/// Requests a budget from programs whose caller cannot pass an option: its size.
const MEMORY: &str = "FULLSEND_MEMORY";

/// Gives a gateway the memory of `--memory`, or without that option of the environment. Without both it
/// has what [`Config::default`] has read of the machine and the process's control groups.
///
/// # Errors
/// Returns an error if the environment has a value that is not a size.
pub(super) fn apply(option: Option<MemoryBudget>, config: &mut Config) -> Result<()> {
    if let Some(memory) = option {
        config.memory = memory;
    } else if let Some(value) = env::var_os(MEMORY) {
        let size = value.to_string_lossy();
        config.memory = size.parse().context(MEMORY)?;
    }
    Ok(())
}
