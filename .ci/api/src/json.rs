//! rustdoc's description of a crate in JSON.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The format that public-api reads.
const FORMAT: u64 = 57;

/// Returns the file in `docs` that describes the crate in `crates/FOLDER`.
pub fn file(docs: &Path, folder: &str) -> PathBuf {
    match folder {
        "fullsend" => docs.join("fullsend.json"),
        _ => docs.join(format!("fullsend_{folder}.json")),
    }
}

/// Reads a description, or returns why it has another format.
pub fn read(file: &Path) -> Result<Result<Value, String>, Box<dyn Error>> {
    let text = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let described: Value = serde_json::from_slice(&text)?;
    let format = described["format_version"].as_u64().unwrap_or_default();
    if format == FORMAT {
        return Ok(Ok(described));
    }
    Ok(Err(format!(
        "this rustdoc writes its format {format}, and .ci/api reads {FORMAT}"
    )))
}
