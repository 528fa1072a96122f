//! The control socket of a running pasta, through which pesto changes the port forwards.
//!
//! A request is a JSON object: `{"execute": "change", "changes": [...]}`, where a change is
//! `{"clear": "HOST"}`, `{"add": ["-t", SPEC]}` or `{"delete": ["-u", SPEC]}`. The options `-t`, `-u`,
//! `-T` and `-U`, and the port specification SPEC, are those of pasta's command line. The changes apply
//! together or not at all. The answer has the table before and after them:
//! `{"return": {"before": [LINE, ...], "after": [LINE, ...]}}`, or `{"error": {"desc": TEXT}}`.
//! Without changes, the answer shows the table.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::{Context, Result};
use fullsend::control::SocketFile;
use fullsend_gateway::namespace::SocketRemover;
use fullsend_gateway::{PortSpec, Protocol, Side};
use serde_json::{Value, json};

use super::forward_table::{Change, ForwardTable, Kind};
use super::options::parse_guest_ports;
use crate::gateway::json_socket::{self, Service};

/// The interfaces whose forwards can be cleared, with the side of their clients.
pub(in crate::gateway) const INTERFACES: [(&str, Side); 2] =
    [("HOST", Side::Host), ("SPLICE", Side::Guest)];

/// The bound socket, which is not served yet.
pub(super) struct ControlSocket {
    listener: UnixListener,
    file: SocketFile,
    /// The process that removes the file when a sandbox hides it.
    remover: SocketRemover,
}

impl ControlSocket {
    /// Binds the socket for the process's user only. Must be called before the sandbox hides the
    /// file, and before the process has threads.
    pub(super) fn bind(path: &Path) -> Result<Self> {
        let listener = json_socket::bind(path, "configuration")?;
        let file = SocketFile::of(path).context("cannot use the configuration socket")?;
        let remover = SocketRemover::start(&[&file]);
        Ok(Self {
            listener,
            file,
            remover: remover.context("cannot start the process that removes the socket")?,
        })
    }

    /// Returns a future that serves the socket. The socket's file exists until the future is dropped.
    pub(super) fn serve(self, table: ForwardTable) -> io::Result<impl Future<Output = ()> + Send> {
        let files = (self.file, self.remover);
        let served = json_socket::serve(self.listener, table)?;
        Ok(async move {
            served.await;
            drop(files);
        })
    }
}

impl Service for ForwardTable {
    const REQUEST_MAX: usize = 64 << 10;

    async fn answer(&self, request: &[u8]) -> Value {
        match answer(self, request).await {
            Ok(answer) => json!({"return": answer}),
            Err(text) => json!({"error": {"desc": text}}),
        }
    }
}

async fn answer(table: &ForwardTable, request: &[u8]) -> Result<Value, String> {
    let changes = parse(request)?;
    let (before, after) = table.apply(&changes).await?;
    Ok(json!({"before": before, "after": after}))
}

fn parse(request: &[u8]) -> Result<Vec<Change>, String> {
    if request.len() >= ForwardTable::REQUEST_MAX {
        return Err(format!(
            "the request has more than {} bytes; send fewer changes at once",
            ForwardTable::REQUEST_MAX - 1
        ));
    }
    let request: Value = serde_json::from_slice(request)
        .map_err(|error| format!("the request is not JSON: {error}"))?;
    if request["execute"] != "change" {
        return Err(format!(
            "the request has execute {}; \"change\" is the only one",
            request["execute"]
        ));
    }
    let changes = request["changes"].as_array();
    let changes = changes.ok_or("the request has no list of changes")?;
    changes.iter().map(parse_change).collect()
}

/// Parses a request, for the fuzz target. Panics if an error has no text.
pub(super) fn parse_any(request: &[u8]) {
    if let Err(text) = parse(request) {
        assert!(!text.is_empty());
    }
}

fn parse_change(change: &Value) -> Result<Change, String> {
    let wrong = || format!("{change} is not a change");
    let object = change.as_object().filter(|object| object.len() == 1);
    let (kind, value) = object
        .and_then(|object| object.iter().next())
        .ok_or_else(wrong)?;
    match (&**kind, value) {
        ("clear", Value::String(name)) => {
            let found = INTERFACES.iter().find(|(known, _)| known == name);
            let none = || format!("there is no interface {name}; write HOST or SPLICE");
            found.map(|(_, side)| Change::Clear(*side)).ok_or_else(none)
        }
        ("add", value) => {
            let (kind, spec) = parse_forward(value).ok_or_else(wrong)??;
            Ok(Change::Add(kind, spec))
        }
        ("delete", value) => {
            let (kind, spec) = parse_forward(value).ok_or_else(wrong)??;
            Ok(Change::Delete(kind, spec))
        }
        _ => Err(wrong()),
    }
}

/// Parses `["-t", SPEC]`. Returns `None` if the value has another form.
fn parse_forward(value: &Value) -> Option<Result<(Kind, PortSpec), String>> {
    let [option, spec] = &value.as_array()?[..] else {
        return None;
    };
    let kind = match option.as_str()? {
        "-t" => (Side::Host, Protocol::Tcp),
        "-u" => (Side::Host, Protocol::Udp),
        "-T" => (Side::Guest, Protocol::Tcp),
        "-U" => (Side::Guest, Protocol::Udp),
        _ => return None,
    };
    let spec = spec.as_str()?;
    let parsed = match kind.0 {
        Side::Host => spec.parse::<PortSpec>().map_err(|e| e.to_string()),
        Side::Guest => parse_guest_ports(option.as_str()?, spec).map_err(|e| e.to_string()),
    };
    Some(parsed.map(|spec| (kind, spec)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_parsed_in_their_order() {
        let request = br#"{"execute": "change", "changes":
            [{"clear": "HOST"}, {"add": ["-t", "80"]}, {"delete": ["-u", "auto"]}]}"#;
        let expected = [
            Change::Clear(Side::Host),
            Change::Add((Side::Host, Protocol::Tcp), "80".parse().unwrap()),
            Change::Delete((Side::Host, Protocol::Udp), PortSpec::Auto),
        ];
        assert_eq!(parse(request).unwrap(), expected);
    }

    #[test]
    fn a_request_has_the_changes_of_hundreds_of_ports() {
        let change = r#"{"add": ["-t", "192.168.100.100/60000:60000"]}"#;
        let list = vec![change; 1000].join(",");
        let request = format!(r#"{{"execute": "change", "changes": [{list}]}}"#);
        assert_eq!(parse(request.as_bytes()).unwrap().len(), 1000);
    }

    #[test]
    fn wrong_requests_are_errors_that_name_the_value() {
        let changes = |text: &str| format!(r#"{{"execute": "change", "changes": [{text}]}}"#);
        for (request, text) in [
            ("{".to_owned(), "not JSON"),
            (r#"{"execute": "quit"}"#.into(), r#"execute "quit""#),
            (r#"{"execute": "change"}"#.into(), "no list of changes"),
            (changes("1"), "1 is not a change"),
            (changes("{}"), "{} is not a change"),
            (
                changes(r#"{"add": ["-t", "80"], "delete": ["-t", "81"]}"#),
                "is not a change",
            ),
            (changes(r#"{"add": ["-x", "80"]}"#), "is not a change"),
            (
                changes(r#"{"add": ["-t", "0"]}"#),
                "invalid port specification `0`",
            ),
            (
                changes(r#"{"add": ["-T", "%lo/80"]}"#),
                "names an interface",
            ),
            (changes(r#"{"clear": "TAP"}"#), "no interface TAP"),
            ("x".repeat(64 << 10), "more than 65535 bytes"),
        ] {
            let error = parse(request.as_bytes()).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
