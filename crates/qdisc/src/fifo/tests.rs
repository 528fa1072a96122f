use super::Pfifo;
use crate::QueuedPacket;

#[derive(PartialEq, Debug)]
struct Packet(u32);

impl QueuedPacket for Packet {
    fn wire_len(&self) -> u32 {
        self.0
    }
}

#[test]
fn packets_leave_in_order_and_the_limit_drops_new_ones() {
    let mut fifo = Pfifo::new(2);
    assert!(fifo.is_empty());
    assert_eq!(fifo.dequeue(), None);
    assert_eq!(fifo.enqueue(Packet(100)), Ok(()));
    assert!(!fifo.is_empty());
    assert_eq!(fifo.enqueue(Packet(200)), Ok(()));
    for dropped in 1..=2 {
        assert_eq!(fifo.enqueue(Packet(300)), Err(Packet(300)));
        assert_eq!(fifo.stats().dropped, dropped);
    }
    let stats = fifo.stats();
    assert_eq!((stats.backlog_packets, stats.backlog_bytes), (2, 300));
    assert_eq!(fifo.dequeue(), Some(Packet(100)));
    assert_eq!(fifo.enqueue(Packet(400)), Ok(()));
    assert_eq!(fifo.dequeue(), Some(Packet(200)));
    assert_eq!(fifo.dequeue(), Some(Packet(400)));
    assert!(fifo.is_empty());
    let stats = fifo.stats();
    assert_eq!((stats.sent_packets, stats.sent_bytes), (3, 700));
    assert_eq!((stats.backlog_packets, stats.backlog_bytes), (0, 0));
}
