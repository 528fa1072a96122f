//! Two hosts exchange data while a third one attacks them: no connection is reset, every byte is
//! correct, memory stays within its bound, and the flows lose little throughput.
//!
//! An attack has a million packets in a release build and twenty thousand in a debug build, unless
//! `FULLSEND_ATTACK_PACKETS` is set.

#[path = "../common/mod.rs"]
mod common;

mod attack_bench;
mod datagrams;
mod heap;
mod icmp;
mod injection;
mod resets;
mod rogue;
mod syn_flood;
