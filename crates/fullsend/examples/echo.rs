//! Two stacks in this process: an echo server on one, a client on the other. Needs neither root nor
//! a device: `cargo run --release -p fullsend --example echo`.

use std::io;

use fullsend::{Pair, Stack, TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let (here, there) = Stack::pair(&Pair::default())?;
    let listener = TcpListener::bind(&there, "[fd00::2]:7")?;
    tokio::spawn(async move {
        while let Ok((mut stream, from)) = listener.accept().await {
            println!("server: {from} connected");
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });

    let mut stream = TcpStream::connect(&here, "[fd00::2]:7").await?;
    stream.write_all(b"hello over a stack of our own").await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    println!("client: {answer}");
    for (name, value) in here.counters() {
        if value > 0 {
            println!("{name:32} {value}");
        }
    }
    Ok(())
}
