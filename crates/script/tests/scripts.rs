//! Runs every script in `scripts/`, over IPv4, IPv6 and IPv4 under IPv6 sockets.

use std::fs;
use std::path::{Path, PathBuf};

use fullsend_script::{families, parse, run};

fn scripts(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).expect("a folder of scripts");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            scripts(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "pkt") {
            found.push(path);
        }
    }
}

#[test]
fn every_script_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let mut paths = Vec::new();
    scripts(&folder, &mut paths);
    assert!(!paths.is_empty(), "no scripts in {}", folder.display());
    let mut failures = Vec::new();
    for path in &paths {
        let name = path.strip_prefix(&folder).unwrap_or(path).display();
        let text = fs::read_to_string(path).unwrap();
        let script = match parse(&text) {
            Ok(script) => script,
            Err(error) => {
                failures.push(format!("{name}:{error}"));
                continue;
            }
        };
        for family in families(&script).unwrap() {
            match run(&script, family) {
                Ok(report) if report.skipped.is_empty() => {}
                Ok(report) => failures.push(format!("{name}: left out: {:?}", report.skipped)),
                Err(failure) => failures.push(format!("{name}:{failure}")),
            }
        }
    }
    let (failed, all) = (failures.len(), paths.len());
    assert!(
        failures.is_empty(),
        "{failed} failures in {all} scripts\n{}",
        failures.join("\n")
    );
}
