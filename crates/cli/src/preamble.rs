//! The preamble of each connection, with which the client requests a test from the server.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Length of a preamble, in bytes.
pub(crate) const LEN: usize = 36;
/// The first bytes of every preamble; the digit is the version.
const MAGIC: [u8; 4] = *b"FSP1";
/// Longest name of a congestion control, which matches Linux (`TCP_CA_NAME_MAX`).
const NAME_MAX: usize = 16;

/// Request for the counters of the server's stack, on a connection with [`Role::Counters`].
pub(crate) const REQUEST_COUNTERS: u8 = 0;
/// Request for the send report of the test's sources after all have ended, on a connection with
/// [`Role::Counters`].
pub(crate) const REQUEST_SEND_REPORT: u8 = 1;

/// The server's role on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Reads to the end of the stream, and then answers with a [`Receipt`].
    Sink,
    /// Sends messages for some time, and then ends the stream.
    Source {
        /// Duration in milliseconds.
        time_ms: u32,
        /// Length of a message in bytes.
        message: u32,
    },
    /// Answers each request with a response.
    Rr {
        /// Length of a request in bytes.
        request: u32,
        /// Length of a response in bytes.
        response: u32,
    },
    /// Answers one request with a response, and ends the stream.
    Crr {
        /// Length of the request in bytes.
        request: u32,
        /// Length of the response in bytes.
        response: u32,
    },
    /// Answers each request byte ([`REQUEST_COUNTERS`] or [`REQUEST_SEND_REPORT`]) with a length and
    /// JSON.
    Counters,
}

/// The fields of a preamble.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Preamble {
    /// The server's role.
    pub(crate) role: Role,
    /// Whether the stream carries the pattern at its offsets, to be verified.
    pub(crate) verify: bool,
    /// Whether the server sets `TCP_NODELAY`, too.
    pub(crate) nodelay: bool,
    /// The value of `TCP_CONGESTION` that the server sets, too.
    pub(crate) congestion: Option<String>,
    /// A number that the client chooses for all connections of one test.
    pub(crate) test: u32,
}

impl Preamble {
    /// Returns the bytes of the preamble, in network order.
    pub(crate) fn emit(&self) -> [u8; LEN] {
        let (kind, a, b) = match self.role {
            Role::Sink => (1, 0, 0),
            Role::Source { time_ms, message } => (2, time_ms, message),
            Role::Rr { request, response } => (3, request, response),
            Role::Counters => (4, 0, 0),
            Role::Crr { request, response } => (5, request, response),
        };
        let mut out = [0; LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = kind;
        out[5] = u8::from(self.verify) | u8::from(self.nodelay) << 1;
        out[8..12].copy_from_slice(&u32::to_be_bytes(a));
        out[12..16].copy_from_slice(&u32::to_be_bytes(b));
        out[16..20].copy_from_slice(&self.test.to_be_bytes());
        let name = self.congestion.as_deref().unwrap_or("").as_bytes();
        let len = name.len().min(NAME_MAX);
        out[20..20 + len].copy_from_slice(&name[..len]);
        out
    }

    /// Parses the bytes of a preamble.
    pub(crate) fn parse(data: &[u8; LEN]) -> io::Result<Self> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        if data[..4] != MAGIC {
            return Err(bad(
                "the client is not `fullsend perf` of this version; use the same version on both \
                 sides",
            ));
        }
        let word =
            |at: usize| u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        let size = |at: usize| match word(at) {
            n @ 1..=0x4000_0000 => Ok(n),
            n => Err(bad(&format!(
                "a message size of {n} bytes is out of range; use 1 to 1G"
            ))),
        };
        let role = match data[4] {
            1 => Role::Sink,
            2 => Role::Source {
                time_ms: word(8),
                message: size(12)?,
            },
            3 => Role::Rr {
                request: size(8)?,
                response: size(12)?,
            },
            4 => Role::Counters,
            5 => Role::Crr {
                request: size(8)?,
                response: size(12)?,
            },
            other => {
                return Err(bad(&format!(
                    "test number {other} is not known; use the same version of `fullsend perf` on \
                     both sides"
                )));
            }
        };
        let name: Vec<u8> = data[20..].iter().copied().take_while(|&b| b != 0).collect();
        let name = String::from_utf8(name).map_err(|_| {
            bad(
                "the name of the congestion control is not UTF-8; use the same version of \
                 `fullsend perf` on both sides",
            )
        })?;
        Ok(Self {
            role,
            verify: data[5] & 1 != 0,
            nodelay: data[5] & 2 != 0,
            congestion: (!name.is_empty()).then_some(name),
            test: word(16),
        })
    }

    /// Reads a preamble.
    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut data = [0; LEN];
        from.read_exact(&mut data).await?;
        Self::parse(&data)
    }
}

/// The answer of a sink at the end of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Receipt {
    /// Bytes received.
    pub(crate) bytes: u64,
    /// Offset of the first byte that differs from the pattern, if there is one and the data was verified.
    pub(crate) first_bad: Option<u64>,
}

impl Receipt {
    /// Writes the receipt.
    pub(crate) async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.bytes.to_be_bytes());
        out[8..].copy_from_slice(&self.first_bad.unwrap_or(u64::MAX).to_be_bytes());
        to.write_all(&out).await
    }

    /// Reads a receipt.
    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let bytes = from.read_u64().await?;
        let first_bad = from.read_u64().await?;
        Ok(Self {
            bytes,
            first_bad: (first_bad != u64::MAX).then_some(first_bad),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Preamble, Role};

    #[test]
    fn emitted_preambles_parse() {
        let roles = [
            Role::Sink,
            Role::Source {
                time_ms: 1500,
                message: 128,
            },
            Role::Rr {
                request: 1,
                response: 1 << 30,
            },
            Role::Counters,
        ];
        for role in roles {
            for congestion in [
                None,
                Some("cubic".to_owned()),
                Some("sixteen-letters.".into()),
            ] {
                for bits in 0..4 {
                    let preamble = Preamble {
                        role,
                        verify: bits & 1 != 0,
                        nodelay: bits & 2 != 0,
                        congestion: congestion.clone(),
                        test: 0xdead_beef,
                    };
                    assert_eq!(Preamble::parse(&preamble.emit()).unwrap(), preamble);
                }
            }
        }
    }

    #[test]
    fn invalid_preambles_are_rejected() {
        let good = Preamble {
            role: Role::Rr {
                request: 1,
                response: 1,
            },
            verify: false,
            nodelay: false,
            congestion: None,
            test: 0,
        }
        .emit();
        let with = |at: usize, byte: u8| {
            let mut bad = good;
            bad[at] = byte;
            Preamble::parse(&bad)
        };
        assert!(with(0, b'G').is_err(), "magic");
        assert!(with(4, 9).is_err(), "kind");
        assert!(with(11, 0).is_err(), "no request bytes");
        assert!(with(8, 0x7f).is_err(), "2 GiB request");
        assert!(with(20, 0xff).is_err(), "name not text");
    }
}
