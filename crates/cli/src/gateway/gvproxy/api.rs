//! The requests to the HTTP API, and their answers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use fullsend_gateway::namespace::StartedSockets;
use fullsend_gateway::{Handle, Zone};
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::exposures::{Client, Entry, Exposures, Transport};
use super::notifications::format_mac;

/// An answer: a status with JSON or with a text for the user.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Json(Value),
    /// Success without content.
    Done,
    Error(StatusCode, String),
}

/// The API of a gateway. Clones refer to the same gateway.
#[derive(Clone)]
pub(super) struct Api {
    handle: Handle,
    exposures: Exposures,
}

/// The JSON of a zone in requests and answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ZoneJson {
    name: String,
    #[serde(default)]
    records: Option<Vec<RecordJson>>,
    /// The default address, or an empty text if there is none.
    #[serde(default, rename = "DefaultIP")]
    default_ip: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RecordJson {
    #[serde(default)]
    name: String,
    #[serde(rename = "IP")]
    ip: IpAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    regexp: Option<Value>,
}

impl Api {
    pub(super) fn new(handle: Handle, sockets: StartedSockets) -> Self {
        Self {
            exposures: Exposures::new(handle.clone(), sockets),
            handle,
        }
    }

    pub(super) fn exposures(&self) -> &Exposures {
        &self.exposures
    }

    /// Returns the client with a guest's address.
    pub(super) fn guest_at(&self, address: IpAddr) -> Client {
        Client::Guest {
            port: self.handle.guest_of(address),
            address,
        }
    }

    /// Returns the answer to a request.
    pub(super) async fn answer(
        &self,
        client: Client,
        (method, path): (&Method, &str),
        body: &[u8],
    ) -> Answer {
        let (is_get, is_post) = (method == Method::GET, method == Method::POST);
        match path {
            "/services/forwarder/all" if is_get => json_of(&self.exposures.list().await),
            "/services/forwarder/expose" if is_post => self.change(client, body, true).await,
            "/services/forwarder/unexpose" if is_post => self.change(client, body, false).await,
            "/services/dhcp/leases" | "/leases" if is_get => json_of(&self.leases()),
            "/services/dns/all" if is_get => json_of(&self.zones()),
            // All guests use the same names.
            "/services/dns/add" if is_post && client != Client::Host => Answer::Error(
                StatusCode::FORBIDDEN,
                "names can only be added from the host".to_owned(),
            ),
            "/services/dns/add" if is_post => match parse_zone(body) {
                Ok(zone) => done(self.handle.add_zone(zone).context("cannot add the zone")),
                Err(error) => bad_request(&error),
            },
            "/stats" if is_get => Answer::Json(self.stats()),
            "/services/forwarder/all"
            | "/services/forwarder/expose"
            | "/services/forwarder/unexpose"
            | "/services/dhcp/leases"
            | "/leases"
            | "/services/dns/all"
            | "/services/dns/add"
            | "/stats" => Answer::Error(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{path} has no method {method}"),
            ),
            _ => Answer::Error(StatusCode::NOT_FOUND, format!("there is no path {path}")),
        }
    }

    /// Adds or removes an exposed port or socket.
    async fn change(&self, client: Client, body: &[u8], expose: bool) -> Answer {
        let entry: Entry = match serde_json::from_slice(body) {
            Ok(entry) => entry,
            Err(error) => return bad_request(&error.into()),
        };
        if client != Client::Host && entry.protocol == Transport::Unix {
            let text = "sockets of the host can only be exposed from the host".to_owned();
            return Answer::Error(StatusCode::FORBIDDEN, text);
        }
        done(if expose {
            self.exposures.expose(&entry, client).await
        } else {
            self.exposures.unexpose(&entry, client).await
        })
    }

    /// Returns the addresses that DHCP has given out with their Ethernet addresses, and the gateway's
    /// own.
    fn leases(&self) -> BTreeMap<String, String> {
        let leases = self.handle.leases().into_iter();
        leases
            .map(|lease| (lease.address.to_string(), format_mac(lease.mac)))
            .collect()
    }

    fn zones(&self) -> Vec<ZoneJson> {
        let record = |(name, ip)| RecordJson {
            name,
            ip,
            regexp: None,
        };
        let zones = self.handle.zones().into_iter();
        zones
            .map(|zone| ZoneJson {
                name: format!("{}.", zone.name),
                records: Some(zone.records.into_iter().map(record).collect()),
                default_ip: Some(zone.default.map(|ip| ip.to_string()).unwrap_or_default()),
            })
            .collect()
    }

    fn stats(&self) -> Value {
        let of_stack = self.handle.stack().counters();
        let octets = |name: &str| {
            let found = of_stack.iter().find(|(counter, _)| *counter == name);
            found.map_or(0, |(_, value)| *value)
        };
        // gvproxy counts the bytes on its link.
        let mut stats = json!({
            "BytesSent": octets("IpExtOutOctets"),
            "BytesReceived": octets("IpExtInOctets"),
        });
        let of_gateway = self.handle.counters().list().into_iter();
        let is_of_device = |(name, _): &(&str, u64)| name.starts_with("Device");
        for (name, value) in of_gateway.chain(of_stack.into_iter().filter(is_of_device)) {
            stats[name] = value.into();
        }
        stats
    }
}

fn json_of(value: &impl Serialize) -> Answer {
    match serde_json::to_value(value) {
        Ok(value) => Answer::Json(value),
        Err(error) => Answer::Error(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn done(result: Result<()>) -> Answer {
    match result {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Error(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")),
    }
}

fn bad_request(error: &anyhow::Error) -> Answer {
    Answer::Error(StatusCode::BAD_REQUEST, format!("{error:#}"))
}

fn parse_zone(body: &[u8]) -> Result<Zone> {
    let parsed: ZoneJson = serde_json::from_slice(body).context("the zone is not one")?;
    let default = parsed.default_ip.filter(|ip| !ip.is_empty());
    let default = default.map(|ip| {
        ip.parse()
            .with_context(|| format!("DefaultIP {ip} is not an address"))
    });
    let mut zone = Zone::new(parsed.name);
    zone.default = default.transpose()?;
    for record in parsed.records.unwrap_or_default() {
        if record.regexp.is_some_and(|regexp| !regexp.is_null()) {
            anyhow::bail!(
                "a record has a Regexp, which is not supported; write a Name, or the DefaultIP of a \
                 zone"
            );
        }
        zone.records.push((record.name, record.ip));
    }
    Ok(zone)
}

/// Returns the destination in the query of a `/tunnel` request.
pub(super) fn tunnel_destination(query: &str) -> Result<SocketAddr> {
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(key, _)| *key == name).map(|(_, value)| value);
        found.with_context(|| format!("the query has no {name}"))
    };
    let ip: IpAddr = value("ip")?
        .parse()
        .context("the ip of the query is not an address")?;
    let port: u16 = value("port")?
        .parse()
        .context("the port of the query is not a number")?;
    Ok((ip, port).into())
}

/// Parses bytes as a zone and as the query of a tunnel, for the fuzz target.
pub(super) fn parse_any(bytes: &[u8]) {
    if let Err(error) = parse_zone(bytes) {
        assert!(!format!("{error:#}").is_empty());
    }
    let _ = tunnel_destination(&String::from_utf8_lossy(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_have_the_names_of_gvproxy() {
        let text = br#"{"Name":"apps.test.","Records":[{"Name":"a","IP":"192.168.127.2",
            "Regexp":null}],"DefaultIP":"192.168.127.254"}"#;
        let zone = parse_zone(text).unwrap();
        assert_eq!(zone.name, "apps.test.");
        assert_eq!(zone.records, [("a".to_owned(), [192, 168, 127, 2].into())]);
        assert_eq!(zone.default, Some([192, 168, 127, 254].into()));
        let zone = parse_zone(br#"{"Name":"x.","Records":null,"DefaultIP":""}"#).unwrap();
        assert_eq!((zone.records.len(), zone.default), (0, None));
        for text in [
            &br#"{"Records":[]}"#[..],
            br#"{"Name":"x","DefaultIP":"y"}"#,
            br#"{"Name":"x","Records":[{"IP":"192.168.127.2","Regexp":"a.*"}]}"#,
        ] {
            assert!(parse_zone(text).is_err());
        }
    }

    #[test]
    fn a_tunnel_has_an_address_and_a_port() {
        let to = tunnel_destination("ip=192.168.127.2&port=22").unwrap();
        assert_eq!(to, "192.168.127.2:22".parse().unwrap());
        for query in [
            "",
            "ip=192.168.127.2",
            "ip=x&port=22",
            "ip=192.168.127.2&port=x",
        ] {
            assert!(tunnel_destination(query).is_err(), "{query}");
        }
    }
}
