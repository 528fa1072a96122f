//! Requests for metrics: HTTP/1.0 and 1.1, one on each connection.

use httparse::{EMPTY_HEADER, Request, Status};

/// Maximum length of a request in bytes, without a body.
pub const MAX_REQUEST: usize = 8192;
/// Maximum number of header fields.
const MAX_FIELDS: usize = 64;
/// The path of the metrics.
const PATH: &str = "/metrics";

/// The state of a request, given the bytes received so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// The bytes are the beginning of a request.
    Incomplete,
    /// A request for the metrics: GET, or HEAD.
    Metrics {
        /// Whether the answer has no body.
        head: bool,
    },
    /// A request that is refused: the status, and its reason.
    Refused(u16, &'static str),
}

/// Parses the bytes received so far, at most [`MAX_REQUEST`].
pub fn parse(bytes: &[u8]) -> Parsed {
    let mut fields = [EMPTY_HEADER; MAX_FIELDS];
    let mut request = Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) if bytes.len() < MAX_REQUEST => return Parsed::Incomplete,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Refused(431, "Request Header Fields Too Large");
        }
        Err(_) => return Parsed::Refused(400, "Bad Request"),
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    match (request.method, path) {
        (Some("GET"), PATH) => Parsed::Metrics { head: false },
        (Some("HEAD"), PATH) => Parsed::Metrics { head: true },
        (_, PATH) => Parsed::Refused(405, "Method Not Allowed"),
        _ => Parsed::Refused(404, "Not Found"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_the_metrics() {
        for (text, head) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", false),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", false),
            ("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", true),
        ] {
            assert_eq!(parse(text.as_bytes()), Parsed::Metrics { head }, "{text}");
            for len in 0..text.len() {
                let part = &text.as_bytes()[..len];
                assert_eq!(parse(part), Parsed::Incomplete, "{len} bytes of {text}");
            }
        }
    }

    #[test]
    fn other_requests_are_refused_with_their_status() {
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(65));
        let long = format!("GET /metrics HTTP/1.1\r\nA: {}", "b".repeat(MAX_REQUEST));
        for (text, status) in [
            ("GET / HTTP/1.1\r\n\r\n", 404),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", 404),
            ("POST /metrics HTTP/1.1\r\n\r\n", 405),
            ("GET /metrics HTTP/2.0\r\n\r\n", 400),
            ("\x16\x03\x01\x02\x00", 400),
            (&many, 431),
            (&long[..MAX_REQUEST], 431),
        ] {
            let Parsed::Refused(got, _) = parse(text.as_bytes()) else {
                panic!("{text}");
            };
            assert_eq!(got, status, "{text}");
        }
    }
}
