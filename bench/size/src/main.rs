//! An echo server over TCP on a TUN device: nothing else of the stack is used.

use fullsend::{Stack, TcpListener};

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let stack = Stack::builder()
            .tun("fs0")
            .address("10.9.0.2/24")
            .memory_bytes(15 << 20)
            .build()?;
        let listener = TcpListener::bind(&stack, "10.9.0.2:7")?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await
            });
        }
    })
}
