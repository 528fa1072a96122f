//! Compares the public API of the published crates with the snapshots `crates/*/api.txt`, and finds
//! types in public signatures that a user of the crate cannot name through the crate.
//!
//! `.ci/api/run` calls it with the folder that has rustdoc's JSON. With `FULLSEND_UPDATE_DOCS=1` it
//! writes the snapshots anew.

mod json;
mod names;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

/// The folders of the crates with a snapshot: those that others use directly.
const SNAPSHOTS: [&str; 5] = ["offload", "qdisc", "tcp", "device", "fullsend"];
/// The folders of further crates whose signatures are checked for types without a name.
const OTHERS: [&str; 10] = [
    "wire", "stack", "posix", "sim", "driver", "control", "vhost", "blocking", "simnet", "gateway",
];
/// Most differing lines to print of a crate.
const SHOWN: usize = 40;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let docs = env::args_os()
        .nth(1)
        .ok_or("the folder of the JSON files is missing")?;
    let update = env::var_os("FULLSEND_UPDATE_DOCS").is_some();
    let mut faults = 0;
    for folder in SNAPSHOTS.into_iter().chain(OTHERS) {
        let file = json::file(Path::new(&docs), folder);
        let described = match json::read(&file)? {
            Ok(described) => described,
            Err(reason) => {
                println!("not compared: {reason}");
                return Ok(ExitCode::SUCCESS);
            }
        };
        for fault in names::without_name(&described)? {
            println!("{folder}: {fault}");
            faults += 1;
        }
        if SNAPSHOTS.contains(&folder) && !compare(folder, &file, update)? {
            faults += 1;
        }
    }
    if faults > 0 {
        return Ok(ExitCode::FAILURE);
    }
    println!("public API as in crates/*/api.txt: {}", SNAPSHOTS.join(" "));
    Ok(ExitCode::SUCCESS)
}

/// Compares a crate's API with its snapshot, or writes it. Returns false if they differ.
fn compare(folder: &str, json: &Path, update: bool) -> Result<bool, Box<dyn Error>> {
    let api = public_api::Builder::from_rustdoc_json(json)
        .sorted(true)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    let now: String = api.items().map(|item| format!("{item}\n")).collect();
    let path = format!("crates/{folder}/api.txt");
    if update {
        fs::write(&path, now)?;
        return Ok(true);
    }
    let before = fs::read_to_string(&path).unwrap_or_default();
    if before == now {
        return Ok(true);
    }
    println!(
        "{path} differs from the crate's public API. If the change is intended, and CHANGELOG.md \
         has it, write the file with FULLSEND_UPDATE_DOCS=1 .ci/api/run:"
    );
    for line in changed(&before, &now).iter().take(SHOWN) {
        println!("  {line}");
    }
    Ok(false)
}

/// Returns the lines that only one of two texts has, with a sign in front.
fn changed(before: &str, now: &str) -> Vec<String> {
    let (old, new): (Vec<_>, Vec<_>) = (before.lines().collect(), now.lines().collect());
    let removed = old.iter().filter(|line| !new.contains(line));
    let added = new.iter().filter(|line| !old.contains(line));
    removed
        .map(|line| format!("-{line}"))
        .chain(added.map(|line| format!("+{line}")))
        .collect()
}
