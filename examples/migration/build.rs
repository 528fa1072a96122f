//! Prepares the library of mini-redis to be compiled with the sockets of fullsend: its source from the
//! registry, with other imports and one other constructor. The modules become one file, because the
//! path of a module cannot be computed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The module in `tests/programs/main.rs` that contains the library.
const MODULE: &str = "redis_on_stack";

/// The replacements: the old text, the new text, and the number of places.
const REPLACED: [(&str, &str, usize); 2] = [
    ("tokio::net::", "crate::redis_net::", 4),
    (
        "TcpStream::connect(addr)",
        "TcpStream::connect(&crate::redis_net::stack(), addr)",
        1,
    ),
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../Cargo.lock");
    let root = package_dir("mini-redis").join("src");
    let mut source = inlined(&root.join("lib.rs"), &root);
    source = source.replace("crate::", &format!("crate::{MODULE}::"));
    for (from, to, count) in REPLACED {
        let found = source.matches(from).count();
        assert_eq!(
            found, count,
            "mini-redis has {from:?} {found} times; adapt build.rs"
        );
        source = source.replace(from, to);
    }
    let module = format!(
        "#[allow(warnings, clippy::all, clippy::pedantic, reason = \"of another project\")]\n\
         pub(crate) mod {MODULE} {{\n{source}\n}}\n"
    );
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("mini_redis.rs"), module).expect("OUT_DIR is writable");
}

/// Returns the directory of a dependency.
fn package_dir(name: &str) -> PathBuf {
    let cargo = env::var_os("CARGO").expect("cargo sets CARGO");
    let target = env::var("TARGET").expect("cargo sets TARGET");
    // Packages of other targets may not have been downloaded.
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version=1",
            "--filter-platform",
            &target,
        ])
        .output()
        .expect("cargo metadata runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("cargo metadata: {error}: {errors}"));
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let package = packages.iter().find(|package| package["name"] == name);
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    let manifest = Path::new(manifest.expect("the package is a dependency"));
    manifest.parent().expect("a directory").to_owned()
}

/// Returns the source of a file with its modules, which are in `dir`, in place of their
/// declarations.
fn inlined(file: &Path, dir: &Path) -> String {
    let source = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let mut out = String::new();
    for line in source.lines() {
        let Some((visibility, name)) = line
            .strip_suffix(';')
            .and_then(|line| line.split_once("mod "))
            .filter(|(before, _)| matches!(*before, "" | "pub " | "pub(crate) "))
        else {
            out += &format!("{line}\n");
            continue;
        };
        let single = dir.join(format!("{name}.rs"));
        let folder = dir.join(name);
        let file = if single.exists() {
            single
        } else {
            folder.join("mod.rs")
        };
        out += &format!("{visibility}mod {name} {{\n{}}}\n", inlined(&file, &folder));
    }
    out
}
