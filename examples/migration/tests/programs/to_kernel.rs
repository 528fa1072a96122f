//! The programs with fullsend's sockets as clients of tokio's, through a TUN device.

use fullsend_migration::{kernel as server, over_tun_to_kernel as run, stack as client};

use crate::redis_net::{on_kernel as server_redis, on_stack as client_redis};

#[path = "axum_app.rs"]
mod axum_app;
#[path = "mini_redis.rs"]
mod mini_redis;
#[path = "tcp.rs"]
mod tcp;
#[path = "udp.rs"]
mod udp;
