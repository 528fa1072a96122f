//! The table of `docs/tokio.md`: tokio's public methods, read from its source, beside ours.
//!
//! `FULLSEND_UPDATE_DOCS=1 cargo test -p fullsend --test tokio_table` writes the table anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The types that have a twin, with tokio's source of each.
const TYPES: [(&str, &str); 8] = [
    ("TcpStream", "tcp/stream.rs"),
    ("ReadHalf", "tcp/split.rs"),
    ("WriteHalf", "tcp/split.rs"),
    ("OwnedReadHalf", "tcp/split_owned.rs"),
    ("OwnedWriteHalf", "tcp/split_owned.rs"),
    ("TcpListener", "tcp/listener.rs"),
    ("TcpSocket", "tcp/socket.rs"),
    ("UdpSocket", "udp.rs"),
];

const NO_STD: &str = "there is no kernel socket that the standard library could own";
const NO_DEVICE: &str =
    "a stack has one device; `TcpSocket::bind` and `UdpSocket::bind` choose the address";
const DEPRECATED: &str = "deprecated in tokio; use `tos_v4`";

/// Methods of tokio that have no twin, with the reason.
const MISSING: &[(&str, &str, &str)] = &[
    ("TcpStream", "from_std", NO_STD),
    ("TcpStream", "into_std", NO_STD),
    ("TcpListener", "from_std", NO_STD),
    ("TcpListener", "into_std", NO_STD),
    ("TcpSocket", "from_std_stream", NO_STD),
    ("TcpSocket", "device", NO_DEVICE),
    ("TcpSocket", "bind_device", NO_DEVICE),
    ("TcpSocket", "tos", DEPRECATED),
    ("TcpSocket", "set_tos", DEPRECATED),
    ("UdpSocket", "from_std", NO_STD),
    ("UdpSocket", "into_std", NO_STD),
    ("UdpSocket", "device", NO_DEVICE),
    ("UdpSocket", "bind_device", NO_DEVICE),
    ("UdpSocket", "tos", DEPRECATED),
    ("UdpSocket", "set_tos", DEPRECATED),
];

const ON_STACK: &str = "takes the stack first";
const BIND: &str = "takes the stack first, and is not `async`; `bind_resolved` accepts names";
const ALWAYS_READY: &str = "always ready: a datagram for which a queue has no room is dropped";

/// Methods that differ from tokio's, with the difference.
const DIFFERENT: &[(&str, &str, &str)] = &[
    ("TcpStream", "connect", ON_STACK),
    ("TcpListener", "bind", BIND),
    ("TcpSocket", "new_v4", ON_STACK),
    ("TcpSocket", "new_v6", ON_STACK),
    (
        "TcpSocket",
        "bind",
        "does not reserve the port: `connect` and `listen` report that it is in use",
    ),
    (
        "TcpSocket",
        "set_reuseaddr",
        "no effect: a listener may always have the port of connections in TIME-WAIT",
    ),
    ("UdpSocket", "bind", BIND),
    ("UdpSocket", "writable", ALWAYS_READY),
    ("UdpSocket", "poll_send_ready", ALWAYS_READY),
    ("UdpSocket", "set_tos_v4", "one value for both families"),
    ("UdpSocket", "set_tclass_v6", "one value for both families"),
    ("TcpSocket", "set_tos_v4", "one value for both families"),
    ("TcpSocket", "set_tclass_v6", "one value for both families"),
];

type Methods = BTreeMap<&'static str, BTreeSet<String>>;

/// Returns the platform for which cargo compiles.
fn host_platform() -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(rustc).arg("-vV").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("rustc -vV prints the host").to_owned()
}

/// Returns the folder of the sources of tokio's `net`. Packages of other platforms need not have been
/// downloaded.
fn tokio_net() -> PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .args(["--filter-platform", &host_platform()])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let manifest = text
        .split("\"manifest_path\":\"")
        .filter_map(|rest| rest.split('"').next())
        .find(|path| {
            let folder = Path::new(path).parent().and_then(Path::file_name);
            folder.is_some_and(|name| name.to_string_lossy().starts_with("tokio-1."))
        });
    let manifest = manifest.expect("cargo metadata lists tokio, which this crate uses");
    Path::new(manifest).with_file_name("src").join("net")
}

/// Returns the types whose methods follow a line that begins an `impl` block or one of our macros.
fn types_of(line: &str) -> Option<Vec<&'static str>> {
    let line = line.trim_start();
    if let Some(name) = line.strip_prefix("macro_rules! ") {
        return Some(match name.trim_end_matches(" {") {
            "delegate" => vec!["ReadHalf", "WriteHalf", "OwnedReadHalf", "OwnedWriteHalf"],
            "read_methods" => vec!["ReadHalf", "OwnedReadHalf"],
            "write_methods" => vec!["WriteHalf", "OwnedWriteHalf"],
            _ => Vec::new(),
        });
    }
    let rest = line.strip_prefix("impl ")?.trim_end_matches(" {");
    // The blocks in our macros.
    if rest.contains("$half") {
        return None;
    }
    let name = rest.trim_end_matches("<'_>");
    let known = TYPES.iter().filter(|(known, _)| *known == name);
    Some(known.map(|(known, _)| *known).collect())
}

/// Adds the public methods in a source file.
fn read_methods(path: &Path, methods: &mut Methods) {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut current = Vec::new();
    for line in text.lines() {
        if let Some(types) = types_of(line) {
            current = types;
        }
        let Some(rest) = line.trim_start().strip_prefix("pub ") else {
            continue;
        };
        let rest = ["const ", "async "]
            .iter()
            .fold(rest, |rest, word| rest.strip_prefix(word).unwrap_or(rest));
        let Some(rest) = rest.strip_prefix("fn ") else {
            continue;
        };
        let name: String = rest
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        for kind in &current {
            methods.entry(*kind).or_default().insert(name.clone());
        }
    }
}

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

fn ours() -> Methods {
    let mut methods = Methods::new();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = vec![src.join("udp.rs")];
    sources(&src.join("udp"), &mut paths);
    sources(&src.join("tcp"), &mut paths);
    for path in paths {
        read_methods(&path, &mut methods);
    }
    methods
}

fn tokios() -> Methods {
    let mut methods = Methods::new();
    let folder = tokio_net();
    let files: BTreeSet<&str> = TYPES.iter().map(|(_, file)| *file).collect();
    for file in files {
        read_methods(&folder.join(file), &mut methods);
    }
    methods
}

fn reason(of: &[(&str, &str, &'static str)], kind: &str, method: &str) -> Option<&'static str> {
    let mut all = of.iter();
    all.find(|(known, name, _)| (*known, *name) == (kind, method))
        .map(|(_, _, reason)| *reason)
}

/// Returns the table, and the methods that neither exist nor have a reason.
fn table(tokios: &Methods, ours: &Methods) -> (String, Vec<String>) {
    let (mut out, mut unexplained) = (String::new(), Vec::new());
    for (kind, _) in TYPES {
        let (theirs, own) = (&tokios[kind], &ours[kind]);
        writeln!(
            out,
            "### {kind}\n\n| tokio | fullsend | difference |\n|---|---|---|"
        )
        .unwrap();
        for method in theirs {
            let different = reason(DIFFERENT, kind, method).unwrap_or("");
            let missing = reason(MISSING, kind, method);
            match (own.contains(method), missing) {
                (true, _) => writeln!(out, "| `{method}` | yes | {different} |").unwrap(),
                (false, Some(why)) => writeln!(out, "| `{method}` | no | {why} |").unwrap(),
                (false, None) => unexplained.push(format!("{kind}::{method}")),
            }
        }
        let more: Vec<_> = own
            .difference(theirs)
            .map(|name| format!("`{name}`"))
            .collect();
        writeln!(out, "\nOnly in fullsend: {}.\n", more.join(", ")).unwrap();
    }
    (out, unexplained)
}

#[test]
fn each_method_of_tokio_has_a_twin_or_a_reason() {
    let (tokios, ours) = (tokios(), ours());
    assert!(
        tokios["UdpSocket"].len() > 60,
        "tokio's source was not read: {tokios:?}"
    );
    let (table, unexplained) = table(&tokios, &ours);
    assert_eq!(
        unexplained,
        Vec::<String>::new(),
        "methods of tokio without a twin or a reason"
    );
    for (kind, method, why) in MISSING {
        let stale = !tokios[kind].contains(*method) || ours[kind].contains(*method);
        assert!(!stale, "{kind}::{method} needs no reason any more: {why}");
    }
    for (kind, method, _) in DIFFERENT {
        let both = tokios[kind].contains(*method) && ours[kind].contains(*method);
        assert!(both, "{kind}::{method} is not in both crates");
    }
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tokio.md");
    let text = fs::read_to_string(page).unwrap();
    let (begin, end) = ("<!-- table: begin -->\n", "<!-- table: end -->");
    let start = text.find(begin).expect("the page marks the table") + begin.len();
    let stop = text.find(end).expect("the page marks the table");
    if std::env::var_os("FULLSEND_UPDATE_DOCS").is_some() {
        let updated = format!("{}\n{table}{}", &text[..start], &text[stop..]);
        return fs::write(page, updated).unwrap();
    }
    let current = text[start..stop].trim();
    assert!(
        current == table.trim(),
        "the table of docs/tokio.md is outdated; run FULLSEND_UPDATE_DOCS=1 cargo test -p fullsend \
         --test tokio_table"
    );
}
