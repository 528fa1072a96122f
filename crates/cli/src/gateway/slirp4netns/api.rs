//! The JSON API of slirp4netns, which adds, lists and removes port forwards.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fullsend_gateway::{Forward, ForwardId, Handle, Protocol, Side};
use serde_json::{Map, Value, json};

use crate::gateway::json_socket::Service;

/// Bytes at which a request is too large.
const REQUEST_MAX: usize = 4096;

/// Values for the arguments that a request omits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub(super) guest: Ipv4Addr,
}

/// The operations on forwards that the API requests.
pub(super) trait Forwards {
    fn add(&self, forward: Forward) -> io::Result<u64>;
    fn list(&self) -> Vec<(u64, Forward)>;
    fn remove(&self, id: u64) -> io::Result<()>;
}

impl Forwards for Handle {
    fn add(&self, forward: Forward) -> io::Result<u64> {
        self.add_forward(forward).map(|id| id.0)
    }

    fn list(&self) -> Vec<(u64, Forward)> {
        let all = self.list_forwards().into_iter();
        all.map(|(id, forward)| (id.0, forward)).collect()
    }

    fn remove(&self, id: u64) -> io::Result<()> {
        self.remove_forward(ForwardId(id))
    }
}

/// The API of a gateway.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) handle: Handle,
    pub(super) defaults: Defaults,
}

impl Service for Api {
    const REQUEST_MAX: usize = REQUEST_MAX;

    async fn answer(&self, request: &[u8]) -> Value {
        answer(request, &self.handle, self.defaults)
    }
}

/// Returns the answer to a request.
pub(super) fn answer(request: &[u8], forwards: &impl Forwards, defaults: Defaults) -> Value {
    match execute(request, forwards, defaults) {
        Ok(answer) => answer,
        Err(text) => json!({"error": {"desc": text}}),
    }
}

fn execute(request: &[u8], forwards: &impl Forwards, defaults: Defaults) -> Result<Value, String> {
    if request.len() >= REQUEST_MAX {
        return Err("bad request: too large message".into());
    }
    let Ok(Value::Object(request)) = serde_json::from_slice(request) else {
        return Err("bad request: cannot parse JSON".into());
    };
    let Some(command) = request.get("execute").and_then(Value::as_str) else {
        return Err("bad request: no execute found".into());
    };
    let empty = Map::new();
    let arguments = request.get("arguments").and_then(Value::as_object);
    let arguments = Arguments {
        command,
        values: arguments.unwrap_or(&empty),
    };
    match command {
        "add_hostfwd" => {
            let id = forwards.add(arguments.forward(defaults)?);
            let id = id.map_err(|error| format!("bad request: add_hostfwd: {error}"))?;
            Ok(json!({"return": {"id": id}}))
        }
        "list_hostfwd" => {
            let entries: Vec<_> = forwards.list().iter().map(entry).collect();
            Ok(json!({"return": {"entries": entries}, "entries": entries}))
        }
        "remove_hostfwd" => {
            let id = arguments.values.get("id").and_then(Value::as_u64);
            let id = id.ok_or_else(|| arguments.bad("id"))?;
            forwards.remove(id).map_err(|_| arguments.bad("id"))?;
            Ok(json!({"return": {}}))
        }
        _ => Err("bad request: unknown execute".into()),
    }
}

fn entry((id, forward): &(u64, Forward)) -> Value {
    let protocol = match forward.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    json!({
        "id": id,
        "proto": protocol,
        "host_addr": forward.host.ip().to_string(),
        "host_port": forward.host.port(),
        "guest_addr": forward.guest.ip().to_string(),
        "guest_port": forward.guest.port(),
    })
}

/// The arguments of a request.
struct Arguments<'a> {
    command: &'a str,
    values: &'a Map<String, Value>,
}

impl Arguments<'_> {
    fn bad(&self, name: &str) -> String {
        format!("bad request: {}: bad arguments.{name}", self.command)
    }

    fn forward(&self, defaults: Defaults) -> Result<Forward, String> {
        let protocol = match self.values.get("proto").and_then(Value::as_str) {
            Some("tcp") => Protocol::Tcp,
            Some("udp") => Protocol::Udp,
            _ => return Err(self.bad("proto")),
        };
        let host = self.address("host_addr", Ipv4Addr::UNSPECIFIED)?;
        let host = SocketAddr::new(host, self.port("host_port")?);
        let guest = self.address("guest_addr", defaults.guest)?;
        let guest = SocketAddr::new(guest, self.port("guest_port")?);
        Ok(Forward {
            from: Side::Host,
            protocol,
            host,
            guest,
            interface: None,
        })
    }

    fn address(&self, name: &str, default: Ipv4Addr) -> Result<IpAddr, String> {
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(default.into()),
            // Podman sends an empty text for an unspecified address.
            Some(Value::String(text)) if text.is_empty() => Ok(default.into()),
            Some(value) => {
                let address = value.as_str().and_then(|text| text.parse().ok());
                address.ok_or_else(|| self.bad(name))
            }
        }
    }

    fn port(&self, name: &str) -> Result<u16, String> {
        let port = self.values.get(name).and_then(Value::as_u64);
        let port = port.and_then(|port| u16::try_from(port).ok());
        port.filter(|port| *port != 0).ok_or_else(|| self.bad(name))
    }
}

/// A table of forwards without a gateway, for the fuzz target.
#[derive(Default)]
struct Table(RefCell<Vec<(u64, Forward)>>);

impl Forwards for Table {
    fn add(&self, forward: Forward) -> io::Result<u64> {
        let mut table = self.0.borrow_mut();
        let id = table.last().map_or(1, |(id, _)| id + 1);
        table.push((id, forward));
        Ok(id)
    }

    fn list(&self) -> Vec<(u64, Forward)> {
        self.0.borrow().clone()
    }

    fn remove(&self, id: u64) -> io::Result<()> {
        let mut table = self.0.borrow_mut();
        let before = table.len();
        table.retain(|(known, _)| *known != id);
        let is_known = table.len() < before;
        is_known
            .then_some(())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Answers requests to the API, one for each line, for the fuzz target. Panics unless each answer is an
/// object with either a result or an error.
pub(super) fn answer_lines(requests: &[u8]) {
    let table = Table::default();
    let defaults = Defaults {
        guest: Ipv4Addr::new(10, 0, 2, 100),
    };
    for request in requests.split(|byte| *byte == b'\n') {
        let answer = answer(request, &table, defaults);
        let has = |key: &str| answer.get(key).is_some();
        assert!(has("return") != has("error"), "{answer}");
    }
}
