//! TCP options in a script: in order, padding included.

use std::fmt;

/// A TCP option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TcpOption {
    /// End of the list.
    Eol,
    /// Padding.
    Nop,
    /// Maximum segment size.
    Mss(u16),
    /// Window scale.
    WindowScale(u8),
    /// SACK permitted.
    SackPermitted,
    /// SACK blocks, relative to the ISN of the end that sent the data.
    Sack(Vec<(u32, u32)>),
    /// Timestamps.
    Timestamps {
        /// TSval.
        val: u32,
        /// TSecr.
        ecr: u32,
    },
    /// TCP Fast Open (RFC 7413); an empty cookie requests one.
    FastOpen {
        /// The cookie.
        cookie: Vec<u8>,
        /// Use the experimental option 254 with magic 0xf989.
        experimental: bool,
    },
    /// Accurate ECN (RFC 9768 3.2.3).
    AccEcn {
        /// E1B first (kind 174) rather than E0B first (kind 172).
        e1b_first: bool,
        /// The counters in wire order, 24 bits each.
        counters: Vec<u32>,
    },
    /// Any other option.
    Other {
        /// Kind.
        kind: u8,
        /// The bytes after kind and length.
        data: Vec<u8>,
    },
}

const MAGIC_FAST_OPEN: [u8; 2] = [0xf9, 0x89];
const ACC_ECN0: u8 = 172;
const ACC_ECN1: u8 = 174;

impl TcpOption {
    /// Appends the bytes of the option to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Eol => out.push(0),
            Self::Nop => out.push(1),
            Self::Mss(mss) => with_data(out, 2, &mss.to_be_bytes()),
            Self::WindowScale(shift) => with_data(out, 3, &[*shift]),
            Self::SackPermitted => with_data(out, 4, &[]),
            Self::Sack(blocks) => {
                let words = blocks.iter().flat_map(|&(left, right)| [left, right]);
                let data: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
                with_data(out, 5, &data);
            }
            Self::Timestamps { val, ecr } => {
                let data: Vec<u8> = [*val, *ecr]
                    .into_iter()
                    .flat_map(u32::to_be_bytes)
                    .collect();
                with_data(out, 8, &data);
            }
            Self::FastOpen {
                cookie,
                experimental: false,
            } => with_data(out, 34, cookie),
            Self::FastOpen {
                cookie,
                experimental: true,
            } => with_data(out, 254, &[&MAGIC_FAST_OPEN[..], cookie].concat()),
            Self::AccEcn {
                e1b_first,
                counters,
            } => {
                let bytes = counters
                    .iter()
                    .flat_map(|c| c.to_be_bytes().into_iter().skip(1));
                let kind = if *e1b_first { ACC_ECN1 } else { ACC_ECN0 };
                with_data(out, kind, &bytes.collect::<Vec<u8>>());
            }
            Self::Other { kind, data } => with_data(out, *kind, data),
        }
    }

    /// Parses the options of a header, up to the first of an impossible length.
    pub fn parse_all(mut bytes: &[u8]) -> Vec<Self> {
        let mut options = Vec::new();
        while let Some((&kind, rest)) = bytes.split_first() {
            if kind < 2 {
                options.push(if kind == 0 { Self::Eol } else { Self::Nop });
                bytes = rest;
                continue;
            }
            let Some(len) = bytes.get(1).map(|&len| usize::from(len)) else {
                break;
            };
            if len < 2 || len > bytes.len() {
                break;
            }
            options.push(Self::parse(kind, &bytes[2..len]));
            bytes = &bytes[len..];
        }
        options
    }

    fn parse(kind: u8, data: &[u8]) -> Self {
        match (kind, data.len()) {
            (2, 2) => Self::Mss(u16::from_be_bytes([data[0], data[1]])),
            (3, 1) => Self::WindowScale(data[0]),
            (4, 0) => Self::SackPermitted,
            (5, len) if len > 0 && len % 8 == 0 => Self::Sack(
                data.chunks_exact(8)
                    .map(|block| (be32(block), be32(&block[4..])))
                    .collect(),
            ),
            (8, 8) => Self::Timestamps {
                val: be32(data),
                ecr: be32(&data[4..]),
            },
            (34, _) => Self::FastOpen {
                cookie: data.to_vec(),
                experimental: false,
            },
            (254, 2..) if data[..2] == MAGIC_FAST_OPEN => Self::FastOpen {
                cookie: data[2..].to_vec(),
                experimental: true,
            },
            (ACC_ECN0 | ACC_ECN1, 0 | 3 | 6 | 9) => Self::AccEcn {
                e1b_first: kind == ACC_ECN1,
                counters: data
                    .chunks_exact(3)
                    .map(|c| u32::from_be_bytes([0, c[0], c[1], c[2]]))
                    .collect(),
            },
            _ => Self::Other {
                kind,
                data: data.to_vec(),
            },
        }
    }
}

fn with_data(out: &mut Vec<u8>, kind: u8, data: &[u8]) {
    out.push(kind);
    out.push((data.len() + 2) as u8);
    out.extend_from_slice(data);
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eol => f.write_str("eol"),
            Self::Nop => f.write_str("nop"),
            Self::Mss(mss) => write!(f, "mss {mss}"),
            Self::WindowScale(shift) => write!(f, "wscale {shift}"),
            Self::SackPermitted => f.write_str("sackOK"),
            Self::Sack(blocks) => {
                f.write_str("sack")?;
                blocks.iter().try_for_each(|(l, r)| write!(f, " {l}:{r}"))
            }
            Self::Timestamps { val, ecr } => write!(f, "TS val {val} ecr {ecr}"),
            Self::FastOpen {
                cookie,
                experimental,
            } => {
                f.write_str(if *experimental { "FOEXP" } else { "FO" })?;
                if !cookie.is_empty() {
                    f.write_str(" ")?;
                }
                cookie.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
            Self::AccEcn {
                e1b_first,
                counters,
            } => {
                let names = if *e1b_first {
                    ["e1b", "ceb", "e0b"]
                } else {
                    ["e0b", "ceb", "e1b"]
                };
                f.write_str("ECN")?;
                let mut pairs = names.iter().zip(counters);
                pairs.try_for_each(|(name, count)| write!(f, " {name} {count}"))
            }
            Self::Other { kind, data } => {
                write!(f, "opt{kind}")?;
                data.iter().try_for_each(|b| write!(f, " {b:02x}"))
            }
        }
    }
}
