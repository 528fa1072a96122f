//! A hyper client on a userspace stack: `hyper_client IP:PORT /PATH` prints what the server answers.
//! See docs/examples.md.

use std::error::Error;
use std::io::{self, ErrorKind};

use fullsend::{Stack, TcpStream};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(server), Some(path)) = (args.next(), args.next()) else {
        let text = "usage: hyper_client IP:PORT /PATH";
        return Err(io::Error::new(ErrorKind::InvalidInput, text).into());
    };
    let stack = Stack::builder()
        .tun("fs0")
        .address("10.9.0.2/24")
        .kernel_address("10.9.0.1/24")
        .gateway([10, 9, 0, 1])
        .build()?;
    let stream = TcpStream::connect(&stack, server.as_str()).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);

    let request = Request::get(path)
        .header("host", server)
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    println!("{}", response.status());
    let body = response.into_body().collect().await?.to_bytes();
    print!("{}", String::from_utf8_lossy(&body));
    Ok(())
}
