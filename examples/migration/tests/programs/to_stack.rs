//! The programs with tokio's sockets as clients of fullsend's, through a TUN device.

use fullsend_migration::{kernel as client, over_tun_to_stack as run, stack as server};

use crate::redis_net::{on_kernel as client_redis, on_stack as server_redis};

#[path = "axum_app.rs"]
mod axum_app;
#[path = "mini_redis.rs"]
mod mini_redis;
#[path = "tcp.rs"]
mod tcp;
#[path = "udp.rs"]
mod udp;
