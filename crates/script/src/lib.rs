//! Packet scripts: tests of the stack that read as a trace.
//!
//! A script says which packets come from the remote end (`<`), which the stack must send (`>`),
//! and which socket calls an application makes, each with its time. Sequence numbers are relative.
//! It runs in virtual time, over IPv4, IPv6 and IPv4 under IPv6 sockets. The syntax is that of
//! packetdrill, so that a script that runs here runs there too; `docs/scripts.md` describes it.
#![deny(unsafe_code)]

mod code;
mod constants;
mod error;
mod info;
mod library;
pub mod parse;
mod run;
pub mod script;
mod shell;
pub mod tcp_option;

pub use code::check_code;
pub use error::{Pos, ScriptError};
pub use library::Library;
pub use parse::{define, parse};
pub use run::{
    Datagram, Failure, Family, LiveSegment, Report, families, run, run_through, segment_text,
};
