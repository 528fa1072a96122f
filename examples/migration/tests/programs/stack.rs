//! The programs with fullsend's sockets on two stacks, joined by an in-process link.

use fullsend_migration::{over_link as run, stack as client, stack as server};

use crate::redis_net::{on_stack as client_redis, on_stack as server_redis};

#[path = "axum_app.rs"]
mod axum_app;
#[path = "mini_redis.rs"]
mod mini_redis;
#[path = "tcp.rs"]
mod tcp;
#[path = "udp.rs"]
mod udp;
