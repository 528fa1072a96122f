//! The memory budget of a gateway: `--memory SIZE`.

use std::env;

use anyhow::{Context, Result};
use fullsend_gateway::{Config, MemoryBudget};

/// The environment variable with the budget, for programs whose caller cannot pass an option.
const MEMORY: &str = "FULLSEND_MEMORY";

/// Sets the memory budget from the option `--memory`, or else from the environment. Without both, the
/// value of [`Config::default`] stays.
///
/// # Errors
/// Returns an error if the value in the environment is not a size.
pub(super) fn apply(option: Option<MemoryBudget>, config: &mut Config) -> Result<()> {
    if let Some(memory) = option {
        config.memory = memory;
    } else if let Some(value) = env::var_os(MEMORY) {
        let size = value.to_string_lossy();
        config.memory = size.parse().context(MEMORY)?;
    }
    Ok(())
}
