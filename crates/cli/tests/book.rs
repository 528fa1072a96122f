//! Checks that the book (docs/SUMMARY.md) has every page, and that links between pages lead somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"))
        .canonicalize()
        .expect("docs")
}

/// Returns the pages in docs.
fn pages() -> Vec<PathBuf> {
    let files = fs::read_dir(docs()).expect("docs");
    let paths = files.map(|file| file.expect("a file").path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect()
}

/// Returns the text without its code blocks.
fn prose(text: &str) -> String {
    let parts = text.split("\n```").enumerate();
    parts
        .filter(|(n, _)| n % 2 == 0)
        .map(|(_, part)| part)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns the targets of the links in a page.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let targets = prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let inner = targets.filter(|target| !target.contains("://"));
    inner.map(str::to_owned).collect()
}

/// Returns the anchors of a page's headings, as GitHub and mdBook derive them.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[test]
fn summary_has_every_page_once() {
    let summary = fs::read_to_string(docs().join("SUMMARY.md")).expect("SUMMARY.md");
    let mut listed = links(&summary);
    listed.sort();
    let mut expected: Vec<String> = pages()
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .filter(|name| name != "SUMMARY.md")
        .collect();
    expected.sort();
    assert_eq!(
        listed, expected,
        "docs/SUMMARY.md lists each page of docs once"
    );
}

#[test]
fn links_of_the_pages_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for link in links(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => docs().join(file),
            };
            let is_page = target.extension().is_some_and(|e| e == "md");
            let found = match fs::read_to_string(&target) {
                Ok(text) => !is_page || anchor.is_empty() || anchors(&text).contains(anchor),
                Err(_) => target.is_dir(),
            };
            if !found {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new(), "links that lead nowhere");
}
