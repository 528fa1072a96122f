//! The programs with tokio's sockets on the kernel's loopback interface: what they do there is the reference.

use fullsend_migration::{kernel as client, kernel as server, over_loopback as run};

use crate::redis_net::{on_kernel as client_redis, on_kernel as server_redis};

#[path = "axum_app.rs"]
mod axum_app;
#[path = "mini_redis.rs"]
mod mini_redis;
#[path = "tcp.rs"]
mod tcp;
#[path = "udp.rs"]
mod udp;
