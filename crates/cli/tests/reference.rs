//! Compares docs/sysctls.md and docs/counters.md with the declarations in the source, and writes both anew with
//! `FULLSEND_UPDATE_DOCS=1 cargo test -p fullsend-cli --test reference`.

use std::fmt::Write as _;
use std::fs;

use fullsend_tcp::{Sysctl, SysctlError};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const SYSCTLS: &str = "\
# Tunables

`fullsend stat sysctl NAME=VALUE` sets a tunable of a running stack, `--set NAME=VALUE` of `fullsend perf` and
`Builder::sysctl` that of a new one. The names, units and defaults are Linux's unless the text says otherwise; the
prefix is optional. A gateway and a stack with a limited [memory](memory.md) derive `tcp_mem`, `udp_mem` and the
other bounds of tables from it.
";

const COUNTERS: &str = "\
# Counters

`fullsend stat nstat` prints the counters of a running stack, `fullsend stat gateway` and the
[metrics](gateway.md#what-it-is-doing) those of a gateway. The names are those of Linux's `nstat` where Linux has
the counter. All count since the start of the stack.
";

/// The files that declare counters, and the headings of their tables: `None` for the first line of the
/// documentation of each struct.
const DECLARATIONS: [(&str, Option<&str>); 8] = [
    ("tcp/src/mib.rs", Some("TCP connections")),
    ("stack/src/mib.rs", None),
    ("stack/src/udp.rs", None),
    ("stack/src/ip/reassembly.rs", None),
    ("stack/src/ip/icmp/mib.rs", None),
    ("stack/src/ip/multicast.rs", None),
    ("device/src/counters.rs", Some("Devices")),
    ("gateway/src/counters.rs", Some("Gateway")),
];

/// A declaration with the comment in front of it.
struct Row {
    declaration: String,
    doc: String,
}

/// Returns the declarations of a source file, each with its doc comment as one line of text.
fn rows(path: &str) -> Vec<Row> {
    let text = fs::read_to_string(format!("{ROOT}/crates/{path}")).expect("a source file");
    let (mut rows, mut doc) = (Vec::new(), String::new());
    for line in text.lines().map(str::trim) {
        if let Some(part) = line.strip_prefix("///") {
            // A definition of a link is not part of the text.
            if !part.trim_start().starts_with('[') || !part.contains("]: ") {
                doc = format!("{doc} {}", part.trim());
            }
        } else if !line.starts_with("#[") {
            rows.push(Row {
                declaration: line.to_owned(),
                doc: std::mem::take(&mut doc).trim().to_owned(),
            });
        }
    }
    rows
}

/// Returns a doc comment as a cell of a table: links to the API are names there.
fn cell(doc: &str) -> String {
    let mut text = doc.replace('|', "\\|");
    while let Some(target) = text.find("](crate::") {
        let end = target + text[target..].find(')').expect("the end of a link");
        text.replace_range(target..=end, "");
        let start = text[..target].rfind('[').expect("the start of a link");
        text.remove(start);
    }
    text.replace("[`", "`").replace("`]", "`")
}

/// Returns what a tunable accepts, in the words of its error.
fn allowed(name: &str) -> String {
    match Sysctl::default().set(name, "?") {
        Err(SysctlError::BadValue { allowed, .. }) => allowed,
        other => panic!("{name} accepts any text: {other:?}"),
    }
}

fn sysctls() -> String {
    let rows = rows("tcp/src/sysctl.rs");
    let mut page =
        format!("{SYSCTLS}\n| tunable | default | accepts | meaning |\n|---|---|---|---|\n");
    for (name, default) in Sysctl::default().list() {
        let short = name.rsplit('.').next().expect("a name");
        let declared = format!("\" {short}: ");
        let row = rows.iter().find(|row| row.declaration.contains(&declared));
        let doc = cell(&row.unwrap_or_else(|| panic!("{name} is not declared")).doc);
        let default = match default.as_str() {
            "" => "none".to_owned(),
            text => format!("`{}`", text.replace('\t', " ")),
        };
        writeln!(
            page,
            "| `{name}` | {default} | {} | {doc} |",
            cell(&allowed(name))
        )
        .unwrap();
    }
    page
}

fn counters() -> String {
    let mut page = COUNTERS.to_owned();
    for (path, heading) in DECLARATIONS {
        let mut begin = |title: &str| {
            write!(page, "\n## {title}\n\n| counter | counts |\n|---|---|\n").unwrap();
        };
        if let Some(title) = heading {
            begin(title);
        }
        for row in rows(path) {
            let is_struct =
                row.declaration.contains("struct ") && row.declaration.ends_with("Mib {");
            if is_struct && heading.is_none() {
                let (title, rest) = row.doc.split_once(". ").unwrap_or((&row.doc, ""));
                write!(page, "\n## {}\n\n", title.trim_end_matches('.')).unwrap();
                if !rest.is_empty() {
                    write!(page, "{}\n\n", cell(rest)).unwrap();
                }
                page.push_str("| counter | counts |\n|---|---|\n");
            }
            let name = row
                .declaration
                .strip_suffix("\",")
                .and_then(|line| line.split_once(": \""));
            let Some((field, name)) = name.filter(|(field, _)| !field.contains([' ', '('])) else {
                continue;
            };
            assert_ne!(row.doc, "", "{path}: {field} has no comment");
            writeln!(page, "| `{name}` | {} |", cell(&row.doc)).unwrap();
        }
    }
    page
}

fn compare(page: &str, text: &str) {
    let path = format!("{ROOT}/docs/{page}");
    if std::env::var_os("FULLSEND_UPDATE_DOCS").is_some() {
        return fs::write(path, text).expect("docs");
    }
    assert!(
        fs::read_to_string(path).is_ok_and(|current| current == text),
        "docs/{page} is outdated; run FULLSEND_UPDATE_DOCS=1 cargo test -p fullsend-cli --test reference"
    );
}

#[test]
fn every_tunable_stands_in_the_book() {
    compare("sysctls.md", &sysctls());
}

#[test]
fn every_counter_stands_in_the_book() {
    compare("counters.md", &counters());
}
