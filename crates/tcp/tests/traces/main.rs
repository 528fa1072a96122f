//! The rules of TCP as traces: packets in, packets out, on virtual time.

mod accecn;
mod closing;
mod dctcp;
mod defer;
mod ecn;
mod frto;
mod handshake;
mod harness;
mod info;
mod legacy;
mod mtu_probing;
mod pacing;
mod push;
mod rack;
mod receiving;
mod records;
mod recovery;
mod sending;
mod small_queue;
mod table;
mod time_wait;
mod timers;
mod undo;
mod urgent;
mod validity;
