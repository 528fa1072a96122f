//! Two hosts exchange data while a third sends them what it should not: nothing is reset, every
//! byte is right, memory stays within its bound, and the flows lose little.
//!
//! In a release build each attack is a million packets, in a debug build twenty thousand;
//! `FULLSEND_ATTACK_PACKETS` says otherwise.

#[path = "../common/mod.rs"]
mod common;

mod datagrams;
mod heap;
mod icmp;
mod injection;
mod resets;
mod rogue;
mod siege;
mod syn_flood;
