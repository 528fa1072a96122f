//! A transparent gateway: it receives SYNs for any destination, connects to the destination first,
//! and answers the client after that. Here the client connects to 203.0.113.9:80 and the gateway
//! answers for it; destinations with an odd port are rejected.

use std::io;

use fullsend::{Pair, Stack, TcpStream, TransparentListener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let (client, gateway) = Stack::pair(&Pair::default())?;
    let listener = TransparentListener::any(&gateway, 128)?;
    tokio::spawn(async move {
        while let Ok(pending) = listener.accept().await {
            let (from, to) = (pending.peer_addr(), pending.local_addr());
            println!("gateway: {from} connects to {to}");
            if to.port() % 2 == 1 {
                pending.reject();
                continue;
            }
            // Here a gateway would connect to `to`, with the client's SYN still unanswered.
            tokio::spawn(async move {
                let mut stream = pending.accept().await?;
                stream
                    .write_all(format!("you reached {to}").as_bytes())
                    .await?;
                stream.shutdown().await
            });
        }
    });

    let mut stream = TcpStream::connect(&client, "203.0.113.9:80").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    println!("client: {answer}");
    match TcpStream::connect(&client, "203.0.113.9:81").await {
        Err(error) => println!("client: port 81: {error}"),
        Ok(_) => println!("client: port 81 accepted a connection, which was not expected"),
    }
    Ok(())
}
