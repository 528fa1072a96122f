//! Types in public signatures that have no public path in their crate.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use serde_json::Value;

/// The prefix of our crates' names: types of other crates come from a dependency of the user's own.
const OURS: &str = "fullsend";

/// Returns a text for each type of a public signature that the crate neither has at a public path
/// nor re-exports.
pub fn without_name(described: &Value) -> Result<Vec<String>, Box<dyn Error>> {
    let index = described["index"].as_object().ok_or("no index")?;
    let mut exports = Exports::default();
    for item in index.values() {
        if let Some(target) = item["inner"]["use"].as_object() {
            exports.add(described, target);
        }
    }
    let mut uses = BTreeMap::new();
    for item in index.values().filter(|item| item["crate_id"] == 0) {
        let place = place_of(item);
        collect(&item["inner"], &place, &mut uses);
    }
    let mut faults = BTreeSet::new();
    for (id, place) in uses {
        let entry = &described["paths"][&id];
        if entry.is_null() {
            continue;
        }
        let path = path_of(entry);
        let krate = entry["crate_id"].as_u64().unwrap_or_default();
        let own = krate == 0;
        let ours = described["external_crates"][krate.to_string()]["name"]
            .as_str()
            .is_some_and(|name| name.starts_with(OURS));
        if own && !index.contains_key(&id) {
            faults.insert(format!(
                "{place} has the type {path}, which has no public path"
            ));
        } else if ours && !exports.has(&id, &path) {
            faults.insert(format!("{place} has the type {path}: re-export it"));
        }
    }
    Ok(faults.into_iter().collect())
}

/// What a crate re-exports of others.
#[derive(Default)]
struct Exports {
    ids: BTreeSet<String>,
    /// Whole crates and modules, with `::` at the end.
    prefixes: Vec<String>,
}

impl Exports {
    fn add(&mut self, described: &Value, target: &serde_json::Map<String, Value>) {
        let Some(id) = target.get("id").filter(|id| !id.is_null()) else {
            // A crate has no ID of its own.
            return self.add_module(target["source"].as_str().unwrap_or_default());
        };
        let id = id.to_string();
        let entry = &described["paths"][&id];
        if entry["kind"] == "module" && entry["crate_id"] != 0 {
            self.add_module(&path_of(entry));
        }
        self.ids.insert(id);
    }

    fn add_module(&mut self, path: &str) {
        self.prefixes.push(format!("{path}::"));
    }

    fn has(&self, id: &str, path: &str) -> bool {
        self.ids.contains(id) || self.prefixes.iter().any(|p| path.starts_with(p))
    }
}

/// Records the types that a signature names, and one place for each.
fn collect(value: &Value, place: &str, uses: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(object) => {
            let is_type = object.contains_key("path") && object.contains_key("args");
            if let (true, Some(id)) = (is_type, object.get("id")) {
                uses.insert(id.to_string(), place.to_owned());
            }
            for (key, inner) in object {
                // A trait that a type implements need not be named to use the type.
                let implemented = key == "trait" && object.contains_key("blanket_impl");
                if !implemented && key != "attrs" {
                    collect(inner, place, uses);
                }
            }
        }
        Value::Array(array) => array.iter().for_each(|v| collect(v, place, uses)),
        _ => {}
    }
}

fn place_of(item: &Value) -> String {
    let file = item["span"]["filename"].as_str().unwrap_or("?");
    let line = item["span"]["begin"][0].as_u64().unwrap_or_default();
    let name = item["name"].as_str().unwrap_or("impl");
    format!("{file}:{line}: {name}")
}

fn path_of(entry: &Value) -> String {
    let parts = entry["path"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let parts: Vec<_> = parts.iter().filter_map(Value::as_str).collect();
    parts.join("::")
}
