//! Packet scripts: tests of the stack in the form of a trace.
//!
//! A script lists the packets that the remote end sends (`<`), the packets that the stack must send
//! (`>`) and the socket calls of the application, each with its time. Sequence numbers are
//! relative. It runs in virtual time, over IPv4, IPv6 and IPv4 under IPv6 sockets. The syntax is
//! that of packetdrill, so that the same scripts run there; `docs/scripts.md` describes it.
#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("fullsend-script needs Linux: it uses system calls that other systems do not have");

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
    Failure, Family, IpPacket, Report, WireSegment, families, run, run_through, segment_text,
};
