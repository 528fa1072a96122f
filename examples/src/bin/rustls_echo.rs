//! A TLS echo server on a userspace stack: `rustls_echo CERTIFICATE` writes its certificate to the
//! file CERTIFICATE (DER), and echoes at 10.9.0.2:443. See docs/examples.md.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use fullsend::{Stack, TcpListener, TcpStream};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let Some(file) = std::env::args().nth(1) else {
        let text = "usage: rustls_echo CERTIFICATE";
        return Err(io::Error::new(ErrorKind::InvalidInput, text).into());
    };
    let own = rcgen::generate_simple_self_signed(["echo.example".to_owned()])?;
    std::fs::write(file, own.cert.der())?;
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())?;
    let acceptor = TlsAcceptor::from(Arc::new(config));

    let stack = Stack::builder()
        .tun("fs0")
        .address("10.9.0.2/24")
        .kernel_address("10.9.0.1/24")
        .build()?;
    let listener = TcpListener::bind(&stack, "10.9.0.2:443")?;
    println!("echo.example is at 10.9.0.2:443");
    loop {
        let (stream, from) = listener.accept().await?;
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            if let Err(error) = echo(acceptor, stream).await {
                eprintln!("{from}: {error}");
            }
        });
    }
}

async fn echo(acceptor: TlsAcceptor, stream: TcpStream) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(acceptor.accept(stream).await?);
    tokio::io::copy(&mut reader, &mut writer).await?;
    // Sends the close_notify alert, and a FIN.
    writer.shutdown().await
}
