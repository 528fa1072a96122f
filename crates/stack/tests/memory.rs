//! What sockets there are, what memory they hold, and when their writers are told of room.

mod common;

use common::{Net, Nic, V4};
use fullsend_offload::Link;
use fullsend_units::Nanos;

#[test]
fn sockstat_tells_of_sockets_as_linux_does() {
    let mut net = Net::new(Link::Ip, Nic::Tso);
    let line = |net: &Net, who: usize| net.hosts[who].sockstat().to_string();
    assert_eq!(line(&net, 0), "TCP: inuse 0 orphan 0 tw 0 alloc 0 mem 0");
    let (client, server, _) = net.connect(&format!("{}:80", V4[1]));
    assert_eq!(line(&net, 1), "TCP: inuse 2 orphan 0 tw 0 alloc 2 mem 0");
    let now = net.now;
    net.hosts[0].tcp_write(now, client, b"x", false).unwrap();
    assert_eq!(line(&net, 0), "TCP: inuse 1 orphan 0 tw 0 alloc 1 mem 1");
    net.run_for(Nanos::from_millis(100));
    assert_eq!(line(&net, 1), "TCP: inuse 2 orphan 0 tw 0 alloc 2 mem 1");
    net.hosts[1].tcp_read(net.now, server, &mut [0; 9]).unwrap();
    net.hosts[0].tcp_close(net.now, client);
    assert_eq!(line(&net, 0), "TCP: inuse 1 orphan 1 tw 0 alloc 1 mem 0");
    net.run_for(Nanos::from_millis(100));
    net.hosts[1].tcp_close(net.now, server);
    net.run_for(Nanos::from_millis(100));
    assert_eq!(line(&net, 0), "TCP: inuse 0 orphan 0 tw 1 alloc 0 mem 0");
    assert_eq!(line(&net, 1), "TCP: inuse 1 orphan 0 tw 0 alloc 1 mem 0");
}
