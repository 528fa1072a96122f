//! Requests and replies, each of which is a line of JSON.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the protocol, `v` in every line. It changes when the meaning of anything changes, but
/// not for new commands and members.
pub const VERSION: u32 = 1;

/// Maximum length of a request in bytes, including the newline.
pub const MAX_LINE: usize = 4096;
/// Maximum number of clients of a socket; further ones receive an error.
pub const MAX_CLIENTS: usize = 64;

/// A request of a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case")]
pub enum Request {
    /// Reads all counters: [`Counters`](super::Counters).
    Counters,
    /// Reads all sockets, with one item for each: [`SocketView`](super::SocketView).
    Sockets,
    /// Reads the totals: [`SockStatView`](super::SockStatView).
    Sockstat,
    /// Reads the addresses: a list of [`AddressView`](super::AddressView).
    Addresses,
    /// Reads the links: a list of [`LinkView`](super::LinkView).
    Links,
    /// Reads the queueing disciplines: a list of [`QdiscView`](super::QdiscView).
    Qdisc,
    /// Reads one tunable or all, or sets one. The reply is a list of names with values.
    Sysctl {
        /// The name of the tunable; `None` reads all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// The value to set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    },
    /// Sets a socket option of one connection.
    Set {
        /// The id of a [`SocketView`](super::SocketView), or `LOCAL:PORT-PEER:PORT`.
        flow: String,
        /// The Linux name of the option.
        option: String,
        /// The value in Linux's units.
        value: String,
    },
    /// Reads the settings, tables and memory of a gateway: [`GatewayView`](super::GatewayView).
    Gateway,
    /// Reads the flows of a gateway except spliced connections and DNS over TCP, with one item for
    /// each: [`GatewayFlowView`](super::GatewayFlowView).
    GatewayFlows,
    /// Reads the forwards of a gateway, with one item for each:
    /// [`ForwardView`](super::ForwardView).
    GatewayForwards,
    /// Captures packets until `stop`, the end of the connection, or `count` packets.
    Capture(CaptureRequest),
    /// Ends a capture.
    Stop,
}

/// The parameters of a capture.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CaptureRequest {
    /// The number of packets to capture; `None` for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The maximum number of bytes captured of each packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
    /// A filter in a subset of tcpdump's language: `tcp port 80 and not host 10.0.0.9`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The size of the buffer for a slow client in bytes, from 64 KiB to 1 GiB; by default 8 MiB.
    /// Packets beyond it are dropped and counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<u64>,
}

/// The member that every request has.
#[derive(Deserialize)]
struct Versioned {
    v: u32,
}

#[derive(Serialize)]
struct VersionedLine<'a, T> {
    v: u32,
    #[serde(flatten)]
    body: &'a T,
}

impl Request {
    /// Returns whether the request changes the stack.
    pub(crate) const fn is_change(&self) -> bool {
        matches!(self, Self::Sysctl { value: Some(_), .. } | Self::Set { .. })
    }

    /// Parses a line.
    ///
    /// # Errors
    /// A message that describes the error in the request.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let Versioned { v } = serde_json::from_slice(line).map_err(|error| {
            format!(
                "the request is not valid: {error}; send a line such as \
                 {{\"v\":{VERSION},\"cmd\":\"counters\"}}"
            )
        })?;
        if v != VERSION {
            return Err(format!(
                "version {v} of the protocol is not supported; use version {VERSION}, or a program \
                 of the same release as the stack"
            ));
        }
        serde_json::from_slice(line)
            .map_err(|error| format!("the request is not supported: {error}"))
    }

    /// Returns the request as a line with its newline.
    pub fn to_line(&self) -> String {
        to_line(self)
    }
}

/// A reply of a stack.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Success, with the requested value.
    Ok(Value),
    /// Failure, with a message that names the reason and the remedy.
    Error(String),
    /// An item of a list.
    Item(Value),
    /// The number of bytes that follow the line.
    Data(u64),
    /// The end of the items or data, with a summary.
    End(Value),
}

impl Reply {
    /// Returns the reply to a client beyond [`MAX_CLIENTS`].
    pub fn too_many_clients() -> Self {
        let text =
            format!("{MAX_CLIENTS} clients are connected, and more are refused; try again later");
        Self::Error(text)
    }

    /// Returns the reply to a request longer than [`MAX_LINE`] bytes.
    pub fn too_long() -> Self {
        let text = format!("the request is too long; send at most {MAX_LINE} bytes");
        Self::Error(text)
    }

    /// Returns the reply of a stack that has stopped.
    pub fn stopped() -> Self {
        Self::Error("the stack has stopped".to_owned())
    }

    /// Parses a line.
    ///
    /// # Errors
    /// A message that describes the error in the reply.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let mut value: Value = serde_json::from_slice(line).map_err(|e| e.to_string())?;
        let version = value.as_object_mut().and_then(|object| object.remove("v"));
        if version != Some(VERSION.into()) {
            return Err(format!(
                "the stack does not support version {VERSION} of the protocol; use a program of \
                 the stack's release"
            ));
        }
        serde_json::from_value(value).map_err(|e| e.to_string())
    }

    /// Returns the reply as a line with its newline.
    pub fn to_line(&self) -> String {
        to_line(self)
    }
}

fn to_line(body: &impl Serialize) -> String {
    let line = VersionedLine { v: VERSION, body };
    let mut text = serde_json::to_string(&line).expect("strings and numbers serialise");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::{CaptureRequest, Reply, Request};

    #[test]
    fn requests_and_replies_round_trip() {
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
    fn errors_name_what_is_wrong_with_a_request() {
        let error = |line: &str| Request::parse(line.as_bytes()).unwrap_err();
        assert!(error("ss").contains("\"cmd\":\"counters\""));
        assert!(error("{}").contains("missing field `v`"));
        assert!(error(r#"{"v":2,"cmd":"counters"}"#).contains("version 2"));
        assert!(error(r#"{"v":1,"cmd":"reboot"}"#).contains("reboot"));
        assert!(error(r#"{"v":1,"cmd":"set","flow":"1"}"#).contains("option"));
        assert!(error(&"[".repeat(4000)).contains("not valid"));
    }
}
