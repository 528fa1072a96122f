//! The names of hosts in calls that connect or send.

use std::io::ErrorKind;

use fullsend::{TcpListener, TcpStream, UdpSocket};
use fullsend_simnet::Simulation;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn hosts_connect_and_send_to_each_other_by_name() {
    let mut sim = Simulation::new(1);
    sim.host("server", async |host| {
        let udp = UdpSocket::bind(host.stack(), "0.0.0.0:53")?;
        let listener = TcpListener::bind(host.stack(), "[::]:80")?;
        let mut buf = [0; 8];
        let (len, from) = udp.recv_from(&mut buf).await?;
        udp.send_to(&buf[..len], from).await?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            stream.write_all(b"data").await?;
        }
    })
    .unwrap();
    sim.client("client", async |host| {
        let udp = UdpSocket::bind(host.stack(), "0.0.0.0:0")?;
        udp.send_to(b"query", "server:53").await?;
        let (len, from) = udp.recv_from(&mut [0; 8]).await?;
        assert_eq!((len, from), (5, host.resolve("server:53")?));
        let mut stream = TcpStream::connect(host.stack(), ("server", 80)).await?;
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await?;
        assert_eq!(received, b"data");
        // The network has both families; the first is used.
        let found = host.stack().lookup_host("server:80").await?;
        let v4 = host.net().address("server")?;
        let v6 = host.net().address_v6("server")?;
        assert!(found.map(|addr| addr.ip()).eq([v4, v6]));
        Ok(())
    })
    .unwrap();
    sim.connect("client", "server", "delay 10ms").unwrap();
    sim.run().unwrap();
}

#[test]
fn an_unknown_name_is_not_found() {
    let mut sim = Simulation::new(1);
    sim.client("client", async |host| {
        let error = TcpStream::connect(host.stack(), "nowhere:80")
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("nowhere"), "{error}");
        Ok(())
    })
    .unwrap();
    sim.run().unwrap();
}

/// The resolver does not keep the network: what a host owns is dropped with the simulation.
#[test]
fn a_simulation_whose_hosts_used_names_ends() {
    let owned = std::sync::Arc::new(());
    let mut sim = Simulation::new(1);
    let server = owned.clone();
    sim.host("server", move |host| {
        let server = server.clone();
        async move {
            let _listener = TcpListener::bind(host.stack(), "0.0.0.0:80")?;
            std::future::pending::<()>().await;
            drop(server);
            Ok(())
        }
    })
    .unwrap();
    let stack = owned.clone();
    sim.client("client", async move |host| {
        struct Own(std::sync::Arc<()>);
        impl fullsend::Resolve for Own {
            fn resolve<'a>(
                &'a self,
                _: &'a fullsend::Stack,
                _: &'a str,
            ) -> fullsend::Resolving<'a> {
                let kept = self.0.clone();
                Box::pin(async move {
                    drop(kept);
                    Err(ErrorKind::NotFound.into())
                })
            }
        }
        TcpStream::connect(host.stack(), "server:80").await?;
        host.stack().set_resolver(Own(stack));
        let error = host.stack().lookup_host("server:80").await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        Ok(())
    })
    .unwrap();
    sim.connect("client", "server", "delay 10ms").unwrap();
    sim.run().unwrap();
    drop(sim);
    assert_eq!(std::sync::Arc::strong_count(&owned), 1);
}
