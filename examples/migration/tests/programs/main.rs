//! The migration list: programs for `tokio::net` that run on fullsend's sockets unchanged. Each is one
//! file, compiled for each of the four networks with the sockets that belong there.
#![allow(
    clippy::duplicate_mod,
    reason = "a program is compiled once for each network"
)]

mod kernel;
mod redis_net;
mod stack;
mod to_kernel;
mod to_stack;

// `redis_on_stack`: the library of mini-redis with the imports of `redis_net` (build.rs).
include!(concat!(env!("OUT_DIR"), "/mini_redis.rs"));
