//! Metrics in Prometheus' text format, over HTTP on a TCP port or a Unix socket.
//!
//! This module requires the crate's feature `metrics`.
//!
//! ```no_run
//! # async fn serve(gateway: &fullsend_gateway::Gateway) -> std::io::Result<()> {
//! use fullsend_gateway::metrics::MetricsSocket;
//!
//! let socket = MetricsSocket::bind(&"127.0.0.1:9100".parse().unwrap())?;
//! tokio::spawn(socket.serve(gateway.handle())?);
//! # Ok(()) }
//! ```

mod address;
mod collect;
mod request;
mod server;

pub use address::{MetricsAddress, MetricsAddressError};
#[doc(hidden)]
pub use request::{MAX_REQUEST, Parsed, parse};
pub use server::MetricsSocket;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::Handle;

impl Handle {
    /// Returns the metrics of the gateway and of its stack in the OpenMetrics text format, which
    /// Prometheus reads.
    pub fn metrics(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(collect::GatewayCollector::new(self)));
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        let _ = encode(&mut text, &registry);
        text
    }
}
