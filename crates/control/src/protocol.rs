//! Requests and replies, a line of JSON each.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The protocol's version, `v` in every line. It changes when something gets another meaning;
/// new commands and new members do not count.
pub const VERSION: u32 = 1;

/// Longest request, bytes, its newline included.
pub const MAX_LINE: usize = 4096;
/// Most clients of a socket at a time; a further one gets an error.
pub const MAX_CLIENTS: usize = 64;

/// What a client asks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case")]
pub enum Request {
    /// All counters: [`Counters`](super::Counters).
    Counters,
    /// All sockets, an item each: [`SocketView`](super::SocketView).
    Sockets,
    /// Totals: [`SockStatView`](super::SockStatView).
    Sockstat,
    /// Addresses: a list of [`AddressView`](super::AddressView).
    Addresses,
    /// Links: a list of [`LinkView`](super::LinkView).
    Links,
    /// Queues: a list of [`QdiscView`](super::QdiscView).
    Qdisc,
    /// Reads one tunable or all, or sets one: a list of names with values.
    Sysctl {
        /// Its name; all without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// What to set it to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    },
    /// Sets a socket option of one connection.
    Set {
        /// The id of a [`SocketView`](super::SocketView), or `LOCAL:PORT-PEER:PORT`.
        flow: String,
        /// Its Linux name.
        option: String,
        /// Its value in Linux's units.
        value: String,
    },
    /// Records packets until `stop`, the end of the connection, or `count` packets.
    Capture(CaptureRequest),
    /// Ends a capture.
    Stop,
}

/// What a capture is to record.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CaptureRequest {
    /// Packets to record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Most bytes of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
    /// Which packets, in a part of tcpdump's language: `tcp port 80 and not host 10.0.0.9`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Most bytes that wait for the client; what comes beyond is dropped and counted. 8 MiB unless
    /// given, at least 64 KiB and at most 1 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<u64>,
}

/// What every request has.
#[derive(Deserialize)]
struct Versioned {
    v: u32,
}

#[derive(Serialize)]
struct Line<'a, T> {
    v: u32,
    #[serde(flatten)]
    what: &'a T,
}

impl Request {
    /// From one line; else what is wrong with it.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let Versioned { v } = serde_json::from_slice(line).map_err(|error| {
            format!(
                "the request is not one: {error}; send a line such as \
                 {{\"v\":{VERSION},\"cmd\":\"counters\"}}"
            )
        })?;
        if v != VERSION {
            return Err(format!(
                "version {v} of the protocol is not known here: use {VERSION}, or a program of \
                 the same release as the stack's"
            ));
        }
        serde_json::from_slice(line).map_err(|error| format!("the request is not known: {error}"))
    }

    /// As one line with its newline.
    pub fn to_line(&self) -> String {
        to_line(self)
    }
}

/// What a stack replies.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It is done; what was asked for.
    Ok(Value),
    /// It is not; why, and what to do.
    Error(String),
    /// One of several.
    Item(Value),
    /// So many bytes follow the line.
    Data(u64),
    /// That was the last one; a summary.
    End(Value),
}

impl Reply {
    /// The answer to a client beyond [`MAX_CLIENTS`].
    pub fn too_many_clients() -> Self {
        let text = format!("{MAX_CLIENTS} clients are connected: try again when one has left");
        Self::Error(text)
    }

    /// The answer to a request of more than [`MAX_LINE`] bytes.
    pub fn too_long() -> Self {
        let text = format!("the request is longer than {MAX_LINE} bytes: send less");
        Self::Error(text)
    }

    /// The answer when the stack is gone.
    pub fn stopped() -> Self {
        Self::Error("the stack has stopped".to_owned())
    }

    /// From one line.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let mut value: Value = serde_json::from_slice(line).map_err(|e| e.to_string())?;
        let version = value.as_object_mut().and_then(|object| object.remove("v"));
        if version != Some(VERSION.into()) {
            return Err(format!("the stack does not speak version {VERSION}"));
        }
        serde_json::from_value(value).map_err(|e| e.to_string())
    }

    /// As one line with its newline.
    pub fn to_line(&self) -> String {
        to_line(self)
    }
}

fn to_line(what: &impl Serialize) -> String {
    let line = Line { v: VERSION, what };
    let mut text = serde_json::to_string(&line).expect("strings and numbers serialise");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::{CaptureRequest, Reply, Request};

    #[test]
    fn what_is_sent_is_understood() {
        let some = |text: &str| Some(text.to_owned());
        for request in [
            Request::Counters,
            Request::Sysctl {
                key: some("tcp_sack"),
                value: None,
            },
            Request::Set {
                flow: "1f".into(),
                option: "TCP_NODELAY".into(),
                value: "1".into(),
            },
            Request::Capture(CaptureRequest {
                count: Some(3),
                filter: some("tcp port 80"),
                ..CaptureRequest::default()
            }),
        ] {
            let line = request.to_line();
            assert!(
                line.ends_with("}\n") && line.starts_with("{\"v\":1,"),
                "{line}"
            );
            assert_eq!(Request::parse(line.as_bytes()), Ok(request));
        }
        for reply in [
            Reply::Ok(serde_json::json!([["a", 1]])),
            Reply::Error("no \"x\"\n".into()),
            Reply::Data(17),
            Reply::End(serde_json::Value::Null),
        ] {
            assert_eq!(Reply::parse(reply.to_line().as_bytes()), Ok(reply));
        }
    }

    #[test]
    fn what_is_wrong_with_a_request_is_said() {
        let error = |line: &str| Request::parse(line.as_bytes()).unwrap_err();
        assert!(error("ss").contains("\"cmd\":\"counters\""));
        assert!(error("{}").contains("missing field `v`"));
        assert!(error(r#"{"v":2,"cmd":"counters"}"#).contains("version 2"));
        assert!(error(r#"{"v":1,"cmd":"reboot"}"#).contains("reboot"));
        assert!(error(r#"{"v":1,"cmd":"set","flow":"1"}"#).contains("option"));
        assert!(error(&"[".repeat(4000)).contains("not one"));
    }
}
