//! An axum server on a userspace stack: see docs/examples.md.

use std::io;
use std::net::Ipv4Addr;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use fullsend::{Stack, TcpListener};

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let stack = Stack::builder()
        .tun("fs0")
        .address("10.9.0.2/24")
        .kernel_address("10.9.0.1/24")
        .build()?;
    let listener = TcpListener::bind(&stack, (Ipv4Addr::UNSPECIFIED, 80))?;
    println!("http://10.9.0.2/hello/NAME");
    let app = Router::new().route("/hello/{name}", get(hello));
    axum::serve(listener, app).await
}

async fn hello(Path(name): Path<String>) -> String {
    format!("Hello, {name}!\n")
}
