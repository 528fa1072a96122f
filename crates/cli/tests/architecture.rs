//! Compares ARCHITECTURE.md with the workspace: the arrows between crates, and the path of a byte. Also
//! tests what the socket crates promise about their dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// For each crate, those that it may use.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Reads `a ◄─ { b ◄─ c, d } ◄─ e` from `words` up to a `}` or the end, and returns its crates:
/// each may use those to its left.
fn chain(words: &mut impl Iterator<Item = String>, arrows: &mut Arrows) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let (mut left, mut last) = (BTreeSet::new(), BTreeSet::new());
    while let Some(word) = words.next() {
        match word.as_str() {
            "}" => break,
            "," => left = BTreeSet::new(),
            "◄─" => left.append(&mut last),
            "{" => last = chain(words, arrows),
            name => {
                arrows.entry(name.into()).or_default();
                last = BTreeSet::from([name.into()]);
            }
        }
        for name in &last {
            let uses = arrows.get_mut(name).expect("each name has an entry");
            uses.extend(left.iter().cloned());
        }
        all.extend(last.iter().cloned());
    }
    all
}

/// Returns what each crate may use, directly or through others.
fn drawn() -> Arrows {
    let text = std::fs::read_to_string(format!("{ROOT}/ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let section = text.split("## Crates and their dependencies").nth(1);
    let block = section.and_then(|s| s.split("```").nth(1)).expect("arrows");
    let mut arrows = Arrows::new();
    for line in block.lines() {
        let line = line.replace(',', " , ");
        let mut words = line.split_whitespace().map(String::from);
        chain(&mut words, &mut arrows);
    }
    loop {
        let before = arrows.clone();
        for uses in arrows.values_mut() {
            let further: Vec<_> = uses.iter().filter_map(|name| before.get(name)).collect();
            uses.extend(further.into_iter().flatten().cloned());
        }
        if arrows == before {
            return arrows;
        }
    }
}

/// Returns the dependencies between the crates of the workspace, without those of tests.
fn built() -> Arrows {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(ROOT)
        .output()
        .expect("cargo metadata runs");
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let folder = |path: &serde_json::Value| {
        let path = path.as_str()?.trim_end_matches("/Cargo.toml");
        path.rsplit('/').next().map(String::from)
    };
    let name = |package: &serde_json::Value| folder(&package["manifest_path"]).expect("a path");
    let uses = |package: &serde_json::Value| {
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        let used = dependencies.iter().filter(|d| d["kind"].is_null());
        used.filter_map(|d| folder(&d["path"])).collect()
    };
    packages.iter().map(|p| (name(p), uses(p))).collect()
}

#[test]
fn socket_crates_depend_on_serde_only_with_their_feature_control() {
    let has_serde = |package, features| {
        let tree = Command::new(env!("CARGO"))
            .args(["tree", "--edges=normal", "--prefix=none"])
            .args(["--package", package, "--features", features])
            .current_dir(ROOT)
            .output()
            .expect("cargo tree runs");
        let error = String::from_utf8_lossy(&tree.stderr);
        assert!(tree.status.success(), "{package}: {error}");
        let tree = String::from_utf8_lossy(&tree.stdout);
        assert!(tree.starts_with(package), "{tree}");
        tree.lines().any(|line| line.starts_with("serde"))
    };
    for package in ["fullsend", "fullsend-blocking"] {
        assert!(!has_serde(package, ""), "{package}");
        assert!(has_serde(package, "control"), "{package}");
    }
}

#[test]
fn crates_depend_only_on_those_to_their_left() {
    let (drawn, built) = (drawn(), built());
    assert!(built.len() > 10, "{built:?}");
    for (name, uses) in &built {
        let may = drawn
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not drawn"));
        let others: Vec<_> = uses.difference(may).collect();
        assert!(
            others.is_empty(),
            "{name} uses {others:?}; ARCHITECTURE.md draws {may:?}"
        );
    }
    let gone: Vec<_> = drawn
        .keys()
        .filter(|name| !built.contains_key(*name))
        .collect();
    assert!(gone.is_empty(), "drawn, but no crates: {gone:?}");
}

/// Returns the words of `cell` that are in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns the Rust sources of a file or folder as one text.
fn source(path: &Path) -> String {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).expect("a folder");
        let entries = entries.map(|entry| source(&entry.expect("an entry").path()));
        return entries.collect();
    }
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The functions in the tables of the path of a byte are in the files that their row names.
#[test]
fn the_functions_on_the_path_of_a_byte_exist() {
    let text = std::fs::read_to_string(format!("{ROOT}/ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let section = text.split("### The path of a byte").nth(1);
    let section = section.and_then(|s| s.split("\n## ").next()).expect("path");
    let mut found = 0;
    for line in section.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, functions, files, _, _] = cells[..] else {
            continue;
        };
        // A path without its crate is relative to `src` of the crate before.
        let mut sources = String::new();
        let mut krate = "";
        for file in quoted(files) {
            let full = match file.split_once("/src") {
                Some((name, _)) => {
                    krate = name;
                    format!("{ROOT}/crates/{file}")
                }
                None => format!("{ROOT}/crates/{krate}/src/{file}"),
            };
            sources += &source(Path::new(&full));
        }
        for name in quoted(functions) {
            let name = name.rsplit("::").next().expect("a name");
            let written = ["(", "<"].map(|end| format!("fn {name}{end}"));
            assert!(
                written.iter().any(|f| sources.contains(f)),
                "{name}: {files}"
            );
            found += 1;
        }
    }
    assert!(found > 50, "{found} functions");
}
